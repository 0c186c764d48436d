"""Sequential reads without an event loop, for jobs in processes of their own.

The port fills a buffer of the caller, so that memory is reused: page faults of fresh buffers cost
10 to 50 % of a scan.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from provider.names import check_name
from provider.posix.files import posix_errors


class ObjectRange(NamedTuple):
    """Range of bytes of one object."""

    name: str
    start: int
    length: int


class ByteSource(Protocol):
    """Source of objects by name, read synchronously by one thread."""

    def expect(self, ranges: Sequence[ObjectRange]) -> None:
        """Announce the next reads in order. It is a hint and may be wrong."""
        ...

    def read_into(self, name: str, start: int, view: memoryview) -> int:
        """Fill `view` with the object's bytes from `start` on. Return the number of bytes.

        The number is less than the length of `view` only if the object ends, and 0 if it is
        absent.

        Raises:
            Unavailable: the storage did not respond; retry.
            Denied: the storage refuses the request.
            Corrupt: an encrypted frame of the object was changed (`path` is its name), or a data
                key was. The content of `view` is then undefined.
        """
        ...

    def close(self) -> None:
        """Release files, connections and buffers. Idempotent."""
        ...


class DirectorySource:
    """`ByteSource` over a directory. Holds one open file; `expect` does nothing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name: str = ""
        self._fd = -1

    def __repr__(self) -> str:
        return f"<DirectorySource {self._directory}>"

    def __del__(self) -> None:
        self.close()

    def expect(self, ranges: Sequence[ObjectRange]) -> None:
        """Do nothing: the kernel reads ahead."""

    def read_into(self, name: str, start: int, view: memoryview) -> int:
        """Fill `view` by `preadv`; see `ByteSource.read_into`."""
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
