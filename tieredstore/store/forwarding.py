"""Message store that forwards all calls to another one: the base of plug-ins."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from container.record.message import StoredMessage
from tieredstore.hot.encoding import Appended, NewMessage
from tieredstore.reader.cursor import Moment
from tieredstore.store.iteration import messages_of
from tieredstore.store.protocol import (
    END_OF_TIME_MS,
    MESSAGES_MAX,
    Boundary,
    GetMessageResult,
    MessageStore,
    QueryResult,
    TimeRules,
)


class ForwardingMessageStore:
    """Forwards every call of `MessageStore` to `inner`. A subclass overrides the calls it changes.

    Each call costs one more function call. Arguments, results, errors and cancelling are those of
    `inner`. A subclass that has something to open and close overrides `start` and `stop`.
    """

    def __init__(self, inner: MessageStore) -> None:
        """Keep `inner`, which belongs to this store from now on. Opens nothing."""
        self._inner = inner
        self._stack: AsyncExitStack | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} around {self._inner!r}>"

    @property
    def inner(self) -> MessageStore:
        """Wrapped store."""
        return self._inner

    async def start(self) -> None:
        """Open the resources of this store. `inner` is open already.

        A failure closes `inner` again, and `stop` is not called.
        """

    async def stop(self) -> None:
        """Close the resources of this store. `inner` is closed afterwards, even if this raises."""

    async def __aenter__(self) -> Self:
        """Open `inner`, then call `start`. A failure, or cancelling, leaves nothing open.

        Raises:
            RuntimeError: it is open already.
        """
        if self._stack is not None:
            raise RuntimeError(f"{self!r} is open already")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._inner)
            await self.start()
            stack.push_async_callback(self.stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call `stop`, then close `inner`. Does nothing if the store is not open."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, trace)

    async def put_message(self, message: NewMessage) -> Appended:
        """See `MessageStore.put_message`."""
        return await self._inner.put_message(message)

    async def put_messages(
        self, messages: Sequence[NewMessage], *, together: bool = False
    ) -> list[Appended]:
        """See `MessageStore.put_messages`."""
        return await self._inner.put_messages(messages, together=together)

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
        """See `MessageStore.get_message`."""
        return await self._inner.get_message(
            group,
            topic,
            queue_id,
            offset,
            messages_max=messages_max,
            subscription=subscription,
            bytes_max=bytes_max,
        )

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """See `MessageStore.min_offset`."""
        return await self._inner.min_offset(topic, queue_id)

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """See `MessageStore.max_offset`."""
        return await self._inner.max_offset(topic, queue_id)

    async def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: Moment,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> int:
        """See `MessageStore.offset_by_time`."""
        return await self._inner.offset_by_time(topic, queue_id, timestamp_ms, boundary, rules)

    async def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """See `MessageStore.earliest_message_time`."""
        return await self._inner.earliest_message_time(topic, queue_id)

    async def message_store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """See `MessageStore.message_store_time`."""
        return await self._inner.message_store_time(topic, queue_id, offset)

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
        """See `MessageStore.query_message`."""
        return await self._inner.query_message(
            topic,
            key,
            messages_max=messages_max,
            begin_ms=begin_ms,
            end_ms=end_ms,
            newest_first=newest_first,
        )

    async def delete_topics(self, topics: Collection[str]) -> None:
        """See `MessageStore.delete_topics`."""
        await self._inner.delete_topics(topics)

    async def clean_unused_topics(self, retained: Collection[str]) -> list[str]:
        """See `MessageStore.clean_unused_topics`."""
        return await self._inner.clean_unused_topics(retained)

    async def is_in_store(self, topic: str, queue_id: int, offset: int) -> bool:
        """See `MessageStore.is_in_store`."""
        return await self._inner.is_in_store(topic, queue_id, offset)

    async def is_in_memory(self, topic: str, queue_id: int, offset: int, messages: int = 1) -> bool:
        """See `MessageStore.is_in_memory`."""
        return await self._inner.is_in_memory(topic, queue_id, offset, messages)

    async def wait_for_message(
        self, topic: str, queue_id: int, offset: int, timeout_s: float
    ) -> bool:
        """See `MessageStore.wait_for_message`."""
        return await self._inner.wait_for_message(topic, queue_id, offset, timeout_s)

    def messages(
        self, group: str, topic: str, queue_id: int, start: int = 0
    ) -> AsyncGenerator[StoredMessage, None]:
        """See `MessageStore.messages`. Reads by this store's `get_message`, not by `inner`'s."""
        return messages_of(self, group, topic, queue_id, start)

    def topics(self) -> Mapping[str, int]:
        """See `MessageStore.topics`."""
        return self._inner.topics()

    def queue_ids(self, topic: str) -> Sequence[int]:
        """See `MessageStore.queue_ids`."""
        return self._inner.queue_ids(topic)

    def statistics(self) -> Mapping[str, float]:
        """See `MessageStore.statistics`."""
        return self._inner.statistics()
