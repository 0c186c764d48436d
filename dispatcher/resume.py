"""Opening of queues: their position in the tier, agreement with the hot log, and gaps.

A published gap is final. The state that a hot log keeps between polls may be stale and miss
messages that exist. A gap is therefore recorded only after a poll without kept state
(`HotLog.poll_again`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from dispatcher.consistency import compare_sampled, differs_sentence, find_agreeing, find_common_end
from dispatcher.error_policy import Reaction, reaction_to_tiering, refusal_sentence
from dispatcher.options import Backfill, DispatchOptions
from dispatcher.ports import (
    HotLog,
    HotQueue,
    QueueState,
    ReadableTierPort,
    TierPort,
    Wanted,
    records_of_queue,
)
from dispatcher.queue_progress import QueueProgress
from dispatcher.queue_table import QueueTable
from dispatcher.start import (
    BeginAt,
    BeginAtTime,
    HotLogIsDamaged,
    OverlapSample,
    RecordGapFirst,
    ResumeAt,
    TierIsAhead,
    decide_step,
)
from dispatcher.statistics import Counters
from provider.clock import Clock
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class Opened:
    """Result of opening: the queue resumes at `offset`."""

    offset: QueueOffset
    gap: bool = False
    """Whether a gap that ends at `offset` was recorded."""


@dataclass(frozen=True, slots=True)
class Contradicted:
    """Result of opening: the queue halts, because tier and hot log contradict each other."""

    reason: str
    tier_next: QueueOffset
    heals_at: QueueOffset | None = None
    """End of the hot log from which on the queue is opened again; None: only a repair helps."""
    common_end: QueueOffset | None = None
    """Offset below which the compared messages agree; None: all common messages agree."""


async def open_queue(
    hot_log: HotLog,
    tier: TierPort,
    hot: HotQueue,
    *,
    poll_again: Callable[[HotQueue], Awaitable[HotQueue]],
    backfill: Backfill,
    compared_messages: int,
    now_ms: int,
    damage: str = "",
    agreed: Queue | None = None,
) -> Opened | Contradicted | HotLogIsDamaged:
    """Decide the offset at which a queue resumes; record a gap if messages were lost.

    If both sides have the queue, its messages are compared by `compare_sampled`. Costs one or two
    requests to the tier, and more only for a queue that halts. May be cancelled, and called again
    after any failure.

    Args:
        hot_log: source of the messages.
        tier: destination of the messages.
        hot: the queue as of the last poll.
        poll_again: polls the queue without kept state. Called before a gap is recorded.
        backfill: first offset of a queue that the tier does not have.
        compared_messages: newest messages to compare; 0: none.
        now_ms: present time, Unix ms.
        damage: damage of the messages at the end of the tier, for the reason of a gap.
        agreed: the published record of the queue when `find_agreeing` compared it with this `hot`.
            While the tier still has this record, the queue is not compared again.

    Raises:
        Unavailable: the tier or the hot log is unavailable; retry.
        OutOfRange: the hot log deleted the compared messages: poll, then retry.
        Corrupt: the newest messages of the tier or the hot log cannot be read.
        Fenced: a newer owner has the tier.
    """
    await tier.settle(hot.id)
    published = tier.queue(hot.id)
    step = decide_step(hot, published, backfill=backfill, now_ms=now_ms, damage=damage)
    if isinstance(step, RecordGapFirst):
        hot, agreed = await poll_again(hot), None
        step = decide_step(hot, published, backfill=backfill, now_ms=now_ms, damage=damage)
    match step:
        case BeginAt() | BeginAtTime():
            offset = await _first_offset(hot_log, hot, step)
            return await _begun(tier, hot, offset, backfill)
        case RecordGapFirst(start, end, reason):
            if published is None:
                await tier.begin_queue(hot.id, start)
            await tier.record_gap(hot.id, start, end, reason)
            return Opened(end, gap=True)
        case HotLogIsDamaged():
            return step
        case TierIsAhead() | ResumeAt():
            assert published is not None, "only a tier that has the queue is compared"
            if agreed != published:
                differing = await _contradiction(hot_log, tier, hot, compared_messages)
                if differing is not None:
                    reason, common_end = differing
                    return Contradicted(reason, published.next_offset, common_end=common_end)
            if isinstance(step, TierIsAhead):
                return Contradicted(step.reason, published.next_offset, published.next_offset)
            return Opened(step.offset)


async def is_contradicted(
    hot_log: HotLog, tier: ReadableTierPort, hot: HotQueue, *, compared_messages: int
) -> bool:
    """Whether `open_queue` would halt a queue until it is repaired. Changes nothing.

    Raises:
        Unavailable, OutOfRange, Corrupt: as `open_queue`.
    """
    step = decide_step(hot, tier.queue(hot.id), backfill="all", now_ms=0)
    if isinstance(step, TierIsAhead):
        return True
    if not isinstance(step, ResumeAt):
        return False
    return await _contradiction(hot_log, tier, hot, compared_messages) is not None


async def _contradiction(
    hot_log: HotLog, tier: ReadableTierPort, hot: HotQueue, newest: int
) -> tuple[str, QueueOffset] | None:
    """Compare a queue: return the error sentence and the end of agreement; None if equal."""
    if newest == 0:
        return None
    differing = await compare_sampled(hot_log, tier, hot, newest=newest)
    if differing is None:
        return None
    try:
        common_end = await find_common_end(hot_log, tier, hot.id)
    except (Corrupt, OutOfRange):  # the repair command reports the cause
        common_end = None
    published = tier.queue(hot.id)
    low = None if published is None else OverlapSample.of(hot, published).low
    sentence = differs_sentence(hot.id, differing, common_end, low=low)
    return sentence, differing if common_end is None else common_end


async def _first_offset(hot_log: HotLog, hot: HotQueue, step: BeginAt | BeginAtTime) -> QueueOffset:
    if isinstance(step, BeginAt):
        return step.offset
    return await find_by_time(hot_log, hot, step.timestamp_ms)


async def _begun(tier: TierPort, hot: HotQueue, offset: QueueOffset, backfill: Backfill) -> Opened:
    """Publish the first offset of a queue that does not begin at its oldest message.

    Without this, a process that crashes before its first commit would be succeeded by one that
    begins later. The messages between the two offsets would never be tiered.
    """
    if backfill != "all":
        await tier.begin_queue(hot.id, offset)
    return Opened(offset)


async def find_by_time(hot_log: HotLog, hot: HotQueue, timestamp_ms: int) -> QueueOffset:
    """Find the first message stored at or after `timestamp_ms`, Unix ms, by bisection.

    Returns the queue's end if all messages are older. Reads log2(n) messages: 20 of a million.

    Raises:
        StoreError: as `HotLog.references` and `records_of_queue`.
    """
    low, high = hot.min_offset, hot.max_offset
    while low < high:
        middle = QueueOffset((low + high) // 2)
        units = await hot_log.references(hot.id, middle, messages_max=1)
        batch = await records_of_queue(hot_log, Wanted(hot.id, middle, units))
        if int(batch.store_timestamps[0]) < timestamp_ms:
            low = QueueOffset(middle + 1)
        else:
            high = middle
    return low


ANSWER_S_MAX = 10.0
"""Seconds for which the result of a shared poll is valid for a queue that did not request it."""


class LossConfirmation:
    """Confirmation of lost messages by one shared poll without kept state.

    The queues share one log, so thousands of them may lose messages at the same moment. The first
    queue that needs a confirmation polls all that seem to have lost messages; the other queues use
    the results.
    """

    def __init__(
        self,
        hot_log: HotLog,
        tier: ReadableTierPort,
        table: QueueTable,
        *,
        options: DispatchOptions,
        clock: Clock,
    ) -> None:
        self._hot_log = hot_log
        self._tier = tier
        self._table = table
        self._options = options
        self._clock = clock
        self._looking = asyncio.Lock()
        self._answers: dict[QueueId, tuple[float, HotQueue]] = {}
        """Results that were not used yet, each with its monotonic time in seconds."""

    def __repr__(self) -> str:
        return f"<LossConfirmation: {len(self._answers)} answers>"

    async def at(self, hot: HotQueue) -> HotQueue:
        """Poll a queue that seems to have lost messages, without kept state.

        Cancelling changes nothing; the next call polls again.

        Raises:
            Unavailable, Denied, Closed: as `HotLog.poll_again`.
        """
        async with self._looking:
            if not self._has_answer(hot):
                wanted = {hot.id, *self._seeming_losses()}
                found = await self._hot_log.poll_again(wanted)
                now_s = self._clock.monotonic_s()
                self._answers = {seen.id: (now_s, seen) for seen in found}
                self._table.observe(found, now_s, first=False)
            _, again = self._answers.pop(hot.id, (0.0, hot))
            return again

    def _has_answer(self, hot: HotQueue) -> bool:
        """Whether a valid result has the same lower bound and deleted queue as `hot`."""
        if hot.id not in self._answers:
            return False
        found_s, found = self._answers[hot.id]
        is_same = (found.min_offset, found.deleted) == (hot.min_offset, hot.deleted)
        return is_same and self._clock.monotonic_s() - found_s <= ANSWER_S_MAX

    def _seeming_losses(self) -> Iterator[QueueId]:
        """Yield the unopened queues whose opening would record a gap. O(unopened queues)."""
        for queue in self._table.to_settle():
            if self._seems_lost(queue):
                yield queue.id

    def _seems_lost(self, queue: QueueProgress) -> bool:
        backfill = self._options.backfill if queue.is_old else "all"
        published = self._tier.queue(queue.id)
        step = decide_step(queue.hot, published, backfill=backfill, now_ms=0)
        return isinstance(step, RecordGapFirst)


class QueueOpening:
    """Opening of queues by the workers, which share one instance."""

    def __init__(
        self,
        hot: HotLog,
        tier: TierPort,
        table: QueueTable,
        *,
        options: DispatchOptions,
        clock: Clock,
        counters: Counters,
        noted: Callable[[Reaction, StoreError], Reaction],
        agreed: Mapping[QueueId, Queue] | None = None,
    ) -> None:
        """Open nothing yet.

        `noted` records an error for the statistics, and raises it if it ends all dispatching.
        `agreed` has the published records of queues that were compared and agreed.
        """
        self._agreed = dict(agreed or {})
        self._hot = hot
        self._tier = tier
        self._table = table
        self._options = options
        self._clock = clock
        self._counters = counters
        self._noted = noted
        self._confirmation = LossConfirmation(hot, tier, table, options=options, clock=clock)

    def __repr__(self) -> str:
        return f"<QueueOpening: {self._table!r}>"

    async def open(self, queues: Sequence[QueueProgress]) -> None:
        """Open queues, at least one. Some of several are left for later calls with one queue.

        May be cancelled. Costs one `find_agreeing` for several queues, one `open_queue` for one.

        Raises:
            Fenced, Closed: all dispatching ends.
        """
        if len(queues) == 1:
            (queue,) = queues
            await self._open(queue, queue.hot, self._agreed.pop(queue.id, None))
        else:
            await self._open_together(queues)

    async def _open_together(self, queues: Sequence[QueueProgress]) -> None:
        """Open new queues and queues that agree with the tier. `open_alone` marks the others."""
        hots = [queue.hot for queue in queues]
        newest = self._options.compared_messages_max
        known = {
            hot.id: record for hot in hots if (record := self._agreed.pop(hot.id, None)) is not None
        }
        asked = [hot for hot in hots if self._tier.queue(hot.id) != known.get(hot.id)]
        try:
            agreeing = known | await find_agreeing(self._hot, self._tier, asked, newest=newest)
        except StoreError:  # opening a queue alone hits the same error and reports it
            agreeing = known
        for queue, hot in zip(queues, hots, strict=True):
            agreed = agreeing.get(queue.id)
            begins = self._tier.queue(queue.id) is None and hot.deleted is None
            if agreed is not None or (begins and self._backfill_of(queue) == "all"):
                await self._open(queue, hot, agreed)
            else:
                self._table.open_alone(queue)

    def _backfill_of(self, queue: QueueProgress) -> Backfill:
        return self._options.backfill if queue.is_old else "all"

    async def _open(self, queue: QueueProgress, hot: HotQueue, agreed: Queue | None = None) -> None:
        try:
            outcome = await open_queue(
                self._hot,
                self._tier,
                hot,
                poll_again=self._confirmation.at,
                backfill=self._backfill_of(queue),
                compared_messages=self._options.compared_messages_max,
                now_ms=self._clock.now_ms(),
                damage=queue.setback.damage,
                agreed=agreed,
            )
        except StoreError as error:
            if await self._is_outdated(hot, error):
                queue.react(Reaction.REOPEN, "", self._clock.monotonic_s())
            else:
                self._not_opened(queue, error)
        else:
            await self._opened(queue, hot, outcome)

    async def _is_outdated(self, hot: HotQueue, error: StoreError) -> bool:
        """Whether `error` is of messages that the hot log deleted or gave up since the poll."""
        if not isinstance(error, OutOfRange) or isinstance(error, NotFound):  # the tier's bytes
            return False
        with suppress(Unavailable, Denied):  # the next poll reports it
            again = await self._confirmation.at(hot)
            return (again.min_offset, again.deleted) != (hot.min_offset, hot.deleted)
        return False

    async def _opened(
        self, queue: QueueProgress, hot: HotQueue, outcome: Opened | Contradicted | HotLogIsDamaged
    ) -> None:
        match outcome:
            case Opened(offset, gap):
                self._counters.gaps += gap
                queue.open(offset)
                await self._hot.release(queue.id, offset)
            case Contradicted(reason, tier_next, heals_at, common_end):
                queue.contradict(
                    QueueState.STOPPED,
                    reason,
                    tier_next=tier_next,
                    heals_at=heals_at,
                    common_end=common_end,
                )
            case HotLogIsDamaged(reason, next_offset, heals_at):
                if queue.hot.state is hot.state:  # else the hot log recovered: open it again
                    queue.contradict(
                        QueueState.DAMAGED, reason, tier_next=next_offset, heals_at=heals_at
                    )

    def _not_opened(self, queue: QueueProgress, error: StoreError) -> None:
        reaction = self._noted(reaction_to_tiering(error), error)
        now_s = self._clock.monotonic_s()
        if reaction is not Reaction.RETRY:
            published = self._tier.queue(queue.id)
            tier_next = queue.commit_offset if published is None else published.next_offset
            if reaction is Reaction.HALT and queue.hot.min_offset > tier_next:
                reaction = Reaction.REST  # HALT would not last: lost messages reopen it at once
            queue.react(reaction, refusal_sentence(error), now_s, tier_next=tier_next)
        elif queue.state is QueueState.UNSETTLED or queue.setback.rests:
            queue.react(reaction, str(error), now_s)
