"""What a drain works towards: all that the hot log had when it began."""

from collections.abc import Callable

from container.names.queue_id import QueueId
from dispatcher.queue_progress import QueueState
from dispatcher.statistics import Progress
from dispatcher.work import DispatchWork
from provider.ranges import QueueOffset


class Goal:
    """All that a poll sees which begins from now on is tiered, or never will be."""

    def __init__(
        self,
        work: DispatchWork,
        *,
        progress: Callable[[], Progress],
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        """`on_progress` is told what `progress` answers whenever there is news."""
        self._work = work
        self._progress = progress
        self._on_progress = on_progress
        self._polls_begun = work.polls_begun
        self._missing: dict[QueueId, QueueOffset] | None = None
        """How far each queue has to come, but those that did; None before the poll."""
        self._told = (-1, -1)

    def __repr__(self) -> str:
        missing = "what a poll sees" if self._missing is None else f"{len(self._missing)} queues"
        return f"<Goal: waits for {missing}>"

    def is_reached(self) -> bool:
        """Whether it is; tells news. Asked whenever the alarm rang. O(queues) in all, then O(1)."""
        if self._missing is None:
            if self._work.poll_finished <= self._polls_begun:
                return False
            self._missing = {queue.id: queue.hot.max_offset for queue in self._work.table}
        self._tell()
        while self._missing:  # looks only at the first that is not done, so that it costs nothing
            queue, offset = next(iter(self._missing.items()))
            if not self._is_done(queue, offset):
                return False
            del self._missing[queue]
        return True

    def _is_done(self, queue: QueueId, offset: QueueOffset) -> bool:
        progress = self._work.table[queue]
        is_open = progress.state in {QueueState.READY, QueueState.IN_FLIGHT}
        return progress.is_halted or (is_open and progress.commit_offset >= offset)

    def _tell(self) -> None:
        news = (self._work.counters.rounds, self._work.poll_finished)
        if self._on_progress is not None and news != self._told:
            self._told = news
            self._on_progress(self._progress())
