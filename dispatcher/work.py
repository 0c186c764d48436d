"""Workers of the dispatcher: one polls, some open queues, some commit rounds.

The decisions are in `round_plan.py`, `start.py`, `queue_progress.py` and `error_policy.py`.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from container.queue.commit_plan import CommitPlan
from container.record.batch import MessageBatch
from container.record.unit import Units
from dispatcher.error_policy import (
    Reaction,
    reaction_to_reading,
    reaction_to_tiering,
    refusal_sentence,
    refused_queue,
)
from dispatcher.options import COMPARED_BYTES_MAX, DispatchOptions
from dispatcher.ports import HotLog, HotQueue, QueueState, TierPort, Wanted, WantedUnits
from dispatcher.queue_progress import ClaimedRange, QueueProgress
from dispatcher.queue_table import QueueTable
from dispatcher.resume import QueueOpening
from dispatcher.round_plan import ROUND_QUEUES_ANY, Load, TierHealth
from dispatcher.statistics import Counters
from dispatcher.topic_filter import TopicFilter
from provider.clock import Clock, backoff_s
from provider.errors import Denied, StoreError
from provider.ranges import QueueOffset


class Wakeup:
    """Event that wakes all waiters, in the order in which they began to wait.

    A `ring` between two waits is not kept. A waiter must therefore check the state and then call
    `wait`, without an `await` in between.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: dict[asyncio.Event, None] = {}
        """Ordered set, as keys. The order of a set would differ between processes."""

    def __repr__(self) -> str:
        return f"<Wakeup: {len(self._waiters)} waiting>"

    def ring(self) -> None:
        """Wake all present waiters."""
        for rung in self._waiters:
            rung.set()

    async def wait(self, seconds: float | None) -> None:
        """Return at the next `ring`, or after `seconds` of the clock unless None.

        Cancelling removes the waiter.
        """
        rung = asyncio.Event()
        self._waiters[rung] = None
        try:
            if seconds is None:
                await rung.wait()
                return
            async with asyncio.TaskGroup() as group:
                sleeper = group.create_task(self._clock.sleep(seconds))
                sleeper.add_done_callback(lambda _: rung.set())
                await rung.wait()
                sleeper.cancel()
        finally:
            del self._waiters[rung]


@dataclass(slots=True)
class Prepared:
    """Plans of a round that is ready to be written."""

    plans: list[CommitPlan] = field(default_factory=list[CommitPlan])
    failures: list[tuple[ClaimedRange, StoreError]] = field(
        default_factory=list[tuple[ClaimedRange, StoreError]]
    )
    """Claims whose messages could not be read or planned. Other queues are not affected."""


async def prepare_round(
    claimed: Sequence[ClaimedRange], *, hot: HotLog, tier: TierPort, executor: Executor | None
) -> Prepared:
    """Read and plan the claims of a round.

    Costs one `HotLog.records_of_round` call and one hop to `executor`, which runs
    `TierPort.plan_commit` for all queues. Cancelling changes nothing.

    Raises:
        Closed: as `HotLog.records_of_round`. Errors of single queues are in the result.
    """
    answers = await hot.records_of_round(
        [Wanted(share.queue, share.start, share.references) for share in claimed]
    )
    return await asyncio.get_running_loop().run_in_executor(executor, _plan, tier, claimed, answers)


def _plan(
    tier: TierPort, claimed: Sequence[ClaimedRange], answers: Sequence[MessageBatch | StoreError]
) -> Prepared:
    prepared = Prepared()
    for share, answer in zip(claimed, answers, strict=True):
        if isinstance(answer, StoreError):
            prepared.failures.append((share, answer))
            continue
        try:
            prepared.plans.append(tier.plan_commit(share.queue, answer))
        except StoreError as error:  # one queue must not fail the others
            prepared.failures.append((share, error))
    return prepared


Worker = Coroutine[Any, Any, None]
WAIT_S_MIN = 0.001
DATED_AFTER_S = 0.75
"""Age in seconds of a waiting message at which its store time is read. At the start: none."""
DATED_EVERY_S = 0.5
DATED_AT_ONCE = 256
"""Most queues whose oldest waiting message is read by one call."""


