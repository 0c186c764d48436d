"""Offsets by time: RocketMQ's two boundary rules, and the range narrowed by metadata."""

from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Self

from container.metadata.records import Extent, Gap, after_gaps, next_gap_start
from provider.ranges import QueueOffset


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
