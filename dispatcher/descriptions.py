"""What can be said of every queue, kept from one moment to the next: what rests costs nothing."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter

from container.names.queue_id import QueueId
from dispatcher.hot_log import HotQueueState
from dispatcher.queue_progress import QueueProgress
from dispatcher.queue_state import HALTED, QueueState
from dispatcher.statistics import QueueStatistics

_DESCRIBED: "attrgetter[QueueStatistics | None]" = attrgetter("described")


def describe(queue: QueueProgress, now_s: float) -> QueueStatistics:
    """One queue as it is at one moment. Pure."""
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
    """Descriptions of all queues. `note` is called by one thread, `at` by any.

    Each queue keeps its own, in `described`, which nobody else writes.

    C1  A queue that was not noted since the last `at` is as it was described then, but for the
        age of what waits.
    C2  The queues that do not rest are those that are described as failing, halted or behind.
    """

    def __init__(self, queues: Mapping[QueueId, QueueProgress]) -> None:
        """`queues`: the dispatcher's, in the order in which they came."""
        self._queues = queues
        self._lock = threading.Lock()
        self._noted: dict[QueueId, QueueProgress] = {}
        self._restless: dict[QueueId, QueueProgress] = {}
        self._all: tuple[QueueStatistics, ...] = ()
        self._is_stale = False
        """Whether a description changed since `_all` was made."""

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
        """A queue is there, or changed."""
        if not self._noted:  # one that was large keeps its memory when it is empty
            self._noted = {}  # `at` has taken all of the other, and looks at it no more
        self._noted[queue.id] = queue

    def forget(self, queue: QueueProgress) -> None:
        """A queue is no more, and not among the dispatcher's."""
        with self._lock:
            self._noted.pop(queue.id, None)
            self._restless.pop(queue.id, None)
            self._is_stale |= queue.described is not None

    def at(self, now_s: float) -> tuple[tuple[QueueStatistics, ...], tuple[QueueStatistics, ...]]:
        """All queues in the order in which they came, and those of them that do not rest.

        O(queues noted since the last call, and those that do not rest), and one copy of a tuple of
        all queues if one of them changed.
        """
        with self._lock:
            noted = list(self._noted.values())  # one step, whatever the other thread does
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
