"""When messages of a queue were first seen. Pure.

Values, because most queues wait for nothing at any time, and all those share one.
"""

from provider.ranges import QueueOffset

ARRIVALS_MAX = 64
"""Moments of arrival remembered for each queue."""

Arrivals = tuple[tuple[QueueOffset, float], ...]
"""Up to which offset a queue reached, and when that was seen, for the newest few times."""
NO_ARRIVALS: Arrivals = ()


def noted(arrivals: Arrivals, end: QueueOffset, now_s: float, *, durable: QueueOffset) -> Arrivals:
    """The queue ends at `end` now; nothing is noted unless that is new and not durable."""
    if end <= (arrivals[-1][0] if arrivals else durable):
        return arrivals
    if len(arrivals) == ARRIVALS_MAX:  # the newest counts as old as the one before it
        return (*arrivals[:-1], (end, arrivals[-1][1]))
    return (*arrivals, (end, now_s))


def first_seen_s(arrivals: Arrivals, offset: QueueOffset, now_s: float) -> float:
    """When the message at `offset` was first seen; now if it was not. O(1) for the oldest."""
    return next((seen_s for end, seen_s in arrivals if end > offset), now_s)


def from_offset(arrivals: Arrivals, offset: QueueOffset) -> Arrivals:
    """Without those of messages below `offset`, which need not be remembered any more."""
    known = next((n for n, (end, _) in enumerate(arrivals) if end > offset), None)
    return NO_ARRIVALS if known is None else arrivals[known:]
