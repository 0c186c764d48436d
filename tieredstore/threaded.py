"""Synchronous faces: an asynchronous context, or a message store, kept open in a thread."""

import warnings
import weakref
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from container.lookup.query import QueryResult
from container.queue.time_index import Boundary, TimeRules
from container.record.message import StoredMessage
from provider.errors import Closed, StoreError
from tieredstore.hot.encoding import Appended, NewMessage
from tieredstore.store.levels import Level
from tieredstore.store.plugins import PluggedStore
from tieredstore.store.protocol import GetMessageResult
from tieredstore.store.tiered import TieredMessageStore

ItemT = TypeVar("ItemT")


def _end(stack: ExitStack) -> None:
    """End the thread of an object that was dropped open, or is open at exit."""
    with suppress(Exception):  # no one is left to be told; `__del__` warns
        stack.close()


class Threaded:
    """Keeps one asynchronous context manager open in a thread with an event loop."""

    def __init__(self, opened: AbstractAsyncContextManager[object]) -> None:
        self._opened = opened
        self._stack: ExitStack | None = None
        with ExitStack() as stack:
            self._portal: BlockingPortal = stack.enter_context(
                start_blocking_portal(name="tieredstore")
            )
            stack.enter_context(self._portal.wrap_async_context_manager(opened))
            self._stack = stack.pop_all()
        # Later than at exit, its end would wait for a thread that the interpreter has stopped.
        self._finalizer = weakref.finalize(self, _end, self._stack)

    def __enter__(self) -> Self:
        """It is open already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel running calls, close, and end the thread."""
        stack, self._stack = self._stack, None
        if stack is not None:
            self._finalizer.detach()
            stack.__exit__(kind, error, traceback)

    def __del__(self) -> None:
        if getattr(self, "_stack", None) is not None:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._opened!r}>"

    @property
    def _running(self) -> BlockingPortal:
        """The way into the loop's thread; raises `Closed` once that has ended."""
        if self._stack is None:
            raise Closed("it was closed", repr(self))
        return self._portal

    def close(self) -> None:
        """Cancel running calls, close, and end the thread. Idempotent."""
        self.__exit__(None, None, None)

    def _each(self, items: AsyncIterator[ItemT]) -> Iterator[ItemT]:
        """Yield the items of an asynchronous iterator, each on demand."""

        async def following() -> ItemT | None:
            return await anext(items, None)

        while (item := self._running.call(following)) is not None:
            yield item


class SyncStore(Threaded):
    """A message store with a cold tier: `tieredstore.TieredMessageStore` without `await`."""

    def __init__(self, store: TieredMessageStore | PluggedStore) -> None:
        """Opens it; see `open_store`."""
        self._store = store
        super().__init__(store)

    @property
    def level(self) -> Level:
        """Reads that go to the tier at present."""
        return self._store.level

    @property
    def awaited(self) -> StoreError | None:
        """Why the tier could not be opened yet; None if it is not awaited."""
        return self._store.awaited

    def set_level(self, level: Level | str | int) -> None:
        """Set the reads that go to the tier."""
        self._running.call(self._store.set_level, level)

    def put_message(self, message: NewMessage) -> Appended:
        """Append one message."""
        return self._running.call(self._store.put_message, message)

    def put_messages(
        self, messages: Sequence[NewMessage], *, together: bool = False
    ) -> list[Appended]:
        """Append messages in order, all or none; with `together` to one CommitLog file."""
        return self._running.call(partial(self._store.put_messages, messages, together=together))

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        **options: Any,  # noqa: ANN401 - as named below
    ) -> GetMessageResult:
        """Read from `offset` on; options as `TieredMessageStore.get_message`."""
        work = partial(self._store.get_message, group, topic, queue_id, offset, **options)
        return self._running.call(work)

    def query_message(self, topic: str, key: str, **options: Any) -> QueryResult:  # noqa: ANN401 - as named below
        """Messages with a key; options as `TieredMessageStore.query_message`."""
        return self._running.call(partial(self._store.query_message, topic, key, **options))

    def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> int:
        """Find the offset at a moment; see `TieredMessageStore.offset_by_time`."""
        work = self._store.offset_by_time
        return self._running.call(work, topic, queue_id, timestamp_ms, boundary, rules)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First offset that can be read, in hot log or tier."""
        return self._running.call(self._store.min_offset, topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset after the last message."""
        return self._running.call(self._store.max_offset, topic, queue_id)

    def commit_offset(self, topic: str, queue_id: int) -> int:
        """The offset after the last message that is in the tier; 0 if none is."""
        return self._running.call(self._store.commit_offset, topic, queue_id)

    def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Store time of the first message that can be read; None if there is none."""
        return self._running.call(self._store.earliest_message_time, topic, queue_id)

    def message_store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Store time of one message; None if it is not there."""
        return self._running.call(self._store.message_store_time, topic, queue_id, offset)

    def is_in_store(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the message at `offset` is in the hot log."""
        return self._running.call(self._store.is_in_store, topic, queue_id, offset)

    def is_in_memory(self, topic: str, queue_id: int, offset: int, messages: int = 1) -> bool:
        """Whether the pages of these messages are resident in the hot log."""
        return self._running.call(self._store.is_in_memory, topic, queue_id, offset, messages)

    def delete_topics(self, topics: Collection[str]) -> None:
        """Delete topics with all their messages, from hot log and tier."""
        self._running.call(self._store.delete_topics, topics)

    def clean_unused_topics(self, retained: Collection[str]) -> list[str]:
        """Delete every topic that is neither in `retained` nor a system topic; returns those."""
        return self._running.call(self._store.clean_unused_topics, retained)

    def topics(self) -> Mapping[str, int]:
        """The topics of hot log and tier, with how many queues."""
        return self._running.call(self._store.topics)

    def queue_ids(self, topic: str) -> Sequence[int]:
        """The queues of a topic in hot log and tier, ascending."""
        return self._running.call(self._store.queue_ids, topic)

    def wait_for_message(self, topic: str, queue_id: int, offset: int, timeout_s: float) -> bool:
        """Wait until there is a message at `offset`; False after the timeout."""
        return self._running.call(self._store.wait_for_message, topic, queue_id, offset, timeout_s)

    def messages(
        self, group: str, topic: str, queue_id: int, start: int = 0
    ) -> Iterator[StoredMessage]:
        """Yield every message from `start` on, and new ones, until the loop is left."""
        return self._each(self._running.call(self._store.messages, group, topic, queue_id, start))

    def statistics(self) -> Mapping[str, float]:
        """Figures of now, by name."""
        return self._running.call(self._store.statistics)
