"""Files of a hot log that are read, by descriptors that stay open."""

import errno
import os
import threading
from collections.abc import Sequence

from provider.posix.files import OpenFile, OpenFiles
from tieredstore.hot.files import read_all


class ReadFiles:
    """Reads files that grow in place and are deleted by this process alone. Any thread.

    A name that was deleted may be given to a new file; who deletes one says so (`forget`), after
    it. Between the two the old file may still be read.
    """

    def __init__(self, files_max: int) -> None:
        self._files = OpenFiles(files_max)
        self._deletions = 0
        self._lock = threading.Lock()
        self._nowait_works = True

    def __repr__(self) -> str:
        return f"<ReadFiles {self._files}>"

    def read(self, path: str, position: int, length: int, *, waits: bool) -> bytes:
        """`length` bytes at `position`, fewer where the file ends; one system call if it is open.

        Raises:
            FileNotFoundError: there is no file of that name.
            BlockingIOError: it is not to wait for the device, but might; or a file is not open.
            OSError: it cannot be read.
        """
        return self.read_each(path, [(position, length)], waits=waits)[0]

    def read_each(
        self, path: str, wanted: Sequence[tuple[int, int]], *, waits: bool
    ) -> list[bytes]:
        """Several reads of one file, each of a position and a length; errors as `read`."""
        file = self._files.pin_cached(path)
        if file is None:
            if not waits:
                raise BlockingIOError(errno.EAGAIN, "the file is not open", path)
            file = self._opened(path)
        read_one = read_all if waits else self._cached
        try:
            return [read_one(file.fd, position, length) for position, length in wanted]
        finally:
            self._files.unpin(file)

    def forget(self, path: str) -> None:
        """The file of that name was deleted, or will be: close it."""
        with self._lock:
            self._deletions += 1
        self._files.forget(path)

    def close(self) -> None:
        """Close all files. Idempotent; a later read opens them again."""
        self._files.close()

    def _opened(self, path: str) -> OpenFile:
        deletions = self._deletions
        file = self._files.pin(path)
        if deletions != self._deletions:  # perhaps that of this very file, before it was opened
            self._files.forget(path)
        return file

    def _cached(self, fd: int, position: int, length: int) -> bytes:
        """What the page cache has; never waits for a device."""
        if not self._nowait_works:
            raise BlockingIOError(errno.EAGAIN, "this file system does not tell what is cached")
        buffer = bytearray(length)
        try:
            count = os.preadv(fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._nowait_works = False
            raise BlockingIOError(error.errno, error.strerror) from error
        if count != length:  # the rest is not cached, or the file ends
            raise BlockingIOError(errno.EAGAIN, "not all of it is cached")
        return bytes(buffer)
