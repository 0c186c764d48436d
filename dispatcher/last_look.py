"""Asks the hot log once more, with nothing kept, before messages count as lost.

A gap is never taken back. What a hot log keeps between looks may be stale, and says then that
messages are gone which are there. So a gap is recorded only for what is still missing when
everything was read anew.
"""

import asyncio
from collections.abc import Iterator

from container.names.queue_id import QueueId
from dispatcher.hot_log import HotLog, HotQueue
from dispatcher.options import DispatchOptions
from dispatcher.queue_progress import QueueProgress
from dispatcher.queue_start import RecordGapFirst, decide_step
from dispatcher.queue_table import QueueTable
from dispatcher.tier_port import ReadableTierPort
from provider.clock import Clock

ANSWER_S_MAX = 10.0
"""How long an answer stands for a queue that was asked about along with another one."""


class LastLook:
    """Looks anew at all queues together that seem to have lost messages.

    Thousands of queues lose messages in the same moment, for they lie in one log: the first that
    asks has all of them looked at, and the others find their answer.
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
        """What a look found, and when, of queues that did not ask yet."""

    def __repr__(self) -> str:
        return f"<LastLook: {len(self._answers)} answers>"

    async def at(self, hot: HotQueue) -> HotQueue:
        """What the hot log has of a queue that seems to have lost messages, by a look anew.

        Cancelling changes nothing; the next call looks again.

        Raises:
            Unavailable, Denied, Closed: as `HotLog.look_anew`.
        """
        async with self._looking:
            if not self._has_answer(hot):
                wanted = {hot.id, *self._seeming_losses()}
                found = await self._hot_log.look_anew(wanted)
                now_s = self._clock.monotonic_s()
                self._answers = {seen.id: (now_s, seen) for seen in found}
                self._table.observe(found, now_s, first=False)
            _, again = self._answers.pop(hot.id, (0.0, hot))
            return again

    def _has_answer(self, hot: HotQueue) -> bool:
        """Whether a look anew said what `hot` says of the queue's lower end."""
        if hot.id not in self._answers:
            return False
        found_s, found = self._answers[hot.id]
        is_same = (found.min_offset, found.deleted) == (hot.min_offset, hot.deleted)
        return is_same and self._clock.monotonic_s() - found_s <= ANSWER_S_MAX

    def _seeming_losses(self) -> Iterator[QueueId]:
        """The queues that are still to be opened, and would be with a gap. O(those to open)."""
        for queue in self._table.to_settle():
            if self._seems_lost(queue):
                yield queue.id

    def _seems_lost(self, queue: QueueProgress) -> bool:
        backfill = self._options.backfill if queue.is_old else "all"
        published = self._tier.queue(queue.id)
        step = decide_step(queue.hot, published, backfill=backfill, now_ms=0)
        return isinstance(step, RecordGapFirst)
