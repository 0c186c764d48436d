"""The changes that a journal entry can make, as values. An entry applies all of its or none."""

from dataclasses import dataclass

from container.metadata.records import (
    Attempt,
    CopyState,
    Extent,
    Gap,
    IndexFile,
    ManifestRef,
    Queue,
    QueueBasis,
    Tombstone,
    Topic,
)
from container.names.queue_id import QueueId, SegmentType
from provider.ranges import QueueOffset

ALL_EXTENTS = -1
"""As `SegmentChange.keep`: every extent that the segment has, however many that are by then."""


@dataclass(frozen=True, slots=True)
class Release:
    """How a change of a queue lets go of parts: what the state cannot see, and must not guess."""

    not_before_ms: int
    """A part that loses its last reference may be deleted from then on."""
    in_manifests: tuple[tuple[str, int], ...] = ()
    """Per part, how many extents named it in manifests that the record no longer refers to, less
    those in the manifest that takes the place of one. Those in the snapshot are counted here."""


@dataclass(frozen=True, slots=True)
class TakeOwnership:
    """The fence: from here on `epoch` owns the tier. Alone in its entry, or with an import."""

    epoch: int
    owner: str
    cluster: str
    broker: str
    taken_ms: int


@dataclass(frozen=True, slots=True)
class PutTopic:
    """Add a topic, or replace its record."""

    topic: Topic


@dataclass(frozen=True, slots=True)
class PutQueue:
    """Add a queue (first message, import of a Java tier), or move one that has nothing yet."""

    queue: Queue


@dataclass(frozen=True, slots=True)
class SegmentChange:
    """What a commit does to one segment: begin it, extend it, seal it.

    The segment's extents become its first `keep` ones followed by `extents`; `ALL_EXTENTS` keeps
    them all. A segment that is not there is begun with `created_ms` and `epoch`.
    """

    type: SegmentType
    base: int
    keep: int
    extents: tuple[Extent, ...]
    created_ms: int = 0
    epoch: int = 0
    sealed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CommitQueue:
    """New messages of a queue became durable: advance its commit offset.

    `expected_offset` is the commit offset that the change was planned on: the operation is
    refused where the queue is not, or does not end there, which is a bug of its owner's.
    """

    queue: QueueId
    expected_offset: QueueOffset
    next_offset: QueueOffset
    changes: tuple[SegmentChange, ...]


@dataclass(frozen=True, slots=True)
class RecordGap:
    """Offsets were lost before they were tiered: the queue goes on at the end of the gap.

    Seals the queue's open segments; the next commit begins a ConsumeQueue segment at `20 gap.end`
    and a CommitLog segment at the log's end.
    """

    queue: QueueId
    gap: Gap


@dataclass(frozen=True, slots=True)
class CutQueue:
    """Unpublish the newest messages of a queue (`repair`): those at or above `next_offset`.

    The caller gives the record as it is after the cut; objects that lose all their bytes become
    tombstones. The record's `generation` and `used_below` are worked out here.
    """

    queue: Queue
    reason: str
    tombstones: tuple[Tombstone, ...] = ()
    planned_on: QueueBasis | None = None
    """The record that was cut; None in entries of older programs, which are not compared."""
    release: Release | None = None
    """How it lets go of parts; None in older entries, also where the queue named no part."""


@dataclass(frozen=True, slots=True)
class MoveToManifest:
    """Replace sealed segments, and perhaps older manifests, by one reference to a manifest."""

    queue: QueueId
    ref: ManifestRef
    segment_bases: tuple[int, ...]
    """Segments of `ref.type` that leave the snapshot."""
    replaced: tuple[str, ...] = ()
    """Object names of manifests that were merged into it; they become tombstones."""
    tombstones: tuple[Tombstone, ...] = ()
    generation: int | None = None
    """The queue's generation that it was planned on; None in entries of older programs."""
    repacks: int | None = None
    """As `generation`; None also for a queue that was never repacked."""


