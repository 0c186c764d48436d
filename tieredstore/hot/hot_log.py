"""Our own hot log: appended to by many tasks, read by queue offset, in RocketMQ's local format."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from container.names.queue_id import QueueId
from container.queue.time_boundary import Boundary, TimeRules
from container.record.message import StoredMessage
from provider.clock import Clock
from provider.errors import Closed, OutOfRange, StoreError, Unavailable
from provider.posix_errors import posix_errors
from tieredstore.hot.append_plan import Appended, AppendPlan
from tieredstore.hot.append_thread import AppendGroup, AppendRequest, AppendThread
from tieredstore.hot.appender import Appender
from tieredstore.hot.directory import StoreDirectory
from tieredstore.hot.encoding import NewMessage
from tieredstore.hot.options import HotWriteOptions
from tieredstore.hot.reading import first_with_record, read_messages
from tieredstore.hot.retention import RetentionOptions, Trim
from tieredstore.hot.time_search import search_time, store_time
from tieredstore.hot.trimming import HoldsBack, trim
from tieredstore.lifetime import running

T = TypeVar("T")
THREADS = 3
"""Beside the one that appends: one syncs the CommitLog, one the ConsumeQueues, one reads."""


class Bounds(NamedTuple):
    """The messages of one queue that can be read: `[min_offset, max_offset)`."""

    min_offset: int
    max_offset: int


@dataclass(slots=True)
class _Unflushed:
    """A group that is written and not known to be durable."""

    plan: AppendPlan
    requests: list[AppendRequest]
    """Those that wait for it to be durable."""


@asynccontextmanager
async def open_hot_log(
    root: Path, *, options: HotWriteOptions, clock: Clock
) -> AsyncGenerator["HotLog"]:
    """Open a store directory (`storePathRootDir`) for writing, or begin one.

    After a clean end that takes some milliseconds; after a crash all records since the last
    checkpoint are looked at. Leaving the block writes all that was appended, makes it durable and
    says in the directory that it was closed: a Java broker may be started on it then.

    Raises:
        InUse: another process writes it, or this one does.
        Denied: not allowed; or its files have other lengths than `options` say; or a broker keeps
            queues of other kinds in it.
        Corrupt: its records or topics contradict the format.
        Unavailable: it cannot be read or written now.
    """
    executor = ThreadPoolExecutor(THREADS, thread_name_prefix="hot-log")
    try:
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(executor, _opened, root, options, clock)
        try:
            appender = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise
        log = HotLog(appender, clock=clock, executor=executor)
        try:
            async with running([log.flush_forever, log.flush_queues_forever]):
                yield log
        finally:
            await log.close()
    finally:
        executor.shutdown(wait=False)


def _opened(root: Path, options: HotWriteOptions, clock: Clock) -> Appender:
    with posix_errors(str(root)):
        directory = StoreDirectory(root)
        try:
            return Appender(directory, options, clock)
        except BaseException:
            directory.close()
            raise


def _close_unused(opening: "asyncio.Future[Appender]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class HotLog:
    """The newest messages of a broker, written by this process. `open_hot_log` makes it.

    All calls are made on the loop that opened it. Messages of one caller that awaits each call keep
    their order; those of several calls at once are appended in the order of the calls.
    """

    def __init__(self, appender: Appender, *, clock: Clock, executor: Executor) -> None:
        self._appender = appender
        self._options = appender.options
        self._clock = clock
        self._executor = executor
        self._thread = AppendThread(appender, clock, asyncio.get_running_loop(), self._written)
        self._visible: dict[QueueId, int] = dict(appender.next_offsets)
        self._durable: dict[QueueId, int] = dict(appender.next_offsets)
        self._unflushed: deque[_Unflushed] = deque()
        self._flush_due = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._waiting_bytes = 0
        self._trimming = asyncio.Lock()
        self._closed = False
        self.news = asyncio.Event()
        """Set when messages became durable; whoever waits for it clears it."""

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<HotLog {self._appender.directory.root}: {len(self._visible)} queues{state}>"

    @property
    def root(self) -> Path:
        """The store directory."""
        return self._appender.directory.root

    @property
    def is_sync(self) -> bool:
        """Whether an append is acknowledged when it is on the disk."""
        return self._options.flush == "SYNC_FLUSH"

    async def append(self, message: NewMessage) -> Appended:
        """Append one message; see `append_many`."""
        return (await self.append_many([message]))[0]

    async def append_many(
        self, messages: Sequence[NewMessage], *, together: bool = False
    ) -> list[Appended]:
        """Append messages one after the other; returns where each is once it is acknowledged.

        With SYNC_FLUSH they are on the disk then; calls that wait together share the sync. With
        ASYNC_FLUSH the kernel has them. They are appended all or none, but for a crash in between.
        Cancelling a call does not take its messages back. With `together` they go to one CommitLog
        file, as RocketMQ does with the batch of a client.

        Some 30 us a call and 5 us a message of CPU time. Waits while `waiting_bytes_max` bytes
        wait already.

        Raises:
            MessageRefused: one of them breaks a limit; none is appended.
            Unavailable: no space left: none is appended, and a later call may succeed. Or the
                device failed: whether they are there shows when the store is opened again.
            Closed: the log was closed.
        """
        size = sum(len(message.body or b"") + _OVERHEAD for message in messages)
        while not self._has_room.is_set():
            await self._has_room.wait()
        self._refuse_if_closed()
        if not messages:
            return []
        self._waiting_bytes += size
        if self._waiting_bytes >= self._options.waiting_bytes_max:
            self._has_room.clear()
        acknowledged = asyncio.get_running_loop().create_future()
        request = AppendRequest(messages, size, acknowledged, together)
        self._thread.put(request)
        return await request.acknowledged

    def queues(self) -> list[QueueId]:
        """The queues that have or had messages, in order."""
        return sorted(self._visible)

    async def bounds(self, queue: QueueId) -> Bounds:
        """Which messages of a queue can be read; (0, 0) for one that is not there.

        Raises:
            Unavailable, Denied: its files cannot be read.
            Closed: the log was closed.
        """
        end = self._visible.get(queue, 0)
        first = await self._do(lambda: first_with_record(self._appender, queue))
        return Bounds(min(first, end), end)

    async def get(
        self,
        queue: QueueId,
        offset: int,
        *,
        messages_max: int = 32,
        bytes_max: int = 256 << 10,
    ) -> list[StoredMessage]:
        """Consecutive messages from `offset` on that were acknowledged; at least one.

        Ends before `messages_max` or `bytes_max` would be exceeded, but for a first message.
        One read a message where they do not lie side by side.

        Raises:
            OutOfRange: there is no message at `offset`: none yet, or it was deleted.
            Corrupt: the record is not that of the message.
            Unavailable, Denied: its files cannot be read.
            Closed: the log was closed.
        """
        end = self._visible.get(queue, 0)
        if not 0 <= offset < end:
            raise OutOfRange(f"offsets below {end} are there, not {offset}", str(queue), offset)
        count = min(messages_max, end - offset)
        return await self._do(
            lambda: read_messages(self._appender, queue, offset, count, bytes_max)
        )

    async def offset_by_time(
        self,
        queue: QueueId,
        moment_ms: int,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> int:
        """The offset that a moment, Unix ms, stands for; 0 for a queue that is not there.

        LOWER: the first message stored then or later, or the queue's end. UPPER: the last one
        stored then or earlier, or the queue's first offset; `rules` change it. By bisection, with
        two small reads a step: where the clock was set back, it is one of the places at which the
        moment is passed.

        Raises:
            Corrupt: a record that was asked is not that of the message.
            Unavailable, Denied: its files cannot be read.
            Closed: the log was closed.
        """
        end = self._visible.get(queue, 0)
        return await self._do(
            lambda: search_time(self._appender, queue, end, moment_ms, boundary, rules)
        )

    async def message_store_time(self, queue: QueueId, offset: int) -> int | None:
        """Store time of one message, Unix ms; None if it is not there. Two small reads.

        Raises:
            Corrupt, Unavailable, Denied, Closed: as `offset_by_time`.
        """
        if not 0 <= offset < self._visible.get(queue, 0):
            return None
        return await self._do(lambda: store_time(self._appender, queue, offset))

    async def earliest_message_time(self, queue: QueueId) -> int | None:
        """Store time of a queue's first message, Unix ms; None if there is none.

        Raises:
            Corrupt, Unavailable, Denied, Closed: as `offset_by_time`.
        """
        return await self.message_store_time(queue, (await self.bounds(queue)).min_offset)

    def durable_offset(self, queue: QueueId) -> int:
        """The offset after the last message of a queue that is on the disk for certain."""
        return self._durable.get(queue, 0)

    async def trim(self, holds_back: HoldsBack, options: RetentionOptions) -> Trim:
        """Delete files by age and disk use that the tier has; a round of retention.

        `holds_back` says of each queue from which offset on its messages must stay
        (`HotLogFeed.holds_back`); it is called in a thread. One `stat` a file and a unit a queue.

        Raises:
            Unavailable, Denied: a file cannot be read or deleted; a later call goes on.
            Closed: the log was closed.
        """
        async with self._trimming:
            now_s = self._clock.now_ms() / 1000
            return await self._do(lambda: trim(self._appender, holds_back, options, now_s))

    async def flush(self) -> None:
        """Make all that was acknowledged durable.

        Raises:
            Unavailable: the device failed; the log takes no messages any more.
            Closed: the log was closed.
        """
        self._refuse_if_closed()
        await self._flush()

    async def flush_forever(self) -> None:
        """Sync the CommitLog: at once where acknowledgements wait for it, else by time."""
        while True:
            if self.is_sync:
                await self._flush_due.wait()
                self._flush_due.clear()
            else:
                await self._clock.sleep(self._options.flush_interval_s)
            if self._closed:
                return  # `close` makes the rest durable
            try:
                await self._flush()
            except StoreError:
                continue  # whoever waits for it was told

    async def flush_queues_forever(self) -> None:
        """Sync the ConsumeQueues and write the checkpoint from time to time."""
        while True:
            await self._clock.sleep(self._options.flush_queues_interval_s)
            if self._closed:
                return
            try:
                await self._do(self._appender.flush_queues)
            except StoreError:
                continue  # the next append tells

    async def close(self) -> None:
        """Write what was handed in, make it durable, and let go of the directory. Idempotent.

        Raises:
            Unavailable: not all is durable; the next start recovers as after a crash.
        """
        if self._closed:
            return
        self._closed = True
        self._has_room.set()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._thread.end)
        try:
            await loop.run_in_executor(self._executor, self._appender.close)
        except StoreError as error:
            self._fail_unflushed(error)
            raise
        if self._appender.broken:
            self._fail_unflushed(Unavailable(self._appender.broken, str(self.root)))
            return
        self._acknowledge(self._appender.flushed)

    def _written(self, group: AppendGroup) -> None:
        """The thread wrote a group, or failed to; called on the loop."""
        self._waiting_bytes -= group.bytes
        if self._waiting_bytes < self._options.waiting_bytes_max:
            self._has_room.set()
        if group.plan is None:
            return
        entry = _Unflushed(group.plan, [])
        if self.is_sync:
            entry.requests = group.requests
            self._flush_due.set()
        else:
            self._visible |= group.plan.next_offsets
            for request in group.requests:
                request.acknowledge()
        self._unflushed.append(entry)

    async def _flush(self) -> None:
        try:
            flushed = await self._do(self._appender.flush)
        except StoreError as error:
            self._fail_unflushed(error)
            raise
        self._acknowledge(flushed)

    def _acknowledge(self, flushed: int) -> None:
        while self._unflushed and self._unflushed[0].plan.end <= flushed:
            entry = self._unflushed.popleft()
            self._durable |= entry.plan.next_offsets
            if self.is_sync:  # else readers see newer ones already
                self._visible |= entry.plan.next_offsets
            for request in entry.requests:
                request.acknowledge()
            self.news.set()

    def _fail_unflushed(self, error: StoreError) -> None:
        while self._unflushed:
            for request in self._unflushed.popleft().requests:
                request.fail(error)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Closed("the hot log was closed", str(self.root))

    async def _do(self, work: Callable[[], T]) -> T:
        self._refuse_if_closed()

        def translated() -> T:
            with posix_errors(str(self.root)):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._executor, translated)


_OVERHEAD = 256
"""Bytes that a message is counted with beside its body."""
