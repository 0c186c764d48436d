"""Iteration over queues and topics of any message store."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Self

from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from fetcher.result import FetchStatus
from fetcher.tag_filter import parse_subscription
from provider.errors import Corrupt, StoreError, Unavailable
from tieredstore.lifetime import cause
from tieredstore.message import Message
from tieredstore.reader.cursor import GROUP, Moment
from tieredstore.store.protocol import GetMessageResult, QueueReads

MESSAGES_AT_ONCE = 256
"""Messages of one read. A store may return fewer."""
WAIT_S = 3600.0
"""Longest single wait for a message, in seconds. After it the store is read again."""

MESSAGES_HELD_MAX = 16384
"""Messages that a read of a topic holds, over all queues, if they have fewer than 1,024."""
MESSAGES_AT_ONCE_MIN = 16
NEW_QUEUES_S = 1.0
"""Seconds between two searches for new queues by a read that follows a topic."""

_PASSED_OVER = (FetchStatus.OFFSET_FOUND_NULL, FetchStatus.MESSAGE_WAS_REMOVING)


async def messages_of(
    store: QueueReads, group: str, topic: str, queue_id: int, start: int
) -> AsyncGenerator[StoredMessage, None]:
    """Yield every message of a queue from `start` on, then new ones as they arrive. Endless.

    Yields each message once and in order, whichever side serves it. Deleted or lost messages are
    skipped. A start above the end waits until the queue has reached it. Reads by
    `store.get_message`.

    Raises:
        StoreError: as `MessageStore.get_message`; no message is skipped then.
    """
    offset = start
    while True:
        result = await store.get_message(
            group, topic, queue_id, offset, messages_max=MESSAGES_AT_ONCE
        )
        for message in result.messages:
            yield message
        await refuse_missing(store, topic, queue_id, offset, result)
        if result.status is FetchStatus.OFFSET_OVERFLOW_BADLY:
            following = offset
        else:
            following = max(offset, result.next_offset)
        if following == offset:
            await store.wait_for_message(topic, queue_id, offset, WAIT_S)
        offset = following


async def refuse_missing(
    store: QueueReads, topic: str, queue_id: int, offset: int, result: GetMessageResult
) -> None:
    """Check that a read that skipped messages did not miss some of the hot log.

    Raises:
        Unavailable: the message at `offset` should be in the hot log, but a file is missing.
    """
    if result.status in _PASSED_OVER and await store.is_in_store(topic, queue_id, offset):
        raise Unavailable("a file of the hot log is missing", f"{topic}/{queue_id}", offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWish:
    """Selection of `read_topic`."""

    group: str = GROUP
    """Consumer group of the reads, for read-ahead."""
    tags: str | None = None
    since: Moment | None = None
    until: Moment | None = None
    follow: bool = False
    starts: Mapping[int, int] = field(default_factory=dict[int, int])
    """First offset by queue; a queue that is missing is read from `since` or its first message."""

    def __post_init__(self) -> None:
        parse_subscription(self.tags)
        if self.follow and self.until is not None:
            raise ValueError("a read that follows has no end: leave out until or follow")


async def read_topic(
    store: QueueReads, topic: str, wish: TopicWish
) -> AsyncGenerator[list[Message], None]:
    """Yield the messages of all queues of a topic in chunks, merged by store time.

    Ends at the messages that were there when it began. With `follow` it then yields new ones as
    they arrive, also those of new queues, without end. Order within a queue is that of offsets.

    Raises:
        StoreError: as `MessageStore.get_message`; no message is skipped then.
    """
    queues: dict[int, _Queue] = {}
    while True:
        for queue_id in store.queue_ids(topic):
            if queue_id not in queues:
                queues[queue_id] = await _Queue.begin(store, QueueId(topic, queue_id), wish)
        messages_max = max(MESSAGES_AT_ONCE_MIN, MESSAGES_HELD_MAX // max(1, len(queues)))
        for queue in queues.values():
            await queue.extend(min(MESSAGES_AT_ONCE, messages_max))
        async for chunk in _merged(list(queues.values())):
            yield chunk
        if not wish.follow:
            return
        await _arrival(store, topic, queues.values())


async def _merged(queues: Sequence["_Queue"]) -> AsyncGenerator[list[Message], None]:
    """Merge the rest of these queues by store time."""
    heads = [
        (queue.messages[0].store_timestamp, number)
        for number, queue in enumerate(queues)
        if await queue.fill()
    ]
    heapify(heads)
    chunk: list[Message] = []
    while heads:
        _, number = heads[0]
        queue = queues[number]
        chunk.append(queue.messages.popleft())
        if len(chunk) == MESSAGES_AT_ONCE:
            yield chunk
            chunk = []
        try:
            is_filled = await queue.fill()
        except StoreError:
            if chunk:  # else these could never be acknowledged
                yield chunk
            raise
        if is_filled:
            heapreplace(heads, (queue.messages[0].store_timestamp, number))
        else:
            heappop(heads)
    if chunk:
        yield chunk


async def _arrival(store: QueueReads, topic: str, queues: Iterable["_Queue"]) -> None:
    """Wait for a message of any of these queues, or until new queues are due to be searched."""
    places = [(queue.id, queue.offset) for queue in queues] or [(QueueId(topic, 0), 0)]
    try:
        async with asyncio.TaskGroup() as tasks:
            waits = [
                tasks.create_task(store.wait_for_message(*place, offset, NEW_QUEUES_S))
                for place, offset in places
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in waits:
                one.cancel()
    except BaseExceptionGroup as failed:
        raise cause(failed) from None


class _Queue:
    """Queue of a topic that is read: its next messages, up to an end."""

    def __init__(self, store: QueueReads, queue: QueueId, wish: TopicWish, start: int) -> None:
        self.id = queue
        self.offset = start
        """Offset of the next read."""
        self.messages: deque[Message] = deque()
        self._store = store
        self._wish = wish
        self._end = start
        self._messages_max = MESSAGES_AT_ONCE

    @classmethod
    async def begin(cls, store: QueueReads, queue: QueueId, wish: TopicWish) -> Self:
        """Find the first offset of the wish."""
        start = wish.starts.get(queue.queue_id)
        if start is None and wish.since is not None:
            start = await store.offset_by_time(*queue, wish.since)
        if start is None:
            start = await store.min_offset(*queue)
        return cls(store, queue, wish, start)

    async def extend(self, messages_max: int) -> None:
        """Set the end to the present one, and the messages of a read."""
        self._messages_max = messages_max
        self._end = await self._store.max_offset(*self.id)
        if self._wish.until is not None:
            until = await self._store.offset_by_time(*self.id, self._wish.until)
            self._end = min(self._end, until)

    async def fill(self) -> bool:
        """Read on if no message is at hand. False at the end.

        Raises:
            StoreError: the next message cannot be read.
        """
        while not self.messages and self.offset < self._end:
            offset = self.offset
            result = await self._store.get_message(
                self._wish.group,
                *self.id,
                offset,
                messages_max=min(self._messages_max, self._end - offset),
                subscription=self._wish.tags,
            )
            await refuse_missing(self._store, *self.id, offset, result)
            following = min(result.next_offset, self._end)
            for stored in result.messages:
                if stored.queue_offset >= self._end:
                    break
                try:
                    self.messages.append(Message.of(stored, path=str(self.id)))
                except Corrupt:
                    if not self.messages:
                        raise
                    following = stored.queue_offset  # the next read raises it
                    break
            if following <= offset:
                break
            self.offset = following
        return bool(self.messages)
