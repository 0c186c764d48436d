"""Plan of a read, pure: its end, its units, its ranges of bytes, and the cuts of large buffers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.metadata.records import Gap
from fetcher.run_cache import compact
from fetcher.source import TierQueue
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset


def gap_at(gaps: Sequence[Gap], offset: int) -> Gap | None:
    """The gap that `offset` lies in."""
    for gap in gaps:
        if gap.start <= offset < gap.end:
            return gap
    return None


def stretch_end(source: TierQueue, offset: int) -> int:
    """Where the messages from `offset` on end: at the next gap, or at the commit offset."""
    starts = (gap.start for gap in source.gaps if gap.start > offset)
    return min([source.next_offset, *starts])


def rounded_end(source: TierQueue, start: int, end: int, most: int) -> int:
    """Where to end a read ahead of `[start, end)`, so that the next one begins with an object.

    What ends with an object needs fewer requests. A half of it is given up for that, or a half is
    added, within `most` messages; else `end`.
    """
    half = (end - start) // 2
    last = min(end + half, start + most)
    ends = source.object_ends(QueueOffset(start + half), QueueOffset(last + 1))
    before = [one for one in ends if one <= end]
    return max(before) if before else min(ends, default=end)


def units_taken(
    sizes: NDArray[np.int64],
    wanted: NDArray[np.bool_] | None,
    *,
    messages_max: int,
    bytes_max: int,
) -> int:
    """How many leading units a run covers so that its wanted messages keep both limits.

    At least one wanted message is taken whatever its size; unwanted ones after the last are
    covered too. `wanted` None means that all are. O(n).
    """
    places = np.arange(len(sizes)) if wanted is None else np.flatnonzero(wanted)
    ends = np.cumsum(sizes[places[:messages_max]])
    count = max(1, int(np.searchsorted(ends, bytes_max, side="right")))
    return int(places[count]) if count < len(places) else len(sizes)


def plan_reads(
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    *,
    gap_bytes_max: int,
    read_bytes_max: int,
) -> list[ByteRange]:
    """Merge neighbouring messages into as few reads as the two limits allow.

    Every message lies in exactly one range, and the ranges are in order, if the messages ascend
    without overlap, as the records of a queue do. One larger than `read_bytes_max` gets a read of
    its own. Vectorised; the loop is over ranges.
    """
    if len(starts) == 0:
        return []
    ends = starts + sizes
    firsts = [0, *(np.flatnonzero(starts[1:] - ends[:-1] > gap_bytes_max) + 1).tolist()]
    ranges: list[ByteRange] = []
    for first, after in zip(firsts, [*firsts[1:], len(starts)], strict=True):
        at = first
        while at < after:
            limit = int(starts[at]) + read_bytes_max
            fit = int(np.searchsorted(ends[at:after], limit, side="right"))
            until = at + max(1, fit)
            ranges.append(ByteRange(int(starts[at]), int(ends[until - 1])))
            at = until
    return ranges


def places_in_reads(starts: NDArray[np.int64], ranges: list[ByteRange]) -> NDArray[np.int64]:
    """First byte of each message in the buffer that joins the planned ranges in order."""
    range_starts = np.array([part.start for part in ranges], np.int64)
    lengths = np.array([part.length for part in ranges], np.int64)
    shifts = np.cumsum(lengths) - lengths - range_starts
    which = np.searchsorted(range_starts, starts, side="right") - 1
    return starts + shifts[which]


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
