"""Locks on one file: presence of stores, and epochs with a living owner.

Older versions, without locks of epochs, share the lock of the whole file. A living owner of such a
version therefore seems to be the owner of every epoch.
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
"""Locked range of the file that all present stores share. Above it each epoch has one byte."""
_TO_THE_END: Final = 0
_NEW_OR_OLD: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_DIRECTORY_LOCKS: Final = frozenset(
    {errno.EACCES, errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.EOPNOTSUPP}
)
"""Errors of file systems that lock files but not directories, and of unreadable directories."""


class PresenceLock:
    """Shared lock on one file, held until `close` or the end of the process.

    Every store holds the lock shared, and none ever takes it exclusively. A test whether an
    exclusive lock *could* be taken detects other stores. Registration therefore never fails, and
    never waits for a paused process. These are open file description locks (fcntl(2)), because
    flock(2) has no such test. A child that is forked without an exec keeps the lock.

    A locked file can be removed. The next owner would then lock another file and seem alone.
    Therefore one byte of the directory, which cannot be removed while it holds a tier, is locked in
    the same way if the file system supports that. Each later test also locks the file that has the
    name by then.
    """

    def __init__(self, path: str) -> None:
        """Take the lock shared. The directory of `path` must exist.

        Raises:
            OSError: the file cannot be created, or the file system has no locks.
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
        """Whether no other store holds the lock now. If so, writes process and host into the file.

        Raises:
            OSError: the file system has no locks.
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
        """Release the lock. Idempotent."""
        while self._files:
            os.close(self._files.pop())
        if self._directory >= 0:
            os.close(self._directory)
        self._directory = -1

    def _join(self) -> None:
        """Lock the file that has the name now, unless it is locked already."""
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
        """Lock one byte of the directory, chosen by the file name. Return -1 if unsupported."""
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
    """Lock that marks a living owner: each owner shares the lock on the byte of its epoch.

    Safety does not depend on it. A start only uses it to avoid a takeover from a living owner. If
    the file was removed, or locks are not visible from another machine, the owner seems dead; the
    journal fences it all the same, and it ends.
    """

    def __init__(self, path: str) -> None:
        """Lock nothing yet. `path` is the file of `PresenceLock`."""
        self._path = path
        self._fd = -1

    def __repr__(self) -> str:
        return f"<OwnerLock {self._path}: {'open' if self._fd >= 0 else 'nothing held'}>"

    def hold(self, epoch: int) -> None:
        """Mark `epoch` as owned until `close` or the end of the process.

        Raises:
            OSError: the file cannot be created, or the file system has no locks.
        """
        if self._fd < 0:
            self._fd = os.open(self._path, _NEW_OR_OLD, 0o666)
        _share(self._fd, _PRESENCE_BYTES + epoch, 1)

    def is_held(self, epoch: int | None = None) -> bool:
        """Whether another owner holds `epoch`, or any epoch if None. Locks and creates nothing.

        Raises:
            OSError: the file cannot be opened, or the file system has no locks.
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
        """Release the lock. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _share(fd: int, start: int, length: int) -> None:
    _call(fd, _F_OFD_SETLK, fcntl.F_RDLCK, start, length)


def _is_free(fd: int, start: int, length: int) -> bool:
    """Whether an exclusive lock could be taken: no other file description holds the lock."""
    return _call(fd, _F_OFD_GETLK, fcntl.F_WRLCK, start, length) == fcntl.F_UNLCK


def _call(fd: int, command: int, kind: int, start: int, length: int) -> int:
    answer = lock_call(fd, command, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    return int(_FLOCK.unpack(answer)[0])


def lock_call(fd: int, command: int, asked: bytes) -> bytes:
    """Call fcntl(2) for a lock of an open file description.

    Raises:
        Lacking: the kernel, or an emulation of it, has no such locks.
        OSError: another process holds the lock, or the file system has none.
    """
    try:
        return fcntl.fcntl(fd, command, asked)
    except OSError as error:
        raise Lacking.of(error, "locks of open file descriptions (F_OFD_SETLK)", fd) from error
