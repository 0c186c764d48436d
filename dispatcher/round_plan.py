"""Rules of a round, pure: due batches, the plan of a round, and pauses in an outage."""

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
"""What each message will take in the tier, in bytes."""


def written_bytes(references: Units) -> Bytes:
    """Bytes that each referenced message takes in the tier: its record and its unit.

    A unit's size is not trusted yet: `HotLog.records_of_round` compares it with the record later.
    So a size that is not positive counts as 1 byte.
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
    """When waiting messages are due: at once (`since_s`) on count or bytes, else on age.

    `bytes_known` may cover only the first of the `messages`; a queue is then due by its count.
    """
    if messages >= messages_max or bytes_known >= bytes_max:
        return since_s
    return since_s + age_s_max


def messages_within(sizes: Bytes, *, messages_max: int, bytes_max: int) -> int:
    """How many of the first messages fit both limits; at least one, however large it is."""
    assert len(sizes) > 0, "a batch of nothing is cut"
    fitting = int(np.searchsorted(np.cumsum(sizes[:messages_max]), bytes_max, side="right"))
    return max(1, fitting)


SHARES_OF_BATCH = 16
"""A round is not divided among thick queues into parts smaller than a batch by this."""
ROUND_QUEUES_ANY = 1 << 30
"""A queue that did not fail lately may share its round with any number of others."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queue that has messages to commit and no commit in flight."""

    queue: QueueId
    bytes: int
    """Bytes that it would write now, as far as its references reach."""
    first_bytes: int
    """The least that it can write: its first message, or the whole range of a failed commit."""
    since_s: float
    """When its first waiting message was seen."""
    due_at_s: float
    """When its batch closes; for a failed queue, when it may be tried again."""
    ready_s: float
    """Its place in the line: when its first message was seen, or when it was last served, whichever
    is later."""
    round_queues_max: int = ROUND_QUEUES_ANY
    """Queues that may be in its round, itself included; smaller after failures."""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """What one queue may write in the round; it always takes at least one message."""

    queue: QueueId
    bytes_max: int


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The next round, or when to plan again."""

    grants: tuple[Grant, ...] = ()
    wake_at_s: float = math.inf
    """Without grants: the moment at which time alone may change the plan."""
    failed: bool = False
    """The round is of queues that failed before."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is under way."""

    bytes: int
    rounds: int


@dataclass(slots=True)
class _Filling:
    """A round while it is being filled; `room` is what the bound on bytes in flight leaves."""

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
      that age makes due are therefore at least the rest of it apart, however many thin queues
      there are. That many bytes wait over all queues as `round_bytes_due` says makes all due.
    - A queue that wants no more than its equal share of the round always gets it. A thin queue
      therefore waits for its age limit and at most one commit of every `round_queues_max` queues
      in line before it, whatever the others do.
    - The rest is divided among the queues that want more, longest unserved first, at least a
      sixteenth of a batch each, and equal numbers of them are left to the rounds that may still
      begin beside this one. A share is less than a batch because the queues' records are
      interleaved in the hot log: a few queues with much each would read far more of it than they
      claim. A share is not smaller still because each one costs two syncs.
    - A round has `round_queues_max` queues at most, longest unserved first: each new one costs
      files and syncs, and a round that takes long leaves the rest unreadable for as long.
    - Bytes in flight stay below the bound; a single message above it gets a round of its own.

    O(n log n) in the queues that wait.
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
    """The longest prefix whose members all allow a round of that size."""
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
        # Longest in line and too large to share the round: it gets one of its own, or nothing
        # begins before there is room for it. Otherwise it might never find any.
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
"""Share of an interval that chance may take off."""
OUTAGE_AFTER = 3
"""Failed rounds without a success between them that make an outage of the whole tier."""


class TierHealth:
    """Failed rounds since the last that landed.

    While single rounds fail, their queues are tried again in halves, so that a bad one cannot
    fail its neighbours for long. In an outage, halves would cost many requests for nothing. One
    failed queue at a time is then tried as a probe, a different one each time, at intervals that
    grow. The first round that lands, of any queue, ends the outage for all.
    """

    def __init__(
        self, *, backoff_s_min: float, backoff_s_max: float, rng: Random | None = None
    ) -> None:
        """`rng` shortens intervals, so that not all dispatchers try at once; None: nothing does."""
        self._rng = rng
        self._s_min = backoff_s_min
        self._s_max = backoff_s_max
        self.failures = 0
        self.retry_at_s = 0.0
        self.probing = False
        """A round of queues that failed before is under way."""

    def __repr__(self) -> str:
        return f"<TierHealth: {'outage, ' if self.outage else ''}{self.failures} failures>"

    @property
    def outage(self) -> bool:
        """Whether the failures count as the whole tier's."""
        return self.failures >= OUTAGE_AFTER

    def failed(self, now_s: float) -> None:
        """A round did not land."""
        self.failures += 1
        past = max(1, self.failures - OUTAGE_AFTER + 1)
        wait_s = backoff_s(past, s_min=self._s_min, s_max=self._s_max)
        if self._rng is not None:
            wait_s *= self._rng.uniform(1 - JITTER_SHARE, 1)
        self.retry_at_s = now_s + wait_s

    def landed(self) -> bool:
        """A round landed; returns whether that ended an outage."""
        ended = self.outage
        self.failures = 0
        return ended
