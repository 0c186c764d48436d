"""What the operating system raises about a store's files, translated into verdicts."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from provider.errors import AlreadyExists, Denied, NotFound, StoreError, Unavailable

_UNAVAILABLE: Final[dict[int, str]] = {
    errno.ENOSPC: "the file system is full; free space and it goes on",
    errno.EDQUOT: "the disk quota is used up; raise it or free space",
    errno.EIO: "the device failed to read or write; look at the kernel's log",
    errno.EROFS: "the file system is read-only; a failing disk may have made it so",
    errno.ESTALE: "the file server forgot the file; it is opened again at the next call",
    errno.EMFILE: "this process has too many open files; raise `ulimit -n`",
    errno.ENFILE: "this machine has too many open files",
    errno.ENOMEM: "the kernel is out of memory",
    errno.EAGAIN: "the file system is busy",
    errno.EINTR: "interrupted",
    errno.EBUSY: "the file system is busy",
    errno.ETIMEDOUT: "the file server does not answer",
    errno.ENOTCONN: "the file server is not connected",
    errno.EHOSTDOWN: "the file server is down",
    errno.ENOLCK: "the file system is out of locks, or offers none",
    errno.EFBIG: "the file would be larger than the file system or the process limit allows",
}
_DENIED: Final[dict[int, str]] = {
    errno.EACCES: "permission denied; change the owner or the mode of the directory",
    errno.EPERM: "operation not permitted here",
    errno.ELOOP: "a symbolic link stands where a directory or file of the store should be",
    errno.ENOTDIR: "a file stands where a directory is needed",
    errno.EISDIR: "a directory stands where a file is needed",
    errno.ENAMETOOLONG: "the path is longer than the file system allows",
    errno.EMLINK: "the file system allows no further hard link or directory here",
    errno.EXDEV: "a part of the store lies on another file system",
    errno.EOPNOTSUPP: "the file system lacks an operation that a store needs (CONTRACT.md)",
    errno.ENOSYS: "the kernel lacks an operation that a store needs (CONTRACT.md)",
}

LACKING: Final = frozenset({errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS})
"""What file systems and kernels answer to a call that they do not have."""


class Lacking(OSError):
    """A call that a file system or the kernel does not have."""

    def __init__(self, call: str, path: str) -> None:
        """`call` names it for people, as in "fsync of directories"."""
        reason = f"the file system of {path} lacks {call}, which a store needs: use another one"
        super().__init__(errno.EOPNOTSUPP, reason, path)

    @classmethod
    def of(cls, error: OSError, call: str, fd: int) -> OSError:
        """What a failed call on a descriptor means: this, or `error` itself."""
        if error.errno not in LACKING:
            return error
        path = "this directory"
        with suppress(OSError):  # no /proc
            path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - a plain string
        return cls(call, path)

    def __reduce__(self) -> tuple[object, ...]:
        return OSError, (self.errno, self.strerror, self.filename)


NO_INODES: Final = (
    "the file system has no inodes left, though it may have space: delete files, or make it with "
    "more of them, and it goes on"
)
_GIVEN_BACK: Final = 2
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_full(error: StoreError) -> bool:
    """Whether a verdict was given because the file system has no more room for us."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL


def as_verdict(
    error: OSError, path: str, position: int = 0, *, volume: str = ""
) -> StoreError | None:
    """The verdict on `error`, met while `position` of `path` was touched; None if unknown.

    `volume` is a directory of the file system in question, which is asked what it lacks.
    An unknown number is likely a bug of ours (EBADF, EINVAL), so it is not called a verdict.
    """
    number = error.errno or 0
    if number == errno.ENOENT:
        return NotFound("there is no such object", path, position)
    if number == errno.EEXIST:
        return AlreadyExists("the name is taken", path, position)
    if number == errno.ENOSPC and _lacks_inodes(volume):
        return Unavailable(NO_INODES, path, position)
    if number in _UNAVAILABLE:
        return Unavailable(_UNAVAILABLE[number], path, position)
    if number in _DENIED:
        lacks = (error.strerror or "") if isinstance(error, Lacking) else ""
        return Denied(lacks or _DENIED[number], path, position)
    return None


def _lacks_inodes(volume: str) -> bool:
    """Whether the file system below a directory cannot hold one more file."""
    if not volume:
        return False
    try:
        found = os.statvfs(volume)
    except OSError:
        return False
    # Some count no inodes, and some make them of space, so that without space there are none. What
    # failed may have given back one or two by now.
    return found.f_files > 0 and found.f_favail <= _GIVEN_BACK < found.f_bavail


@contextmanager
def posix_errors(path: str, position: int = 0, *, volume: str = "") -> Generator[None]:
    """Translate what the file system raises inside the block, as `as_verdict`; about 1 us.

    What has no verdict passes through untouched.
    """
    try:
        yield
    except OSError as error:
        verdict = as_verdict(error, path, position, volume=volume)
        if verdict is None:
            raise
        raise verdict from error
