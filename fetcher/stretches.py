"""Where to cut what storage gave, so that large buffers are not copied. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fetcher.cached_run import compact
from fetcher.plan import places_in_reads
from provider.object_store import Buffer
from provider.ranges import ByteRange

ALONE_BYTES_MIN = 1 << 20
"""A buffer of at least so many bytes is kept as it is; smaller neighbours are joined."""


class Stretch(NamedTuple):
    """The bytes of consecutive messages in one buffer."""

    first: int
    """Number of the first message."""
    stop: int
    """Number of the one after the last."""
    data: Buffer
    starts: NDArray[np.int64]
    """First byte of each record in `data`."""


def stretches_of(
    ranges: Sequence[ByteRange],
    pieces: Sequence[Sequence[Buffer]],
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    *,
    is_one: bool = False,
) -> list[Stretch]:
    """The messages with their bytes: one stretch after the other, each in one buffer.

    A stretch ends where a buffer ends that is large, or before one that is, and no record lies in
    both. So each has one large buffer, or several that are joined; where records of a few bytes
    come from many objects, there is one stretch.

    Args:
        ranges: what was read, in order.
        pieces: the buffers of each range.
        positions: first byte of each message, ascending; each lies in one range.
        sizes: length of each.
        is_one: join all buffers: for a read of which nothing but one run can be kept.
    """
    buffers = [buffer for parts in pieces for buffer in parts]
    spans: list[ByteRange] = []
    for wanted, parts in zip(ranges, pieces, strict=True):
        at = wanted.start
        for buffer in parts:
            spans.append(ByteRange(at, at + len(buffer)))
            at = spans[-1].end
    groups = [[0]]
    joined_bytes = spans[0].length
    for number, (before, after) in enumerate(pairwise(spans), 1):
        is_large = max(joined_bytes, after.length) >= ALONE_BYTES_MIN
        if is_large and not is_one and not _straddled(positions, sizes, before.end, after.start):
            groups.append([])
            joined_bytes = 0
        groups[-1].append(number)
        joined_bytes += after.length
    edges = [*(spans[group[0]].start for group in groups[1:]), spans[-1].end]
    stops = np.searchsorted(positions, edges).tolist()
    found: list[Stretch] = []
    for group, first, stop in zip(groups, [0, *stops], stops, strict=False):
        data = (
            compact(buffers[group[0]])
            if len(group) == 1
            else b"".join(buffers[number] for number in group)
        )
        starts = places_in_reads(positions[first:stop], [spans[number] for number in group])
        found.append(Stretch(first, stop, data, starts))
    return found


def _straddled(
    positions: NDArray[np.int64], sizes: NDArray[np.int64], end: int, start: int
) -> bool:
    """Whether a record that begins before `start` ends behind `end`, where a buffer ends."""
    before = int(np.searchsorted(positions, start)) - 1
    return before >= 0 and int(positions[before] + sizes[before]) > end
