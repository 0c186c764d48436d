"""Table of all queues, indexed by name and by the work that they need. No I/O."""

import math
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import ClassVar

from container.names.queue_id import QueueId
from dispatcher.options import DispatchOptions
from dispatcher.ports import HALTED, HotQueue, HotQueueState, QueueState
from dispatcher.queue_progress import (
    REFERENCES_MIN,
    Common,
    QueueProgress,
    ReferenceCount,
    References,
)
from dispatcher.round_plan import Load, RoundPlan, TierHealth, Waiting, plan_round
from dispatcher.statistics import QueueStatistics


def check_progress(queue: QueueProgress) -> None:
    """Assert I1 to I4 of `QueueProgress`, except the byte counts. O(1)."""
    claimed, kept = queue.claimed, len(queue.references)
    assert queue.commit_offset <= queue.dispatch_offset <= queue.referenced_offset, f"I1: {queue}"
    assert (claimed is not None) == (queue.state is QueueState.IN_FLIGHT), f"I2: {queue}"
    if claimed is None:
        assert queue.dispatch_offset == queue.commit_offset, f"I2: {queue}"
    else:
        assert claimed.start == queue.commit_offset, f"I2: {queue} claimed {claimed.start}"
        assert claimed.end == queue.dispatch_offset, f"I2: {queue} claimed to {claimed.end}"
    assert kept == 0 or queue.is_active, f"I3: {queue} keeps {kept} references"
    if queue.state is QueueState.READY:
        assert queue.setback.retry_messages <= kept, f"I4: {queue} keeps {kept} references"


_DESCRIBED: "attrgetter[QueueStatistics | None]" = attrgetter("described")


def describe(queue: QueueProgress, now_s: float) -> QueueStatistics:
    """Return the statistics of one queue at `now_s`, monotonic seconds. Pure."""
    is_stopped = queue.state in {QueueState.STOPPED, QueueState.REFUSED}
    behind, backlog, hot = queue.behind, queue.backlog, queue.hot
    damaged = hot.state is HotQueueState.DAMAGED and not backlog and not is_stopped
    return QueueStatistics(
        queue=queue.id,
        state=QueueState.DAMAGED if damaged else queue.state,
        reason=queue.hot.detail if damaged else queue.setback.reason,
        commit_offset=queue.commit_offset,
        dispatch_offset=queue.dispatch_offset,
        behind=behind,
        oldest_age_s=max(0.0, now_s - queue.oldest_s(now_s)) if behind else 0.0,
        failures=queue.setback.failures,
        waiting=hot.waiting,
        waits_for=hot.waits_for,
        hidden=hot.hidden,
        is_gone=queue.is_gone,
    )


def _described(queues: Iterable[QueueProgress]) -> tuple[QueueStatistics, ...]:
    return tuple(filter(None, map(_DESCRIBED, queues)))


def _rests(described: QueueStatistics) -> bool:
    is_well = not described.failures and described.state not in HALTED
    return is_well and not described.behind


