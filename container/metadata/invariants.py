"""The numbered invariants of segments and queues (`metadata/records.py`), checked."""

from collections.abc import Sequence
from itertools import pairwise

from container.errors import Refused
from container.metadata.records import Queue, Segment
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.record.unit import UNIT_BYTES


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
