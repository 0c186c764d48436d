"""Changes of a journal entry, as values. An entry applies all of its changes or none."""

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
"""Value of `SegmentChange.keep`: all extents that the segment has when the change is applied."""


@dataclass(frozen=True, slots=True)
class Release:
    """References to parts that a change of a queue drops, unless the state can derive them."""

    not_before_ms: int
    """Time from which a part that loses its last reference may be deleted."""
    in_manifests: tuple[tuple[str, int], ...] = ()
    """Per part, the number of extents that named it in manifests that the record no longer refers
    to, less those in a replacing manifest. Extents in the snapshot are counted by the state."""


@dataclass(frozen=True, slots=True)
class TakeOwnership:
    """Fence: from this entry on `epoch` owns the tier. Alone in its entry, or with an import."""

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
    """Add a queue (first message, import of a Java tier), or move one that is still empty."""

    queue: Queue


@dataclass(frozen=True, slots=True)
class SegmentChange:
    """Change of one segment by a commit: begin, extend or seal it.

    The segment's extents become its first `keep` extents followed by `extents`. `ALL_EXTENTS` keeps
    all of them. A segment that does not exist is begun with `created_ms` and `epoch`.
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
    """Publish new durable messages of a queue: advance its commit offset.

    `expected_offset` is the commit offset that the change was planned on. The operation is refused
    if the queue does not exist or does not end there, which is a bug of its owner.
    """

    queue: QueueId
    expected_offset: QueueOffset
    next_offset: QueueOffset
    changes: tuple[SegmentChange, ...]


@dataclass(frozen=True, slots=True)
class RecordGap:
    """Record offsets that were lost before they were tiered.

    The queue continues at the end of the gap. Seals the queue's open segments. The next commit
    begins a ConsumeQueue segment at `20 gap.end` and a CommitLog segment at the end of the log.
    """

    queue: QueueId
    gap: Gap


@dataclass(frozen=True, slots=True)
class CutQueue:
    """Unpublish the newest messages of a queue (`repair`): those at or above `next_offset`.

    The caller provides the record after the truncation. Objects that lose all their bytes become
    tombstones. The record's `generation` and `used_below` are derived here.
    """

    queue: Queue
    reason: str
    tombstones: tuple[Tombstone, ...] = ()
    planned_on: QueueBasis | None = None
    """Record that was truncated. None in entries of older programs, which are not compared."""
    release: Release | None = None
    """Dropped references to parts. None in older entries, and if the queue named no part."""


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
    """Generation of the queue that it was planned on. None in entries of older programs."""
    repacks: int | None = None
    """As `generation`. None also for a queue that was never repacked."""


@dataclass(frozen=True, slots=True)
class TrimQueue:
    """Unpublish the oldest messages of a queue (retention): those below `min_offset`.

    Whole segments leave the snapshot: those that end at or below the new base of their flat file.
    The last segment of a flat file always stays, so that positions are never reused.
    """

    queue: QueueId
    expected_offset: QueueOffset
    """`min_offset` that the change was planned on."""
    min_offset: QueueOffset
    commit_log_base: int
    """First byte of the CommitLog's first segment that stays, in a manifest or not."""
    consume_queue_base: int
    """First byte of the ConsumeQueue's first segment that stays."""
    manifests: tuple[ManifestRef, ...] = ()
    """All manifests of the queue after the change. A truncated manifest has a new name."""
    tombstones: tuple[Tombstone, ...] = ()
    planned_on: QueueBasis | None = None
    """Record that was trimmed. None: not compared."""
    release: Release | None = None
    """Dropped references to parts. None in older entries, and if the queue named no part."""
    gaps_from: int = 0
    """Gaps that end below this leave the record, but for the newest of `ENDS_A_QUEUE`. 0: none."""


@dataclass(frozen=True, slots=True)
class DropQueue:
    """Unpublish a queue and all of its history, on an explicit request."""

    queue: QueueId
    tombstones: tuple[Tombstone, ...] = ()
    planned_on: QueueBasis | None = None
    """Record that was dropped. None: not compared."""
    release: Release | None = None
    """Dropped references to parts. None in older entries, and if the queue named no part."""


@dataclass(frozen=True, slots=True)
class RepackedRun:
    """Adjacent extents of one segment, and the extents that replace them."""

    type: SegmentType
    base: int
    """Base of the segment, which is in the snapshot."""
    position: int
    """First byte of the run, counted from the segment's base."""
    replaced: int
    """Number of extents from there on that are replaced, > 0."""
    extents: tuple[Extent, ...]
    """The same bytes, in other objects."""


@dataclass(frozen=True, slots=True)
class RepackSegments:
    """Move bytes of a queue to other objects: parts were merged, or a segment was sealed.

    Refused if the queue has another generation or was repacked since. Commits do not conflict with
    it.
    """

    queue: QueueId
    generation: int
    repacks: int
    """`repacks` counter of the queue that it was planned on."""
    level: int
    """Level of the new parts."""
    runs: tuple[RepackedRun, ...]
    release: Release


@dataclass(frozen=True, slots=True)
class ManifestSwap:
    """Manifest that replaces another one with the same segments, whose bytes lay elsewhere."""

    replaced: str
    """Object name of the replaced manifest."""
    ref: ManifestRef


@dataclass(frozen=True, slots=True)
class OffloadSegments:
    """Move bytes of sealed segments to the second store, where they were verified.

    Compared as `RepackSegments`. Segments in manifests move with their manifests.
    """

    queue: QueueId
    generation: int
    repacks: int
    runs: tuple[RepackedRun, ...]
    """Runs of segments in the snapshot."""
    manifests: tuple[ManifestSwap, ...]
    tombstones: tuple[Tombstone, ...]
    """Tombstones of the replaced manifests, and of the segments' own files, which are due after the
    lag."""
    release: Release


@dataclass(frozen=True, slots=True)
class CountParts:
    """Count all references to parts of a tier that an older program left uncounted.

    Provides the references in all manifests of the tier. The state has those in the snapshot.
    """

    in_manifests: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SetSegmentState:
    """Move one segment copy to the next state (`CopyState`). Illegal transitions are refused."""

    queue: QueueId
    type: SegmentType
    base: int
    state: CopyState


@dataclass(frozen=True, slots=True)
class AddTombstones:
    """Add objects that may be deleted after a grace time."""

    tombstones: tuple[Tombstone, ...]


@dataclass(frozen=True, slots=True)
class DropTombstones:
    """Remove the tombstones of objects that were deleted, or are in use again."""

    object_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PutAttempt:
    """Begin a job of several steps, or record its progress."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """End a job of several steps, whether it succeeded or was abandoned."""

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
"""Operations that may follow a fence in its entry: everything in an imported tier, or found by a
rebuild of the metadata. Tombstones that are never due protect objects that are not published."""
