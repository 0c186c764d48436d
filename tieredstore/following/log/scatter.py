"""Read runs of a file into many places of a buffer, without a Python object for each place."""

import ctypes
import errno
import os

import numpy as np
from numpy.typing import NDArray

PLACES_A_CALL_MAX = 1024
"""IOV_MAX, linux/uio.h: a call with more of them is refused."""
SKIPPED = -1
"""In place of a start: these bytes of the file go nowhere."""

_VECTOR = np.dtype([("address", np.uintp), ("length", np.uintp)])
"""`struct iovec`, sys/uio.h."""
_libc = ctypes.CDLL(None, use_errno=True)
_preadv = getattr(_libc, "preadv64", None) or _libc.preadv
_preadv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
_preadv.restype = ctypes.c_ssize_t


class Places:
    """Places `buffer[start : start + length]`, in the order in which they are filled.

    Keeps the buffer alive. One `Places` is for one thread. About 20 ns a place.
    """

    def __init__(
        self, buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        skipped = starts == SKIPPED
        # The kernel writes wherever it is told to.
        assert (lengths >= 0).all()
        assert (skipped | (starts >= 0) & (starts + lengths <= len(buffer))).all()
        assert buffer.flags.writeable
        assert buffer.flags.c_contiguous
        self._buffer = buffer
        self._sink = np.empty(int(lengths[skipped].max(initial=0)), np.uint8)
        self._vector = np.empty(len(starts), _VECTOR)
        self._vector["address"] = np.where(
            skipped, self._sink.ctypes.data, buffer.ctypes.data + starts
        )
        self._vector["length"] = lengths
        self._address: int = self._vector.ctypes.data

    def __len__(self) -> int:
        return len(self._vector)

    def fill(self, descriptor: int, position: int, length: int, first: int, last: int) -> int:
        """Deal the file's bytes from `position` on out to the places `[first, last)`, once.

        `length` is what these places add up to. Returns how many bytes were read: fewer only where
        the file ends; what that leaves of a place is as it was. One `preadv` for each 1,024
        places, outside the interpreter's lock: 1 us, 20 ns a place, and one copy of the bytes;
        waits where the page cache has nothing.

        Raises:
            OSError: the file cannot be read.
        """
        done = 0
        while done < length:
            count: int = _preadv(
                descriptor,
                self._address + first * _VECTOR.itemsize,
                min(last - first, PLACES_A_CALL_MAX),
                position + done,
            )
            if count < 0:
                code = ctypes.get_errno()
                if code == errno.EINTR:
                    continue
                raise OSError(code, os.strerror(code))
            if count == 0:
                break
            done += count
            if done < length:
                first = self._advance(first, last, count)
        return done

    def _advance(self, first: int, last: int, count: int) -> int:
        """The first place that is not full after `count` bytes, cut to what is left of it."""
        ends = np.cumsum(self._vector["length"][first:last], dtype=np.int64)
        full = int(np.searchsorted(ends, count, side="right"))
        place = self._vector[first + full]
        left = int(ends[full]) - count
        place["address"] += place["length"] - np.uintp(left)
        place["length"] = left
        return first + full
