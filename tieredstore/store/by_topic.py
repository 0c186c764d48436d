"""Calls of a store by topic, without queue numbers: append, read, and positions that are kept."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import cycle
from typing import NamedTuple, Protocol, cast

from container.names.queue_id import QueueId
from container.record.message import moment_of
from container.record.properties import KEYS, TAGS, key_hash
from tieredstore.hot.encoding import MessageRefused, NewMessage
from tieredstore.hot.hot_log import HotLog
from tieredstore.message import Message
from tieredstore.reader.cursor import GROUP, Moment
from tieredstore.session.consumer_offsets import NAME, ConsumerOffsets, QueueKey, refuse_name
from tieredstore.store.iteration import TopicWish, read_topic
from tieredstore.store.protocol import MessageStore


class Placed(NamedTuple):
    """Place and time of a message that was appended."""

    queue_id: int
    offset: int
    """Position in its queue."""
    store_timestamp: int
    """Store time, Unix ms."""

    @property
    def stored_at(self) -> datetime | None:
        """Store time, in UTC."""
        return moment_of(self.store_timestamp)


class TopicCalls(MessageStore, Protocol):
    """Calls by topic of every store that has a hot log and the calls of `MessageStore`."""

    _queues: dict[str, tuple[Sequence[int], Iterator[int]]] | None = None
    """Queues by topic, and the same in turn without end."""

    @property
    def log(self) -> HotLog:
        """Hot log of this store.

        Raises:
            Closed: it is not open.
        """
        ...

    async def append(
        self,
        topic: str,
        body: bytes | str,
        *,
        tags: str = "",
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> Placed:
        """Append a message to a queue of the topic, as durably as `put_message`.

        A new topic has one queue, so that its messages have one order. If `put_message` made
        several, messages with the same first key go to the same queue, others to each in turn.

        Args:
            topic: the topic, which is created if it does not exist.
            body: a text is encoded as UTF-8.
            tags: the tag that readers select by.
            keys: keys for `query_message`; a text may hold several, separated by blanks.
            properties: further properties by name.

        Raises:
            MessageRefused: it is too large, or a name, key or value is not allowed.
            And the errors of `put_message`.
        """
        listed = _keys_of(keys)
        named = {TAGS: tags, KEYS: " ".join(listed)}
        raw = body.encode() if isinstance(body, str) else body
        given = {**(properties or {}), **{name: text for name, text in named.items() if text}}
        queue_id = self._choose_queue(topic, listed)
        placed = await self.put_message(NewMessage(topic, queue_id, raw, given))
        return Placed(queue_id, placed.queue_offset, placed.store_timestamp)

    def _choose_queue(self, topic: str, keys: Sequence[str]) -> int:
        """Choose from the queues that the topic had at the first append."""
        if self._queues is None:
            self._queues = {}
        known = self._queues.get(topic)
        if known is None:
            found = self.queue_ids(topic) or (0,)
            known = self._queues[topic] = found, cycle(found)
        queues, in_turn = known
        return queues[key_hash(keys[0]) % len(queues)] if keys else next(in_turn)

    async def read(
        self,
        topic: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        tags: str | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages of a topic, from tier and hot log, in the order of their store times.

        Ends at the newest message that was there when it began. Order within a queue is that of
        its offsets. A topic without messages yields none.

        Args:
            topic: the topic, with all its queues.
            since: only what was stored at this time or later: a datetime, or Unix ms.
            until: only what was stored before this time.
            tags: only messages with one of these tags, as "TagA || TagB".
            follow: wait for new messages at the end, and yield them too, without end.

        Raises:
            ValueError: a datetime has no time zone, `tags` is no list of tags, or both `until` and
                `follow` are given.
            And the errors of `get_message`.
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
        """Yield what `read` yields, some messages at a time. Arguments and errors as there."""
        wish = TopicWish(since=since, until=until, tags=tags, follow=follow)
        return read_topic(self, topic, wish)

    def position(self, group: str, topic: str) -> "Position":
        """Position of a group of readers in a topic, which is kept; see `Position`.

        Raises:
            ValueError: the group's name is not of letters, digits, `_`, `-`, `%` and `|`.
        """
        return Position(self, group, topic)


def _keys_of(keys: object) -> list[str]:
    """Return the keys of a message as a list.

    Raises:
        MessageRefused: they are no texts, or one is empty or has a blank in it.
    """
    if isinstance(keys, str):
        return keys.split()
    if not isinstance(keys, Iterable):
        raise MessageRefused(f"The keys are of type {type(keys).__name__}, not texts.")
    listed: list[str] = []
    for key in cast("Iterable[object]", keys):
        if not isinstance(key, str):
            raise MessageRefused(f"The key {key!r} is of type {type(key).__name__}, not str.")
        if len(key.split()) != 1:
            raise MessageRefused(f"The key {key!r} is empty or has a blank in it.")
        listed.append(key)
    return listed


class Position:
    """Position of a group of readers in a topic: read, handle, acknowledge.

    It is kept in `config/consumerOffset.json` of the store directory, in RocketMQ's form. A new
    group begins at the first message. After a crash, messages that were handled and not
    acknowledged come again.
    """

    def __init__(self, store: TopicCalls, group: str, topic: str) -> None:
        """Read nothing yet; see `TopicCalls.position`."""
        refuse_name(group)
        self.group = group
        self.topic = topic
        self._store = store

    def __repr__(self) -> str:
        return f"<Position of {self.group} in {self.topic}>"

    async def offsets(self) -> dict[int, int]:
        """Return the offset of the next message by queue; without queues not read so far.

        Raises:
            ConfigError: the file is damaged, and its backup too.
            Unavailable, Denied: the storage fails.
            Closed: the store is not open.
        """
        queues = self._store.queue_ids(self.topic)
        return await asyncio.to_thread(self._load, queues)

    async def messages(
        self, *, tags: str | None = None, follow: bool = False
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages from the position on, as `store.read`.

        Errors as `store.read` and `offsets`.
        """
        async for chunk in self.chunks(tags=tags, follow=follow):
            for message in chunk:
                yield message

    async def chunks(
        self, *, tags: str | None = None, follow: bool = False
    ) -> AsyncGenerator[list[Message], None]:
        """Yield what `messages` yields, some messages at a time."""
        group = f"{GROUP}.{self.group}"
        starts = await self.offsets()
        ends = {one: await self._store.max_offset(self.topic, one) for one in starts}
        lost = {one: end for one, end in ends.items() if end < starts[one]}
        if lost:  # as after an older copy was put back: new messages take these offsets
            await asyncio.to_thread(self._move, lost, back=True)
        wish = TopicWish(group=group, tags=tags, follow=follow, starts=starts | lost)
        async for chunk in read_topic(self._store, self.topic, wish):
            yield chunk

    async def acknowledge(self, message: Message) -> None:
        """Move the position past a message: it and all before it in its queue are handled.

        Durable on return, some 1 ms: acknowledge the last one of many. Makes the message durable
        first, some 1 ms more for one of the newest 500 ms. A message before the position has no
        effect.

        Raises:
            ValueError: the message is of another topic, or too many groups have positions.
            ConfigError: the file is damaged, and its backup too.
            Unavailable, Denied: the storage fails, or the directory was moved; the position stays.
            Closed: the store is not open.
        """
        if message.topic != self.topic:
            raise ValueError(f"{message!r} is not of the topic {self.topic}")
        log, queue = self._store.log, QueueId(message.topic, message.queue_id)
        if log.durable_offset(queue) <= message.offset < log.end_offset(queue):
            await log.flush()  # after a power failure another message might take its offset
        await asyncio.to_thread(self._move, {message.queue_id: message.offset + 1})

    def _load(self, queues: Sequence[int]) -> dict[int, int]:
        with self._locked_file() as kept:
            found = {queue_id: kept.get(self._key(queue_id)) for queue_id in queues}
        return {queue_id: offset for queue_id, offset in found.items() if offset is not None}

    def _move(self, offsets: Mapping[int, int], *, back: bool = False) -> None:
        """Keep the offsets that are higher, or any that differ."""
        with self._locked_file() as kept:
            for queue_id, offset in offsets.items():
                key = self._key(queue_id)
                if back or (kept.get(key) or 0) < offset:
                    kept.put(key, offset)
            if (content := kept.prepare()) is not None:
                kept.save(content)

    def _key(self, queue_id: int) -> QueueKey:
        return QueueKey(self.group, self.topic, queue_id)

    @contextmanager
    def _locked_file(self) -> Generator[ConsumerOffsets]:
        log = self._store.log
        with log.kept():
            yield ConsumerOffsets.load(log.root / "config" / NAME)
