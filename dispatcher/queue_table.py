"""All queues, and which of them want what next. State without I/O."""

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import ClassVar

from container.names.queue_id import QueueId
from dispatcher.descriptions import QueueDescriptions
from dispatcher.hot_log import HotQueue
from dispatcher.options import DispatchOptions
from dispatcher.progress_check import check_progress
from dispatcher.queue_common import Common
from dispatcher.queue_progress import REFERENCES_MIN, QueueProgress
from dispatcher.queue_state import QueueState
from dispatcher.references import ReferenceCount, References
from dispatcher.round_plan import Load, RoundPlan, Waiting, plan_round
from dispatcher.tier_health import TierHealth

DATED_AFTER_S = 0.75
"""Seconds for which a message waits before it is asked when it was stored."""
OPENING_WAIT_S = 0.25
"""Longest that a queue waits, since it was seen or served, for others that are being opened."""


class QueueTable:
    """The queues by name, and by what they wait for, so that idle ones cost nothing.

    A queue tells every change of itself, and is put into the right places then.

    Q1  The count of references is that of all queues.
    Q2  A queue is in the place of everything that it waits for, and in no other. Of queues that
        keep `REFERENCES_MIN` references this is not said of the place of those that need more.
    """

    checks_every_change: ClassVar[bool] = False
    """Whether a queue's own invariants are asserted after each change of it. Tests switch it on;
    with thousands of thin queues it costs a tenth and more of a commit."""

    def __init__(self, options: DispatchOptions) -> None:
        self.count = ReferenceCount()
        self._options = options
        self._common = Common(options, self.count, References(self.count), self._sort)
        self._queues: dict[QueueId, QueueProgress] = {}
        self.descriptions = QueueDescriptions(self._queues)
        self._to_open: dict[QueueId, QueueProgress] = {}
        self._opening: dict[QueueId, QueueProgress] = {}
        self._alone: set[QueueId] = set()
        self._ready: dict[QueueId, QueueProgress] = {}
        self._needs_references: dict[QueueId, QueueProgress] = {}
        self._undated: dict[QueueId, QueueProgress] = {}

    def __repr__(self) -> str:
        return (
            f"<QueueTable: {len(self)} queues, {len(self._to_open)} to open, "
            f"{len(self._ready)} ready, {self.count.kept} references>"
        )

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[QueueProgress]:
        return iter(self._queues.values())

    def __getitem__(self, queue: QueueId) -> QueueProgress:
        return self._queues[queue]

    def get(self, queue: QueueId) -> QueueProgress | None:
        """The queue of that name, if there is one."""
        return self._queues.get(queue)

    def forget(self, topics: Collection[str]) -> None:
        """The queues of these topics are no more; no worker is at them. O(queues)."""
        for name in [name for name in self._queues if name.topic in topics]:
            queue = self._queues.pop(name)
            queue.references.clear()
            self._alone.discard(name)
            for place, _ in self._places(queue):
                place.pop(name, None)
            self.descriptions.forget(queue)

    def check(self) -> None:
        """Assert Q1, Q2, and what holds of each queue and its description. O(references)."""
        kept = sum(len(queue.references) for queue in self)
        assert self.count.kept == kept, f"Q1: {self} but {kept} references are kept"
        for queue in self:
            check_progress(queue)
            queue.references.check()
            self.descriptions.check(queue)
            for place, wants in self._places(queue):
                if place is self._needs_references and len(queue.references) >= REFERENCES_MIN:
                    continue  # what the others keep decides, and changes without this queue
                assert (place.get(queue.id) is queue) == wants, f"Q2: {queue} wants {wants}"

    def observe(
        self, seen: Iterable[HotQueue], now_s: float, *, first: bool, epoch_s: float = 0.0
    ) -> None:
        """Take in what a poll saw; `first` is the poll that returns every queue.

        `now_s` is on the monotonic clock, which was 0 at the Unix time `epoch_s`.
        """
        for hot in seen:
            queue = self._queues.get(hot.id)
            if queue is None:
                queue = self._queues[hot.id] = QueueProgress(hot, self._common, is_old=first)
            queue.observe(hot, now_s, epoch_s)

    def cut_off(self) -> None:
        """All workers were cancelled: the tier will be asked what became of their commits."""
        for queue in self:
            queue.cut_off()

    def needs_references(self) -> list[QueueProgress]:
        """Queues of which more references are worth fetching."""
        return list(self._needs_references.values())

    def undated(self, now_s: float, *, queues_max: int) -> list[QueueProgress]:
        """Queues with a message that has waited for `DATED_AFTER_S` or whose predecessor had.

        Those of which it is not known when it was stored; `queues_max` at most, each in its turn.
        """
        found: list[QueueProgress] = []
        for queue in list(self._undated.values()):
            if len(found) == queues_max:
                break
            if now_s - queue.oldest_s(now_s) >= DATED_AFTER_S:
                found.append(queue)
                self._undated[queue.id] = self._undated.pop(queue.id)  # the others come first
        return found

    def to_settle(self) -> list[QueueProgress]:
        """Queues that are being opened, or are to be."""
        return [*self._to_open.values(), *self._opening.values()]

    def next_to_open(self, now_s: float, *, queues_max: int) -> tuple[list[QueueProgress], float]:
        """The next queues to settle with the tier, or when there will be one.

        One of which it was said that it is opened `alone`, or up to `queues_max` others.
        """
        wake_at_s, found = math.inf, list[QueueProgress]()
        if not self._to_open:
            self._to_open = {}  # one that was large keeps its memory when it is empty
        for queue in self._to_open.values():
            if queue.setback.failures and queue.setback.retry_at_s > now_s:
                wake_at_s = min(wake_at_s, queue.setback.retry_at_s)
            elif queue.id not in self._alone:
                found.append(queue)
                if len(found) == queues_max:
                    break
            elif not found:
                self._alone.remove(queue.id)
                return [queue], now_s
        return found, wake_at_s

    def open_alone(self, queue: QueueProgress) -> None:
        """The next worker that opens this queue opens no other one with it."""
        self._alone.add(queue.id)

    def plan_round(self, now_s: float, load: Load, health: TierHealth, *, force: bool) -> RoundPlan:
        """The next round. With `force` everything is due as soon as no queue is being opened.

        While queues are being opened, others wait for them a little: the queues' records are
        interleaved in the hot log, and a round of one of many reads the log of all.
        """
        opening = bool(self._opening) or any(
            not queue.setback.failures for queue in self._to_open.values()
        )
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

    def retry_now(self, now_s: float) -> None:
        """An outage has ended: every queue may be tried again."""
        for queue in self:
            queue.retry_now(now_s)

    def _places(
        self, queue: QueueProgress
    ) -> tuple[tuple[dict[QueueId, QueueProgress], bool], ...]:
        """Every place, and whether the queue belongs there."""
        is_ready = queue.state is QueueState.READY and len(queue.references.units) > 0
        return (
            (self._to_open, queue.must_open),
            (self._opening, queue.opening),
            (self._ready, is_ready),
            (self._needs_references, queue.references_wanted() > 0),
            (self._undated, queue.is_undated),
        )

    def _sort(self, queue: QueueProgress) -> None:
        """Put a queue that changed where it belongs."""
        if self.checks_every_change:
            check_progress(queue)
        self.descriptions.note(queue)
        for place, wants in self._places(queue):
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
