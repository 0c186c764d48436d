"""All queues, and which of them want what next. State without I/O."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter

from container.names.queue_id import QueueId
from dispatcher.hot_log import HotQueue
from dispatcher.options import DispatchOptions
from dispatcher.queue_progress import QueueProgress, QueueState, ReferenceCount
from dispatcher.round_plan import Load, RoundPlan, Waiting, plan_round
from dispatcher.tier_health import TierHealth

OPENING_WAIT_S = 0.25
"""Longest that a queue waits, since it was seen or served, for others that are being opened."""


class QueueTable:
    """The queues by name, and by what they wait for, so that idle ones cost nothing.

    Whoever changes a queue calls `index` afterwards.
    """

    def __init__(self, options: DispatchOptions) -> None:
        self.count = ReferenceCount()
        self.busy = 0
        """Queues that somebody is opening."""
        self._options = options
        self._queues: dict[QueueId, QueueProgress] = {}
        self._unsettled: dict[QueueId, QueueProgress] = {}
        self._ready: dict[QueueId, QueueProgress] = {}
        self._needs_references: dict[QueueId, QueueProgress] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[QueueProgress]:
        return iter(self._queues.values())

    def __getitem__(self, queue: QueueId) -> QueueProgress:
        return self._queues[queue]

    def observe(self, seen: Iterable[HotQueue], now_s: float, *, first: bool) -> None:
        """Take over what a poll saw; `first` is the poll that returns every queue."""
        for hot in seen:
            queue = self._queues.get(hot.id)
            if queue is None:
                queue = self._queues[hot.id] = QueueProgress(hot, self._options, self.count)
                queue.is_old = first
            queue.observe(hot, now_s)
            self.index(queue)

    def index(self, queue: QueueProgress) -> None:
        """Note what a queue waits for after it changed."""
        queue.reconsider()
        to_open = queue.state is QueueState.UNSETTLED or queue.rests
        _put(self._unsettled, queue, wants=to_open and not queue.busy)
        ready = queue.state is QueueState.READY and len(queue.references) > 0
        _put(self._ready, queue, wants=ready)
        _put(self._needs_references, queue, wants=queue.references_wanted() > 0)

    def restart(self) -> None:
        """Whoever worked on queues was cut off: ask the tier what became of it."""
        self.busy = 0
        for queue in self:
            queue.busy = queue.refilling = False
            if queue.state is QueueState.IN_FLIGHT:
                queue.unsettle()
            self.index(queue)

    def needs_references(self) -> list[QueueProgress]:
        """Queues that want references."""
        return list(self._needs_references.values())

    def next_to_open(self, now_s: float) -> tuple[QueueProgress | None, float]:
        """The next queue to settle with the tier, or when there will be one."""
        wake_at_s = math.inf
        for queue in self._unsettled.values():
            if not queue.failures or queue.retry_at_s <= now_s:
                return queue, now_s
            wake_at_s = min(wake_at_s, queue.retry_at_s)
        return None, wake_at_s

    def plan_round(self, now_s: float, load: Load, health: TierHealth, *, force: bool) -> RoundPlan:
        """The next round. With `force` everything is due as soon as no queue is being opened.

        While queues are being opened, others wait for them a little: queues lie among each other
        in the hot log, and a round of one of many reads the log of all.
        """
        opening = any(not queue.failures for queue in self._unsettled.values()) or self.busy > 0
        at_once = force and not opening
        waiting = [queue.waiting(now_s, at_once=at_once) for queue in self._ready.values()]
        if opening:
            waiting = [
                replace(queue, due_at_s=max(queue.due_at_s, queue.ready_s + OPENING_WAIT_S))
                for queue in waiting
            ]
        return plan_round(
            _as_health_allows(waiting, health), now_s=now_s, load=load, options=self._options
        )

    def resume(self, now_s: float) -> None:
        """An outage is over: every queue may be tried again."""
        for queue in self:
            queue.resume(now_s)


def _put(place: dict[QueueId, QueueProgress], queue: QueueProgress, *, wants: bool) -> None:
    if wants:
        place[queue.id] = queue
    else:
        place.pop(queue.id, None)


def _as_health_allows(waiting: list[Waiting], health: TierHealth) -> list[Waiting]:
    """In an outage, one of the queues that failed at a time, as a probe."""
    failed = [queue for queue in waiting if queue.failed]
    if not health.outage or not failed:
        return waiting
    others = [queue for queue in waiting if not queue.failed]
    if health.probing:
        return others
    probe = min(failed, key=attrgetter("ready_s"))
    return [*others, replace(probe, due_at_s=health.retry_at_s, ready_s=health.retry_at_s)]
