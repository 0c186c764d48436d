"""Until when a call of the dispatcher works: what it waits for, and what ends it early."""

import math
from collections.abc import Callable

from container.names.queue_id import QueueId
from dispatcher.work import DispatchWork
from provider.clock import Clock
from provider.errors import StoreError, Unavailable
from provider.ranges import QueueOffset


class Backlog:
    """All that the hot log has when the next poll looks; what comes later does not count."""

    def __init__(self, work: DispatchWork, tell: Callable[[], None] | None = None) -> None:
        """`tell` is called when a round landed or a poll finished since the last call."""
        self._work = work
        self._tell = tell
        self._polls_begun = work.polls_begun
        self._missing: dict[QueueId, QueueOffset] | None = None
        """How far each queue has to come that has not come so far; None before the poll."""
        self._told = (-1, -1)

    def __repr__(self) -> str:
        missing = "what a poll sees" if self._missing is None else f"{len(self._missing)} queues"
        return f"<Backlog: waits for {missing}>"

    def is_tiered(self) -> bool:
        """Whether it is tiered, halted queues apart. O(queues) over all calls, then O(1)."""
        if self._missing is None:
            if self._work.poll_finished <= self._polls_begun:
                return False
            self._missing = {queue.id: queue.hot.max_offset for queue in self._work.table}
        news = (self._work.counters.rounds, self._work.poll_finished)
        if self._tell is not None and news != self._told:
            self._told = news
            self._tell()
        while self._missing:  # looks only at the first that is not done, so that it costs nothing
            queue, offset = next(iter(self._missing.items()))
            if not self._is_done(queue, offset):
                return False
            del self._missing[queue]
        return True

    def _is_done(self, queue: QueueId, offset: QueueOffset) -> bool:
        progress = self._work.table.get(queue)
        if progress is None:
            return True  # its topic was deleted
        reached = progress.is_active and progress.commit_offset >= offset
        return progress.is_halted or reached


class Goal:
    """What one call waits for: success, the end of its time, or an error; asked at every alarm."""

    def __init__(
        self,
        is_reached: Callable[[], bool],
        work: DispatchWork,
        clock: Clock,
        *,
        patience_s: float | None,
        seconds_max: float,
    ) -> None:
        """Without a commit that lands for `patience_s`, it ends in `Unavailable`; None: never."""
        self.error: StoreError | None = None
        """Why it ended without being reached; None also where only its time was up."""
        self._is_reached = is_reached
        self._work = work
        self._clock = clock
        self._patience_s = patience_s
        self._began_s = clock.monotonic_s()
        self._end_s = self._began_s + seconds_max

    def is_over(self) -> bool:
        """Whether the call may return now; says so again and again."""
        now_s = self._clock.monotonic_s()
        self.error = self._work.fatal
        if self.error is not None or self._is_reached() or now_s >= self._end_s:
            return True
        if now_s >= self._gives_up_s():
            why = self._work.counters.last_error or "no answer"
            reason = f"nothing landed for {self._patience_s:.0f} s ({why})"
            self.error = Unavailable(reason, "")
        return self.error is not None

    async def wait(self) -> None:
        """Return when `is_over` may have changed. Cancelling leaves nothing behind."""
        end_s = min(self._end_s, self._gives_up_s())
        left_s = end_s - self._clock.monotonic_s()
        await self._work.alarm.wait(None if math.isinf(left_s) else left_s)

    def _gives_up_s(self) -> float:
        if self._patience_s is None:
            return math.inf
        return max(self._began_s, self._work.counters.last_success_s) + self._patience_s
