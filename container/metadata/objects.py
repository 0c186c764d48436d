"""Objects that hold the bytes of segments: their names, and reference counts of parts. Pure.

An extent names its object. If the name is empty, the bytes lie in the segment's own file. No other
module resolves extents to names.

Counts are kept beside the extents and changed with them. A part is shared by many queues, so no
operation on one queue may delete it. Its record (`records.Part`) counts the extents that name it,
in the snapshot and in manifests. When the last reference goes, the state itself adds the tombstone.
Bytes in a segment's own file have no such record.

P1  While `TierState.parts_counted`, every part has as many references as extents name it, over all
    queues and manifests, and none has 0.

A state that an older program wrote is not counted until `CountParts` counts it. Counting ends at an
entry without the references of its manifests (`Release`), which only older programs write.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from container.metadata.operations import ALL_EXTENTS, CommitQueue, Release, SegmentChange
from container.metadata.records import Extent, Part, Queue, Segment, Tombstone, refuse_unless
from container.metadata.tables import Overlay
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import segment_name


def object_name(queue: QueueId, segment: Segment | SegmentChange, extent: Extent) -> str:
    """Name of the object that holds an extent of a queue's segment."""
    return extent.object_name or segment_name(queue, segment.type, segment.base)


def own_file(queue: QueueId, segment: Segment | SegmentChange) -> str | None:
    """Name of a segment's own file. None if all of its bytes lie in other objects."""
    if segment.extents and all(extent.object_name for extent in segment.extents):
        return None
    return segment_name(queue, segment.type, segment.base)


def object_names(queue: QueueId, segments: Iterable[Segment | SegmentChange]) -> Iterator[str]:
    """Names of all objects that the segments refer to, some more than once. O(extents)."""
    for segment in segments:
        name = own_file(queue, segment)
        if name is not None:
            yield name
        yield from (extent.object_name for extent in segment.extents if extent.object_name)


def names_of_queue(queue: Queue) -> Iterator[str]:
    """Names of all objects that the segments in a queue's record refer to. O(extents)."""
    for kind in FLAT_FILES:
        yield from object_names(queue.id, queue.segments(kind))


FREED = "freed"
"""Reason in tombstones of parts that lost their last reference."""


def references(segments: Iterable[Segment]) -> Counter[str]:
    """Number of extents of the segments that name each part. O(extents)."""
    return Counter(
        extent.object_name
        for segment in segments
        for extent in segment.extents
        if extent.object_name
    )


def references_of(queue: Queue | None) -> Counter[str]:
    """As `references`, for the segments in a queue's record, without those in manifests."""
    if queue is None:
        return Counter()
    return references(segment for kind in FLAT_FILES for segment in queue.segments(kind))


def release_of(in_manifests: Mapping[str, int], not_before_ms: int) -> Release:
    """Release of an operation that unpublishes segments, some of them in manifests.

    Each such operation has a release, even if it names no part: without it the counting ends.
    """
    named = sorted((name, number) for name, number in in_manifests.items() if number)
    return Release(not_before_ms, tuple(named))


def counted_commit(queue: Queue, operation: CommitQueue) -> Counter[str]:
    """Changes of the counts by a commit of `queue`. O(new and replaced extents)."""
    delta = Counter[str]()
    for change in operation.changes:
        for extent in change.extents:
            if extent.object_name:
                delta[extent.object_name] += 1
        live = queue.segments(change.type)
        if change.keep != ALL_EXTENTS and live and live[-1].base == change.base:
            for extent in live[-1].extents[change.keep :]:
                if extent.object_name:
                    delta[extent.object_name] -= 1
    return delta


def counted_change(
    before: Queue | None, after: Queue | None, release: Release | None
) -> Counter[str]:
    """Changes of the counts by a change of a whole record. O(extents of both)."""
    delta = references_of(after)
    delta.subtract(references_of(before))
    if release is not None:
        delta.subtract(dict(release.in_manifests))
    return delta


def says_too_little(before: Queue | None, after: Queue | None, release: Release | None) -> bool:
    """Whether manifests are dropped without a list of the parts that they refer to."""
    if release is not None or before is None:
        return False
    kept = {ref.object_name for ref in (() if after is None else after.manifests)}
    return any(ref.object_name not in kept for ref in before.manifests)


def count(
    parts: Overlay[str, Part],
    tombstones: Overlay[str, Tombstone],
    delta: Mapping[str, int],
    *,
    not_before_ms: int | None = None,
    level: int = 0,
) -> None:
    """Change the counts. A part that loses its last reference gets a tombstone.

    `not_before_ms` is that of the tombstones. With None no tombstones are added: a later owner
    finds those parts.

    Raises:
        Refused: a part would have a negative number of references.
    """
    for name, difference in delta.items():
        known = parts.get(name)
        left = difference + (0 if known is None else known.references)
        refuse_unless(left >= 0, f"{left} references are left (P1)", name)
        if left == 0:
            if known is None:
                continue
            parts.drop(name)
            if not_before_ms is not None:
                tombstones.put(name, Tombstone(name, not_before_ms, FREED))
        elif known is None:
            parts.put(name, Part(name, left, level))
            tombstones.drop(name)
        elif difference:
            parts.put(name, replace(known, references=left))


def recounted(queues: Iterable[Queue], manifests: Mapping[str, Iterable[Segment]]) -> Counter[str]:
    """Recount all references. `manifests` has the segments of each manifest. O(extents)."""
    counts = Counter[str]()
    for queue in queues:
        counts.update(references_of(queue))
        for ref in queue.manifests:
            counts.update(references(manifests[ref.object_name]))
    return counts
