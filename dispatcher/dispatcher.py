"""Moves messages from the hot log to the tier, for as long as somebody asks for it.

Here stands who works, and until when: `run` for good, `drain` and `close` until what is there now
has landed. What the workers do is in `work.py`, which queue goes next in `round_plan.py`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from dispatcher.goal import Goal
from dispatcher.hot_log import HotLog, HotQueueState
from dispatcher.options import DispatchOptions
from dispatcher.queue_progress import QueueProgress, QueueState
from dispatcher.statistics import DispatchStatistics, Progress, QueueStatistics
from dispatcher.tier_port import AnyTier
from dispatcher.work import DispatchWork
from provider.clock import Clock
from provider.errors import Closed, StoreError, Unavailable

DRAIN_PATIENCE_S = 60.0
"""Seconds without a landed commit after which `drain` gives up on a tier that fails."""


class TieredDispatcher:
    """Commits every message of a hot log to a tier, in order, each exactly once.

    D1  What the tier has of a queue is a prefix of what the hot log had of it, gaps apart.
    D2  At most one commit of a queue is in flight; a range that failed is tried again, the same,
        before any later one.
    D3  Whatever interrupts a commit, the tier is asked what became of it before anything else.
    D4  Bytes in flight never exceed `options.bytes_in_flight_max`, unless one message alone does.
    """

    def __init__(
        self,
        hot: HotLog,
        tier: AnyTier,
        *,
        options: DispatchOptions,
        clock: Clock,
        executor: Executor | None = None,
    ) -> None:
        """Nothing is read or written before `run` or `drain`.

        `tier` is a `TierPort`. `executor` runs its `plan_commit`; None is the event loop's own.
        """
        self._options = options
        self._clock = clock
        self._work = DispatchWork(hot, tier, options=options, clock=clock, executor=executor)
        self._fatal: StoreError | None = None
        self._serving = False
        self._closing = False
        self._closed = False

    def __repr__(self) -> str:
        if self._closed or self._fatal:
            state = "closed" if self._closed else f"failed ({self._fatal})"
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
        """Tier what there is and what comes, until cancelled or closed.

        Cancelling may leave commits with an unknown outcome; the next `run`, `drain` or `close`
        settles them.

        Raises:
            Fenced: someone newer owns the tier; nothing more is tiered.
            Closed: the hot log or the tier was closed, or this dispatcher is.
        """
        self._check_open()
        while self._serving:  # a drain is at work: go on after it
            await self._work.alarm.wait(None)
        error = await self._serve(lambda: self._closed)
        if error is not None:
            raise error

    async def drain(
        self,
        *,
        force: bool = True,
        patience_s: float | None = DRAIN_PATIENCE_S,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> DispatchStatistics:
        """Tier everything that the hot log has now, and return what became of it.

        Stopped, refused and damaged queues raise nothing: they are in the result's `halted`. With
        `force`, batches do not wait for their age. May be called beside `run`, and cancelled.
        `on_progress` is called whenever something changed.

        Raises:
            Unavailable: nothing landed for `patience_s` seconds (None: never give up).
            Fenced: someone newer owns the tier.
            Closed: the hot log, the tier or this dispatcher was closed.
        """
        self._check_open()
        error = await self._reach(
            force=force, patience_s=patience_s, until_s=math.inf, on_progress=on_progress
        )
        if error is not None:
            raise error
        return self.statistics()

    async def close(self) -> None:
        """Commit what is there, for at most `close_s_max` seconds, then stop `run`. Idempotent.

        Raises nothing for what could not be committed: `statistics` tells, and the next start
        goes on there. The hot log and the tier stay open.
        """
        if self._closing:
            return
        self._closing = True
        try:
            if self._fatal is None:
                until_s = self._clock.monotonic_s() + self._options.close_s_max
                await self._reach(force=True, patience_s=None, until_s=until_s)
        finally:
            self._closed = True
            self._work.alarm.ring()
        while self._serving:
            await self._work.alarm.wait(None)

    def progress(self) -> Progress:
        """How far this process is with what it has to do. O(queues)."""
        done = total = 0
        for queue in self._work.table:
            if queue.opened_offset is not None:
                done += queue.commit_offset - queue.opened_offset
                total += max(queue.hot.max_offset, queue.commit_offset) - queue.opened_offset
        return Progress(done, total, self._work.counters.bytes)

    def statistics(self) -> DispatchStatistics:
        """Everything that can be said about this moment. O(queues)."""
        counters = self._work.counters
        return DispatchStatistics(
            queues=tuple(self._describe(queue) for queue in self._work.table),
            bytes_in_flight=counters.bytes_in_flight,
            bytes_in_flight_peak=counters.bytes_in_flight_peak,
            rounds_in_flight=counters.rounds_in_flight,
            references=self._work.table.count.kept,
            rounds=counters.rounds,
            rounds_failed=counters.rounds_failed,
            commits=counters.commits,
            messages=counters.messages,
            bytes=counters.bytes,
            gaps=counters.gaps,
            outage=self._work.health.outage,
            last_error=counters.last_error,
            hot_error=counters.hot_error,
        )

    def _describe(self, queue: QueueProgress) -> QueueStatistics:
        is_stopped = queue.state in {QueueState.STOPPED, QueueState.REFUSED}
        damaged = queue.hot.state is HotQueueState.DAMAGED and not queue.behind and not is_stopped
        now_s = self._clock.monotonic_s()
        return QueueStatistics(
            queue=queue.id,
            state=QueueState.DAMAGED if damaged else queue.state,
            reason=queue.hot.detail if damaged else queue.reason,
            commit_offset=queue.commit_offset,
            dispatch_offset=queue.dispatch_offset,
            behind=queue.behind,
            oldest_age_s=now_s - queue.oldest_s(now_s) if queue.behind else 0.0,
            failures=queue.failures,
        )

    def _check_open(self) -> None:
        if self._closing:
            raise Closed("the dispatcher is closed", "dispatcher")
        if self._fatal is not None:
            raise self._fatal

    # Serving: who works, and until when.

    async def _serve(
        self,
        done: Callable[[], bool],
        *,
        patience_s: float | None = None,
        until_s: float = math.inf,
    ) -> StoreError | None:
        """Run all workers until `done`; returns what made them give up, if anything did."""
        workers: list[Callable[[], Awaitable[None]]] = [self._work.poll]
        workers += [self._work.open] * self._options.openings_max
        workers += [self._work.commit_rounds] * self._options.rounds_max
        self._serving = True
        self._work.restart()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._guard(worker)) for worker in workers]
                error = await self._until(done, patience_s=patience_s, until_s=until_s)
                for task in tasks:
                    task.cancel()
        finally:
            self._serving = False
            self._work.alarm.ring()
        return error

    async def _guard(self, worker: Callable[[], Awaitable[None]]) -> None:
        """A store error that a worker does not handle is everybody's end."""
        try:
            await worker()
        except StoreError as error:
            self._fatal = error
            self._work.alarm.ring()

    async def _until(
        self, done: Callable[[], bool], *, patience_s: float | None, until_s: float
    ) -> StoreError | None:
        """Watch the workers until `done`, `until_s` on the clock, or nothing lands any more.

        Returns what made them give up, or that nothing landed for `patience_s`.
        """
        started_s = self._clock.monotonic_s()
        while not done():
            if self._fatal is not None:
                return self._fatal
            now_s = self._clock.monotonic_s()
            end_s = until_s
            if patience_s is not None:
                end_s = min(end_s, max(started_s, self._work.counters.last_success_s) + patience_s)
            if now_s >= until_s:
                return None
            if now_s >= end_s:
                why = self._work.counters.last_error or "no answer"
                return Unavailable(f"nothing landed for {patience_s:.0f} s ({why})", "tier")
            await self._work.alarm.wait(None if math.isinf(end_s) else end_s - now_s)
        return self._fatal

    async def _reach(
        self,
        *,
        force: bool,
        patience_s: float | None,
        until_s: float,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> StoreError | None:
        """Work, or watch `run` work, until all that the next poll sees is tiered."""
        goal = Goal(self._work, progress=self.progress, on_progress=on_progress)
        self._work.forcing += force
        self._work.alarm.ring()
        try:
            while not goal.is_reached() and self._clock.monotonic_s() < until_s:
                work = self._until if self._serving else self._serve
                alone = not self._serving
                error = await work(
                    lambda: goal.is_reached() or not (alone or self._serving),  # noqa: B023 - awaited here
                    patience_s=patience_s,
                    until_s=until_s,
                )
                if error is not None:
                    return error
        finally:
            self._work.forcing -= force
        return None
