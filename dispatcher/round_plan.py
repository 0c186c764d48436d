"""Rules of a round: due batches, the plan of a round, and pauses in an outage. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.unit import UNIT_BYTES, Units
from dispatcher.options import DispatchOptions
from provider.clock import backoff_s

Bytes = NDArray[np.int64]
"""Bytes of each message in the tier, record and unit."""


def written_bytes(references: Units) -> Bytes:
    """Return the bytes of each referenced message in the tier: its record and its unit. Pure.

    The sizes in units are not validated yet; `HotLog.records_of_round` compares them with the
    records later. Therefore a size that is not positive counts as 1 byte.
    """
    return np.maximum(references["size"].astype(np.int64), 1) + UNIT_BYTES


def due_at_s(
    *,
    messages: int,
    bytes_known: int,
    since_s: float,
    messages_max: int,
    bytes_max: int,
    age_s_max: float,
) -> float:
    """Return the time at which waiting messages are due. Pure.

    They are due since `since_s` if their count or bytes reach a limit, else at the age limit.
    `bytes_known` may cover only the first of the `messages`.
    """
    if messages >= messages_max or bytes_known >= bytes_max:
        return since_s
    return since_s + age_s_max


def messages_within(sizes: Bytes, *, messages_max: int, bytes_max: int) -> int:
    """Return how many leading messages fit both limits; at least 1, whatever its size. Pure."""
    assert len(sizes) > 0, "a batch of nothing is cut"
    fitting = int(np.searchsorted(np.cumsum(sizes[:messages_max]), bytes_max, side="right"))
    return max(1, fitting)


SHARES_OF_BATCH = 16
"""Divisor of `batch_bytes_max` that gives the smallest share of a queue with a large backlog."""
ROUND_QUEUES_ANY = 1 << 30
"""Value without a limit: a queue that did not fail may share its round with any number."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Queue with messages to commit and no commit in flight. Times are monotonic seconds."""

    queue: QueueId
    bytes: int
    """Bytes of all referenced messages, or of the failed range."""
    first_bytes: int
    """Fewest bytes that it can write: its first message, or the whole range of a failed commit."""
    since_s: float
    """Time at which its first waiting message was seen."""
    due_at_s: float
    """Time at which its batch closes; for a failed queue, time of its next attempt."""
    ready_s: float
    """Key of its place in line: the time its first message was seen or its last commit landed,
    whichever is later."""
    round_queues_max: int = ROUND_QUEUES_ANY
    """Most queues in its round, itself included. Smaller after failures."""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """Byte limit of one queue in a round. The queue takes at least one message."""

    queue: QueueId
    bytes_max: int


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Next round, or the time to plan again."""

    grants: tuple[Grant, ...] = ()
    wake_at_s: float = math.inf
    """Monotonic time at which the plan may change without another event, if there are no grants."""
    failed: bool = False
    """Whether the round consists of queues that failed before."""


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes and rounds in flight."""

    bytes: int
    rounds: int


@dataclass(slots=True)
class _Filling:
    """Round under construction. `room` is the rest of its bytes."""

    room: int
    grants: list[Grant] = field(default_factory=list[Grant])

    def add(self, waiting: Waiting, bytes_max: int) -> None:
        self.grants.append(Grant(waiting.queue, bytes_max))
        self.room -= bytes_max


def plan_round(
    waiting: Iterable[Waiting], *, now_s: float, load: Load, options: DispatchOptions
) -> RoundPlan:
    """Choose the next round.

    - Queues that failed get rounds of their own, without any queue that did not fail.
    - A round includes every queue that has waited for `boarding_share` of its age limit. Rounds
      that are due by age are therefore apart by at least the rest of the age limit, for any number
      of queues with few messages. A sum of `round_bytes_due` waiting bytes makes all queues due.
    - A queue that wants no more than its equal share of the round always gets it. A queue with few
      messages therefore waits for its age limit and at most one commit of every `round_queues_max`
      queues in line before it, whatever the others do.
    - The rest is divided among the queues that want more, longest unserved first, at least a
      sixteenth of a batch each. Equal numbers of these queues are left to the rounds that may
      still begin beside this one. A share is less than a batch because the queues' records are
      interleaved in the hot log: a few queues with large shares would read far more of the log
      than they claim. A share is not smaller still because each one costs two syncs.
    - A round has at most `round_queues_max` queues, longest unserved first. Each new queue costs
      files and syncs, and a long round delays the visibility of all others.
    - Bytes in flight stay below the bound. A single message above it gets a round of its own.

    O(n log n) in the waiting queues. Pure.
    """
    waiting = list(waiting)
    boarding_s = now_s - options.batch_age_s_max * options.boarding_share
    bytes_waiting = sum(queue.bytes for queue in waiting if not queue.failed)
    all_due = 0 < options.round_bytes_due <= bytes_waiting
    due: list[Waiting] = []
    boarding: list[Waiting] = []
    retries: list[Waiting] = []
    wake_at_s = math.inf
    for queue in waiting:
        if queue.due_at_s <= now_s or (all_due and not queue.failed):
            (retries if queue.failed else due).append(queue)
            continue
        wake_at_s = min(wake_at_s, queue.due_at_s)
        if not queue.failed and queue.since_s <= boarding_s:
            boarding.append(queue)
    if load.rounds >= options.rounds_max or not (due or retries):
        return RoundPlan(wake_at_s=wake_at_s)
    in_line = sorted(due, key=attrgetter("ready_s"))
    retries.sort(key=attrgetter("ready_s"))
    failed = bool(retries) and (not in_line or retries[0].ready_s <= in_line[0].ready_s)
    candidates = _leading_retries(retries) if failed else [*in_line, *boarding]
    chosen = candidates[: options.round_queues_max]
    return RoundPlan(_fill(chosen, load=load, options=options), wake_at_s, failed)


