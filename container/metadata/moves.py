"""Queue records after a merge of objects or an offload: the same bytes in other objects."""

from collections.abc import Mapping
from dataclasses import replace

from container.metadata.operations import ManifestSwap, OffloadSegments, RepackedRun, RepackSegments
from container.metadata.records import (
    Attempt,
    ManifestRef,
    Queue,
    Segment,
    check_queue,
    check_segments,
    queue_path,
    refuse_unless,
)
from container.names.queue_id import FLAT_FILES, SegmentType
from provider.stores.packed_segments import OFFLOAD_PREFIX, parts_prefix
from provider.stores.two_stores import is_offloaded


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
