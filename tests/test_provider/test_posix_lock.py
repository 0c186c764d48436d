"""The lock that tells who is alive, when somebody removes its file or puts another in its place."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from provider.posix.locks import OwnerLock, PresenceLock
from provider.posix.store import PosixStore


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[PresenceLock]:
    lock = PresenceLock(str(tmp_path / "@lock"))
    assert lock.is_alone()
    yield lock
    lock.close()


def test_an_owner_whose_lock_file_was_removed_is_still_seen(
    owner: PresenceLock, tmp_path: Path
) -> None:
    (tmp_path / "@lock").unlink()
    successor = PresenceLock(str(tmp_path / "@lock"))
    assert not successor.is_alone()
    assert not owner.is_alone()
    owner.close()
    assert successor.is_alone()
    successor.close()


def test_an_owner_whose_lock_file_was_replaced_shares_the_new_one(
    owner: PresenceLock, tmp_path: Path
) -> None:
    path = tmp_path / "@lock"
    path.rename(tmp_path / "away")
    path.write_text("another")
    assert owner.is_alone()
    assert str(os.getpid()) in path.read_text()


def test_an_owner_whose_lock_file_was_removed_makes_it_anew(
    owner: PresenceLock, tmp_path: Path
) -> None:
    (tmp_path / "@lock").unlink()
    assert owner.is_alone()
    assert str(os.getpid()) in (tmp_path / "@lock").read_text()


def test_names_in_one_directory_are_held_apart(owner: PresenceLock, tmp_path: Path) -> None:
    other = PresenceLock(str(tmp_path / "@other"))
    assert other.is_alone()
    assert owner.is_alone()
    other.close()


def test_a_closed_lock_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    lock = PresenceLock(str(tmp_path / "@lock"))
    lock.is_alone()
    (tmp_path / "@lock").unlink()
    lock.is_alone()
    lock.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_store_sees_an_owner_whose_lock_file_was_removed(tmp_path: Path) -> None:
    async def alone() -> list[bool]:
        first, second = PosixStore(tmp_path), PosixStore(tmp_path)
        answers = [await first.register("@lock")]
        (tmp_path / "@lock").unlink()
        answers.append(await second.register("@lock"))
        await first.close()
        answers.append(await second.register("@lock"))
        await second.close()
        return answers

    assert asyncio.run(alone()) == [True, False, True]


def test_only_the_epoch_that_is_held_is_seen_and_only_by_others(tmp_path: Path) -> None:
    path = str(tmp_path / "@lock")
    owner, other = OwnerLock(path), OwnerLock(path)
    assert not other.is_held()
    assert not (tmp_path / "@lock").exists(), "asking makes no file"
    owner.hold(3)
    assert not owner.is_held(3)
    assert not owner.is_held()
    assert other.is_held(3)
    assert other.is_held()
    assert not other.is_held(2)
    assert not other.is_held(4)
    other.hold(3)
    assert owner.is_held(3), "two starts that try one epoch see each other"
    other.close()
    owner.close()
    assert not OwnerLock(path).is_held()


def test_presence_and_ownership_are_two_questions(tmp_path: Path) -> None:
    path = str(tmp_path / "@lock")
    presence, owner = PresenceLock(path), OwnerLock(path)
    assert not OwnerLock(path).is_held(), "a start that only registered owns nothing"
    owner.hold(1)
    assert presence.is_alone(), "its own byte blocks no lock"
    owner.close()
    presence.close()


def test_an_owner_of_a_version_before_looks_like_the_owner_of_every_epoch(tmp_path: Path) -> None:
    import fcntl  # noqa: PLC0415 - what that version did
    import struct  # noqa: PLC0415

    path = tmp_path / "@lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        whole = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(fd, 37, whole)  # F_OFD_SETLK
        assert OwnerLock(str(path)).is_held(17)
        presence = PresenceLock(str(path))
        assert not presence.is_alone()
        presence.close()
    finally:
        os.close(fd)
