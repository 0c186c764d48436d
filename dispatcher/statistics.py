"""Statistics of the dispatcher: the state of its queues at one moment, and its counters."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from container.names.queue_id import QueueId
from dispatcher.ports import HALTED, QueueState
from provider.ranges import QueueOffset

WAITING_S_MAX = 30.0
"""Age in seconds from which on messages that may not be tiered yet count as a problem."""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """State of one queue."""

    queue: QueueId
    state: QueueState
    reason: str
    """Reason why the queue is stopped, refused, damaged or failing; empty otherwise."""
    commit_offset: QueueOffset
    """Offset of the first message that is not durable in the tier."""
    dispatch_offset: QueueOffset
    """Offset of the first message that no commit has claimed."""
    behind: int
    """Messages of the hot log that are not durable in the tier."""
    oldest_age_s: float
    """Age of the oldest message that is not durable in the tier, in seconds since it was stored; 0
    without such messages. For about a second, in seconds since it was first seen."""
    failures: int
    """Consecutive failed attempts."""
    waiting: int = 0
    """Messages included in `behind` that may not be tiered yet."""
    waits_for: str = ""
    """Condition that these messages wait for; empty without such messages."""
    hidden: int = 0
    """Messages below the end of a deleted queue of this name, seen by this process: lost."""
    is_gone: bool = False
    """Whether the broker deleted the queue, and it has no backlog."""

    @property
    def waits_long(self) -> bool:
        """Whether messages that may not be tiered yet are older than `WAITING_S_MAX`."""
        return self.waiting > 0 and self.oldest_age_s >= WAITING_S_MAX


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of this process through its backlog, for a progress bar."""

    messages_done: int
    messages_total: int
    bytes_done: int


@dataclass(frozen=True, slots=True)
class DispatchStatistics:
    """State of the dispatcher."""

    queues: tuple[QueueStatistics, ...]
    restless: tuple[QueueStatistics, ...]
    """Queues that are lagging, failing or halted. Usually few."""
    bytes_in_flight: int
    bytes_in_flight_peak: int
    rounds_in_flight: int
    references: int
    """Number of references kept of waiting messages."""
    rounds: int
    """Rounds that landed."""
    rounds_failed: int
    commits: int
    """Landed commits of single queues."""
    messages: int
    messages_by_topic: Mapping[str, int]
    bytes: int
    """Bytes of records and units committed."""
    gaps: int
    """Gaps recorded by this process."""
    commit_age_s: float
    """Seconds since a round landed, or since the dispatcher was created."""
    next_commit_s: float
    """Seconds until waiting messages are due by age; 0 if none waits, or a commit is under way."""
    outage: bool
    """Whether the tier as a whole is failing."""
    last_error: str
    hot_error: str
    """Error of the last poll; empty after a successful one."""
    started: bool
    """Whether the opening of every queue of the first poll was attempted."""

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
        """Queues with messages that may not be tiered yet."""
        return tuple(queue for queue in self.restless if queue.waiting)

    @property
    def halted(self) -> tuple[QueueStatistics, ...]:
        """Halted queues, each with its reason."""
        return tuple(queue for queue in self.restless if queue.state in HALTED)


@dataclass(slots=True)
class Counters:
    """Counters of the dispatcher."""

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
    next_round_s: float = math.inf
    """Monotonic time at which the next round is due by age, in seconds."""
    last_success_s: float = 0.0
    """Monotonic time of the last landed round, in seconds."""

    def next_commit_s(self, now_s: float) -> float:
        """The field of `DispatchStatistics`."""
        is_due = self.rounds_in_flight > 0 or math.isinf(self.next_round_s)
        return 0.0 if is_due else max(0.0, self.next_round_s - now_s)

    def begin(self, bytes_claimed: int) -> None:
        """Count a new round that claimed these bytes."""
        self.rounds_in_flight += 1
        self.bytes_in_flight += bytes_claimed
        self.bytes_in_flight_peak = max(self.bytes_in_flight_peak, self.bytes_in_flight)

    def end(self, bytes_claimed: int) -> None:
        """Count the end of that round, landed or failed."""
        self.rounds_in_flight -= 1
        self.bytes_in_flight -= bytes_claimed
