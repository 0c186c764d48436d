"""Who is alive: a file that every living store locks for sharing."""

import fcntl
import os
import socket
import struct
from typing import Final

_F_OFD_GETLK: Final = 36  # linux/fcntl.h, the same on every architecture
_F_OFD_SETLK: Final = 37
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


class LivingLock:
    """A share of the lock on one file, kept until `close` or until the process dies.

    Everybody has a share, nobody ever locks exclusively: whether an exclusive lock *could* be had
    is asked without taking it. So registering never fails, and never waits for a paused process.
    Open file description locks (fcntl(2)) are used: flock(2) cannot ask. A child that is forked
    without an exec keeps the share alive.
    """

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o666)
        try:
            self._call(_F_OFD_SETLK, fcntl.F_RDLCK)
        except BaseException:
            os.close(self._fd)
            raise

    def is_alone(self) -> bool:
        """Whether nobody else has a share just now. Writes who we are into the file, for people.

        Raises:
            OSError: the file system offers no locks.
        """
        if self._call(_F_OFD_GETLK, fcntl.F_WRLCK) != fcntl.F_UNLCK:
            return False
        note = f"process {os.getpid()} on {socket.gethostname()} writes here\n".encode()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, note, 0)
        return True

    def close(self) -> None:
        """Let go."""
        os.close(self._fd)

    def _call(self, command: int, kind: int) -> int:
        answer = fcntl.fcntl(self._fd, command, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
        return int(_FLOCK.unpack(answer)[0])
