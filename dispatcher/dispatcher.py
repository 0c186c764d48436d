"""Dispatcher: tiers the messages of a hot log for the duration of a call."""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from random import Random

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from dispatcher.options import DRAIN_PATIENCE_S, DispatchOptions
from dispatcher.ports import HotLog, HotQueueState, TierPort
from dispatcher.statistics import DispatchStatistics, Progress
from dispatcher.topic_filter import TopicFilter
from dispatcher.work import DispatchWork
from provider.clock import Clock
from provider.errors import Closed, StoreError, Unavailable
from provider.ranges import QueueOffset


class Backlog:
    """Messages that the hot log has at the next poll. Later messages do not count."""

    def __init__(self, work: DispatchWork, report: Callable[[], None] | None = None) -> None:
        """Start with the next poll. `is_tiered` calls `report` after each landed round or poll."""
        self._work = work
        self._report = report
        self._polls_begun = work.polls_begun
        self._missing: dict[QueueId, QueueOffset] | None = None
        """Target offset of each queue that has not reached it; None before the poll."""
        self._reported = (-1, -1)

    def __repr__(self) -> str:
        missing = "what a poll sees" if self._missing is None else f"{len(self._missing)} queues"
        return f"<Backlog: waits for {missing}>"

    def is_tiered(self) -> bool:
        """Whether all of it is tiered. Halted queues do not count.

        O(queues) over all calls together, then O(1) each.
        """
        if self._missing is None:
            if self._work.poll_finished <= self._polls_begun:
                return False
            self._missing = {
                queue.id: queue.hot.max_offset
                for queue in self._work.table
                if queue.hot.state is not HotQueueState.UNCONFIRMED
            }
        news = (self._work.counters.rounds, self._work.poll_finished)
        if self._report is not None and news != self._reported:
            self._reported = news
            self._report()
        while self._missing:  # stops at the first queue that is not done, so a call is cheap
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


class DrainGoal:
    """End of one call: success, a timeout or an error. Evaluated at every wakeup."""

    def __init__(
        self,
        is_reached: Callable[[], bool],
        work: DispatchWork,
        clock: Clock,
        *,
        patience_s: float | None,
        seconds_max: float,
    ) -> None:
        """Start the clock of the call.

        The goal fails with `Unavailable` if no commit lands for `patience_s` seconds; None: never.
        It ends without an error after `seconds_max`.
        """
        self.error: StoreError | None = None
        """Cause of a failure. None after success and after `seconds_max`."""
        self._is_reached = is_reached
        self._work = work
        self._clock = clock
        self._patience_s = patience_s
        self._began_s = clock.monotonic_s()
        self._end_s = self._began_s + seconds_max

    def is_over(self) -> bool:
        """Whether the call may return now. Sets `error` on failure."""
        now_s = self._clock.monotonic_s()
        self.error = self._work.fatal
        if self.error is not None or self._is_reached() or now_s >= self._end_s:
            return True
        if now_s >= self._gives_up_s():
            why = self._work.last_error or "no answer"
            reason = f"nothing landed for {self._patience_s:.0f} s ({why})"
            self.error = Unavailable(reason, "")
        return self.error is not None

    async def wait(self) -> None:
        """Return when `is_over` may have changed. Cancelling changes nothing."""
        end_s = min(self._end_s, self._gives_up_s())
        left_s = end_s - self._clock.monotonic_s()
        await self._work.alarm.wait(None if math.isinf(left_s) else left_s)

    def _gives_up_s(self) -> float:
        if self._patience_s is None:
            return math.inf
        return max(self._began_s, self._work.counters.last_success_s) + self._patience_s


