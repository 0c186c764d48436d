"""What every message store can do: ours, the tiered one that wraps it, and plug-ins of users.

The calls are those of RocketMQ's MessageStore that concern messages, with its statuses. A plug-in
is a store around another one (`forwarding.py`); `plugins.py` builds them by `messageStorePlugIn`.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from container.lookup.query import END_OF_TIME_MS, QueryResult
from container.queue.time_index import Boundary, TimeRules
from container.record.message import StoredMessage
from fetcher.result import FetchStatus
from tieredstore.hot.encoding import Appended, NewMessage

MESSAGES_MAX = 32
"""Messages that one read returns unless it is told otherwise: the broker's own limit."""


@dataclass(frozen=True, slots=True)
class GetMessageResult:
    """What a read answers. A failure is never "no message": it is raised."""

    status: FetchStatus
    next_offset: int
    """Where to read on."""
    min_offset: int
    """First offset of the queue that can be read, wherever it lies."""
    max_offset: int
    """The offset after the last message."""
    messages: Sequence[StoredMessage] = ()


class MessageStore(Protocol):
    """A store of messages in queues of topics: put, read, find, wait, delete.

    `async with` opens it with all that it wraps, and closes it in the reverse order. Calls before
    and after that raise Closed. Times are Unix ms; offsets count the messages of one queue.
    """

    async def __aenter__(self) -> Self:
        """Open it. A failure leaves nothing open."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Make what was put durable and close."""
        ...

    async def put_message(self, message: NewMessage) -> Appended:
        """Append one message; returns once it is as durable as `flushDiskType` says."""
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
        """Read from `offset` on; statuses and next offsets are RocketMQ's."""
        ...

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """First offset that can be read; 0 for a queue that is not there."""
        ...

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset after the last message; 0 for a queue that is not there."""
        ...

    async def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> int:
        """The offset that a moment stands for, by the rules of RocketMQ's local store or tier."""
        ...

    async def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Store time of the first message that can be read; None if there is none."""
        ...

    async def message_store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Store time of one message; None if it is not there."""
        ...

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        messages_max: int = MESSAGES_MAX,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        newest_first: bool = True,
    ) -> QueryResult:
        """Messages with a key (`KEYS`, `UNIQ_KEY`), stored within `[begin_ms, end_ms]`."""
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
        """Wait, without polling, until there is a message at `offset`; False after the timeout."""
        ...

    def messages(
        self, group: str, topic: str, queue_id: int, start: int = 0
    ) -> AsyncGenerator[StoredMessage, None]:
        """Every message from `start` on, and those that come, until the iteration is left."""
        ...

    def topics(self) -> Mapping[str, int]:
        """The topics that are there, with the number of their queues."""
        ...

    def queue_ids(self, topic: str) -> Sequence[int]:
        """The queues of a topic that have or had messages, ascending; none if it is not there."""
        ...

    def statistics(self) -> Mapping[str, float]:
        """Figures of now, by name."""
        ...

    async def delete_topics(self, topics: Collection[str]) -> None:
        """Delete topics with all their messages, in hot log and tier; durable when it returns.

        A topic that is not there is passed over. One that is made again goes on above the old end
        of its queues. Where it fails, calling it again ends it.

        Raises:
            ValueError: one of them is a system topic; none is deleted.
        """
        ...

    async def clean_unused_topics(self, retained: Collection[str]) -> list[str]:
        """Delete every topic that is neither in `retained` nor a system topic; returns those."""
        ...
