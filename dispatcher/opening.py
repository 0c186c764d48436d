"""Settling queues with the tier, many at a time as long as all is well with them. A thin shell."""

from collections.abc import Callable, Mapping, Sequence

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from dispatcher.agreement import find_agreeing
from dispatcher.hot_log import HotLog, HotQueue
from dispatcher.last_look import LastLook
from dispatcher.options import Backfill, DispatchOptions
from dispatcher.queue_progress import QueueProgress
from dispatcher.queue_start import HotLogIsDamaged
from dispatcher.queue_state import QueueState
from dispatcher.queue_table import QueueTable
from dispatcher.reactions import Reaction, reaction_to_tiering, refusal_sentence
from dispatcher.resuming import Contradicted, Opened, open_queue
from dispatcher.statistics import Counters
from dispatcher.tier_port import TierPort
from provider.clock import Clock
from provider.errors import StoreError


class QueueOpening:
    """What a worker does with the queues that it opens; several workers share it."""

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
        """`noted` keeps an error for the statistics, and raises it if it ends all dispatching.

        `agreed`: what the tier had published of queues when they were compared and agreed.
        """
        self._agreed = dict(agreed or {})
        self._hot = hot
        self._tier = tier
        self._table = table
        self._options = options
        self._clock = clock
        self._counters = counters
        self._noted = noted
        self._last_look = LastLook(hot, tier, table, options=options, clock=clock)

    def __repr__(self) -> str:
        return f"<QueueOpening: {self._table!r}>"

    async def open(self, queues: Sequence[QueueProgress]) -> None:
        """Settle queues, at least one. Some of several are left to be opened alone by a later call.

        May be cancelled. Costs `find_agreeing` for several, `open_queue` for one.

        Raises:
            Fenced, Closed: it is the end of all dispatching.
        """
        if len(queues) == 1:
            (queue,) = queues
            await self._open(queue, queue.hot, self._agreed.pop(queue.id, None))
        else:
            await self._open_together(queues)

    async def _open_together(self, queues: Sequence[QueueProgress]) -> None:
        """Open those that begin, or agree with the tier; the others are opened alone later."""
        hots = [queue.hot for queue in queues]
        newest = self._options.compared_messages_max
        known = {
            hot.id: record for hot in hots if (record := self._agreed.pop(hot.id, None)) is not None
        }
        asked = [hot for hot in hots if self._tier.queue(hot.id) != known.get(hot.id)]
        try:
            agreeing = known | await find_agreeing(self._hot, self._tier, asked, newest=newest)
        except StoreError:  # opening one alone meets it again
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
                look_anew=self._last_look.at,
                backfill=self._backfill_of(queue),
                compared_messages=self._options.compared_messages_max,
                now_ms=self._clock.now_ms(),
                damage=queue.setback.damage,
                agreed=agreed,
            )
        except StoreError as error:
            self._not_opened(queue, error)
        else:
            await self._opened(queue, hot, outcome)

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
                if queue.hot.state is hot.state:  # else the hot log was mended: open it again
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