class QueueDescriptions:
    """Cached statistics of all queues. One thread calls `note`; any thread may call `at`.

    Each queue holds its own entry in `described`, which only this class writes.

    C1  The entry of a queue that was not noted since the last `at` is current, except for the age
        of its oldest message.
    C2  The restless queues are those described as failing, halted or lagging.
    """

    def __init__(self, queues: Mapping[QueueId, QueueProgress]) -> None:
        """Describe `queues`, the table of the dispatcher in order of first appearance."""
        self._queues = queues
        self._lock = threading.Lock()
        self._noted: dict[QueueId, QueueProgress] = {}
        self._restless: dict[QueueId, QueueProgress] = {}
        self._all: tuple[QueueStatistics, ...] = ()
        self._is_stale = False
        """Whether a description changed since `_all` was built."""

    def __repr__(self) -> str:
        return (
            f"<QueueDescriptions: {len(self._queues)} queues, {len(self._noted)} noted, "
            f"{len(self._restless)} do not rest>"
        )

    def check(self, queue: QueueProgress) -> None:
        """Assert C1 and C2 of one queue."""
        if queue.id in self._noted:
            return
        kept = queue.described
        assert kept is not None, f"C1: {queue} was never described"
        now = describe(queue, 0.0)
        assert replace(kept, oldest_age_s=now.oldest_age_s) == now, f"C1: {kept} is {now}"
        assert (queue.id in self._restless) != _rests(kept), f"C2: {kept}"

    def note(self, queue: QueueProgress) -> None:
        """Mark a new or changed queue."""
        if not self._noted:  # an emptied dict keeps the memory of its largest size
            self._noted = {}  # safe: `at` copied the entries of the old dict before it removed them
        self._noted[queue.id] = queue

    def forget(self, queue: QueueProgress) -> None:
        """Drop a queue that was removed from the table."""
        with self._lock:
            self._noted.pop(queue.id, None)
            self._restless.pop(queue.id, None)
            self._is_stale |= queue.described is not None

    def at(self, now_s: float) -> tuple[tuple[QueueStatistics, ...], tuple[QueueStatistics, ...]]:
        """Return all queues in order of first appearance, and the restless ones.

        O(queues noted since the last call + restless queues), and one copy of a tuple of all
        queues if one of them changed.
        """
        with self._lock:
            noted = list(self._noted.values())  # atomic, whatever the other thread does
            for queue in noted:
                self._noted.pop(queue.id, None)  # first: a change from here on is noted again
                self._describe(queue, now_s)
            for queue in list(self._restless.values()):
                self._describe(queue, now_s)
            if self._is_stale:
                self._all, self._is_stale = _described(list(self._queues.values())), False
            return self._all, _described(self._restless.values())

    def _describe(self, queue: QueueProgress, now_s: float) -> None:
        described = describe(queue, now_s)
        if described == queue.described:
            return
        queue.described = described
        self._is_stale = True
        if _rests(described):
            self._restless.pop(queue.id, None)
        else:
            self._restless[queue.id] = queue


OPENING_WAIT_S = 0.25
"""Longest wait of a ready queue for queues that are being opened, in seconds since its first
waiting message was seen or its last commit landed."""


