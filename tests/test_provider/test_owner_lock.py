"""Which epoch has a living owner, as far as locks tell."""

import os
from pathlib import Path

from provider.posix.locks import OwnerLock, PresenceLock


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
    assert presence.is_alone(), "its own byte is in nobody's way"
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
