"""Calls of a store by topic, without queue numbers: append, read, and positions that are kept."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol

from container.record.message import moment_of
from container.record.properties import KEYS, TAGS, key_hash
from tieredstore.hot.encoding import MessageRefused, NewMessage
from tieredstore.message import Message
from tieredstore.reader.cursor import GROUP, Moment
from tieredstore.session.consumer_offsets import NAME, ConsumerOffsets, QueueKey, refuse_name
from tieredstore.store.iteration import TopicWish, read_topic
from tieredstore.store.protocol import MessageStore

_OFFSETS = threading.Lock()
"""Held while a file of offsets is read or replaced."""


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
    """Calls by topic of every store that has a directory and the calls of `MessageStore`."""

    root: Path
    """Directory of the hot log."""
    _numbers = count()
    _queues: dict[str, Sequence[int]] | None = None

    async def append(
        self,
        topic: str,
        body: bytes | str,
        *,
        tags: str = "",
        keys: str | Sequence[str] = (),
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
        keys = keys.split() if isinstance(keys, str) else keys
        for key in keys:
            if len(key.split()) != 1:
                raise MessageRefused(f"The key {key!r} is empty or has a blank in it.")
        named = {TAGS: tags, KEYS: " ".join(keys)}
        raw = body.encode() if isinstance(body, str) else body
        given = {**(properties or {}), **{name: text for name, text in named.items() if text}}
        queue_id = self._choose_queue(topic, keys)
        placed = await self.put_message(NewMessage(topic, queue_id, raw, given))
        return Placed(queue_id, placed.queue_offset, placed.store_timestamp)

    def _choose_queue(self, topic: str, keys: Sequence[str]) -> int:
        """Choose from the queues that the topic had at the first append."""
        if self._queues is None:
            self._queues = {}
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self.queue_ids(topic) or (0,)
        if len(queues) == 1:
            return queues[0]
        return queues[(key_hash(keys[0]) if keys else next(self._numbers)) % len(queues)]

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
        self._path = store.root / "config" / NAME

    def __repr__(self) -> str:
        return f"<Position of {self.group} in {self.topic}>"

    async def offsets(self) -> dict[int, int]:
        """Return the offset of the next message by queue; without queues not read so far.

        Raises:
            ConfigError: the file is damaged, and its backup too.
            Unavailable, Denied: the storage fails.
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
        wish = TopicWish(group=group, tags=tags, follow=follow, starts=starts)
        async for chunk in read_topic(self._store, self.topic, wish):
            yield chunk

    async def acknowledge(self, message: Message) -> None:
        """Move the position past a message: it and all before it in its queue are handled.

        Durable on return, some 1 ms: acknowledge the last one of many. A message before the
        position has no effect.

        Raises:
            ValueError: the message is of another topic, or too many groups have positions.
            ConfigError: the file is damaged, and its backup too.
            Unavailable, Denied: the storage fails; the position stays.
        """
        if message.topic != self.topic:
            raise ValueError(f"{message!r} is not of the topic {self.topic}")
        await asyncio.to_thread(self._move, message.queue_id, message.offset + 1)

    def _load(self, queues: Sequence[int]) -> dict[int, int]:
        with self._offsets() as kept:
            found = {queue_id: kept.get(self._key(queue_id)) for queue_id in queues}
        return {queue_id: offset for queue_id, offset in found.items() if offset is not None}

    def _move(self, queue_id: int, offset: int) -> None:
        key = self._key(queue_id)
        with self._offsets() as kept:
            if (kept.get(key) or 0) < offset:
                kept.put(key, offset)
                content = kept.prepare()
                assert content is not None, "an offset has changed"
                kept.save(content)

    def _key(self, queue_id: int) -> QueueKey:
        return QueueKey(self.group, self.topic, queue_id)

    @contextmanager
    def _offsets(self) -> Generator[ConsumerOffsets]:
        with _OFFSETS:
            yield ConsumerOffsets.load(self._path)
