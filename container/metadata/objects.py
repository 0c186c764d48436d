"""Objects that hold the bytes of segments: names, counts of parts, merges, offloads. Pure.

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

from container.metadata.operations import (
    ALL_EXTENTS,
    CommitQueue,
    ManifestSwap,
    OffloadSegments,
    Release,
    RepackedRun,
    RepackSegments,
    SegmentChange,
)
from container.metadata.records import (
    Attempt,
    Extent,
    ManifestRef,
    Part,
    Queue,
    Segment,
    Tombstone,
    check_queue,
    check_segments,
    queue_path,
    refuse_unless,
)
from container.metadata.tables import Overlay
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import segment_name
from provider.stores.packed_segments import OFFLOAD_PREFIX, parts_prefix
from provider.stores.two_stores import is_offloaded


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


def repack(queue: Queue, operation: RepackSegments) -> Queue:
    """Replace some extents by others. O(extents of the changed segments)."""
    planned_on = (operation.generation, operation.repacks)
    refuse_unless(
        (queue.generation, queue.repacks) == planned_on,
        f"planned on {planned_on}, it is {(queue.generation, queue.repacks)}",
        queue_path(queue.id),
    )
    files = {kind: list(queue.segments(kind)) for kind in FLAT_FILES}
    for run in operation.runs:
        live = files[run.type]
        at = next((n for n, segment in enumerate(live) if segment.base == run.base), -1)
        refuse_unless(at >= 0, f"no segment at {run.base}", queue_path(queue.id), run.base)
        live[at] = _with_run(queue, live[at], run)
    return replace(
        queue,
        commit_log=tuple(files[SegmentType.COMMIT_LOG]),
        consume_queue=tuple(files[SegmentType.CONSUME_QUEUE]),
        repacks=queue.repacks + 1,
    )


def _with_run(queue: Queue, segment: Segment, run: RepackedRun) -> Segment:
    """Copy of a segment with a run of its extents replaced."""
    path, extents = queue_path(queue.id), segment.extents
    first = next((n for n, one in enumerate(extents) if one.position == run.position), -1)
    gone = list(extents[first : first + run.replaced] if first >= 0 else ())
    refuse_unless(
        0 < run.replaced == len(gone) and bool(run.extents),
        f"no {run.replaced} extents at {run.position}",
        path,
        segment.base,
    )
    was = (gone[0].position, gone[0].first_offset, gone[-1].end)
    now = (run.extents[0].position, run.extents[0].first_offset, run.extents[-1].end)
    refuse_unless(was == now, f"{now} takes the place of {was}", path, segment.base)
    after = replace(
        segment, extents=(*extents[:first], *run.extents, *extents[first + run.replaced :])
    )
    check_segments([after], path)
    return after


SECOND_STORE = "second store"
"""Id and kind of the attempt that records the home. It never ends."""


def home_of(attempts: Mapping[str, Attempt]) -> str:
    """The tier's home in the second store, by the state's attempts; "" if it has none. Pure."""
    known = attempts.get(SECOND_STORE)
    return "" if known is None else known.output_prefix[len(OFFLOAD_PREFIX) :].rstrip("/")


def place_of(attempts: Mapping[str, Attempt]) -> str:
    """Place of the second store, as recorded by an owner. "" if none has recorded it. Pure.

    If it is recorded, that store holds the object `mark_name`, which identifies it.
    """
    known = attempts.get(SECOND_STORE)
    return "" if known is None else known.place


def mark_name(home: str) -> str:
    """Name of the object that identifies the tier of a home.

    It is created before any other object there.
    """
    return f"{parts_prefix(home)}@store"


def home_attempt(home: str, *, now_ms: int, epoch: int, place: str = "") -> Attempt:
    """Record of a home."""
    return Attempt(SECOND_STORE, SECOND_STORE, now_ms, epoch, parts_prefix(home), place)


def is_away(segment: Segment) -> bool:
    """Whether a segment's bytes lie in the second store. O(extents)."""
    return any(is_offloaded(extent.object_name) for extent in segment.extents)


def offload(queue: Queue, operation: OffloadSegments) -> Queue:
    """Replace some extents and manifests by others."""
    moved = RepackSegments(
        operation.queue,
        operation.generation,
        operation.repacks,
        0,
        operation.runs,
        operation.release,
    )
    after = repack(queue, moved)
    path = queue_path(queue.id)
    for run in operation.runs:
        live = queue.segments(run.type)
        sealed = any(one.base == run.base and one.sealed_ms is not None for one in live)
        refuse_unless(sealed, "an open segment is not offloaded (I2)", path, run.base)
    swaps = {swap.replaced: swap for swap in operation.manifests}
    known = {ref.object_name for ref in queue.manifests}
    refuse_unless(swaps.keys() <= known, "a manifest that is replaced is not there", path)
    manifests = tuple(_swapped(ref, swaps.get(ref.object_name), path) for ref in queue.manifests)
    dying = {tombstone.object_name for tombstone in operation.tombstones}
    refuse_unless(dying >= swaps.keys(), "a replaced manifest gets no tombstone", path)
    after = replace(after, manifests=manifests)
    check_queue(after)
    return after


def _swapped(ref: ManifestRef, swap: ManifestSwap | None, path: str) -> ManifestRef:
    if swap is None:
        return ref
    same = replace(swap.ref, object_name=ref.object_name, extra=ref.extra) == ref
    refuse_unless(same, "a manifest takes the place of one with other segments", path, ref.base)
    return swap.ref
