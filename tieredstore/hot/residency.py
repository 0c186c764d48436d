"""Which bytes of a file the page cache holds: what threads ask for `HotLog`.

Linux says it of a mapping (`mincore`), and since 5.2 only to who may write the file; a hot log is
written by this process. Where it cannot be asked, RocketMQ's own estimate decides: the newest
bytes are resident, up to a share of the memory's size (`accessMessageInMemoryMaxRatio`).
"""

import ctypes
import mmap
import os
from functools import lru_cache
from typing import Final

ESTIMATED_SHARE: Final = 0.4
"""Share of the machine's memory that the CommitLog's newest bytes are taken to occupy, if no
other is configured."""
_FAILED: Final = ctypes.c_void_p(-1).value
_IS_RESIDENT: Final = 1


class _Calls:
    """The C library's functions, with their types."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        size, integer, pointer = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
        self.map = library.mmap
        self.map.argtypes = [pointer, size, integer, integer, integer, ctypes.c_int64]
        self.map.restype = pointer
        self.unmap = library.munmap
        self.unmap.argtypes = [pointer, size]
        self.ask = library.mincore
        self.ask.argtypes = [pointer, size, pointer]


@lru_cache(1)
def _calls() -> _Calls | None:
    try:
        return _Calls()
    except (OSError, AttributeError):
        return None


def resident(fd: int, start: int, length: int) -> bool | None:
    """Whether all pages of the bytes `[start, start + length)` are resident; None: not known.

    Reads nothing. Some 10 us, and 0.1 us for each MiB.
    """
    calls = _calls()
    if calls is None or length <= 0:
        return None
    first = start - start % mmap.PAGESIZE
    size = start + length - first
    address = calls.map(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, first)
    if address is None or address == _FAILED:
        return None
    try:
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        if calls.ask(address, size, pages) != 0:
            return None
        return all(page & _IS_RESIDENT for page in pages.raw)
    finally:
        calls.unmap(address, size)


@lru_cache(1)
def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def estimated_bytes(share: float = ESTIMATED_SHARE) -> int:
    """How many of the newest bytes are taken to be in memory: so large a share of it, 0 to 1."""
    return int(_memory_bytes() * share)


def is_estimated_resident(position: int, end: int, share: float = ESTIMATED_SHARE) -> bool:
    """RocketMQ's estimate for a byte of a CommitLog that ends at `end`. Pure but for the memory."""
    return end - position <= estimated_bytes(share)
