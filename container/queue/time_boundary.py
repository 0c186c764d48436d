"""Which queue offset a moment stands for: RocketMQ's two boundaries and its two sets of rules."""

from enum import Enum
from typing import NamedTuple, Self


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