def _leading_retries(retries: Sequence[Waiting]) -> list[Waiting]:
    """Return the longest prefix whose members all allow a round of its length."""
    chosen: list[Waiting] = []
    round_queues_max = ROUND_QUEUES_ANY
    for queue in retries:
        round_queues_max = min(round_queues_max, queue.round_queues_max)
        if len(chosen) >= round_queues_max:
            break
        chosen.append(queue)
    return chosen


def _fill(
    candidates: Sequence[Waiting], *, load: Load, options: DispatchOptions
) -> tuple[Grant, ...]:
    free = options.bytes_in_flight_max - load.bytes
    filling = _Filling(min(options.round_bytes_max, free))
    share = filling.room // len(candidates)
    thick = [queue for queue in candidates if queue.bytes > share]
    for queue in candidates:
        if queue.bytes <= share:
            filling.add(queue, queue.bytes)
    if not thick:
        return tuple(filling.grants)
    first = thick[0]
    spare = free - sum(grant.bytes_max for grant in filling.grants)
    if first.first_bytes > spare and (first is candidates[0] or not filling.grants):
        # The first in line is too large to share the round. It gets a round of its own; until
        # there is room for it, no other round begins. Otherwise it could starve.
        fits = first.first_bytes <= free or load.rounds == 0
        return (Grant(first.queue, first.first_bytes),) if fits else ()
    rounds_free = options.rounds_max - load.rounds
    share_min = max(1, options.batch_bytes_max // SHARES_OF_BATCH)
    number = min(math.ceil(len(thick) / rounds_free), max(1, filling.room // share_min))
    each = min(options.commit_bytes_max, max(filling.room, 0) // number)
    for queue in thick[:number]:
        wanted = max(queue.first_bytes, min(queue.bytes, each))
        if wanted > spare:
            break  # it keeps its place in the line
        filling.add(queue, wanted)
        spare -= wanted
    return tuple(filling.grants)


JITTER_SHARE: Final = 0.5
"""Largest share of an interval that jitter subtracts."""
OUTAGE_AFTER = 3
"""Consecutive failed rounds that count as an outage of the whole tier."""


class TierHealth:
    """Count of failed rounds since the last landed one, and the probes in an outage.

    While single rounds fail, their queues are retried in rounds of half the size, so that one bad
    queue cannot fail its neighbours for long. In an outage, halving would waste many requests.
    Then one failed queue at a time is retried as a probe, a different one each time, at growing
    intervals. The first landed round of any queue ends the outage for all.
    """

    def __init__(
        self, *, backoff_s_min: float, backoff_s_max: float, rng: Random | None = None
    ) -> None:
        """Start healthy. `rng` adds jitter to the intervals of several dispatchers; None: none."""
        self._rng = rng
        self._s_min = backoff_s_min
        self._s_max = backoff_s_max
        self.failures = 0
        self.retry_at_s = 0.0
        self.probing = False
        """Whether a round of queues that failed before is under way."""

    def __repr__(self) -> str:
        return f"<TierHealth: {'outage, ' if self.outage else ''}{self.failures} failures>"

    @property
    def outage(self) -> bool:
        """Whether the failures count as an outage of the whole tier."""
        return self.failures >= OUTAGE_AFTER

    def failed(self, now_s: float) -> None:
        """Record a failed round at `now_s`, and back off."""
        self.failures += 1
        past = max(1, self.failures - OUTAGE_AFTER + 1)
        wait_s = backoff_s(past, s_min=self._s_min, s_max=self._s_max)
        if self._rng is not None:
            wait_s *= self._rng.uniform(1 - JITTER_SHARE, 1)
        self.retry_at_s = now_s + wait_s

    def landed(self) -> bool:
        """Record a landed round. Return whether it ended an outage."""
        ended = self.outage
        self.failures = 0
        return ended
