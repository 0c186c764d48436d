"""Immutable metadata records of a tier: topics, queues, segments and extents.

Every record is a value. `metadata/operations.py` defines the changes, `metadata/state.py` keeps the
newest records, and the journal makes changes durable. `extra` carries unknown fields of a newer
version, so that they survive reading and writing by this program.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple, Self

from container.errors import Refused
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.record.unit import UNIT_BYTES
from provider.ranges import QueueOffset

NO_EXTRA: Mapping[str, Any] = {}


class CopyState(IntEnum):
    """Progress of a segment copy or of its removal (the four states of Kafka's KIP-405)."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


class Extent(NamedTuple):
    """Contiguous bytes of a segment in one object, with one checksum.

    In a CommitLog an extent begins and ends between records, in a ConsumeQueue between units. It is
    a named tuple because there are many: creating one takes a quarter of the time of a frozen
    dataclass.
    """

    position: int
    """First byte, counted from the segment's base."""
    length: int
    """Bytes, > 0."""
    crc32c: int | None
    """CRC-32C of the bytes. None only if a Java tier was opened without reading it."""
    first_offset: QueueOffset
    """Queue offset of the first record or unit. For bytes without one: the first offset of a gap,
    or the next offset."""
    min_timestamp: int
    """Smallest store timestamp of the messages, Unix ms."""
    max_timestamp: int
    """Largest store timestamp of the messages, Unix ms."""
    object_name: str = ""
    """Object that holds the bytes. "" means the segment's own file (RocketMQ's path)."""
    object_offset: int = 0
    """First byte in that object. For the segment's own file it equals `position`."""

    @property
    def end(self) -> int:
        """End of the extent, exclusive, counted from the segment's base."""
        return self.position + self.length


@dataclass(frozen=True, slots=True)
class Segment:
    """Published state of one file segment of a queue.

    I1  The extents are in order, touch, begin at 0 and end at `size`.
    I2  Only the last segment of a flat file is not sealed, and only it grows.
    """

    type: SegmentType
    base: int
    """First byte in the flat file. CommitLog: a log position. ConsumeQueue: 20 x queue offset."""
    created_ms: int
    epoch: int
    """Epoch of the owner that began it."""
    extents: tuple[Extent, ...] = ()
    sealed_ms: int | None = None
    """Time at which it was sealed, Unix ms. None while it may grow."""
    state: CopyState = CopyState.COPY_FINISHED
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)

    @property
    def size(self) -> int:
        """Published bytes."""
        return self.extents[-1].end if self.extents else 0

    @property
    def end(self) -> int:
        """End of the published bytes in the flat file, exclusive."""
        return self.base + self.size

    def extended(self, extents: tuple[Extent, ...], sealed_ms: int | None) -> "Segment":
        """Copy with these values. A third of the time of `replace`; used twice in each commit."""
        return Segment(
            self.type,
            self.base,
            self.created_ms,
            self.epoch,
            extents,
            sealed_ms,
            self.state,
            self.extra,
        )

    @property
    def is_readable(self) -> bool:
        """Whether readers may read it: its copy is finished, and no deletion has begun."""
        return self.state == CopyState.COPY_FINISHED

    @property
    def begin_timestamp(self) -> int | None:
        """Smallest store timestamp, Unix ms; None while empty."""
        return min((extent.min_timestamp for extent in self.extents), default=None)

    @property
    def end_timestamp(self) -> int | None:
        """Largest store timestamp, Unix ms; None while empty."""
        return max((extent.max_timestamp for extent in self.extents), default=None)


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """Sealed segments of one flat file that were moved out of the snapshot into a manifest."""

    object_name: str
    type: SegmentType
    base: int
    """First byte of the first segment in it, in the flat file."""
    end: int
    """End of the last segment in it, exclusive."""
    segments: int
    """Number of segments in it, > 0."""
    bytes: int
    """Sum of the segments' sizes."""
    min_timestamp: int
    max_timestamp: int
    level: int = 0
    """0: written from the snapshot. n: merged from manifests of level n - 1."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA, hash=False)


TOPIC_DELETED_REASON = "the broker deleted the topic before they were tiered"
"""Reason of a gap that ends where a deleted queue ended."""
MADE_AGAIN_REASON = (
    "the broker deleted the topic and made it again; it gives the offsets a second time, and no "
    "message of the new topic below the end of this gap is tiered"
)
"""Reason of a gap between a deleted queue and its next incarnation."""
ENDS_A_QUEUE = frozenset({TOPIC_DELETED_REASON, MADE_AGAIN_REASON})
"""Reasons of gaps that end a deleted queue. Messages before such a gap are never compared."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Queue offsets `[start, end)` that were lost before they could be tiered."""

    start: QueueOffset
    end: QueueOffset
    reason: str
    found_ms: int
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA, hash=False)


