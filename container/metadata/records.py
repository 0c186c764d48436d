"""What the tier's metadata says: immutable records of topics, queues, segments and extents.

Everything here is a value. `metadata/operations.py` says how values change, `metadata/state.py`
keeps the newest ones, and the journal makes changes durable. `extra` carries fields of a newer
version that we do not know, so that they survive being read and written by us.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Self

from container.names.queue_id import QueueId, SegmentType
from container.record.unit import UNIT_BYTES
from provider.ranges import QueueOffset

NO_EXTRA: Mapping[str, Any] = {}


class CopyState(IntEnum):
    """How far a copy of a segment, or its removal, has come (Kafka's four states, KIP-405)."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


class Extent(NamedTuple):
    """A run of a segment's bytes that lies in one object and has one checksum.

    In a CommitLog an extent begins and ends between records, in a ConsumeQueue between units. A
    named tuple, because there are many: one is made in a quarter of the time of a frozen dataclass.
    """

    position: int
    """First byte, counted from the segment's base."""
    length: int
    """Bytes, > 0."""
    crc32c: int | None
    """CRC-32C of the bytes; None only where a Java tier was opened without reading it."""
    first_offset: QueueOffset
    """Queue offset of the first record or unit; of bytes without one, the first that a gap lost,
    or the next one."""
    min_timestamp: int
    """Smallest store timestamp of the messages, Unix ms."""
    max_timestamp: int
    """Largest store timestamp of the messages, Unix ms."""
    object_name: str = ""
    """Object that holds the bytes; "" means the segment's own file (RocketMQ's path)."""
    object_offset: int = 0
    """First byte in that object; for the segment's own file it equals `position`."""

    @property
    def end(self) -> int:
        """First byte behind the extent, counted from the segment's base."""
        return self.position + self.length


@dataclass(frozen=True, slots=True)
class Segment:
    """One file segment of a queue, as far as it is published.

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
    """When it was closed for good, Unix ms; None while it may grow."""
    state: CopyState = CopyState.COPY_FINISHED
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)

    @property
    def size(self) -> int:
        """Published bytes."""
        return self.extents[-1].end if self.extents else 0

    @property
    def end(self) -> int:
        """First byte of the flat file behind what is published."""
        return self.base + self.size

    def extended(self, extents: tuple[Extent, ...], sealed_ms: int | None) -> "Segment":
        """The same with these; in a third of the time of `replace`, twice in each commit."""
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
    """First byte behind the last segment in it."""
    segments: int
    """How many segments it lists, > 0."""
    bytes: int
    """Sum of the segments' sizes."""
    min_timestamp: int
    max_timestamp: int
    level: int = 0
    """0: written from the snapshot. n: merged from manifests of level n - 1."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA, hash=False)


@dataclass(frozen=True, slots=True)
class Gap:
    """Queue offsets `[start, end)` that were lost before they could be tiered."""

    start: QueueOffset
    end: QueueOffset
    reason: str
    found_ms: int
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA, hash=False)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Queue:
    """What is published of one queue.

    Of the readable segments (`readable`):

    I3  `commit_log` and `consume_queue` are in order of base and follow the manifests' segments.
    I4  CommitLog segments touch: each base is the end of the one before.
    I5  ConsumeQueue segments touch except across a gap; the last one ends at `20 next_offset`.
    """

    id: QueueId
    min_offset: QueueOffset
    """First offset that can be read."""
    next_offset: QueueOffset
    """The commit offset: the first offset that is not in the tier."""
    commit_log: tuple[Segment, ...] = ()
    consume_queue: tuple[Segment, ...] = ()
    manifests: tuple[ManifestRef, ...] = ()
    """Of both types, oldest first within a type."""
    gaps: tuple[Gap, ...] = ()
    generation: int = 0
    """Raised by every cut, and higher than that of a dropped queue of the same name. What was read
    in another generation may not be what is published."""
    used_below: tuple[int, int] | None = None
    """Highest ends that the CommitLog and the ConsumeQueue had before a cut: names of segments
    below may have been used before. None: all may (an older program's record, or a queue was
    dropped)."""
    repacks: int = 0
    """Raised whenever bytes that are published move to another object; they stay the same."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)

    def extended(
        self,
        next_offset: QueueOffset,
        commit_log: tuple[Segment, ...],
        consume_queue: tuple[Segment, ...],
    ) -> "Queue":
        """The same with these; in a third of the time of `replace`, once in each commit."""
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

    def readable(self, segment_type: SegmentType) -> tuple[Segment, ...]:
        """The segments in the snapshot that readers may read; those in manifests all are."""
        live = self.segments(segment_type)
        if all(segment.is_readable for segment in live):
            return live
        return tuple(segment for segment in live if segment.is_readable)

    def flat_begin(self, segment_type: SegmentType) -> int:
        """First byte of what is still published of one flat file; its end where nothing is."""
        bases = [ref.base for ref in self.manifests if ref.type == segment_type]
        bases += [segment.base for segment in self.readable(segment_type)[:1]]
        return min(bases, default=self.flat_end(segment_type))

    def flat_end(self, segment_type: SegmentType) -> int:
        """First byte behind everything published of one flat file."""
        live = self.segments(segment_type)
        if live:
            return live[-1].end
        ends = [ref.end for ref in self.manifests if ref.type == segment_type]
        if ends:
            return max(ends)
        return 0 if segment_type == SegmentType.COMMIT_LOG else UNIT_BYTES * self.next_offset


class SegmentMark(NamedTuple):
    """Which segment a record has, and in which state."""

    type: SegmentType
    base: int
    state: CopyState


@dataclass(frozen=True, slots=True)
class QueueBasis:
    """What a change of a whole record was planned on; compare-and-set refuses it otherwise.

    All that an operation can change: sizes of segments follow from `next_offset`.
    """

    generation: int
    min_offset: QueueOffset
    next_offset: QueueOffset
    manifests: tuple[str, ...]
    """Their object names, in the record's order."""
    segments: tuple[SegmentMark, ...]
    """Those in the snapshot, CommitLog first."""
    repacks: int = 0

    @classmethod
    def of(cls, queue: Queue) -> Self:
        """That of a record as it is. O(segments in the snapshot)."""
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
    """One topic; the id is what index items carry."""

    name: str
    topic_id: int
    retention_hours: int = -1
    """Hours that messages are kept; -1 means the configured default."""
    updated_ms: int = 0
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)


