"""Offsets by time: RocketMQ's two boundary rules, and the range that metadata narrow it to."""

from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Self

from container.metadata.records import Extent, Gap
from provider.ranges import QueueOffset


class _Named(Enum):
    """An enumeration whose members are also taken by their names and values as text."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Find a member by a text in any case, such as "UPPER"; others raise ValueError."""
        text = value.lower() if isinstance(value, str) else None
        return next((one for one in cls if one.value == text), None)


class Boundary(_Named):
    """Which message next to a moment is meant (RocketMQ's BoundaryType)."""

    LOWER = "lower"
    """The first message stored at the moment or after it."""
    UPPER = "upper"
    """The last message stored at the moment or before it."""


class TimeRules(_Named):
    """What UPPER means where no message was stored at exactly the moment. LOWER does not differ."""

    LOCAL = "local"
    """RocketMQ's local store: the message before; the queue's first offset where there is none."""
    TIERED = "tiered"
    """RocketMQ's tiered store since 5.3: the message after, or the queue's end, as LOWER does."""


class UpperPlace(NamedTuple):
    """Where a moment lies among the messages of a queue, as UPPER looks at it."""

    before: int | None
    """Offset of the last message stored at the moment or before it; None if there is none."""
    is_exact: bool
    """Whether that message was stored at exactly the moment."""
    after: int
    """Offset of the message that follows it, or the queue's end."""


def upper_offset(place: UpperPlace, rules: TimeRules, *, min_offset: int) -> int:
    """The offset that UPPER means. Pure; LOWER needs no rules."""
    if rules is TimeRules.TIERED and not place.is_exact:
        return place.after
    return min_offset if place.before is None else place.before


class TimeStretch(NamedTuple):
    """Messages `[start, end)` of a queue without a gap, and the times that they lie between."""

    start: QueueOffset
    end: QueueOffset
    times: tuple[int, int] | None
    """Smallest and largest store timestamp, Unix ms, or a span around them; None: not known."""


def stretch_by_time(
    extents: Sequence[Extent],
    end: int,
    gaps: Sequence[Gap],
    moment_ms: int,
    boundary: Boundary,
    *,
    within: tuple[int, int],
) -> TimeStretch | None:
    """The stretch that the search for a moment begins with; None if there is no such message.

    LOWER: the first extent with a message stored at the moment or after it. UPPER: the last one
    with a message stored at the moment or before it. Only messages `within` the offsets count, but
    the times are those of whole extents, so none of the extent's messages that count may be meant;
    the search then goes on behind it. Of an extent with gaps the stretch is what lies before the
    first of them, or behind the last one, and the rest is `within` the next search. O(extents) up
    to the one that is found.

    Args:
        extents: of the CommitLog, in order, with nothing but gaps between them.
        end: first offset behind the last of them.
        gaps: those of the queue.
        moment_ms: Unix ms.
        boundary: which message next to the moment is meant.
        within: first offset that counts, and the one behind the last.
    """
    low, high = within
    is_lower = boundary is Boundary.LOWER
    numbers = range(len(extents))
    for number in numbers if is_lower else reversed(numbers):
        extent = extents[number]
        if extent.max_timestamp < moment_ms if is_lower else extent.min_timestamp > moment_ms:
            continue
        first = extent.first_offset
        behind = extents[number + 1].first_offset if number + 1 < len(extents) else end
        around = _before_gap if is_lower else _behind_gap
        start, behind = around(gaps, max(first, low), min(behind, high))
        if start < behind:
            times = (extent.min_timestamp, extent.max_timestamp)
            return TimeStretch(QueueOffset(start), QueueOffset(behind), times)
    return None


def _before_gap(gaps: Sequence[Gap], start: int, behind: int) -> tuple[int, int]:
    """The first messages `[start, behind)` without a gap among those between two offsets."""
    at = bisect_right(gaps, start, key=_start)
    while at and start < gaps[at - 1].end:
        start = gaps[at - 1].end
        at = bisect_right(gaps, start, key=_start)
    return start, min(behind, gaps[at].start) if at < len(gaps) else behind


def _behind_gap(gaps: Sequence[Gap], start: int, behind: int) -> tuple[int, int]:
    """The last messages `[start, behind)` without a gap among those between two offsets."""
    at = bisect_right(gaps, behind - 1, key=_start)
    while at and behind <= gaps[at - 1].end:
        behind = min(behind, gaps[at - 1].start)
        at -= 1
    return max(start, gaps[at - 1].end) if at else start, behind


def _start(gap: Gap) -> int:
    return gap.start
