"""Memory of large buffers, reused once no view of it is left."""

import threading
import weakref
from bisect import bisect_left, insort
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

POOLED_BYTES_MIN = 64 << 10
"""Smaller buffers come from the allocator, which keeps such sizes itself."""
CLASSES_PER_DOUBLING = 4


class _Block(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Memory that outlives its leases.

    A plain array would not do: numpy makes a view of a view keep the first array alive, not the
    lease between the two.
    """


class BufferPool:
    """Gives out buffers, and takes each back when its last view is gone. Thread-safe.

    Fresh memory costs a page fault for every 4 KiB, and an allocator keeps freed large blocks
    without a bound: this keeps at most `free_bytes_max`, and drops the smallest beyond that.
    """

    def __init__(self, free_bytes_max: int, *, oversize_max: int = 2) -> None:
        """`oversize_max`: how many times its size class the memory of a buffer may be at most.

        1 where buffers are kept, and their memory is counted: it is a quarter more than asked for
        at most.
        """
        self._free_bytes_max = free_bytes_max
        self._oversize_max = oversize_max
        self._lock = threading.Lock()
        self._free: list[_Block] = []
        self._free_bytes = 0
        self.made = 0

    def __repr__(self) -> str:
        return f"<BufferPool: {self.made} made, {self._free_bytes} bytes free>"

    @property
    def free_bytes(self) -> int:
        """Bytes kept for the next buffers."""
        return self._free_bytes

    def check(self) -> None:
        """Assert that what is kept is counted, in order of length, and within its bound."""
        with self._lock:
            lengths = [block.nbytes for block in self._free]
            assert lengths == sorted(lengths), f"{self}"
            assert sum(lengths) == self._free_bytes <= self._free_bytes_max, f"{self}"

    def take(self, length: int) -> NDArray[np.uint8]:
        """A writable buffer of `length` bytes, of any content; it belongs to its views' holders."""
        if length < POOLED_BYTES_MIN:
            return np.empty(length, np.uint8)
        wanted = rounded(length)
        with self._lock:
            index = bisect_left(self._free, wanted, key=attrgetter("nbytes"))
            if index < len(self._free) and self._free[index].nbytes <= self._oversize_max * wanted:
                block = self._free.pop(index)
                self._free_bytes -= block.nbytes
            else:
                block = _Block((wanted,), np.uint8)
                self.made += 1
        lease = block.view(np.ndarray)
        weakref.finalize(lease, self._give_back, block).atexit = False
        return lease[:length]

    def _give_back(self, block: _Block) -> None:
        # Views may end anywhere, also in the middle of `take`: never wait here.
        if not self._lock.acquire(blocking=False):
            return
        try:
            insort(self._free, block, key=attrgetter("nbytes"))
            self._free_bytes += block.nbytes
            while self._free_bytes > self._free_bytes_max:
                self._free_bytes -= self._free.pop(0).nbytes
        finally:
            self._lock.release()


def rounded(length: int) -> int:
    """The size class of a length: at most a quarter more, so that few sizes serve all."""
    step = max(1 << (length.bit_length() - 1), CLASSES_PER_DOUBLING) // CLASSES_PER_DOUBLING
    return -(-length // step) * step
