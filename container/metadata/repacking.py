"""What repacking does to a queue's record: the same bytes lie in other objects. Pure."""

from dataclasses import replace

from container.metadata.invariants import check_segments, queue_path, refuse_unless
from container.metadata.operations import RepackedRun, RepackSegments
from container.metadata.records import Queue, Segment
from container.names.queue_id import FLAT_FILES, SegmentType


def repack(queue: Queue, operation: RepackSegments) -> Queue:
    """Put other extents in the place of some. O(extents of the segments that are touched)."""
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
    """A segment with a run of its extents replaced."""
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
