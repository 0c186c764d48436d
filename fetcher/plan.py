"""Plan of a read: its end, its units, its ranges of bytes, and its split into buffers. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.metadata.records import next_gap_start
from fetcher.run_cache import compact
from fetcher.source import TierQueue
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset


def stretch_end(source: TierQueue, offset: int) -> int:
    """Return the end of the messages from `offset` on: the next gap or the commit offset."""
    return next_gap_start(source.gaps, offset, source.next_offset)


def rounded_end(source: TierQueue, start: int, end: int, most: int) -> int:
    """Align the end of a read-ahead of `[start, end)` with the end of an object.

    A read that ends with an object needs fewer requests. The read becomes at most half shorter or
    half longer, and has at most `most` messages. Returns `end` if no object ends in that range.
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
    """Return how many leading units a run covers within both limits of its wanted messages.

    At least one wanted message is taken, whatever its size. Unwanted messages after the last
    wanted one are covered, too. `wanted` None: all messages are wanted. O(n).
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
    """Coalesce neighbouring messages into as few ranges as the two limits allow.

    The messages must ascend without overlap, as the records of a queue do. Then every message lies
    in exactly one range, and the ranges ascend. A message larger than `read_bytes_max` gets a
    range of its own. Vectorised; the loop is over ranges.
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
    """Return the first byte of each message in the buffer that joins the ranges in order."""
    range_starts = np.array([part.start for part in ranges], np.int64)
    lengths = np.array([part.length for part in ranges], np.int64)
    shifts = np.cumsum(lengths) - lengths - range_starts
    which = np.searchsorted(range_starts, starts, side="right") - 1
    return starts + shifts[which]


ALONE_BYTES_MIN = 1 << 20
"""Size in bytes from which on a buffer is kept uncopied. Smaller neighbours are joined."""


class Stretch(NamedTuple):
    """Consecutive messages in one buffer."""

    first: int
    """Index of the first message."""
    stop: int
    """Index after the last message."""
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
    """Split messages into stretches, each in one buffer.

    A stretch ends after a large buffer or before one, unless a record lies in both buffers. Each
    stretch therefore consists of one large buffer or of several joined ones. Small records from
    many objects form one stretch.

    Args:
        ranges: the ranges that were read, ascending.
        pieces: the buffers of each range.
        positions: first byte of each message in the log, ascending. Each lies in one range.
        sizes: length of each message in bytes.
        is_one: whether to join all buffers, for a read that must become one run.
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
    """Whether a record that begins before `start` ends after `end`, the end of a buffer."""
    before = int(np.searchsorted(positions, start)) - 1
    return before >= 0 and int(positions[before] + sizes[before]) > end