@dataclass(frozen=True, slots=True)
class TrimQueue:
    """Unpublish the oldest messages of a queue (retention): those below `min_offset`.

    Whole segments leave the snapshot: those that end at or below the new base of their flat file.
    The last segment of a flat file always stays, so that positions are never used twice.
    """

    queue: QueueId
    expected_offset: QueueOffset
    """The `min_offset` that the change was planned on."""
    min_offset: QueueOffset
    commit_log_base: int
    """First byte of the CommitLog's first segment that stays, in a manifest or not."""
    consume_queue_base: int
    """First byte of the ConsumeQueue's first segment that stays."""
    manifests: tuple[ManifestRef, ...] = ()
    """All manifests of the queue after the change; one that was cut has a new name."""
    tombstones: tuple[Tombstone, ...] = ()
    planned_on: QueueBasis | None = None
    """The record that was trimmed; None: not compared."""
    release: Release | None = None
    """How it lets go of parts; None in older entries, also where the queue named no part."""


@dataclass(frozen=True, slots=True)
class DropQueue:
    """Unpublish a queue and all of its history, on an explicit word."""

    queue: QueueId
    tombstones: tuple[Tombstone, ...] = ()
    planned_on: QueueBasis | None = None
    """The record that was dropped; None: not compared."""
    release: Release | None = None
    """How it lets go of parts; None in older entries, also where the queue named no part."""


@dataclass(frozen=True, slots=True)
class RepackedRun:
    """Some extents of one segment side by side, and those that take their place."""

    type: SegmentType
    base: int
    """Of the segment, which is in the snapshot."""
    position: int
    """First byte of the run, counted from the segment's base."""
    replaced: int
    """How many extents begin there and go, > 0."""
    extents: tuple[Extent, ...]
    """The same bytes, in other objects."""


@dataclass(frozen=True, slots=True)
class RepackSegments:
    """Bytes of a queue lie in other objects from here on: parts were merged, or a segment sealed.

    Refused where the queue has another generation, or was repacked since; commits are in nobody's
    way.
    """

    queue: QueueId
    generation: int
    repacks: int
    """The queue's counter that it was planned on."""
    level: int
    """Of the new parts."""
    runs: tuple[RepackedRun, ...]
    release: Release


@dataclass(frozen=True, slots=True)
class ManifestSwap:
    """A manifest that takes the place of one with the same segments, whose bytes lay elsewhere."""

    replaced: str
    """Object name of the older one."""
    ref: ManifestRef


@dataclass(frozen=True, slots=True)
class OffloadSegments:
    """Bytes of sealed segments lie in the second store from here on, verified there.

    Compared as `RepackSegments`. Segments in manifests go with their manifests.
    """

    queue: QueueId
    generation: int
    repacks: int
    runs: tuple[RepackedRun, ...]
    """Of segments in the snapshot."""
    manifests: tuple[ManifestSwap, ...]
    tombstones: tuple[Tombstone, ...]
    """Of the older manifests, and of the segments' own files, which are due after the lag."""
    release: Release


@dataclass(frozen=True, slots=True)
class CountParts:
    """Count the references to parts from nothing: an older program did not.

    Gives those in all manifests of the tier; the state knows those in the snapshot.
    """

    in_manifests: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SetSegmentState:
    """Move one segment copy to the next state (`CopyState`); illegal moves are refused."""

    queue: QueueId
    type: SegmentType
    base: int
    state: CopyState


@dataclass(frozen=True, slots=True)
class AddTombstones:
    """Objects that may be deleted after a while."""

    tombstones: tuple[Tombstone, ...]


@dataclass(frozen=True, slots=True)
class DropTombstones:
    """Objects that were deleted, or are in use again."""

    object_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PutAttempt:
    """Begin a job of several steps, or note its progress."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """A job of several steps is over, one way or the other."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class PutIndexFile:
    """Publish an index file, or replace its record."""

    index_file: IndexFile


@dataclass(frozen=True, slots=True)
class DropIndexFile:
    """Unpublish an index file."""

    object_name: str


Operation = (
    TakeOwnership
    | PutTopic
    | PutQueue
    | CommitQueue
    | RecordGap
    | CutQueue
    | MoveToManifest
    | TrimQueue
    | DropQueue
    | RepackSegments
    | OffloadSegments
    | CountParts
    | SetSegmentState
    | AddTombstones
    | DropTombstones
    | PutAttempt
    | EndAttempt
    | PutIndexFile
    | DropIndexFile
)

IMPORTED = PutTopic | PutQueue | PutIndexFile | AddTombstones
"""What may follow a fence in its entry: all that a tier of another store has, or that a rebuild of
the metadata found. Tombstones that are never due keep what is not published."""
