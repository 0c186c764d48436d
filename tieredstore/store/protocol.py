"""Interface of all message stores: local, tiered, and users' plug-ins.

The calls are those of RocketMQ's MessageStore that concern messages, with its statuses. A plug-in
is a store around another one; `plugins.py` has its base, and builds them by `messageStorePlugIn`.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from container.lookup.query import END_OF_TIME_MS, QueryResult
from container.queue.positions import Boundary, TimeRules
from container.record.message import StoredMessage
from fetcher.result import FetchStatus
from tieredstore.hot.encoding import Appended, NewMessage
from tieredstore.reader.cursor import Moment

MESSAGES_MAX = 32
"""Default number of messages that one read returns: the broker's own limit."""


@dataclass(frozen=True, slots=True)
class GetMessageResult:
    """Result of a read. A failure is never reported as "no message": it is raised."""

    status: FetchStatus
    next_offset: int
    """Offset of the next read."""
    min_offset: int
    """First readable offset of the queue, in hot log or tier."""
    max_offset: int
    """Offset after the last message."""
    messages: Sequence[StoredMessage] = ()


class QueueReads(Protocol):
    """The reads of queues that iteration needs; see `MessageStore`."""

    def queue_ids(self, topic: str) -> Sequence[int]:
        """See `MessageStore`."""
        ...

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
        """See `MessageStore`."""
        ...

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """See `MessageStore`."""
        ...

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """See `MessageStore`."""
        ...

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: Moment, /) -> int:
        """See `MessageStore`."""
        ...

    async def is_in_store(self, topic: str, queue_id: int, offset: int) -> bool:
        """See `MessageStore`."""
        ...

    async def wait_for_message(
        self, topic: str, queue_id: int, offset: int, timeout_s: float
    ) -> bool:
        """See `MessageStore`."""
        ...


class MessageStore(Protocol):
    """Store of messages in queues of topics: put, read, find, wait, delete.

    `async with` opens it with all stores that it wraps, and closes them in reverse order. Calls
    before and after the block raise Closed. A time is given as Unix ms, or as a
    datetime with its time zone. Offsets count the messages of one queue.
    """

    async def __aenter__(self) -> Self:
        """Open the store. A failure leaves nothing open."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Make accepted messages durable and close."""
        ...

    async def put_message(self, message: NewMessage) -> Appended:
        """Append one message. Return once it is as durable as `flushDiskType` requires."""
        ...

    async def put_messages(
        self, messages: Sequence[NewMessage], *, together: bool = False
    ) -> list[Appended]:
        """Append messages in order, all or none; see `HotLog.append_many`."""
        ...

    async def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int = MESSAGES_MAX,
        subscription: str | None = None,
        bytes_max: int | None = None,
    ) -> GetMessageResult:
        """Read from `offset` on. Statuses and next offsets are RocketMQ's."""
        ...

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first readable offset; 0 for a queue that does not exist."""
        ...

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last message; 0 for a queue that does not exist."""
        ...

    async def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: Moment,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> int:
        """Return the offset for a time, by the rules of RocketMQ's local store or of its tier."""
        ...

    async def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of the first readable message; None if there is none."""
        ...

    async def message_store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of one message; None if it does not exist."""
        ...

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        messages_max: int = MESSAGES_MAX,
        begin_ms: Moment = 0,
        end_ms: Moment = END_OF_TIME_MS,
        newest_first: bool = True,
    ) -> QueryResult:
        """Return messages with a key (`KEYS`, `UNIQ_KEY`), stored within `[begin_ms, end_ms]`."""
        ...

    async def is_in_store(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the message at `offset` is in the hot log (checkInStoreByConsumeOffset)."""
        ...

    async def is_in_memory(self, topic: str, queue_id: int, offset: int, messages: int = 1) -> bool:
        """Whether the pages of these messages are resident (checkInMemByConsumeOffset)."""
        ...

    async def wait_for_message(
        self, topic: str, queue_id: int, offset: int, timeout_s: float
    ) -> bool:
        """Wait, without polling, until there is a message at `offset`. False after the timeout."""
        ...

    def messages(
        self, group: str, topic: str, queue_id: int, start: int = 0
    ) -> AsyncGenerator[StoredMessage, None]:
        """Yield every message from `start` on, then new ones as they arrive. Endless."""
        ...

    def topics(self) -> Mapping[str, int]:
        """Return the existing topics, with the number of their queues."""
        ...

    def queue_ids(self, topic: str) -> Sequence[int]:
        """Return the queues of a topic that have or had messages, ascending."""
        ...

    def statistics(self) -> Mapping[str, float]:
        """Return current figures by name."""
        ...

    async def delete_topics(self, topics: Collection[str]) -> None:
        """Delete topics with all their messages, in hot log and tier. Durable on return.

        A topic that does not exist is skipped. A topic that is created again continues above the
        old end of its queues. After a failure, repeat the call to complete the deletion.

        Raises:
            ValueError: one of them is a system topic; none is deleted.
        """
        ...

    async def clean_unused_topics(self, retained: Collection[str]) -> list[str]:
        """Delete topics that are neither in `retained` nor system topics. Return their names."""
        ...
