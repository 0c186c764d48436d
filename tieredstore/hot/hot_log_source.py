"""Dispatcher source over the hot log, bounded by the durable watermark."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.unit import Units
from dispatcher.ports import HotQueue, HotQueueState, Wanted, WantedUnits
from dispatcher.topic_filter import TopicFilter
from provider.clock import Clock, wait_at_most
from provider.errors import Corrupt, StoreError
from provider.ranges import QueueOffset
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.options import HotLogOptions
from tieredstore.following.statistics import ScanStatistics
from tieredstore.hot.log.commit_log import REPAIR
from tieredstore.hot.reading import Bounds

FOLLOWING = HotLogOptions(scan_s_min=0.1)
"""Options of the reader: new queues are found within 0.1 s, for at most 0.5 % of the time."""


class WrittenLog(Protocol):
    """Hot log as its tiering sees it: of this process (`HotLog`), or of the process that writes."""

    @property
    def root(self) -> Path:
        """Store directory."""
        ...

    @property
    def commit_log(self) -> Path:
        """Directory of the CommitLog files."""
        ...

    @property
    def news(self) -> asyncio.Event:
        """Event that is set when messages became durable. Its waiter clears it."""
        ...

    def durable_offset(self, queue: QueueId) -> int:
        """See `HotLog.durable_offset`."""
        ...

    def next_offset(self, queue: QueueId) -> int:
        """See `HotLog.next_offset`."""
        ...

    def refuse_if_moved(self) -> None:
        """See `HotLog.refuse_if_moved`."""
        ...

    async def bounds(self, queue: QueueId) -> Bounds:
        """See `HotLog.bounds`."""
        ...

    async def flush(self) -> None:
        """See `HotLog.flush`."""
        ...

    async def continue_queues(
        self, offsets: Mapping[QueueId, int], compared: Mapping[QueueId, int] | None = None
    ) -> frozenset[QueueId]:
        """See `HotLog.continue_queues`."""
        ...

    async def remember_place(self) -> None:
        """See `HotLog.remember_place`."""
        ...


OpenReader = Callable[[], Awaitable[RocketMqHotLog]]


@asynccontextmanager
async def open_feed(
    log: WrittenLog,
    *,
    clock: Clock,
    cluster: str,
    broker: str,
    options: HotLogOptions = FOLLOWING,
    topics: TopicFilter | None = None,
) -> AsyncGenerator["HotLogFeed"]:
    """Open the dispatcher's source over `log`, which must stay open; see `RocketMqHotLog.open`.

    Raises:
        Denied, Unavailable: the store directory cannot be read.
    """
    topics = topics or TopicFilter(cluster, broker)
    open_reader = partial(
        RocketMqHotLog.open,
        log.root,
        options=replace(options, commit_log_path=str(log.commit_log)),
        clock=clock,
        cluster=cluster,
        broker=broker,
        topics=topics,
    )
    feed = HotLogFeed(log, await open_reader(), clock, topics, open_reader)
    try:
        yield feed
    finally:
        await feed.close()


class HotLogFeed:
    """Implements `dispatcher.ports.HotLog` over a log of our own.

    It reports durable messages only, so that a power failure never leaves the tier ahead of the
    log. `wait` is event-driven: it returns when messages became durable.
    """

    def __init__(
        self,
        log: WrittenLog,
        reader: RocketMqHotLog,
        clock: Clock,
        topics: TopicFilter,
        open_reader: OpenReader,
    ) -> None:
        self._log = log
        self._reader = reader
        self._open_reader = open_reader
        self._clock = clock
        self._topics = topics
        self._polled: list[HotQueue] = []
        self._seen: dict[QueueId, HotQueue] = {}
        self._told: dict[QueueId, HotQueue] = {}
        self._released: dict[QueueId, int] = {}
        self.on_release: Callable[[QueueId, int], None] = lambda _queue, _offset: None
        """Callback with a queue and the offset below which all its messages are tiered."""
        self._surveyed = False
        """Whether the next poll returns all queues, as the first one does."""

    def __repr__(self) -> str:
        return f"<HotLogFeed of {self._log!r}>"

    @property
    def statistics(self) -> ScanStatistics:
        """Scan costs, findings and present errors of the reader."""
        return self._reader.statistics

    async def poll(self) -> Sequence[HotQueue]:
        """Return queues with more durable messages, or another state, than at the last poll."""
        self._polled += await self._reader.poll()
        self._log.refuse_if_moved()  # a failed look loses nothing of what was polled
        polled, self._polled = self._polled, []
        for seen in polled:
            self._seen[seen.id] = seen
        changed: list[HotQueue] = []
        is_first, self._surveyed = self._surveyed, False
        for queue, seen in self._seen.items():
            now = self._durable(seen)
            if is_first or now != self._told.get(queue):
                self._told[queue] = now
                changed.append(now)
        return changed

    async def survey(self) -> Sequence[HotQueue]:
        """Return all queues with durable messages. A later poll returns them again.

        Raises:
            Unavailable, Denied: the store directory cannot be read.
        """
        await self.poll()
        found = list(self._told.values())
        self._surveyed = True
        return found

    async def poll_again(self, queues: Collection[QueueId]) -> Sequence[HotQueue]:
        """Poll the directory for these queues without keeping state; see `HotLog`."""
        polled = await self._reader.poll_again(queues)
        self._log.refuse_if_moved()
        found = [self._durable(seen) for seen in polled]
        self._told |= {seen.id: seen for seen in found}
        return found

    def _durable(self, seen: HotQueue) -> HotQueue:
        """Clamp a queue to its durable watermark."""
        end = min(seen.max_offset, max(self._log.durable_offset(seen.id), seen.min_offset))
        detail = seen.detail
        if seen.state is HotQueueState.DAMAGED:
            detail = f"{detail}: {REPAIR}"
        return replace(seen, max_offset=QueueOffset(end), detail=detail)

    @asynccontextmanager
    async def without(self, topics: Collection[str]) -> AsyncGenerator[None]:
        """Forget topics that the block deletes from the log.

        There must be no poll or read meanwhile. A new reader replaces the old one afterwards. It
        does not know the deleted queues, so none of their messages is reported as lost. Its first
        poll reads all queues.

        Raises:
            Denied, Unavailable: the store directory cannot be read; the block is not entered.
        """
        reader = await self._open_reader()
        try:
            yield
        finally:
            old, self._reader = self._reader, reader
            self._polled.clear()
            self._seen.clear()
            for known in (self._told, self._released):
                for queue in [queue for queue in known if queue.topic in topics]:
                    del known[queue]
            for queue, offset in self._released.items():
                await reader.release(queue, QueueOffset(offset))
            await old.close()

    def poll_all(self) -> None:
        """Make the next poll report all durable messages; see `RocketMqHotLog.poll_all`."""
        self._reader.poll_all()

    async def wait(self, seconds: float) -> None:
        """Wait until messages became durable, for at most `seconds`."""
        await wait_at_most(self._clock, seconds, self._log.news.wait())
        self._log.news.clear()

    def queue(self, queue: QueueId) -> HotQueue | None:
        """Return a queue as last reported; None if there is none of that name."""
        return self._told.get(queue)

    async def references(self, queue: QueueId, start: QueueOffset, *, messages_max: int) -> Units:
        """Return units of durable messages; see `RocketMqHotLog.references`."""
        return await self._reader.references(queue, start, messages_max=messages_max)

    async def references_of_queues(
        self, wanted: Sequence[WantedUnits]
    ) -> Sequence[Units | StoreError]:
        """Return units of durable messages; see `RocketMqHotLog.references_of_queues`."""
        return await self._reader.references_of_queues(wanted)

    async def records_of_round(
        self, wanted: Sequence[Wanted]
    ) -> Sequence[MessageBatch | StoreError]:
        """Return verified copies of records; see `RocketMqHotLog.records_of_round`."""
        answers = await self._reader.records_of_round(wanted)
        self._log.refuse_if_moved()  # afterwards: these bytes may be of another store's files
        return [_with_remedy(one) if type(one) is Corrupt else one for one in answers]

    async def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Record that all messages of `queue` below `offset` are durable in the tier."""
        self._released[queue] = max(offset, self._released.get(queue, 0))
        self.on_release(queue, self._released[queue])
        await self._reader.release(queue, offset)

    def holds_back(self, queue: QueueId) -> int | None:
        """Return the first offset of a queue that is not tiered; None if it is never tiered.

        A callback for `HotLog.trim`.
        """
        if self._topics.excludes(queue.topic):
            return None
        return self._released.get(queue, 0)

    async def close(self) -> None:
        """Close the reader. The log stays open. Idempotent."""
        await self._reader.close()


def _with_remedy(error: Corrupt) -> Corrupt:
    """Return the error with the remedy for a damaged hot log."""
    return Corrupt(f"{error.reason}: {REPAIR}", error.path, error.position)
