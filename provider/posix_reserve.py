"""Room that is kept for objects: a file that is given up when its file system is full."""

import errno
import os
from contextlib import suppress
from typing import Final

from provider.names import TEMPORARY_PREFIX
from provider.posix_errors import FULL

RESERVE_NAME: Final = f"{TEMPORARY_PREFIX}reserve"
"""No listing shows it."""

_NO_ALLOCATION: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


class Reserve:
    """`size_bytes` of the file system below `root`, so that what was appended can be published.

    Data may not use it: `keep` precedes every round of appends, and refuses the round where the
    file system has no room for the reserve. `release` gives it up for an object, such as a journal
    entry, that met a full file system. So data never takes the last bytes, and no more data is
    written than can be published.

    The stores over one root share the file; one that ends removes it, the next round of another
    makes it again. Where a file system cannot allocate, nothing is kept. Thread-safe.
    """

    def __init__(self, root: str, size_bytes: int) -> None:
        self._path = f"{root}/{RESERVE_NAME}"
        self._size_bytes = size_bytes
        self._is_ours = False

    def keep(self) -> None:
        """Make sure of the reserve. One `stat` where it is there.

        Raises:
            OSError: ENOSPC or EDQUOT if there is no room for it.
        """
        if self._size_bytes == 0:
            return
        self._is_ours = True
        with suppress(FileNotFoundError):
            if os.stat(self._path).st_size == self._size_bytes:  # noqa: PTH116 - a plain string
                return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            os.posix_fallocate(fd, 0, self._size_bytes)
            os.ftruncate(fd, self._size_bytes)  # it may have been longer
        except OSError as error:
            self.release()  # a part of it would only take room away
            if error.errno not in _NO_ALLOCATION:
                raise
            self._size_bytes = 0
        finally:
            os.close(fd)

    def release(self) -> bool:
        """Give the room back to the file system; whether there was any to give."""
        try:
            os.unlink(self._path)  # noqa: PTH108 - a plain string
        except OSError as error:
            if error.errno not in {errno.ENOENT, *FULL}:
                raise
            return False
        return True

    def close(self) -> None:
        """Leave nothing behind. Idempotent."""
        if self._is_ours:
            self._is_ours = False
            with suppress(OSError):
                self.release()