@dataclass(frozen=True, slots=True)
class Broker:
    """Whose tier this is, and who owns it now."""

    cluster: str
    name: str
    epoch: int = 0
    """Number of times that the ownership was taken; 0 before the first."""
    owner: str = ""
    """Who took it last: host, process and time, for people."""
    begun_ms: int = 0
    """When it was taken first, Unix ms. A tier that is made again under the same name has another
    one; 0: not known (an older program wrote a snapshot since)."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """An object that nothing refers to any more."""

    object_name: str
    not_before_ms: int
    """Readers may still hold its name until then."""
    reason: str
    tries: int = 0
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA, hash=False)


@dataclass(frozen=True, slots=True)
class Part:
    """An object that extents of any number of queues name, and how many of them do."""

    object_name: str
    references: int
    """Extents that name it, > 0, those in manifests included."""
    level: int = 0
    """How often its bytes were rewritten at most; 0: the slices of a round of commits."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA, hash=False)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A job of several steps (migration, rebuild, first files) that may die between them."""

    attempt_id: str
    kind: str
    started_ms: int
    epoch: int
    output_prefix: str = ""
    place: str = ""
    """Where a second store is, as its tier's last owner was told; it holds no secret."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)


Coverage = tuple[tuple[QueueId, QueueOffset, QueueOffset], ...]
"""Queues and offsets `[from, to)`, in order of both."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A sealed index file, and which messages' keys it holds."""

    object_name: str
    base: int
    size: int
    begin_timestamp: int
    end_timestamp: int
    slots: int
    items: int
    coverage: Coverage = ()
    """Per queue the offsets `[from, to)` whose keys are in it, in order. Those of a queue that
    meet are one row; there is a second row only behind messages that it does not have."""
    crc32c: int | None = None
    """CRC-32C of the bytes; None where an older program imported the file."""
    cuts: int = 0
    """How many cuts took a part of what it covered of a queue: it has items of messages that are
    no longer there."""
    extra: Mapping[str, Any] = field(default_factory=lambda: NO_EXTRA)
