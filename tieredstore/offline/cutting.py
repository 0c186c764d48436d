"""How a queue's log is cut into splits, by what its metadata knows. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from container.metadata.object_names import object_name
from container.metadata.records import Extent, Queue, Segment
from container.names.queue_id import QueueId
from container.queue.positions import lies_in_gap
from tieredstore.offline.split import ALL_OFFSETS, ALL_TIMES, LogPiece, Split, TierPlace

SPLIT_BYTES = 128 << 20
"""What one worker scans, where nothing else is said: its start costs below 5 % of that."""
LEAD_BYTES_MAX = 8 << 20
"""What a worker reads before its split to follow the chain of records from a known place."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages a scan is to have."""

    topics: frozenset[str] | None = None
    """None: all."""
    queue_ids: frozenset[int] | None = None
    """Of each topic; None: all."""
    offsets: tuple[int, int] = ALL_OFFSETS
    """Queue offsets `[from, to)`, of each queue."""
    times_ms: tuple[int, int] = ALL_TIMES
    """Store timestamps `[from, to)` in Unix ms."""
    by_queue: Mapping[QueueId, tuple[int, int]] | None = None
    """Only these queues, and of each these offsets, besides `offsets`; None: all."""

    def has(self, queue: QueueId) -> bool:
        """Whether messages of a queue are wanted at all."""
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
            and (self.by_queue is None or queue in self.by_queue)
        )

    def offsets_of(self, queue: QueueId) -> tuple[int, int]:
        """Queue offsets `[from, to)` of one queue; none if the first is not below the second."""
        low, high = ALL_OFFSETS if self.by_queue is None else self.by_queue[queue]
        return max(low, self.offsets[0]), min(high, self.offsets[1])


class LogExtent(NamedTuple):
    """One extent of a log: records begin at its ends."""

    piece: LogPiece
    first_offset: int
    next_offset: int
    """No message of it has this queue offset or a higher one."""
    times_ms: tuple[int, int] | None
    """Store timestamps `[first, last]`; None where they cannot be trusted (a Java tier)."""
    segment_base: int


Boundary = Callable[[LogExtent, int], int | None]
"""Where a record begins at or behind a place inside an extent, if that can be found out."""


def no_boundary(extent: LogExtent, place: int) -> int | None:
    """Nothing is known but the extent's own ends."""
    del extent, place


def extents_of(queue: Queue, segments: Iterable[Segment]) -> list[LogExtent]:
    """All extents of the readable segments of a log that may hold messages, in order. O(extents).

    Those of a Java tier say nothing of offsets and times, so any of the queue's may be in them. One
    whose offsets all lie in a gap holds none: a log that was damaged has such.
    """
    pairs = [
        (segment, extent)
        for segment in segments
        if segment.is_readable
        for extent in segment.extents
    ]
    if not pairs:
        return []
    of_java = all(extent.crc32c is None for _, extent in pairs)
    firsts = [queue.min_offset if of_java else extent.first_offset for _, extent in pairs]
    behind = [queue.next_offset if of_java else first for first in [*firsts[1:], queue.next_offset]]
    return [
        LogExtent(
            LogPiece(
                segment.base + extent.position,
                extent.length,
                object_name(queue.id, segment, extent),
                extent.object_offset,
            ),
            first_offset,
            next_offset,
            _times(extent),
            segment.base,
        )
        for (segment, extent), first_offset, next_offset in zip(pairs, firsts, behind, strict=True)
        if of_java or not lies_in_gap(queue.gaps, first_offset, next_offset)
    ]


def offsets_between(extents: Sequence[LogExtent], start: int, end: int) -> tuple[int, int]:
    """Queue offsets `[from, to)` between which the messages in `[start, end)` of a log lie."""
    inside = [one for one in extents if one.piece.position < end and start < one.piece.end]
    return (inside[0].first_offset, inside[-1].next_offset) if inside else (0, 0)


def _times(extent: Extent) -> tuple[int, int] | None:
    return None if extent.crc32c is None else (extent.min_timestamp, extent.max_timestamp)


def splits_of_queue(
    queue: Queue,
    extents: Sequence[LogExtent],
    split_bytes: int,
    *,
    wanted: Selection,
    place: TierPlace,
    boundary: Boundary = no_boundary,
) -> list[Split]:
    """The splits of one queue: its wanted extents, in runs of some `split_bytes`. O(extents).

    A split ends where an extent does, or inside one that is longer than `split_bytes`: then at a
    place that `boundary` finds, or that the worker finds by following the records of the extent, up
    to `LEAD_BYTES_MAX` of them; else the first record is found by its own bytes, and only
    `where_not_met` proves that it is the right one. No split spans two segments.
    """
    low, high = wanted.offsets_of(queue.id)
    offsets = max(low, queue.min_offset), min(high, queue.next_offset)
    if offsets[0] >= offsets[1]:
        return []
    kept = [extent for extent in extents if _may_hold(extent, offsets, wanted.times_ms)]
    of_java = any(extent.times_ms is None for extent in kept)
    generation = None if of_java else queue.generation
    made: list[Split] = []
    for run in _runs(kept, split_bytes):
        pieces = tuple(extent.piece for extent in run)
        limit = pieces[-1].end
        begin = pieces[0].position
        starts: list[tuple[int, int | None]] = [(begin, begin)]
        if len(run) == 1 and limit - begin > split_bytes:
            starts += _inner_starts(run[0], split_bytes, boundary)
        ends = [start for start, _ in starts[1:]] + [limit]
        made += [
            Split(
                queue.id, start, end, anchor, limit, pieces, offsets, wanted.times_ms, place,
                generation,
            )
            for (start, anchor), end in zip(starts, ends, strict=True)
        ]  # fmt: skip
    return made


def _inner_starts(
    extent: LogExtent, split_bytes: int, boundary: Boundary
) -> Iterator[tuple[int, int | None]]:
    """Where splits begin inside one extent, and from where the chain is followed to there."""
    begin, end = extent.piece.position, extent.piece.end
    before = begin
    for target in range(begin + split_bytes, end, split_bytes):
        start = target
        anchor: int | None = begin if target - begin <= LEAD_BYTES_MAX else None
        if anchor is None:
            known = boundary(extent, target)
            start, anchor = (target, None) if known is None else (known, known)
        if before < start < end:
            yield start, anchor
            before = start


def _may_hold(extent: LogExtent, offsets: tuple[int, int], times_ms: tuple[int, int]) -> bool:
    """Whether an extent can have messages of these queue offsets and times."""
    if extent.first_offset >= offsets[1] or extent.next_offset <= offsets[0]:
        return False
    if extent.times_ms is None:
        return True
    return extent.times_ms[0] < times_ms[1] and extent.times_ms[1] >= times_ms[0]


def _runs(extents: Sequence[LogExtent], split_bytes: int) -> Iterator[list[LogExtent]]:
    """Extents of one segment that touch, of `split_bytes` together or a little more."""
    run: list[LogExtent] = []
    length = 0
    for extent in extents:
        follows = (
            run
            and run[-1].piece.end == extent.piece.position
            and run[-1].segment_base == extent.segment_base
            and length < split_bytes
            and extent.piece.length <= split_bytes
        )
        if run and not follows:
            yield run
            run, length = [], 0
        run.append(extent)
        length += extent.piece.length
    if run:
        yield run
