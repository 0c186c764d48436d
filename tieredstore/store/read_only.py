"""Store directory that another process writes, read with its tier as one: `read_store`."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from container.names.queue_id import QueueId, named_queue
from container.record.message import MessageDecoder, StoredMessage
from dispatcher.ports import HotQueue, HotQueueState, Wanted
from fetcher.result import FetchStatus
from fetcher.tag_filter import Subscription, parse_subscription
from provider.clock import Clock, SystemClock
from provider.errors import (
    Closed,
    Corrupt,
    Denied,
    NotFound,
    OutOfRange,
    StoreError,
    Unavailable,
)
from provider.ranges import QueueOffset
from tieredstore.config.effective import Config
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.hot.hot_log_source import FOLLOWING
from tieredstore.hot.reading import Bounds
from tieredstore.message import Message
from tieredstore.reader.cursor import Moment, moment_ms
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.identity import refuse_other_store
from tieredstore.session.owner import hot_options
from tieredstore.session.reader import AS_ARGUMENTS, existing_tier
from tieredstore.store.iteration import TopicWish, read_topic
from tieredstore.store.local import status_by_bounds
from tieredstore.store.protocol import MESSAGES_MAX, GetMessageResult

TRIES = 3
"""Reads of an offset that moves from the hot log to the tier meanwhile."""


class StoreReader:
    """A store directory and its tier as one queue each, read beside the process that writes them.

    `tieredstore.read_store` makes it: use `async with`. Writes nothing. Messages are those that the
    writer has appended, synced or not: a power failure may take back what was read, as far as the
    writer's `flushDiskType` permits. Later messages become visible by `refresh`.
    """

    def __init__(
        self, load: Callable[[], Config], store_dir: Path, *, clock: Clock | None = None
    ) -> None:
        """Nothing is read before the block is entered; then `load` runs in a thread."""
        self._load = load
        self._store_dir = store_dir
        self._clock = clock or SystemClock()
        self._stack: AsyncExitStack | None = None
        self._hot: RocketMqHotLog | None = None
        self._tier: ReadableTier | None = None

    async def __aenter__(self) -> Self:
        """Poll the hot log, and open its tier if one is named and there.

        Raises:
            ConfigError: a setting is wrong, or the store is another broker's than the tier.
            NotAStore: the directory is no store.
            Corrupt: the tier's journal is damaged.
            Denied, Unavailable: the directory or the storage cannot be read.
            RuntimeError: it is open already.
        """
        if self._stack is not None:
            raise RuntimeError(f"{self!r} is open already")
        config = await asyncio.to_thread(self._load)
        async with AsyncExitStack() as stack:
            self._tier = None
            if config.gives("tieredStoreFilePath"):
                try:
                    found = await asyncio.to_thread(existing_tier, config, AS_ARGUMENTS)
                    tier = ReadableTier(lambda: found, clock=self._clock)
                    self._tier = await stack.enter_async_context(tier)
                except NotFound:
                    pass  # the writer has not begun it
                else:
                    config = found
                    await asyncio.to_thread(refuse_other_store, config, self._store_dir)
            options = await asyncio.to_thread(hot_options, config, self._store_dir)
            hot = await RocketMqHotLog.open(
                self._store_dir,
                options=replace(options, pin_path="", scan_s_min=FOLLOWING.scan_s_min),
                clock=self._clock,
                cluster=config.cluster,
                broker=config.broker,
            )
            stack.push_async_callback(hot.close)
            await hot.poll()
            self._hot = hot
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the files and the storage; later calls raise Closed."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, traceback)

    def __repr__(self) -> str:
        if self._stack is None:
            return f"<StoreReader of {self._store_dir}: not open>"
        return f"<StoreReader of {self._store_dir} with {self._tier or 'no tier'}>"

    async def refresh(self) -> bool:
        """Poll the hot log for new messages; return whether there are any. Reads a unit a queue.

        The tier is polled when a read needs it.

        Raises:
            Closed: the writer began the directory again, so open it again.
            Denied, Unavailable: the directory cannot be read now.
        """
        hot = self._opened()
        hot.poll_all()
        return bool(await hot.poll())

    def topics(self) -> Mapping[str, int]:
        """Number of queues of each topic, in hot log and tier. O(queues)."""
        counts: dict[str, int] = {}
        for queue in sorted(self._queues()):
            counts[queue.topic] = counts.get(queue.topic, 0) + 1
        return counts

    def queue_ids(self, topic: str) -> Sequence[int]:
        """The queues of a topic, in hot log and tier, in order. O(queues)."""
        return sorted(queue.queue_id for queue in self._queues() if queue.topic == topic)

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """First offset of a queue in tier and hot log; 0 if there is no such queue."""
        return self._bounds(named_queue(topic, queue_id))[0]

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Offset after the last message, as of the last `refresh`; 0 if there is no such queue."""
        return self._bounds(named_queue(topic, queue_id))[1]

    async def is_in_store(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the hot log has the message, as of the last `refresh`."""
        return self._in_hot(named_queue(topic, queue_id), offset) is not None

    async def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int = MESSAGES_MAX,
        subscription: str | None = None,
    ) -> GetMessageResult:
        """Read messages of a queue, from the hot log if it has them, else from the tier.

        One scan of units and one of records, or a fetch of the tier. `group` is that of the tier's
        read-ahead. A result may hold fewer messages than the queue has: go on at its `next_offset`.

        Raises:
            ValueError: the subscription is an SQL92 filter or has no tag.
            Corrupt: a record contradicts the format.
            Denied, Unavailable: hot log or tier cannot be read.
        """
        wanted = parse_subscription(subscription)
        queue = named_queue(topic, queue_id)
        for left in reversed(range(TRIES)):
            bounds = self._bounds(queue)
            if not self._has(queue):
                return GetMessageResult(FetchStatus.NO_MATCHED_LOGIC_QUEUE, 0, *bounds)
            if status := status_by_bounds(offset, bounds):
                return GetMessageResult(*status, *bounds)
            hot = self._in_hot(queue, offset)
            try:
                if hot is not None:
                    count = min(messages_max, hot.max_offset - offset)
                    try:
                        return await self._read_hot(queue, offset, count, wanted)
                    except (Corrupt, Denied, Unavailable):
                        if not self._in_tier(queue, offset):
                            raise
                if self._in_tier(queue, offset):
                    return await self._read_tier(group, queue, offset, messages_max, subscription)
            except OutOfRange:  # the writer deleted it: the tier has it by now, or it is lost
                if not left:
                    raise
            await self._poll_again(queue)
        following = self._next_there(queue, offset)
        status = FetchStatus.MESSAGE_WAS_REMOVING
        return GetMessageResult(status, following, *self._bounds(queue))

    async def offset_by_time(self, topic: str, queue_id: int, moment: Moment) -> int:
        """First offset stored at a time or later, or the queue's end.

        Bisects the hot log, or the tier if its first message is not older. `moment` is a datetime
        with its time zone, or Unix ms.

        Raises:
            ValueError: the datetime has no time zone.
            And the errors of `get_message`.
        """
        at_ms, queue = moment_ms(moment), named_queue(topic, queue_id)
        hot = self._hot_queue(queue)
        low = high = self._bounds(queue)[1]
        if hot is not None and hot.min_offset < hot.max_offset:
            begin = low = hot.min_offset
            high = hot.max_offset
            while low < high:
                middle = (low + high) // 2
                if await self._store_time(queue, middle) < at_ms:
                    low = middle + 1
                else:
                    high = middle
            if low > begin:
                return low
        if self._tier is None or self._tier.reader.queue(queue) is None:
            return low
        return min(low, await self._tier.offset_by_time(*queue, at_ms))

    async def wait_for_message(
        self, topic: str, queue_id: int, offset: int, timeout_s: float
    ) -> bool:
        """Wait until a queue has the message at `offset`; False after `timeout_s` seconds.

        Polls the hot log's end every `tieredStorePollInterval`.

        Raises:
            Denied, Unavailable, Closed: as `refresh`.
        """
        queue, hot = named_queue(topic, queue_id), self._opened()
        end_s = self._clock.monotonic_s() + timeout_s
        while self._bounds(queue)[1] <= offset:
            left_s = end_s - self._clock.monotonic_s()
            if left_s <= 0:
                return False
            await hot.wait(left_s)
            await hot.poll()
        return True

    async def read(
        self,
        topic: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        tags: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages of a topic in the order of store times; see `TieredMessageStore.read`.

        Ends at the newest message of the last `refresh`. With `follow` it refreshes by itself, and
        yields new messages without end.
        """
        async for chunk in self.chunks(topic, since=since, until=until, tags=tags, follow=follow):
            for message in chunk:
                yield message

    def chunks(
        self,
        topic: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        tags: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[list[Message], None]:
        """Yield the results of `read`, some messages at a time. Internal, and may change."""
        return read_topic(
            self, topic, TopicWish(since=since, until=until, tags=tags, follow=follow)
        )

    def _opened(self) -> RocketMqHotLog:
        if self._stack is None or self._hot is None:
            raise Closed("the store is not open: use `async with`", str(self._store_dir))
        return self._hot

    def _queues(self) -> set[QueueId]:
        tiered = () if self._tier is None else self._tier.reader.state.queues
        return {*self._opened().queues(), *tiered}

    def _has(self, queue: QueueId) -> bool:
        """Whether hot log or tier has a queue. O(1)."""
        is_tiered = self._tier is not None and self._tier.reader.queue(queue) is not None
        return is_tiered or self._opened().queue(queue) is not None

    def _bounds(self, queue: QueueId) -> Bounds:
        """First and next offset of a queue in hot log and tier; 0 and 0 without one."""
        hot = self._hot_queue(queue)
        found = [] if hot is None else [(hot.min_offset, hot.max_offset)]
        tiered = None if self._tier is None else self._tier.reader.queue(queue)
        if tiered is not None:
            found.append((tiered.min_offset, tiered.next_offset))
        parts = [one for one in found if one[0] < one[1]] or found or [(0, 0)]
        return Bounds(min(low for low, _ in parts), max(high for _, high in parts))

    def _hot_queue(self, queue: QueueId) -> HotQueue | None:
        """The queue in the hot log; None also for a topic of a kind that is not read."""
        hot = self._opened().queue(queue)
        return None if hot is None or hot.state is HotQueueState.REFUSED else hot

    def _in_hot(self, queue: QueueId, offset: int) -> HotQueue | None:
        """The queue in the hot log, if that can serve the offset."""
        hot = self._hot_queue(queue)
        return hot if hot is not None and hot.min_offset <= offset < hot.max_offset else None

    def _in_tier(self, queue: QueueId, offset: int) -> bool:
        tiered = None if self._tier is None else self._tier.reader.queue(queue)
        return tiered is not None and tiered.min_offset <= offset < tiered.next_offset

    def _next_there(self, queue: QueueId, offset: int) -> int:
        """The first offset after `offset` that hot log or tier has."""
        hot = self._hot_queue(queue)
        begin = self._bounds(queue)[1] if hot is None else hot.min_offset
        return max(begin, offset + 1)

    async def _poll_again(self, queue: QueueId) -> None:
        """Find what moved from the hot log to the tier. A poll alone defers deleted files."""
        await self._opened().poll_again([queue])
        if self._tier is not None:
            await self._tier.refresh()

    async def _read_hot(
        self, queue: QueueId, offset: int, count: int, wanted: Subscription | None
    ) -> GetMessageResult:
        messages, following = await self._records(queue, offset, count)
        if wanted is not None:
            messages = [one for one in messages if one.tags in wanted.tags]
        status = FetchStatus.FOUND if messages else FetchStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(status, following, *self._bounds(queue), messages)

    async def _records(
        self, queue: QueueId, offset: int, count: int
    ) -> tuple[list[StoredMessage], int]:
        """Messages of the hot log, and the offset after the last one that was read."""
        hot, start = self._opened(), QueueOffset(offset)
        units = await hot.references(queue, start, messages_max=count)
        (batch,) = await hot.records_of_round([Wanted(queue, start, units)])
        if isinstance(batch, StoreError):
            raise batch
        decoder = MessageDecoder(batch.data.data, batch.starts, batch.sizes, path=str(queue))
        return list(decoder.messages(slice(None))), batch.next_offset

    async def _store_time(self, queue: QueueId, offset: int) -> int:
        return (await self._records(queue, offset, 1))[0][0].store_timestamp

    async def _read_tier(
        self, group: str, queue: QueueId, offset: int, count: int, subscription: str | None
    ) -> GetMessageResult:
        assert self._tier is not None, "the tier has the offset"
        found = await self._tier.get_message(
            group, *queue, offset, messages_max=count, subscription=subscription, exact_tags=True
        )
        messages = list(found.messages.decode())
        return GetMessageResult(found.status, found.next_offset, *self._bounds(queue), messages)


def read_store(
    directory: str | os.PathLike[str],
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
) -> StoreReader:
    """Read a store while another process writes it: `async with tieredstore.read_store("store")`.

    The directory is that of `open_store` or of a RocketMQ broker, running or not. Any number of
    processes may read it. Nothing is written. Entering the block has the errors of
    `StoreReader.__aenter__`.

    Args:
        directory: the hot log, in RocketMQ's local format.
        where: its tier, for what the hot log no longer has; None: `tieredStoreFilePath` of `conf`
            or of the environment, or the hot log alone.
        cluster: as in `open`, like the other arguments.
        broker: likewise.
        conf: likewise.
        settings: likewise.
    """
    return StoreReader(
        lambda: Config.named(where, cluster, broker, conf, settings), Path(directory)
    )