class QueueTable:
    """Queues by name and by the work that they need, so that idle queues cost nothing.

    Every change of a queue moves it into the right places.

    Q1  The count of references is the sum over all queues.
    Q2  A queue is in the place of each kind of work that it needs, and in no other. Exception: the
        place for missing references may be stale for a queue that keeps `REFERENCES_MIN`
        references or more, because the references of other queues decide its demand.
    """

    checks_every_change: ClassVar[bool] = False
    """Whether the invariants of a queue are asserted after each change of it. Tests switch it on.
    With thousands of queues of few messages it costs a tenth or more of a commit."""

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
        """Return the queue of that name; None if there is none."""
        return self._queues.get(queue)

    def forget(self, topics: Collection[str]) -> None:
        """Remove the queues of these topics. No worker may be using them. O(queues)."""
        for name in [name for name in self._queues if name.topic in topics]:
            queue = self._queues.pop(name)
            queue.references.clear()
            self._alone.discard(name)
            for place, _ in self._places(queue):
                place.pop(name, None)
            self.descriptions.forget(queue)

    def check(self) -> None:
        """Assert Q1, Q2, and the invariants of each queue and its description. O(references)."""
        kept = sum(len(queue.references) for queue in self)
        assert self.count.kept == kept, f"Q1: {self} but {kept} references are kept"
        for queue in self:
            check_progress(queue)
            queue.references.check()
            self.descriptions.check(queue)
            for place, wants in self._places(queue):
                if place is self._needs_references and len(queue.references) >= REFERENCES_MIN:
                    continue  # depends on the references of other queues; see Q2
                assert (place.get(queue.id) is queue) == wants, f"Q2: {queue} wants {wants}"

    def observe(
        self, seen: Iterable[HotQueue], now_s: float, *, first: bool, epoch_s: float = 0.0
    ) -> None:
        """Apply the result of a poll. `first` marks the poll that returns every queue.

        `now_s` is monotonic time in seconds; monotonic time 0 is the Unix time `epoch_s`.
        """
        for hot in seen:
            queue = self._queues.get(hot.id)
            if queue is None:
                is_old = first and hot.state is not HotQueueState.UNCONFIRMED
                queue = self._queues[hot.id] = QueueProgress(hot, self._common, is_old=is_old)
            queue.observe(hot, now_s, epoch_s)

    def cut_off(self) -> None:
        """Reset all queues after the workers were cancelled; commits in flight become unsettled."""
        for queue in self:
            queue.cut_off()

    def needs_references(self) -> list[QueueProgress]:
        """Return the queues that want more references."""
        return list(self._needs_references.values())

    def undated(self, now_s: float, *, after_s: float, queues_max: int) -> list[QueueProgress]:
        """Return queues whose oldest untiered message has no known store time.

        Includes only messages of at least the age `after_s`, which is estimated from the store time
        of an earlier message if there is one. Returns at most `queues_max` queues, in rotation.
        """
        found: list[QueueProgress] = []
        for queue in list(self._undated.values()):
            if len(found) == queues_max:
                break
            if now_s - queue.oldest_s(now_s) >= after_s:
                found.append(queue)
                self._undated[queue.id] = self._undated.pop(queue.id)  # to the end of the rotation
        return found

    def to_settle(self) -> list[QueueProgress]:
        """Return the queues that are being opened or must be opened."""
        return [*self._to_open.values(), *self._opening.values()]

    def next_to_open(self, now_s: float, *, queues_max: int) -> tuple[list[QueueProgress], float]:
        """Return the next queues to open, and the monotonic time of the next one if there are none.

        Returns either one queue marked by `open_alone`, or up to `queues_max` others.
        """
        wake_at_s, found = math.inf, list[QueueProgress]()
        if not self._to_open:
            self._to_open = {}  # an emptied dict keeps the memory of its largest size
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
        """Mark a queue: `next_to_open` returns it alone the next time."""
        self._alone.add(queue.id)

    def plan_round(
        self,
        now_s: float,
        load: Load,
        health: TierHealth,
        *,
        force: bool,
        round_s: float = -math.inf,
    ) -> RoundPlan:
        """Plan the next round; the last one began at `round_s`.

        With `force`, every backlog is due once no queue is being opened.

        While queues are being opened, ready queues wait for them, at most `OPENING_WAIT_S`. The
        reason is that the queues' records are interleaved in the hot log: a round of one queue
        reads the log of all.
        """
        opening = bool(self._opening) or any(
            not queue.setback.failures for queue in self._to_open.values()
        )
        at_once = force and not opening
        waiting = [
            queue.waiting(now_s, at_once=at_once, round_s=round_s) for queue in self._ready.values()
        ]
        if opening:
            waiting = [
                replace(queue, due_at_s=max(queue.due_at_s, queue.ready_s + OPENING_WAIT_S))
                for queue in waiting
            ]
        return plan_round(
            _as_health_allows(waiting, health), now_s=now_s, load=load, options=self._options
        )

    def retry_now(self, now_s: float) -> None:
        """End the pauses of all queues after an outage."""
        for queue in self:
            queue.retry_now(now_s)

    def _places(
        self, queue: QueueProgress
    ) -> tuple[tuple[dict[QueueId, QueueProgress], bool], ...]:
        """Return every place, and whether the queue belongs there."""
        is_ready = queue.state is QueueState.READY and len(queue.references.units) > 0
        return (
            (self._to_open, queue.must_open),
            (self._opening, queue.opening),
            (self._ready, is_ready),
            (self._needs_references, queue.references_wanted() > 0),
            (self._undated, queue.is_undated),
        )

    def _sort(self, queue: QueueProgress) -> None:
        """Move a changed queue into the places where it belongs."""
        if self.checks_every_change:
            check_progress(queue)
        self.descriptions.note(queue)
        for place, wants in self._places(queue):
            if wants:
                place[queue.id] = queue
            else:
                place.pop(queue.id, None)


def _as_health_allows(waiting: list[Waiting], health: TierHealth) -> list[Waiting]:
    """In an outage, keep one failed queue at a time as a probe, and drop the other failed ones."""
    failed = [queue for queue in waiting if queue.failed]
    if not health.outage or not failed:
        return waiting
    others = [queue for queue in waiting if not queue.failed]
    if health.probing:
        return others
    probe = min(failed, key=attrgetter("ready_s"))
    return [*others, replace(probe, due_at_s=health.retry_at_s, ready_s=health.retry_at_s)]
