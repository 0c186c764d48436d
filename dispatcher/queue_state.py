"""What may happen to a queue next."""

from enum import Enum


class QueueState(Enum):
    """What may happen to a queue next."""

    UNSETTLED = "unsettled"
    """The tier must be asked first what it has of it: at the start, after an unknown outcome."""
    READY = "ready"
    """Its messages are committed as they become due."""
    IN_FLIGHT = "in flight"
    """A commit is under way."""
    STOPPED = "stopped"
    """The tier and the hot log contradict each other, or one of them cannot be used for this queue
    now; `reason` says more."""
    REFUSED = "refused"
    """The tier does not take this kind of queue."""
    DAMAGED = "damaged"
    """Its next message in the hot log cannot be trusted."""


DELETED_REASON = "the hot log deleted them before they were tiered"
"""The reason of a gap in whose place nothing was damaged."""

TOPIC_DELETED_REASON = "the broker deleted the topic before they were tiered"
"""The reason of a gap that ends where a deleted queue did."""
MADE_AGAIN_REASON = (
    "the broker deleted the topic and made it again; it gives the offsets a second time, and no "
    "message of the new topic below the end of this gap is tiered"
)
"""The reason of a gap between a deleted queue and the next one of its name."""
ENDS_A_QUEUE = frozenset({TOPIC_DELETED_REASON, MADE_AGAIN_REASON})
"""What lies before a gap with such a reason is of a deleted queue, and compared with nothing."""

HALTED = frozenset({QueueState.STOPPED, QueueState.REFUSED, QueueState.DAMAGED})
"""States in which nothing of a queue is committed until something outside changes."""
