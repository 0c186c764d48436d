"""Positions in loaded metadata: of queue offsets in the CommitLog, of times in a queue."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Self

from container.metadata.records import (
    Extent,
    Gap,
    Queue,
    Segment,
    after_gaps,
    gap_at,
    next_gap_start,
)
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


class _Named(Enum):
    """Enumeration whose members are also found by their names and values as text."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Find a member by a text in any case, such as "UPPER". Other values raise ValueError."""
        text = value.lower() if isinstance(value, str) else None
        return next((one for one in cls if one.value == text), None)


class Boundary(_Named):
    """Choice of the message next to a point in time (RocketMQ's BoundaryType)."""

    LOWER = "lower"
    """First message stored at the time or after it."""
    UPPER = "upper"
    """Last message stored at the time or before it."""


class TimeRules(_Named):
    """Meaning of UPPER if no message was stored at exactly the time. LOWER is the same in both."""

    LOCAL = "local"
    """RocketMQ's local store: the message before, or the queue's first offset if there is none."""
    TIERED = "tiered"
    """RocketMQ's tiered store since 5.3: the message after, or the queue's end, as with LOWER."""


class UpperPlace(NamedTuple):
    """Neighbours of a point in time among the messages of a queue, for UPPER."""

    before: int | None
    """Offset of the last message stored at the time or before it. None if there is none."""
    is_exact: bool
    """Whether that message was stored at exactly the time."""
    after: int
    """Offset of the next message, or the queue's end."""


def upper_offset(place: UpperPlace, rules: TimeRules, *, min_offset: int) -> int:
    """Offset for UPPER. Pure. LOWER needs no rules."""
    if rules is TimeRules.TIERED and not place.is_exact:
        return place.after
    return min_offset if place.before is None else place.before


class TimeStretch(NamedTuple):
    """Messages `[start, end)` of a queue without a gap, and the bounds of their times."""

    start: QueueOffset
    end: QueueOffset
    times: tuple[int, int] | None
    """Smallest and largest store timestamp, Unix ms, or an interval around them. None: unknown."""


def stretch_by_time(
    extents: Sequence[Extent],
    end: int,
    gaps: Sequence[Gap],
    moment_ms: int,
    boundary: Boundary,
    *,
    within: tuple[int, int],
) -> TimeStretch | None:
    """Return the range that a search by time begins with. None if there is no such message.

    LOWER: the first extent with a message stored at the time or after it. UPPER: the last one with
    a message stored at the time or before it. Only messages `within` the offsets count. But times
    are those of whole extents, so it is possible that no counted message of the extent matches. The
    search then continues after it. Of an extent with gaps the range is the part before the first
    gap, or after the last one, and the rest is `within` the next search. O(extents) up to the found
    one.

    Args:
        extents: of the CommitLog, in order, with nothing but gaps between them.
        end: end of the last extent's offsets, exclusive.
        gaps: the queue's gaps.
        moment_ms: Unix ms.
        boundary: choice of the message next to the time.
        within: first offset that counts, and the end, exclusive.
    """
    low, high = within
    is_lower = boundary is Boundary.LOWER
    numbers = range(len(extents))
    for number in numbers if is_lower else reversed(numbers):
        extent = extents[number]
        if extent.max_timestamp < moment_ms if is_lower else extent.min_timestamp > moment_ms:
            continue
        first = extent.first_offset
        stop = extents[number + 1].first_offset if number + 1 < len(extents) else end
        around = _before_gap if is_lower else _after_gap
        start, stop = around(gaps, max(first, low), min(stop, high))
        if start < stop:
            times = (extent.min_timestamp, extent.max_timestamp)
            return TimeStretch(QueueOffset(start), QueueOffset(stop), times)
    return None


def _before_gap(gaps: Sequence[Gap], start: int, stop: int) -> tuple[int, int]:
    """First messages `[start, stop)` without a gap among those between two offsets."""
    start = after_gaps(gaps, start)
    return start, next_gap_start(gaps, start, stop)


def _after_gap(gaps: Sequence[Gap], start: int, stop: int) -> tuple[int, int]:
    """Last messages `[start, stop)` without a gap among those between two offsets."""
    at = bisect_right(gaps, stop - 1, key=_start)
    while at and stop <= gaps[at - 1].end:
        stop = min(stop, gaps[at - 1].start)
        at -= 1
    return max(start, gaps[at - 1].end) if at else start, stop


def _start(gap: Gap) -> int:
    return gap.start
