"""CommitLog positions of queue offsets, as far as the loaded metadata has them."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from container.metadata.records import Extent, Gap, Queue, Segment, gap_at
from container.names.queue_id import SegmentType
from provider.ranges import QueueOffset


def log_position(queue: Queue, offset: QueueOffset) -> int | None:
    """Log position of the message at `offset`. The log's end at the queue's end.

    Known at the beginning of each extent. For the first message of a gap: the beginning of the
    bytes without messages. None elsewhere, and if extents do not name their first message, as in a
    tier that RocketMQ's own store wrote. O(log n).
    """
    segments = _live(queue)
    if not segments:
        return None
    if offset == queue.next_offset:
        return segments[-1].end
    if gap_at(queue.gaps, offset) is not None:
        number = _last_from(segments, offset - 1)  # bytes without messages may lie in many extents
        at = bisect_left(segments[number].extents, offset, key=_first_offset)
        if at == len(segments[number].extents):
            number, at = number + 1, 0
    else:
        number = _last_from(segments, offset)
        at = bisect_right(segments[number].extents, offset, key=_first_offset) - 1  # after them
    if at < 0 or number == len(segments):
        return None
    segment = segments[number]
    extent = segment.extents[at]
    is_known = extent.first_offset == offset and extent.crc32c is not None
    return segment.base + extent.position if is_known else None


def object_ends(queue: Queue, low: QueueOffset, high: QueueOffset) -> list[QueueOffset]:
    """Offsets between `low` and `high` before which the bytes of an object end, in order.

    O(extents between them).
    """
    segments = _live(queue)
    found: list[QueueOffset] = []
    previous_end: tuple[str | int, int] | None = None
    for segment in segments[_last_from(segments, low) :]:
        first = max(0, bisect_left(segment.extents, low, key=_first_offset) - 1)
        for extent in segment.extents[first:]:
            if extent.first_offset >= high:
                return found
            where = extent.object_name or segment.base
            is_new = extent.first_offset > (found[-1] if found else low)
            if is_new and previous_end != (where, extent.object_offset):
                found.append(extent.first_offset)
            previous_end = where, extent.object_offset + extent.length
    return found


def lies_in_gap(gaps: Sequence[Gap], start: int, end: int) -> bool:
    """Whether an extent from offset `start` up to the one of `end` holds no message.

    It begins in a gap and ends there. O(log n).
    """
    gap = gap_at(gaps, start)
    return gap is not None and end <= gap.end


def begins_in_gap(gaps: Sequence[Gap], extent: Extent) -> bool:
    """Whether the first message of an extent was lost. Such an extent is never merged with others.

    Otherwise the bytes without messages could no longer be found. O(log n).
    """
    return gap_at(gaps, extent.first_offset) is not None


def lost_bytes(queue: Queue, segments: Sequence[Segment]) -> dict[int, int]:
    """Begin and end of byte runs of a log that hold only lost messages. O(n).

    They exist in a log that was damaged when its metadata was rebuilt.
    """
    extents = [(one.base + extent.position, extent) for one in segments for extent in one.extents]
    if not extents:
        return {}
    ends = [extent.first_offset for _, extent in extents[1:]] + [queue.next_offset]
    found: dict[int, int] = {}
    last = -1
    for (start, extent), end in zip(extents, ends, strict=True):
        if lies_in_gap(queue.gaps, extent.first_offset, end):
            last = last if found.get(last) == start else start
            found[last] = start + extent.length
    return found


def _live(queue: Queue) -> Sequence[Segment]:
    """Segments with bytes in the snapshot, if the newest extent names its offsets."""
    segments = [one for one in queue.readable(SegmentType.COMMIT_LOG) if one.extents]
    return segments if segments and segments[-1].extents[-1].crc32c is not None else ()


def _last_from(segments: Sequence[Segment], offset: int) -> int:
    """Index of the segment that `offset` lies in, or of the first one."""
    after = bisect_left(segments, offset + 1, key=lambda one: one.extents[0].first_offset)
    return max(0, after - 1)


def _first_offset(extent: Extent) -> int:
    return extent.first_offset