def gap_at(gaps: Sequence[Gap], offset: int) -> Gap | None:
    """Gap that contains `offset`. None if there is none. O(log n)."""
    at = bisect_right(gaps, offset, key=_gap_start) - 1
    return gaps[at] if at >= 0 and offset < gaps[at].end else None


def after_gaps(gaps: Sequence[Gap], offset: int) -> QueueOffset:
    """First offset at or after `offset` that lies in no gap. O(log n), and adjacent gaps."""
    at = max(bisect_right(gaps, offset, key=_gap_start) - 1, 0)
    while at < len(gaps) and gaps[at].start <= offset:
        offset = max(offset, gaps[at].end)
        at += 1
    return QueueOffset(offset)


def next_gap_start(gaps: Sequence[Gap], offset: int, end: int) -> int:
    """Start of the first gap after `offset`; `end` if no gap starts before it. O(log n)."""
    at = bisect_right(gaps, offset, key=_gap_start)
    return min(end, gaps[at].start) if at < len(gaps) else end


def gaps_between(gaps: Sequence[Gap], start: int, end: int) -> Sequence[Gap]:
    """Gaps that overlap `[start, end)`. O(log n)."""
    first = bisect_right(gaps, start, key=lambda gap: gap.end)
    return gaps[first : bisect_left(gaps, end, key=_gap_start)]


def _gap_start(gap: Gap) -> int:
    return gap.start


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Queue:
    """Published state of one queue.

    Of the readable segments (`readable`):

    I3  `commit_log` and `consume_queue` are in order of base and follow the manifests' segments.
    I4  CommitLog segments touch: each base is the end of the one before.
    I5  ConsumeQueue segments touch except across a gap; the last one ends at `20 next_offset`.
    """

    id: QueueId
    min_offset: QueueOffset
    """First readable offset."""
    next_offset: QueueOffset
    """Commit offset: the first offset that is not in the tier."""
    commit_log: tuple[Segment, ...] = ()
    consume_queue: tuple[Segment, ...] = ()
    manifests: tuple[ManifestRef, ...] = ()
    """Manifests of both types, oldest first within a type."""
    gaps: tuple[Gap, ...] = ()
    generation: int = 0
    """Raised by every truncation of the tail, and higher than that of a dropped queue of the same
    name. Data read in another generation may differ from the published data."""
    used_below: tuple[int, int] | None = None
    """Highest ends that the CommitLog and the ConsumeQueue had before a truncation. Names of
    segments below these may have been used before. None: all may (record of an older program, or a
    queue was dropped)."""
    repacks: int = 0
    """Raised whenever published bytes move to another object. The bytes stay the same."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)

    def extended(
        self,
        next_offset: QueueOffset,
        commit_log: tuple[Segment, ...],
        consume_queue: tuple[Segment, ...],
    ) -> "Queue":
        """Copy with these values. A third of the time of `replace`; used once in each commit."""
        return Queue(
            self.id,
            self.min_offset,
            next_offset,
            commit_log,
            consume_queue,
            self.manifests,
            self.gaps,
            self.generation,
            self.used_below,
            self.repacks,
            self.extra,
        )

    def may_have_used(self, segment_type: SegmentType, base: int) -> bool:
        """Whether the name of a segment that begins now may have been another segment's."""
        return self.used_below is None or base < self.used_below[segment_type]

    def segments(self, segment_type: SegmentType) -> tuple[Segment, ...]:
        """The segments in the snapshot, without those in manifests, of one flat file."""
        return self.commit_log if segment_type == SegmentType.COMMIT_LOG else self.consume_queue

    def has_extents(self, segment_type: SegmentType, base: int, run: tuple[Extent, ...]) -> bool:
        """Whether a segment in the snapshot has these adjacent extents at the same place."""
        for segment in self.segments(segment_type):
            if segment.base == base:
                at = bisect_left(segment.extents, run[0].position, key=lambda one: one.position)
                return segment.extents[at : at + len(run)] == run
        return False

    def readable(self, segment_type: SegmentType) -> tuple[Segment, ...]:
        """Readable segments in the snapshot. All segments in manifests are readable."""
        live = self.segments(segment_type)
        if all(segment.is_readable for segment in live):
            return live
        return tuple(segment for segment in live if segment.is_readable)

    def flat_begin(self, segment_type: SegmentType) -> int:
        """First published byte of one flat file. Its end if it has no published bytes."""
        bases = [ref.base for ref in self.manifests if ref.type == segment_type]
        bases += [segment.base for segment in self.readable(segment_type)[:1]]
        return min(bases, default=self.flat_end(segment_type))

    def flat_end(self, segment_type: SegmentType) -> int:
        """End of the published bytes of one flat file, exclusive."""
        live = self.segments(segment_type)
        if live:
            return live[-1].end
        ends = [ref.end for ref in self.manifests if ref.type == segment_type]
        if ends:
            return max(ends)
        return 0 if segment_type == SegmentType.COMMIT_LOG else UNIT_BYTES * self.next_offset