class TieredDispatcher:
    """Committer of every message of a hot log to a tier, in order, exactly once.

    Its invariants D1 to D4 are documented at `DispatchWork`.
    """

    def __init__(
        self,
        hot: HotLog,
        tier: TierPort,
        *,
        options: DispatchOptions,
        clock: Clock,
        topics: TopicFilter | None = None,
        executor: Executor | None = None,
        rng: Random | None = None,
        agreed: Mapping[QueueId, Queue] | None = None,
    ) -> None:
        """Create an idle dispatcher. Nothing is read or written before `run` or `drain`.

        Args:
            hot: source of the messages.
            tier: destination of the messages.
            options: limits and pauses.
            clock: source of time.
            topics: topics that are never tiered, even if the hot log reports them; None: none.
            executor: runs the tier's `plan_commit`; None: the event loop's default executor.
            rng: jitter of the retries in an outage, for a tier that several dispatchers share;
                None: no jitter.
            agreed: the agreeing queues that `compare_all` returned; they are not compared again.
        """
        self._options = options
        self._clock = clock
        self._made_s = clock.monotonic_s()
        self._work = DispatchWork(
            hot,
            tier,
            options=options,
            clock=clock,
            topics=topics,
            executor=executor,
            rng=rng,
            agreed=agreed,
        )
        self._serving = False
        self._closing = False
        self._closed = False

    def __repr__(self) -> str:
        if self._closed or self._work.fatal:
            state = "closed" if self._closed else f"failed ({self._work.fatal})"
        else:
            state = "serving" if self._serving else "idle"
        counters = self._work.counters
        return (
            f"<TieredDispatcher {state}: "
            f"{len(self._work.table)} queues, {counters.messages} messages in "
            f"{counters.rounds} rounds, "
            f"{counters.bytes_in_flight} bytes in flight>"
        )

    async def run(self) -> None:
        """Tier the backlog and all new messages until cancelled or closed.

        Cancelling may leave commits with an unknown outcome; the next `run`, `drain` or `close`
        settles them.

        Raises:
            Fenced: a newer owner has the tier; nothing more is tiered.
            Closed: the hot log, the tier or this dispatcher was closed.
        """
        self._check_open()
        await self._work_until(lambda: self._closed)

    async def drain(
        self,
        *,
        force: bool = True,
        patience_s: float | None = DRAIN_PATIENCE_S,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> DispatchStatistics:
        """Tier everything that the hot log has now, and return the statistics.

        Stopped, refused and damaged queues raise no error: the result's `halted` lists them. With
        `force`, batches do not wait for their age. May run beside `run`, and may be cancelled.
        `on_progress` is called after each landed round and each poll.

        Raises:
            Unavailable: no commit landed for `patience_s` seconds (None: never give up).
            Fenced: a newer owner has the tier.
            Closed: the hot log, the tier or this dispatcher was closed.
        """
        self._check_open()
        backlog = Backlog(
            self._work, None if on_progress is None else lambda: on_progress(self.progress())
        )
        await self._work_until(backlog.is_tiered, force=force, patience_s=patience_s)
        return self.statistics()

    async def close(self) -> None:
        """Commit the backlog for at most `close_s_max` seconds, then stop `run`. Idempotent.

        Raises no error for messages that could not be committed: `statistics` reports them, and
        the next start resumes there. The hot log and the tier stay open. Cancelling stops `run`
        all the same.
        """
        if self._closing:
            return
        self._closing = True
        try:
            with suppress(StoreError):
                await self._work_until(
                    Backlog(self._work).is_tiered,
                    force=True,
                    seconds_max=self._options.close_s_max,
                )
        finally:
            self._closed = True
            self._work.alarm.ring()
        while self._serving:
            await self._work.alarm.wait(None)

    def forget(self, topics: Collection[str]) -> None:
        """Drop the queues of topics that the hot log deleted.

        A later queue of such a name is opened like a new one.

        Must not be called while workers run: `run` was cancelled and has ended. O(queues).
        """
        assert not self._serving, f"workers of the queues must be stopped first: {self}"
        self._work.table.forget(topics)

    def check(self) -> None:
        """Assert D1 to D4 of `DispatchWork`. For tests, between two steps of the event loop."""
        self._work.check(working=self._serving)

    def progress(self) -> Progress:
        """Return the messages and bytes done by this process, and the total. O(queues)."""
        done = total = 0
        for queue in self._work.table:
            if queue.opened_offset is not None:
                done += queue.commit_offset - queue.opened_offset
                total += max(queue.hot.max_offset, queue.commit_offset) - queue.opened_offset
        return Progress(done, total, self._work.counters.bytes)

    def statistics(self) -> DispatchStatistics:
        """Return the state of all queues and all counters at this moment.

        O(topics + queues that changed since the last call, are failing, halted or have a backlog),
        and one copy of a tuple of all queues. Safe to call from any thread.
        """
        counters = self._work.counters
        now_s = self._clock.monotonic_s()
        queues, restless = self._work.table.descriptions.at(now_s)
        return DispatchStatistics(
            queues=queues,
            restless=restless,
            bytes_in_flight=counters.bytes_in_flight,
            bytes_in_flight_peak=counters.bytes_in_flight_peak,
            rounds_in_flight=counters.rounds_in_flight,
            references=self._work.table.count.kept,
            rounds=counters.rounds,
            rounds_failed=counters.rounds_failed,
            commits=counters.commits,
            messages=counters.messages,
            messages_by_topic=dict(counters.messages_by_topic),
            bytes=counters.bytes,
            gaps=counters.gaps,
            commit_age_s=now_s - max(self._made_s, counters.last_success_s),
            next_commit_s=counters.next_commit_s(now_s),
            outage=self._work.is_outage,
            last_error=self._work.last_error,
            hot_error=counters.hot_error,
            started=counters.started,
        )

    def _check_open(self) -> None:
        if self._closing:
            raise Closed("the dispatcher is closed", "dispatcher")
        if self._work.fatal is not None:
            raise self._work.fatal

    async def _work_until(
        self,
        is_reached: Callable[[], bool],
        *,
        force: bool = False,
        patience_s: float | None = None,
        seconds_max: float = math.inf,
    ) -> None:
        """Run the workers, or wait beside the call that runs them, until the goal is over.

        One call at a time owns the workers. If it returns or is cancelled before the others are
        done, the next of them takes over.

        Raises:
            Unavailable: no commit landed for `patience_s` seconds.
            Fenced, Closed: the error that ended all dispatching.
        """
        goal = DrainGoal(
            is_reached, self._work, self._clock, patience_s=patience_s, seconds_max=seconds_max
        )
        self._work.forcing += force
        self._work.alarm.ring()
        try:
            while not goal.is_over():
                await (goal.wait() if self._serving else self._serve(goal))
        finally:
            self._work.forcing -= force
        if goal.error is not None:
            raise goal.error

    async def _serve(self, goal: DrainGoal) -> None:
        """Own the workers until `goal` is over. Cancelling cancels them."""
        self._serving = True
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(worker()) for worker in self._work.workers()]
                while not goal.is_over():
                    await goal.wait()
                for task in tasks:
                    task.cancel()
        finally:
            self._serving = False
            self._work.alarm.ring()
