"""What the dispatcher reports about itself: values of one moment."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from container.names.queue_id import QueueId
from dispatcher.ports import HALTED, QueueState
from provider.ranges import QueueOffset

WAITING_S_MAX = 30.0
"""Age in seconds from which on messages that may not be tiered yet are a trouble."""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """One queue now."""

    queue: QueueId
    state: QueueState
    reason: str
    """Why it is stopped, refused, damaged or failing; empty otherwise."""
    commit_offset: QueueOffset
    """First message that is not durable in the tier."""
    dispatch_offset: QueueOffset
    """First message that no commit has claimed."""
    behind: int
    """Messages of the hot log that are not durable in the tier."""
    oldest_age_s: float
    """Seconds since the oldest message was stored that is not durable in the tier; 0 if there is
    none. Since it was first seen, until a second after that."""
    failures: int
    """Tries that failed in a row."""
    waiting: int = 0
    """Messages of those `behind` that the hot log does not let be tiered yet."""
    waits_for: str = ""
    """What they wait for; empty if none does."""
    hidden: int = 0
    """Messages below the end of a deleted queue of this name, seen by this process: lost."""
    is_gone: bool = False
    """Whether the broker deleted the queue, and nothing of it is left to be tiered."""

    @property
    def waits_long(self) -> bool:
        """Whether messages have waited for longer than they should."""
        return self.waiting > 0 and self.oldest_age_s >= WAITING_S_MAX


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of what this process has to tier is done, for a progress bar."""

    messages_done: int
    messages_total: int
    bytes_done: int


@dataclass(frozen=True, slots=True)
class DispatchStatistics:
    """The dispatcher now."""

    queues: tuple[QueueStatistics, ...]
    restless: tuple[QueueStatistics, ...]
    """Those of `queues` that are behind, failing or halted: in most moments a few."""
    bytes_in_flight: int
    bytes_in_flight_peak: int
    rounds_in_flight: int
    references: int
    """References of waiting messages kept."""
    rounds: int
    """Rounds that landed."""
    rounds_failed: int
    commits: int
    """Batches of one queue that landed."""
    messages: int
    messages_by_topic: Mapping[str, int]
    bytes: int
    """Bytes of records and units committed."""
    gaps: int
    """Gaps recorded by this process."""
    commit_age_s: float
    """Seconds since a round landed, or since the dispatcher was made."""
    outage: bool
    """The tier as a whole is failing."""
    last_error: str
    hot_error: str
    """Why the hot log cannot be read at present; empty while it can."""
    started: bool
    """Whether every queue of the first poll was compared with the tier, or that was tried."""

    @property
    def behind(self) -> int:
        """Messages of all queues that are not durable in the tier."""
        return sum(queue.behind for queue in self.restless)

    @property
    def oldest_age_s(self) -> float:
        """Age of the oldest message of all queues that is not durable in the tier, in seconds."""
        return max((queue.oldest_age_s for queue in self.restless), default=0.0)

    @property
    def waiting(self) -> tuple[QueueStatistics, ...]:
        """Queues with messages that the hot log does not let be tiered yet."""
        return tuple(queue for queue in self.restless if queue.waiting)

    @property
    def halted(self) -> tuple[QueueStatistics, ...]:
        """Queues that are not tiered any further, each with its reason."""
        return tuple(queue for queue in self.restless if queue.state in HALTED)


@dataclass(slots=True)
class Counters:
    """What is counted while the dispatcher works."""

    bytes_in_flight: int = 0
    bytes_in_flight_peak: int = 0
    rounds_in_flight: int = 0
    rounds: int = 0
    rounds_failed: int = 0
    commits: int = 0
    messages: int = 0
    messages_by_topic: Counter[str] = field(default_factory=Counter[str])
    bytes: int = 0
    gaps: int = 0
    last_error: str = ""
    hot_error: str = ""
    started: bool = False
    last_success_s: float = 0.0
    """When a round landed last; on the monotonic clock."""

    def begin(self, bytes_claimed: int) -> None:
        """A round claimed so many bytes."""
        self.rounds_in_flight += 1
        self.bytes_in_flight += bytes_claimed
        self.bytes_in_flight_peak = max(self.bytes_in_flight_peak, self.bytes_in_flight)

    def end(self, bytes_claimed: int) -> None:
        """That round has ended, one way or another."""
        self.rounds_in_flight -= 1
        self.bytes_in_flight -= bytes_claimed