class DispatchWork:
    """Shared state of the workers, and the loop of each kind of worker.

    `error_policy.py` has the reaction to each error. Workers handle every `StoreError` that
    concerns one queue or one round. An error that they do not handle ends all dispatching: it
    becomes `fatal`, and the alarm rings.

    D1  The tier has a prefix of the messages that the hot log had of a queue, except for gaps. A
        READY queue resumes at the end of the tier.
    D2  At most one commit of a queue is in flight. A range that failed is retried unchanged before
        any later one.
    D3  After any interruption of a commit, its outcome is settled with the tier first.
    D4  Bytes in flight never exceed `options.bytes_in_flight_max`, unless one message alone does.
    """

    def __init__(
        self,
        hot: HotLog,
        tier: TierPort,
        *,
        options: DispatchOptions,
        clock: Clock,
        topics: TopicFilter | None,
        executor: Executor | None,
        rng: Random | None = None,
        agreed: Mapping[QueueId, Queue] | None = None,
    ) -> None:
        self.table = QueueTable(options)
        self.alarm = Wakeup(clock)
        self.counters = Counters()
        self.health = TierHealth(
            backoff_s_min=options.backoff_s_min, backoff_s_max=options.backoff_s_max, rng=rng
        )
        self.fatal: StoreError | None = None
        """Error that ended all dispatching."""
        self.forcing = 0
        """Number of callers that want all batches committed without waiting for their age."""
        self.polls_begun = 0
        self.poll_finished = 0
        """Number of the last poll whose results are in the table."""
        self._openings = 0
        self._round_s = -math.inf
        """Monotonic time at which the last round began."""
        self._date_at_s = 0.0
        """Monotonic time of the next read of store times, in seconds."""
        self._hot = hot
        self._tier = tier
        self._options = options
        self._clock = clock
        self._topics = topics
        self._executor = executor
        self._opening = QueueOpening(
            hot,
            tier,
            self.table,
            options=options,
            clock=clock,
            counters=self.counters,
            noted=self._noted,
            agreed=agreed,
        )

    def workers(self) -> list[Callable[[], Worker]]:
        """Return the workers for the call that owns them; each runs until cancelled or `fatal`.

        Resets the queues that earlier workers left in flight.
        """
        self.health.probing = False
        self.table.cut_off()
        kinds = [self._poll]
        kinds += [self._open_queues] * self._options.openings_max
        kinds += [self._commit_rounds] * self._options.rounds_max
        return [partial(self._guarded, kind) for kind in kinds]

    def check(self, *, working: bool) -> None:
        """Assert D1 to D4 as far as the present state shows them. O(queues + references).

        For tests, between two steps of the event loop. `working`: whether workers run. The fake
        tier of a test verifies that its bytes equal those of the hot log and that commits of a
        queue do not overtake each other.
        """
        self.table.check()
        for queue in self.table:
            tier = self._tier.queue(queue.id)
            if tier is not None and queue.state is QueueState.READY:
                assert tier.next_offset == queue.commit_offset, f"D1: {queue}, {tier}"
            if tier is not None and queue.state is QueueState.IN_FLIGHT:
                assert queue.commit_offset <= tier.next_offset <= queue.dispatch_offset, (
                    f"D2: {queue}, {tier}"
                )
        claims = [queue.claimed for queue in self.table if queue.claimed is not None]
        counters = self.counters
        if working and self.fatal is None:  # else the next workers settle with the tier first
            bytes_claimed = sum(claimed.bytes for claimed in claims)
            assert bytes_claimed <= counters.bytes_in_flight, f"D3: {claims}, {counters}"
        if counters.bytes_in_flight > self._options.bytes_in_flight_max:
            messages = sum(len(claimed.references) for claimed in claims)
            assert counters.rounds_in_flight == 1, f"D4: {counters}"
            assert messages <= 1, f"D4: {claims}, {counters}"

    async def _guarded(self, worker: Callable[[], Worker]) -> None:
        try:
            await worker()
        except StoreError as error:
            self.fatal = error
            self.alarm.ring()

    # Polling.

    async def _poll(self) -> None:
        """Worker: keep the table up to date with the hot log.

        `Denied` is fatal on the first poll only; later ones are treated as transient.
        """
        failures = 0
        while True:
            try:
                await self._poll_once()
                await self._hot.wait(self._options.poll_s_max)
                failures, self.counters.hot_error = 0, ""
            except StoreError as error:
                is_first_denial = isinstance(error, Denied) and not self.poll_finished
                if reaction_to_reading(error) is not Reaction.RETRY or is_first_denial:
                    raise
                failures += 1
                self.counters.last_error = self.counters.hot_error = str(error)
                await self._clock.sleep(self._pause_s(failures))

    async def _poll_once(self) -> None:
        self.polls_begun += 1
        number = self.polls_begun
        seen = [hot for hot in await self._hot.poll() if not self._is_excluded(hot)]
        first = self.poll_finished == 0
        now_s = self._clock.monotonic_s()
        epoch_s = self._clock.now_ms() / 1000 - now_s
        self.table.observe(seen, now_s, first=first, epoch_s=epoch_s)
        needing = self.table.needs_references()
        await self._refill(needing)
        if self._clock.monotonic_s() >= self._date_at_s:
            await self._date(after_s=DATED_AFTER_S)
        self.poll_finished = number
        if first or seen or needing or self.forcing:
            self.alarm.ring()

    def _is_excluded(self, hot: HotQueue) -> bool:
        return self._topics is not None and self._topics.excludes(hot.id.topic)

    async def _refill(self, queues: Iterable[QueueProgress]) -> None:
        """Fetch the references that queues want, by one call, unless another worker does."""
        filled: list[QueueProgress] = []
        wanted: list[WantedUnits] = []
        reserved = 0
        for queue in queues:
            messages_max = 0 if queue.refilling else queue.references_wanted(reserved)
            if messages_max:
                queue.refilling = True
                filled.append(queue)
                wanted.append(WantedUnits(queue.id, queue.referenced_offset, messages_max))
                reserved += messages_max
        if not wanted:
            return
        try:
            answers = await self._hot.references_of_queues(wanted)
            for queue, one, answer in zip(filled, wanted, answers, strict=True):
                self._refilled(queue, one.start, answer)
        finally:
            for queue in filled:
                queue.refilling = False

    def _refilled(
        self, queue: QueueProgress, start: QueueOffset, answer: Units | StoreError
    ) -> None:
        if not isinstance(answer, StoreError):
            queue.add_references(start, answer)
            return
        # The next poll handles RETRY. An error at a later offset is handled once commits reach it.
        reaction = self._noted(reaction_to_reading(answer), answer)
        is_next = start == queue.commit_offset and queue.state is QueueState.READY
        if reaction is not Reaction.RETRY and is_next:
            queue.react(reaction, str(answer), self._clock.monotonic_s())

    async def _date(self, *, after_s: float) -> None:
        """Read the store times of messages that have waited for `after_s` seconds.

        Costs one unit and one record for each queue, at most `DATED_AT_ONCE` queues a call. A
        message that cannot be read counts as stored when it was first seen.
        """
        now_s = self._clock.monotonic_s()
        self._date_at_s = now_s + DATED_EVERY_S
        dated = self.table.undated(now_s, after_s=after_s, queues_max=DATED_AT_ONCE)
        if not dated:
            return
        for queue in dated:
            queue.date(queue.first_untiered, queue.oldest_s(now_s))
        wanted = [WantedUnits(queue.id, queue.first_untiered, 1) for queue in dated]
        found: list[Wanted] = []
        room = COMPARED_BYTES_MAX
        for one, units in zip(wanted, await self._hot.references_of_queues(wanted), strict=True):
            if isinstance(units, StoreError):
                continue  # its commit hits the same error and reports it
            size = int(units["size"][0])
            if 0 < size <= room or (size > 0 and not found):
                found.append(Wanted(one.queue, one.start, units))
                room -= size
        if not found:
            return
        epoch_s = self._clock.now_ms() / 1000 - now_s
        for one, batch in zip(found, await self._hot.records_of_round(found), strict=True):
            queue = self.table.get(one.queue)
            if queue is not None and not isinstance(batch, StoreError):
                queue.date(one.start, int(batch.store_timestamps[0]) / 1000 - epoch_s)

    # Opening.

    async def _open_queues(self) -> None:
        """Worker: open queues, many at a time unless they must be opened alone."""
        queues_max = self._options.opened_together_max
        while True:
            now_s = self._clock.monotonic_s()
            queues, wake_at_s = self.table.next_to_open(now_s, queues_max=queues_max)
            if not queues:
                if self.poll_finished and not self._openings and not self.counters.started:
                    if not self.forcing:  # else all that waits is committed at once
                        with suppress(StoreError):  # the next poll reports it
                            await self._date(after_s=0.0)
                    self.counters.started = True
                    continue
                await self.alarm.wait(_seconds_until(wake_at_s, now_s))
                continue
            self._openings += 1
            for queue in queues:
                queue.mark_opening(opening=True)
            try:
                await self._opening.open(queues)
                await self._refill(queues)
            finally:
                self._openings -= 1
                for queue in queues:
                    queue.mark_opening(opening=False)
            self.alarm.ring()

    # Rounds.

    @property
    def is_outage(self) -> bool:
        """Whether nothing reaches the tier at present: rounds fail, or one is held up."""
        return self.health.outage or self._tier.trouble is not None

    @property
    def last_error(self) -> str:
        """Error that holds a round up, or else the last one that was met; "" without."""
        return str(self._tier.trouble or self.counters.last_error)

    async def _commit_rounds(self) -> None:
        """Worker: claim, read, plan and commit one round after another."""
        while True:
            now_s = self._clock.monotonic_s()
            load = Load(self.counters.bytes_in_flight, self.counters.rounds_in_flight)
            plan = self.table.plan_round(
                now_s, load, self.health, force=self.forcing > 0, round_s=self._round_s
            )
            self.counters.next_round_s = plan.wake_at_s
            if not plan.grants:
                await self.alarm.wait(_seconds_until(plan.wake_at_s, now_s))
                continue
            self._round_s = now_s
            claims = [self.table[grant.queue].claim(grant.bytes_max) for grant in plan.grants]
            bytes_claimed = sum(claimed.bytes for claimed in claims)
            self.counters.begin(bytes_claimed)
            self.health.probing |= plan.failed
            self.alarm.ring()  # another worker may begin the next round
            try:
                await self._commit_round(claims)
            finally:
                self.counters.end(bytes_claimed)
                if plan.failed:
                    self.health.probing = False
                self.alarm.ring()

    async def _commit_round(self, claims: Sequence[ClaimedRange]) -> None:
        prepared = await prepare_round(
            claims, hot=self._hot, tier=self._tier, executor=self._executor
        )
        for claimed, error in prepared.failures:
            reaction = self._noted(reaction_to_reading(error), error)
            self.table[claimed.queue].react(reaction, str(error), self._clock.monotonic_s())
        for plan in prepared.plans:
            self.table[plan.queue].give_back(plan.next_offset)
        await self._refill([self.table[claimed.queue] for claimed in claims])
        if not prepared.plans:
            return
        try:
            await self._tier.commit(prepared.plans)
        except StoreError as error:
            await self._settle(prepared.plans, error)
        else:
            await self._landed(prepared.plans)

    async def _landed(self, plans: Sequence[CommitPlan]) -> None:
        now_s = self._clock.monotonic_s()
        self.counters.rounds += 1
        self.counters.last_success_s = now_s
        if self.health.landed():
            self.table.retry_now(now_s)
        await self._advance(plans, now_s)

    async def _advance(self, plans: Iterable[CommitPlan], now_s: float) -> None:
        landed: list[QueueProgress] = []
        for plan in plans:
            queue = self.table[plan.queue]
            self.counters.commits += 1
            messages = plan.next_offset - queue.commit_offset
            self.counters.messages += messages
            self.counters.messages_by_topic[queue.id.topic] += messages
            self.counters.bytes += plan.bytes
            queue.landed(now_s)
            landed.append(queue)
        for queue in landed:
            await self._hot.release(queue.id, queue.commit_offset)
        await self._refill(landed)

    async def _settle(self, plans: Sequence[CommitPlan], error: StoreError) -> None:
        """Find the outcome of a round whose commit raised `error`, and apply it to its queues."""
        reaction = self._noted(reaction_to_tiering(error), error)
        now_s = self._clock.monotonic_s()
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
            elif plan.queue == refused:
                queue.react(reaction, reason, now_s, halted=QueueState.STOPPED)
            else:
                half = max(1, len(plans) // 2)
                queues_max = half if refused is None else ROUND_QUEUES_ANY
                queue.react(Reaction.RETRY, str(error), now_s, round_queues_max=queues_max)
        if len(landed) == len(plans):
            await self._landed(plans)
            return
        self.counters.rounds_failed += 1
        if refused is None:
            self.health.failed(now_s)
        await self._advance(landed, now_s)

    def _noted(self, reaction: Reaction, error: StoreError) -> Reaction:
        """Record `error` as the last one and return the reaction. Raise `error` if it is END."""
        if reaction is Reaction.END:
            raise error
        self.counters.last_error = str(error)
        return reaction

    def _pause_s(self, failures: int) -> float:
        options = self._options
        return backoff_s(failures, s_min=options.backoff_s_min, s_max=options.backoff_s_max)


def _seconds_until(wake_at_s: float, now_s: float) -> float | None:
    """Return the seconds to wait, at least `WAIT_S_MIN`: a rounded wait must pass the moment."""
    return None if math.isinf(wake_at_s) else max(WAIT_S_MIN, wake_at_s - now_s)
