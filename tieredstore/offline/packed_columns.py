"""Columns of whole numbers as few bytes: what goes from mappers to reducers in great numbers.

Each column is its smallest value, and by how much each row is above it in 0, 1, 2, 4 or 8 bytes:
units take some 10 bytes each in place of 28, index items 12 in place of 36. For workers of one job,
which run the same program: it is no format that is kept.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WIDTHS = (0, 1, 2, 4, 8)
_NUMBER = np.dtype("<i8")

Columns = Sequence[NDArray[np.integer]]
"""Of the same length, at least 1; each value fits into a signed number of 8 bytes."""


def pack(columns: Columns) -> bytes:
    """Some columns as bytes. Some 5 ns a value."""
    head = [len(columns[0])]
    parts: list[bytes] = []
    for column in columns:
        least = int(column.min())
        span = int(column.max()) - least
        width = next(width for width in _WIDTHS if span >> 8 * width == 0)
        head += [least, width]
        if width:
            above = column.astype(np.int64, copy=False) - least  # may wrap, and wraps back
            parts.append(above.astype(f"<u{width}").tobytes())
    return b"".join((np.array(head, _NUMBER).tobytes(), *parts))


def unpack(payload: bytes, columns: int) -> list[NDArray[np.int64]]:
    """So many columns as they were packed. Some 2 ns a value."""
    head = np.frombuffer(payload, _NUMBER, 1 + 2 * columns).tolist()
    count, at = head[0], len(head) * _NUMBER.itemsize
    found: list[NDArray[np.int64]] = []
    for least, width in zip(head[1::2], head[2::2], strict=True):
        column = np.full(count, least, np.int64)
        if width:
            column += np.frombuffer(payload, f"<u{width}", count, at).astype(np.int64, copy=False)
        found.append(column)
        at += width * count
    return found


def rows_of(payload: bytes) -> int:
    """How many rows were packed."""
    return int(np.frombuffer(payload, _NUMBER, 1)[0])
