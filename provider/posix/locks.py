"""Which stores are present, and which epoch has a living owner: locks on one file.

Versions before the second question shared the lock of the whole file, so an owner of theirs that
lives looks like the owner of every epoch.
"""

import errno
import fcntl
import os
import socket
import struct
import zlib
from typing import Final

from provider.posix.files import Lacking

_F_OFD_GETLK: Final = 36  # linux/fcntl.h, the same on every architecture
_F_OFD_SETLK: Final = 37
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid
_PRESENCE_BYTES: Final = 1 << 62
"""Bytes of the file that everybody present shares; above them each epoch has a byte."""
_TO_THE_END: Final = 0
_NEW_OR_OLD: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_DIRECTORY_LOCKS: Final = frozenset(
    {errno.EACCES, errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.EOPNOTSUPP}
)
"""What file systems answer that lock files but no directories, and directories not to be read."""


class PresenceLock:
    """A share of the lock on one file, kept until `close` or until the process dies.

    Everybody has a share, nobody ever locks exclusively: whether an exclusive lock *could* be had
    is asked without taking it. So registering never fails, and never waits for a paused process.
    Open file description locks (fcntl(2)) are used: flock(2) cannot ask. A child that is forked
    without an exec keeps the share alive.

    A file can be removed while it is locked, and the next owner would lock another one and believe
    itself alone. So one byte of the directory, which cannot be removed while a tier lies in it, is
    locked in the same way, where the file system offers that. An owner that asks again joins those
    who lock whatever file has the name by then.
    """

    def __init__(self, path: str) -> None:
        """Take a share; the directory of `path` is there.

        Raises:
            OSError: the file cannot be made, or the file system offers no locks.
        """
        self._path = path
        self._files: list[int] = []
        self._byte = zlib.crc32(os.path.basename(path).encode())  # noqa: PTH119 - a plain string
        self._directory = -1
        try:
            self._directory = self._shared_directory()
            self._join()
        except BaseException:
            self.close()
            raise

    def is_alone(self) -> bool:
        """Whether nobody else has a share just now. Writes who we are into the file, for people.

        Raises:
            OSError: the file system offers no locks.
        """
        self._join()
        if not all(_is_free(fd, 0, _PRESENCE_BYTES) for fd in self._files):
            return False
        if self._directory >= 0 and not _is_free(self._directory, self._byte, 1):
            return False
        note = f"process {os.getpid()} on {socket.gethostname()} writes here\n".encode()
        os.ftruncate(self._files[-1], 0)
        os.pwrite(self._files[-1], note, 0)
        return True

    def close(self) -> None:
        """Let go. Idempotent."""
        while self._files:
            os.close(self._files.pop())
        if self._directory >= 0:
            os.close(self._directory)
        self._directory = -1

    def _join(self) -> None:
        """Take a share of the file that has the name now, if it is not ours already."""
        fd = os.open(self._path, _NEW_OR_OLD, 0o666)
        found = os.fstat(fd)
        if any(os.path.samestat(found, os.fstat(known)) for known in self._files):
            os.close(fd)
            return
        try:
            _share(fd, 0, _PRESENCE_BYTES)
        except BaseException:
            os.close(fd)
            raise
        self._files.append(fd)

    def _shared_directory(self) -> int:
        """A share of one byte of the directory, by our name; -1 where that cannot be had."""
        fd = -1
        try:
            fd = os.open(os.path.dirname(self._path), _DIRECTORY)  # noqa: PTH120 - a plain string
            _share(fd, self._byte, 1)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            if error.errno not in _NO_DIRECTORY_LOCKS:
                raise
            return -1
        return fd


class OwnerLock:
    """Which epoch has an owner that lives: each shares the lock on the byte of its epoch.

    Nothing depends on it but a question of politeness: a start asks before it takes the tier from
    an owner that lives. Where the file was removed, or locks are not seen from another machine,
    the owner looks dead, is fenced by the journal all the same, and ends.
    """

    def __init__(self, path: str) -> None:
        """Locks nothing yet; `path` is the file of `PresenceLock`."""
        self._path = path
        self._fd = -1

    def __repr__(self) -> str:
        return f"<OwnerLock {self._path}: {'open' if self._fd >= 0 else 'nothing held'}>"

    def hold(self, epoch: int) -> None:
        """Be seen as the owner of `epoch` until `close`, or until the process dies.

        Raises:
            OSError: the file cannot be made, or the file system offers no locks.
        """
        if self._fd < 0:
            self._fd = os.open(self._path, _NEW_OR_OLD, 0o666)
        _share(self._fd, _PRESENCE_BYTES + epoch, 1)

    def is_held(self, epoch: int | None = None) -> bool:
        """Whether another one holds `epoch`, or any epoch. Takes nothing and makes no file.

        Raises:
            OSError: the file cannot be opened, or the file system offers no locks.
        """
        start, length = _PRESENCE_BYTES, _TO_THE_END
        if epoch is not None:
            start, length = _PRESENCE_BYTES + epoch, 1
        if self._fd >= 0:
            return not _is_free(self._fd, start, length)
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            return not _is_free(fd, start, length)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _share(fd: int, start: int, length: int) -> None:
    _call(fd, _F_OFD_SETLK, fcntl.F_RDLCK, start, length)


def _is_free(fd: int, start: int, length: int) -> bool:
    """Whether an exclusive lock could be had; another description's share prevents that."""
    return _call(fd, _F_OFD_GETLK, fcntl.F_WRLCK, start, length) == fcntl.F_UNLCK


def _call(fd: int, command: int, kind: int, start: int, length: int) -> int:
    answer = lock_call(fd, command, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    return int(_FLOCK.unpack(answer)[0])


def lock_call(fd: int, command: int, asked: bytes) -> bytes:
    """fcntl(2) for a lock of an open file description.

    Raises:
        Lacking: the kernel, or what stands for one, has no such locks.
        OSError: another process holds the lock, or the file system has none.
    """
    try:
        return fcntl.fcntl(fd, command, asked)
    except OSError as error:
        raise Lacking.of(error, "locks of open file descriptions (F_OFD_SETLK)", fd) from error
