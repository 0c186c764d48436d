"""Reading many bytes in order without an event loop: for jobs that run in processes of their own.

The port has one verb, which fills a buffer of the caller's, so that pages are touched once: fresh
buffers cost 10 to 50 % of a scan (page faults).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from provider.names import check_name
from provider.posix.files import posix_errors


class ObjectRange(NamedTuple):
    """Bytes of one object."""

    name: str
    start: int
    length: int


class ByteSource(Protocol):
    """Objects by name, read synchronously by one thread."""

    def expect(self, ranges: Sequence[ObjectRange]) -> None:
        """Say what will be read next, in this order; a hint, which may be wrong."""
        ...

    def read_into(self, name: str, start: int, view: memoryview) -> int:
        """Fill `view` with the object's bytes from `start` on; returns how many there are.

        Less than the length of `view` only where the object ends, or is not there (0).

        Raises:
            Unavailable: try again.
            Denied: the storage refuses.
            Corrupt: an encrypted frame of the object was changed (`path` is its name), or a data
                key was. `view` may hold anything then.
        """
        ...

    def close(self) -> None:
        """Release what is held for reading. Idempotent."""
        ...


class DirectorySource:
    """A `ByteSource` over a directory. Holds one open file; `expect` needs nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name: str = ""
        self._fd = -1

    def __repr__(self) -> str:
        return f"<DirectorySource {self._directory}>"

    def __del__(self) -> None:
        self.close()

    def expect(self, ranges: Sequence[ObjectRange]) -> None:
        """Nothing: the kernel reads ahead."""

    def read_into(self, name: str, start: int, view: memoryview) -> int:
        """`ByteSource.read_into`: `preadv`."""
        filled = 0
        with posix_errors(name, start):
            try:
                fd = self._opened(name)
            except (FileNotFoundError, NotADirectoryError):
                return 0
            while filled < len(view):
                count = os.preadv(fd, [view[filled:]], start + filled)
                if not count:
                    break
                filled += count
        return filled

    def close(self) -> None:
        """Close the open file."""
        fd, self._fd = self._fd, -1
        self._name = ""
        if fd >= 0:
            os.close(fd)

    def _opened(self, name: str) -> int:
        if name != self._name:
            check_name(name)
            self.close()
            self._fd = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._name = name
        return self._fd
