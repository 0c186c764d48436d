"""The lock that tells who is alive, when somebody removes its file or puts another in its place."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from provider.posix.locks import PresenceLock
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