class SegmentMark(NamedTuple):
    """Identity and state of one segment of a record."""

    type: SegmentType
    base: int
    state: CopyState


@dataclass(frozen=True, slots=True)
class QueueBasis:
    """State of a record that a change was planned on. Compare-and-set refuses any other.

    Contains every field that an operation can change. Sizes of segments follow from `next_offset`.
    """

    generation: int
    min_offset: QueueOffset
    next_offset: QueueOffset
    manifests: tuple[str, ...]
    """Object names of the manifests, in the record's order."""
    segments: tuple[SegmentMark, ...]
    """Segments in the snapshot, CommitLog first."""
    repacks: int = 0

    @classmethod
    def of(cls, queue: Queue) -> Self:
        """Basis of a record in its present state. O(segments in the snapshot)."""
        return cls(
            queue.generation,
            queue.min_offset,
            queue.next_offset,
            tuple(ref.object_name for ref in queue.manifests),
            tuple(
                SegmentMark(segment.type, segment.base, segment.state)
                for segment in (*queue.commit_log, *queue.consume_queue)
            ),
            queue.repacks,
        )


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. Index items carry its id."""

    name: str
    topic_id: int
    retention_hours: int = -1
    """Retention of messages in hours. -1 means the configured default."""
    updated_ms: int = 0
    settings: str = ""
    """Other settings, as JSON of its broker's config/topics.json without defaults. "": unknown."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)


@dataclass(frozen=True, slots=True)
class Broker:
    """Identity of the tier, and its present owner."""

    cluster: str
    name: str
    epoch: int = 0
    """Number of takeovers. 0 before the first."""
    owner: str = ""
    """Last owner: host, process and time, for display."""
    begun_ms: int = 0
    """Time of the first takeover, Unix ms. A tier that is recreated under the same name has another
    value. 0: unknown (an older program wrote a snapshot since)."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Object without references, kept for a grace time."""

    object_name: str
    not_before_ms: int
    """End of the grace time: readers may hold the object's name until then."""
    reason: str
    tries: int = 0
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA, hash=False)


