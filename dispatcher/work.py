"""The three kinds of workers: one polls, some open queues, some commit rounds. Thin shells."""

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor

from dispatcher.alarm import Alarm
from dispatcher.hot_log import HotLog
from dispatcher.options import DispatchOptions
from dispatcher.queue_progress import ClaimedRange, QueueProgress, QueueState
from dispatcher.queue_start import HotLogIsDamaged
from dispatcher.queue_table import QueueTable
from dispatcher.refusals import MAY_PASS, refusal_sentence, refused_queue
from dispatcher.resuming import Contradicted, open_queue
from dispatcher.round_plan import Load
from dispatcher.round_preparation import prepare_round
from dispatcher.statistics import Counters
from dispatcher.tier_health import TierHealth, backoff_s
from dispatcher.tier_port import AnyTier, CommitPlan
from provider.clock import Clock
from provider.errors import (
    Closed,
    Corrupt,
    Denied,
    Fenced,
    OutOfRange,
    StoreError,
    Unavailable,
)

WAIT_S_MIN = 0.001


class DispatchWork:
    """What the workers share, and what each of them does until cancelled.

    Workers handle every `StoreError` that concerns one queue or one round. What they let through
    (`Fenced`, `Closed`) is the end of all dispatching.
    """

    def __init__(
        self,
        hot: HotLog,
        tier: AnyTier,
        *,
        options: DispatchOptions,
        clock: Clock,
        executor: Executor | None,
    ) -> None:
        self.table = QueueTable(options)
        self.alarm = Alarm(clock)
        self.counters = Counters()
        self.health = TierHealth(
            backoff_s_min=options.backoff_s_min, backoff_s_max=options.backoff_s_max
        )
        self.forcing = 0
        """How many want everything committed at once."""
        self.polls_begun = 0
        self.poll_finished = 0
        """Number of the last poll whose results are in the table."""
        self._hot = hot
        self._tier = tier
        self._options = options
        self._clock = clock
        self._executor = executor

    def restart(self) -> None:
        """Forget whoever was cut off; called before workers start."""
        self.health.probing = False
        self.table.restart()

    # Polling.

    async def poll(self) -> None:
        """Worker: keep the table up to date with the hot log.

        A refusal is only believed at the first look: later it is somebody's slip, and passes.
        """
        failures = 0
        while True:
            try:
                await self._poll_once()
                await self._hot.wait(self._options.poll_s_max)
                failures, self.counters.hot_error = 0, ""
            except (Unavailable, Denied) as error:
                if isinstance(error, Denied) and not self.poll_finished:
                    raise
                failures += 1
                self.counters.last_error = self.counters.hot_error = str(error)
                await self._clock.sleep(self._pause_s(failures))

    async def _poll_once(self) -> None:
        self.polls_begun += 1
        number = self.polls_begun
        seen = await self._hot.poll()
        first = self.poll_finished == 0
        self.table.observe(seen, self._clock.monotonic_s(), first=first)
        needing = self.table.needs_references()
        for queue in needing:
            await self._refill(queue)
        self.poll_finished = number
        if seen or needing or self.forcing:
            self.alarm.ring()

    async def _refill(self, queue: QueueProgress) -> None:
        """Fetch the references that a queue wants, unless somebody else does."""
        wanted = queue.references_wanted()
        if queue.refilling or not wanted:
            return
        queue.refilling = True
        start = queue.referenced_offset
        try:
            units = await self._hot.references(queue.id, start, messages_max=wanted)
            queue.add_references(start, units)
        except (Unavailable, Denied) as error:
            self.counters.last_error = str(error)  # the next poll tries again
        except (OutOfRange, Corrupt) as error:
            if start == queue.commit_offset and queue.state is QueueState.READY:
                self._unreadable(queue, error)
        finally:
            queue.refilling = False
        self.table.index(queue)

    # Opening.

    async def open(self) -> None:
        """Worker: settle queues with the tier, one at a time."""
        while True:
            now_s = self._clock.monotonic_s()
            queue, wake_at_s = self.table.next_to_open(now_s)
            if queue is None:
                await self.alarm.wait(_until(wake_at_s, now_s))
                continue
            queue.busy = True
            self.table.busy += 1
            self.table.index(queue)
            try:
                await self._open(queue)
                await self._refill(queue)
            finally:
                queue.busy = False
                self.table.busy -= 1
                self.table.index(queue)
            self.alarm.ring()

    async def _open(self, queue: QueueProgress) -> None:
        hot = queue.hot
        try:
            outcome = await open_queue(
                self._hot,
                self._tier,
                hot,
                backfill=self._options.backfill if queue.is_old else "all",
                compared_messages=self._options.compared_messages_max,
                now_ms=self._clock.now_ms(),
                damage=queue.damage,
            )
            if isinstance(outcome, Contradicted):
                queue.commit_offset = outcome.tier_next
                queue.stop(QueueState.STOPPED, outcome.reason)
                queue.heals_at = outcome.heals_at
                return
            if isinstance(outcome, HotLogIsDamaged):
                if queue.hot.state is hot.state:  # else it says something else by now: look again
                    queue.commit_offset = outcome.next_offset
                    queue.stop(QueueState.DAMAGED, outcome.reason)
                    queue.heals_at = outcome.heals_at
                return
            self.counters.gaps += outcome.gap
            queue.open(outcome.offset)
            await self._hot.release(queue.id, outcome.offset)
        except (Fenced, Closed):
            raise
        except (Unavailable, Denied) as error:
            self.counters.last_error = str(error)
            if queue.state is QueueState.UNSETTLED or queue.rests:
                queue.pause(self._clock.monotonic_s())
                queue.reason = str(error)
        except StoreError as error:
            self._not_opened(queue, error)

    def _not_opened(self, queue: QueueProgress, error: StoreError) -> None:
        self.counters.last_error = str(error)
        published = self._tier.queue(queue.id)
        if published is not None:
            queue.commit_offset = published.next_offset
        if isinstance(error, MAY_PASS):
            queue.rest(self._clock.monotonic_s(), refusal_sentence(error))
        else:
            queue.stop(QueueState.DAMAGED, str(error))

    # Rounds.

    async def commit_rounds(self) -> None:
        """Worker: take the next round, read it, plan it, commit it; then the next."""
        while True:
            now_s = self._clock.monotonic_s()
            load = Load(self.counters.bytes_in_flight, self.counters.rounds_in_flight)
            plan = self.table.plan_round(now_s, load, self.health, force=self.forcing > 0)
            if not plan.grants:
                await self.alarm.wait(_until(plan.wake_at_s, now_s))
                continue
            round_ = [self.table[grant.queue].claim(grant.bytes_max) for grant in plan.grants]
            bytes_claimed = sum(claimed.bytes for claimed in round_)
            self.counters.begin(bytes_claimed)
            self.health.probing |= plan.failed
            try:
                await self._commit_round(round_)
            finally:
                self.counters.end(bytes_claimed)
                if plan.failed:
                    self.health.probing = False
                self.alarm.ring()

    async def _commit_round(self, round_: Sequence[ClaimedRange]) -> None:
        for claimed in round_:
            self.table.index(self.table[claimed.queue])
        self.alarm.ring()  # another lane may begin the next round
        prepared = await prepare_round(
            round_, hot=self._hot, tier=self._tier, executor=self._executor
        )
        for claimed, error in prepared.failures:
            self._not_prepared(self.table[claimed.queue], error)
        for plan in prepared.plans:
            self.table[plan.queue].give_back(plan.next_offset)
        for claimed in round_:
            await self._refill(self.table[claimed.queue])
        if not prepared.plans:
            return
        try:
            await self._tier.commit(prepared.plans)
        except (Fenced, Closed):
            raise
        except StoreError as error:
            await self._settle(prepared.plans, error)
        else:
            await self._landed(prepared.plans)

    async def _landed(self, plans: Sequence[CommitPlan]) -> None:
        now_s = self._clock.monotonic_s()
        self.counters.rounds += 1
        self.counters.last_success_s = now_s
        if self.health.landed():
            self.table.resume(now_s)
        await self._advance(plans, now_s)

    async def _advance(self, plans: Iterable[CommitPlan], now_s: float) -> None:
        landed: list[QueueProgress] = []
        for plan in plans:
            queue = self.table[plan.queue]
            self.counters.commits += 1
            self.counters.messages += plan.next_offset - queue.commit_offset
            self.counters.bytes += plan.bytes
            queue.landed(now_s)
            self.table.index(queue)
            landed.append(queue)
        for queue in landed:
            await self._release(queue)
            await self._refill(queue)

    async def _release(self, queue: QueueProgress) -> None:
        try:
            await self._hot.release(queue.id, queue.commit_offset)
        except Unavailable as error:
            self.counters.last_error = str(error)  # the next release covers this one

    async def _settle(self, plans: Sequence[CommitPlan], error: StoreError) -> None:
        """Ask the tier what became of a round whose commit raised `error`."""
        now_s = self._clock.monotonic_s()
        self.counters.last_error = str(error)
        refused = refused_queue(plans, error)
        reason = f"the tier refuses its messages: {refusal_sentence(error)}"
        landed: list[CommitPlan] = []
        for plan in plans:
            queue = self.table[plan.queue]
            published = self._tier.queue(plan.queue)
            if published is not None and published.next_offset == plan.next_offset:
                landed.append(plan)
            elif published is not None and published.next_offset != queue.commit_offset:
                queue.unsettle()
            elif refused is None:
                queue.failed(now_s, str(error), round_queues_max=max(1, len(plans) // 2))
            elif plan.queue != refused:
                queue.failed(now_s, str(error))
            elif isinstance(error, MAY_PASS):
                queue.rest(now_s, reason)
            else:
                queue.stop(QueueState.STOPPED, reason)
            self.table.index(queue)
        if len(landed) == len(plans):
            await self._landed(plans)
            return
        self.counters.rounds_failed += 1
        if refused is None:
            self.health.failed(now_s)
        await self._advance(landed, now_s)

    def _not_prepared(self, queue: QueueProgress, error: StoreError) -> None:
        """The messages that a queue took could not be read or planned."""
        self.counters.last_error = str(error)
        if isinstance(error, Fenced | Closed):
            raise error
        if isinstance(error, Unavailable | Denied):
            queue.failed(self._clock.monotonic_s(), str(error))
            self.table.index(queue)
        else:
            self._unreadable(queue, error)

    def _unreadable(self, queue: QueueProgress, error: StoreError) -> None:
        if isinstance(error, OutOfRange):  # deleted under us: the next poll says how much
            queue.unsettle()
            queue.pause(self._clock.monotonic_s())
        else:
            queue.stop(QueueState.DAMAGED, str(error))
        self.table.index(queue)

    def _pause_s(self, failures: int) -> float:
        options = self._options
        return backoff_s(failures, s_min=options.backoff_s_min, s_max=options.backoff_s_max)


def _until(wake_at_s: float, now_s: float) -> float | None:
    """Seconds to wait; never so few that rounding would keep the clock from passing the moment."""
    return None if math.isinf(wake_at_s) else max(WAIT_S_MIN, wake_at_s - now_s)
