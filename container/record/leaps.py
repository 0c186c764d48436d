"""Small records that follow one another, found by their magic numbers all at once.

For logs of records of some hundred bytes that is three times as fast as going from one to the next.
"""

import numpy as np
from numpy.typing import NDArray

from container.record.kernels import values_at
from container.record.layout import MAGIC_AT, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

LEAP_BYTES = 32 << 10
"""Bytes that are walked record by record before a leap is tried."""
SMALL_BYTES = 640
"""Mean length of records up to which a leap is faster: it looks at every byte."""
RECORDS_MAX = 1 << 13
"""Records of one leap, at most: a leap that ends early costs no more than these."""
_FIRST_BYTE = MAGIC_V1 >> 24
_SIZE_SHIFT = np.uint64(32)
_MAGIC_MASK = np.uint64(0xFFFF_FFFF)

assert MAGIC_V2 >> 24 == _FIRST_BYTE, "both begin with the byte that is searched"


class Leaps:
    """Finds runs of whole records in some bytes, without a step for each."""

    def __init__(self, raw: NDArray[np.uint8], end: int) -> None:
        self._raw = raw
        self._end = end
        self._found: NDArray[np.int64] | None = None

    def run_from(self, place: int) -> NDArray[np.int64]:
        """Records of which the first is at `place` and each touches the next: starts and sizes.

        They are those that a walk from there meets first; none if there is none at `place`. Some 80
        ns a record of 300 bytes, the first time; then what is known is used again.
        """
        if self._found is None:
            self._found = self._find(place)
        first = int(np.searchsorted(self._found[0], place))
        near = self._found[:, first : first + RECORDS_MAX]
        if not near.size or near[0, 0] != place:
            return near[:, :0]
        touches = near[0, :-1] + near[1, :-1] == near[0, 1:]
        return near if touches.all() else near[:, : int(np.argmin(touches)) + 1]

    def _find(self, place: int) -> NDArray[np.int64]:
        """Where a magic number and a possible size stand, from `place` on, and the sizes."""
        last = self._end - RECORD_BYTES_MIN
        searched = self._raw[place + MAGIC_AT : max(last + MAGIC_AT + 1, 0)]
        places = np.flatnonzero(searched == _FIRST_BYTE) + place
        heads = values_at(self._raw, ">u8", places).astype(np.uint64)
        magics, sizes = heads & _MAGIC_MASK, (heads >> _SIZE_SHIFT).astype(np.int64)
        good = ((magics == MAGIC_V1) | (magics == MAGIC_V2)) & (sizes >= RECORD_BYTES_MIN)
        good &= places + sizes <= self._end
        return np.stack((places[good], sizes[good]))