@dataclass(frozen=True, slots=True)
class Part:
    """Object that extents of any number of queues name, and the number of these extents."""

    object_name: str
    references: int
    """Extents that name it, > 0, including those in manifests."""
    level: int = 0
    """Maximal number of rewrites of its bytes. 0: slices of a round of commits."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA, hash=False)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Job of several steps (migration, rebuild, first files) that may be interrupted."""

    attempt_id: str
    kind: str
    started_ms: int
    epoch: int
    output_prefix: str = ""
    place: str = ""
    """Place of a second store, as configured for the tier's last owner. It holds no secret."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)


CoverageRow = tuple[QueueId, QueueOffset, QueueOffset]
Coverage = Sequence[CoverageRow]
"""Queues and offsets `[from, to)`, in order of both. In a state they are `CoverageRows`."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A sealed index file, and the messages whose keys it holds."""

    object_name: str
    base: int
    size: int
    begin_timestamp: int
    end_timestamp: int
    slots: int
    items: int
    coverage: Coverage = ()
    """Per queue the offsets `[from, to)` whose keys are in it, in order. Adjacent ranges of a queue
    are one row. A second row begins only after messages that the file does not have."""
    crc32c: int | None = None
    """CRC-32C of the bytes. None if an older program imported the file."""
    cuts: int = 0
    """Number of truncations that removed a part of its coverage of a queue: it has items of
    messages that no longer exist."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)


def queue_path(queue: QueueId) -> str:
    """Name of a queue in error messages."""
    return f"{queue.topic}/{queue.queue_id}"


def refuse_unless(condition: bool, reason: str, path: str, position: int = 0) -> None:  # noqa: FBT001 - reads as an assertion
    """Raise `Refused` if `condition` is false."""
    if not condition:
        raise Refused(reason, path, position)


def check_segments(segments: Sequence[Segment], path: str) -> None:
    """Check I1 on every segment and I2 on all but the last. O(extents).

    Raises:
        Refused: an invariant is violated; the position is the segment's base.
    """
    for number, segment in enumerate(segments):
        end = 0
        for extent in segment.extents:
            refuse_unless(
                extent.position == end and extent.length > 0,
                f"extent at {extent.position} does not follow {end} (I1)",
                path,
                segment.base,
            )
            end = extent.end
        refuse_unless(
            segment.sealed_ms is not None or number == len(segments) - 1,
            "only the last segment may be open (I2)",
            path,
            segment.base,
        )


def check_queue(queue: Queue) -> None:
    """Check I1 to I5 on one queue's record. O(extents); manifests are checked by their ranges.

    Raises:
        Refused: an invariant is violated.
    """
    path = queue_path(queue.id)
    refuse_unless(
        0 <= queue.min_offset <= queue.next_offset,
        f"offsets [{queue.min_offset}, {queue.next_offset})",
        path,
    )
    for before, after in pairwise(queue.gaps):
        refuse_unless(before.end <= after.start, "gaps are not in order", path)
    for gap in queue.gaps:
        refuse_unless(
            gap.start < gap.end <= queue.next_offset, f"gap [{gap.start}, {gap.end})", path
        )
    if not (queue.commit_log or queue.consume_queue or queue.manifests):
        return  # no bytes: the ends of the files follow from the offsets
    gap_starts = {UNIT_BYTES * gap.start: UNIT_BYTES * gap.end for gap in queue.gaps}
    for kind in FLAT_FILES:
        live = queue.segments(kind)
        refuse_unless(
            all(segment.type == kind for segment in live), f"a foreign segment in {kind.name}", path
        )
        check_segments(live, path)
        runs = [(ref.base, ref.end) for ref in queue.manifests if ref.type == kind]
        runs += [(segment.base, segment.end) for segment in queue.readable(kind)]
        may_jump = gap_starts if kind == SegmentType.CONSUME_QUEUE else {}
        _runs_touch(path, runs, may_jump)
    _units_end(queue, gap_starts)


def _runs_touch(path: str, runs: list[tuple[int, int]], may_jump: dict[int, int]) -> None:
    """Check I3, I4 and the first half of I5 for all readable segments, in the record's order."""
    for (_, end), (base, _) in pairwise(runs):
        refuse_unless(
            base == end or may_jump.get(end) == base,
            f"a segment begins at {base}, the one before ends at {end} (I3, I4, I5)",
            path,
            base,
        )


def _units_end(queue: Queue, gap_starts: dict[int, int]) -> None:
    """Check the second half of I5."""
    end = queue.flat_end(SegmentType.CONSUME_QUEUE)
    wanted = UNIT_BYTES * queue.next_offset
    refuse_unless(
        end == wanted or gap_starts.get(end) == wanted,
        f"units end at {end}, the commit offset wants {wanted} (I5)",
        queue_path(queue.id),
        end,
    )
