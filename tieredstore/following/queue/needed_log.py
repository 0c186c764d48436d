"""How far down the CommitLog is still needed: what decides which pins are released. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueNeed:
    """What one queue may still need of the CommitLog."""

    is_known: bool
    """Whether the queue was looked at: until then it may need all."""
    has_end: bool
    """Whether its end is known. No message is tiered beyond a place that is damaged or cannot be
    read, or whose file went during the look, and nothing tells how many there are."""
    end_position: int
    """Where the last message that counts ends; 0: not known."""
    next_position: int | None
    """Where the first message lies that is not tiered; 0: not known; None: all are tiered."""


def first_needed(needs: Iterable[QueueNeed], settled_position: int) -> int:
    """First byte of the CommitLog that may hold a message which is not tiered.

    Args:
        needs: one for each queue.
        settled_position: what lies below was there when all queues were looked for; a message
            above it may be of a queue, or have a unit, that nothing here knows of yet.

    Returns:
        At most `settled_position`; 0 or less: everything may be needed.
    """
    low = settled_position
    for need in needs:
        if not need.is_known:
            return 0
        if not need.has_end:
            low = min(low, need.end_position)
        if need.next_position is not None:
            low = min(low, need.next_position)
    return low
