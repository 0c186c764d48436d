"""Hot log in RocketMQ's local format: concurrent appends, reads by queue offset, retention."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from container.names.queue_id import QueueId
from container.queue.positions import Boundary, TimeRules
from container.record.message import StoredMessage
from container.record.unit import UNIT_BYTES
from provider.clock import Clock, LoopHold
from provider.errors import Closed, OutOfRange, StoreError, Unavailable
from provider.posix.files import posix_errors
from tieredstore.hot.appender import Appender, Deletion
from tieredstore.hot.appending import AppendCalls, QueueEnds
from tieredstore.hot.encoding import Appended, NewMessage
from tieredstore.hot.log.directory import StoreDirectory, is_copy, remember_place
from tieredstore.hot.log.files import ESTIMATED_SHARE
from tieredstore.hot.options import HotWriteOptions, RetentionOptions
from tieredstore.hot.reading import (
    Bounds,
    Choose,
    Picks,
    Read,
    are_resident,
    first_with_record,
    pick_messages,
    read_messages,
    search_time,
    store_time,
)
from tieredstore.hot.retention import HoldsBack, Trim, trim
from tieredstore.lifetime import running

T = TypeVar("T")
COPIED = "the hot log was copied to this place, perhaps from an older one,"
THREADS = 3
"""Threads besides the appending one: one syncs the CommitLog, one the ConsumeQueues, one reads."""


class HotLog:
    """Newest messages of a broker, written by this process. See `open_hot_log`.

    Call it on the event loop that opened it only. Messages of a caller that awaits each call keep
    their order. Concurrent calls are appended in the order of the calls. Cancelling a call does not
    interrupt work that a thread has begun.
    """

    def __init__(self, appender: Appender, *, clock: Clock, executor: Executor) -> None:
        self._appender = appender
        self._options = appender.options
        self._clock = clock
        self._executor = executor
        self._ends = QueueEnds(appender.next_offsets, is_sync=self.is_sync)
        self._first: dict[QueueId, tuple[int, int]] = {}
        """First offset with a record, and the CommitLog's first position for which it was found."""
        self._deletions = 0
        self._flush_due = asyncio.Event()
        self._calls = AppendCalls(appender, self._ends, clock, self._flush_due.set)
        self.append_at_once = self._calls.append_at_once
        """See `AppendCalls.append_at_once`: a put without a coroutine of its own."""
        self._trimming = asyncio.Lock()
        self._closed = False
        self.is_compared = False
        """Whether this log was compared with its tier since it was opened."""
        self._hold = LoopHold(clock)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<HotLog {self._appender.directory.root}: {len(self._ends.visible)} queues{state}>"

    @property
    def root(self) -> Path:
        """Store directory."""
        return self._appender.directory.root

    def kept(self) -> AbstractContextManager[None]:
        """Keep the directory for a block of any thread; see `StoreDirectory.kept`."""
        return self._appender.directory.kept()

    def refuse_if_moved(self) -> None:
        """See `StoreDirectory.refuse_if_moved`. Blocks for two `stat`."""
        with posix_errors(str(self.root)):
            self._appender.directory.refuse_if_moved()

    @property
    def identities(self) -> Mapping[Path, os.stat_result]:
        """Directories of store and CommitLog, as they were opened; see `refuse_moved`."""
        return self._appender.directory.identities

    @property
    def commit_log(self) -> Path:
        """Directory of the CommitLog files."""
        return self._appender.directory.commit_log

    @property
    def is_sync(self) -> bool:
        """Whether appends are acknowledged after their sync to disk."""
        return self._options.flush == "SYNC_FLUSH"

    @property
    def news(self) -> asyncio.Event:
        """Event that is set when messages became durable. Its waiter clears it."""
        return self._ends.news

    def tell(self, on_visible: Callable[[Mapping[QueueId, int]], None]) -> None:
        """Set the callback that receives the new ends of queues whose high watermark rose."""
        self._ends.on_visible = on_visible

    async def append(self, message: NewMessage) -> Appended:
        """Append one message; see `append_many`. Costs some 7 us if the event loop writes it."""
        return self.append_at_once(message) or (await self.append_many([message]))[0]

    async def append_many(
        self, messages: Sequence[NewMessage], *, together: bool = False
    ) -> list[Appended]:
        """Append messages in order. Return their positions once they are acknowledged.

        With SYNC_FLUSH acknowledged messages are on disk. Concurrent calls share the sync. With
        ASYNC_FLUSH the kernel has them. Messages of a call are appended all or none, but for a
        crash in between. Cancelling a call does not undo its append. With `together` they go to one
        CommitLog file, as RocketMQ does with the batch of a client.

        The event loop itself writes small calls into the page cache (`appending.py` bounds that):
        some 5 us a call and 2 us a message. A thread takes others, for 30 us more. Waits while
        `waiting_bytes_max` bytes are waiting already.

        Raises:
            MessageRefused: one of them breaks a limit; none is appended.
            Unavailable: no space left: none is appended, and a later call may succeed. Or the
                device failed: the next opening of the store shows whether they exist.
            Closed: the log was closed.
        """
        return await self._calls.append_many(messages, together=together)

    @property
    def revision(self) -> int:
        """Counter of changes: raised when a high watermark rises, or a queue is deleted."""
        return self._ends.revision

    @property
    def log_bytes(self) -> int:
        """Size of the present CommitLog in bytes."""
        return self._appender.end - self._appender.log.min_position

    @property
    def is_new(self) -> bool:
        """Whether the log never had a message, as far as is known, and continues no queue."""
        appender = self._appender
        return not (any(self._ends.visible.values()) or appender.end or appender.deleted)

    def doubt(self) -> str:
        """Return why next offsets may be unknown here, as the subject of a sentence; "" if not.

        Blocks for two small files.

        Raises:
            Unavailable, Denied: one cannot be read.
        """
        if self.is_new:
            return "the hot log is empty"
        with posix_errors(str(self.root)):
            return COPIED if is_copy(self.root) else ""

    async def remember_place(self) -> None:
        """Record that hot log and tier were compared; see `doubt`. Durable on return.

        Raises:
            Unavailable, Denied: the store cannot be written, or was moved.
            Closed: the log was closed.
        """
        self.is_compared = True
        await asyncio.to_thread(self._remember_place)

    def _remember_place(self) -> None:
        with self.kept(), posix_errors(str(self.root)):
            remember_place(self.root)

    def queues(self) -> list[QueueId]:
        """Return the queues that have or had messages, or continue their tier, sorted."""
        return sorted({*self._ends.visible, *self._appender.deleted.continued()})

    def has(self, queue: QueueId) -> bool:
        """Whether a queue has or had messages, or continues its tier. O(1)."""
        return queue in self._ends.visible or self._continued_at(queue) > 0

    def next_file_offset(self, offset: int) -> int:
        """Return the first offset of the ConsumeQueue file after the one that holds `offset`."""
        units = self._options.queue_file_bytes // UNIT_BYTES
        return (offset // units + 1) * units

    def end_offset(self, queue: QueueId) -> int:
        """Return the offset after the last readable message of a queue; 0 if it does not exist.

        For a queue that continues its tier and has no message yet it is the end of the tier.
        """
        return self._ends.visible.get(queue, 0) or self._continued_at(queue)

    def _continued_at(self, queue: QueueId) -> int:
        """Return the offset at which a queue continues its tier; 0 if it does not."""
        one = self._appender.deleted.get(queue)
        return one.next_offset if one is not None and one.keeps_topic else 0

    def next_offset(self, queue: QueueId) -> int:
        """Return the offset of the next message of a queue, also of one without messages."""
        return self._appender.next_offset(queue)

    async def continue_queues(
        self, offsets: Mapping[QueueId, int], compared: Mapping[QueueId, int] | None = None
    ) -> frozenset[QueueId]:
        """Continue queues that end below `offsets` there; see `Appender.continue_queues`.

        Returns the continued queues. This log's messages of them can no longer be read from it.

        Raises:
            Unavailable, Denied: the store cannot be written; nothing was changed, or files of
                continued queues are still on disk.
            Closed: the log was closed.
        """
        self._refuse_if_closed()
        async with self._trimming:
            return await self._delete(lambda: self._appender.continue_queues(offsets, compared))

    async def bounds(self, queue: QueueId) -> Bounds:
        """Return the readable offsets of a queue; (0, 0) for one that does not exist.

        Both are the end of the tier for a queue that continues it and has no message yet.

        Reads some 20 units after a file was deleted, else nothing.

        Raises:
            Unavailable, Denied: its files cannot be read.
            Closed: the log was closed.
        """
        self._refuse_if_closed()
        end = self._ends.visible.get(queue)
        if not end:  # nothing to cache: its first message may come at any offset
            at = self._continued_at(queue)
            return Bounds(at, at)
        least = self._appender.log.min_position
        known = self._first.get(queue)
        if known is None or known[0] != least:
            deletions = self._deletions
            first = await self._do(lambda: first_with_record(self._appender, queue))
            known = (least, first)
            if deletions == self._deletions:  # else it may be that of a deleted queue
                self._first[queue] = known
        return Bounds(min(known[1], end), end)

    async def get(
        self,
        queue: QueueId,
        offset: int,
        *,
        messages_max: int = 32,
        bytes_max: int = 256 << 10,
    ) -> list[StoredMessage]:
        """Read consecutive acknowledged messages from `offset` on; at least one.

        Ends before `messages_max` or `bytes_max` would be exceeded, but for a first message.
        Adjacent records take one read, others one each. A hop to a thread as in `pick`.

        Raises:
            OutOfRange: there is no message at `offset`: none yet, or it was deleted.
            Corrupt: the record is not that of the message.
            Unavailable, Denied: its files cannot be read.
            Closed: the log was closed.
        """
        end = self._ends.visible.get(queue, 0)
        if not 0 <= offset < end:
            raise OutOfRange(f"offsets below {end} are there, not {offset}", str(queue), offset)
        count = min(messages_max, end - offset)
        read = partial(read_messages, self._appender, queue, offset, count, bytes_max)
        return await self._here_or_done(read)

    async def offset_by_time(
        self,
        queue: QueueId,
        moment_ms: int,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> int:
        """Return the offset for a time in Unix ms; 0 for a queue that does not exist.

        LOWER: the first message stored then or later, or the queue's end. UPPER: the last message
        stored then or earlier, or the queue's first offset; `rules` change it. Bisects, with a
        small read a step. If the clock was set back, the result is one of the offsets at which the
        time is passed.

        Raises:
            Corrupt: a record on the way is not that of the message.
            Unavailable, Denied: its files cannot be read.
            Closed: the log was closed.
        """
        first, end = await self.bounds(queue)
        wanted = queue, end, moment_ms, boundary, rules, first
        return await self._here_or_done(partial(search_time, self._appender, *wanted))

    async def message_store_time(self, queue: QueueId, offset: int) -> int | None:
        """Return the store time of one message, Unix ms; None if it does not exist.

        Two small reads. Errors as `offset_by_time`.
        """
        if not 0 <= offset < self._ends.visible.get(queue, 0):
            return None
        return await self._here_or_done(partial(store_time, self._appender, queue, offset))

    async def earliest_message_time(self, queue: QueueId) -> int | None:
        """Return the store time of a queue's first message, Unix ms; None if there is none.

        Errors as `offset_by_time`.
        """
        return await self.message_store_time(queue, (await self.bounds(queue)).min_offset)

    async def pick(
        self, queue: QueueId, offset: int, count: int, choose: Choose
    ) -> tuple[Picks, list[StoredMessage]] | None:
        """Read the messages that `choose` picks of up to `count` units from `offset` on.

        Acknowledged messages only, of one ConsumeQueue file. Returns None if there are none.
        `choose` is called on the event loop or in a thread, possibly twice. One read for each group
        of adjacent records. Hops to a thread only if the page cache lacks something, or the read is
        large.

        Raises:
            OutOfRange: a chosen message was deleted meanwhile.
            Corrupt, Unavailable, Denied, Closed: as `get`.
        """
        self._refuse_if_closed()
        count = min(count, self._ends.visible.get(queue, 0) - offset)
        if offset < 0 or count <= 0:
            return None
        return await self._here_or_done(
            partial(pick_messages, self._appender, queue, offset, count, choose)
        )

    async def is_resident(
        self,
        queue: QueueId,
        offset: int,
        count: int = 1,
        *,
        estimated_share: float = ESTIMATED_SHARE,
    ) -> bool:
        """Whether `count` messages from `offset` on are in memory, as far as the kernel reports.

        False if there is none at `offset`. One hop to a thread, some 20 us. Errors as `get`.
        """
        self._refuse_if_closed()
        count = min(max(count, 1), self._ends.visible.get(queue, 0) - offset)
        if offset < 0 or count <= 0:
            return False
        asked = self._appender, queue, offset, count, estimated_share
        return await self._do(partial(are_resident, *asked))

    def durable_offset(self, queue: QueueId) -> int:
        """Return the offset after the last message of a queue that is synced to disk."""
        return self._ends.durable.get(queue, 0)

    def durable_offsets(self) -> Mapping[QueueId, int]:
        """Return the durable offset of each queue that has or had messages. Do not change it."""
        return self._ends.durable

    async def trim(self, holds_back: HoldsBack, options: RetentionOptions) -> Trim:
        """Run one round of retention: delete tiered files by age and disk use.

        `holds_back` returns the offset of a queue from which its messages must stay
        (`HotLogFeed.holds_back`). It is called in a thread. Costs one `stat` a file and one unit a
        queue.

        Raises:
            Unavailable, Denied: a file cannot be read or deleted; a later call continues.
            Closed: the log was closed.
        """
        async with self._trimming:
            now_s = self._clock.now_ms() / 1000
            return await self._do(lambda: trim(self._appender, holds_back, options, now_s))

    async def delete_topics(self, topics: Collection[str]) -> None:
        """Delete all queues of topics, with all earlier accepted messages of them.

        Durable on return. Other topics stay available. The records stay in the CommitLog until its
        files expire. A new queue of such a name begins above the old end. A topic that does not
        exist is skipped. Costs some ten syncs, and one for each topic. Appends wait for them.

        Raises:
            Unavailable, Denied: the disk failed. Call it again: the rest is not deleted yet, or is
                deleted and still takes space.
            Closed: the log was closed.
        """
        self._refuse_if_closed()
        async with self._trimming:
            await self._delete(lambda: self._appender.delete_topics(topics))

    async def settled(self) -> None:
        """Wait for the end of a running deletion or retention, which removes files before bounds.

        Raises:
            Closed: the log was closed.
        """
        async with self._trimming:
            self._refuse_if_closed()

    async def _delete(self, delete: Callable[[], Deletion]) -> frozenset[QueueId]:
        """Delete queues after all earlier calls. Raise the error that left files on disk."""
        deletion = await self._calls.do(delete, self._forget)
        if deletion.failed is not None:
            raise deletion.failed
        return deletion.queues

    async def set_retention(self, topic: str, hours: int | None) -> None:
        """Write a topic's retention in the tier to `config/topics.json`, in hours.

        Durable on return. `hours`: None: the default, `tieredStoreFileReservedTime`.

        Raises:
            NotFound: the topic has no message yet.
            Unavailable, Denied: the file cannot be written.
            Closed: the log was closed.
        """
        self._refuse_if_closed()

        def note() -> None:
            with posix_errors(str(self.root)):
                self._appender.set_retention(topic, hours)

        await self._calls.do(note, lambda _: None)

    def _forget(self, deletion: Deletion) -> None:
        self._deletions += 1
        self._ends.flushed(deletion.flushed)
        self._ends.forget(deletion.queues)
        for queue in deletion.queues:
            self._first.pop(queue, None)

    async def flush(self) -> None:
        """Make all acknowledged messages durable.

        Raises:
            Unavailable: the device failed; all later appends fail.
            Closed: the log was closed.
        """
        self._refuse_if_closed()
        await self._flush()

    async def flush_forever(self) -> None:
        """Sync the CommitLog after appends: at once if acknowledgements wait for it.

        Otherwise at least `flush_interval_s` after the last sync. Endless.
        """
        synced_s = self._clock.monotonic_s()
        while True:
            await self._flush_due.wait()
            left_s = synced_s + self._options.flush_interval_s - self._clock.monotonic_s()
            if left_s > 0 and not self.is_sync:
                await self._clock.sleep(left_s)
            self._flush_due.clear()
            if self._closed:
                return  # `close` makes the rest durable
            synced_s = self._clock.monotonic_s()
            with suppress(StoreError):  # waiting callers have the error
                await self._flush()

    async def flush_queues_forever(self) -> None:
        """Sync the ConsumeQueues and write the checkpoint periodically."""
        while not self._closed:
            await self._clock.sleep(self._options.flush_queues_interval_s)
            with suppress(StoreError):  # the next append raises it, or the log was closed
                await self._do(self._appender.flush_queues)

    async def close(self) -> None:
        """Write accepted messages, make them durable, and release the directory. Idempotent.

        Raises:
            Unavailable: not all is durable; the next start recovers as after a crash.
        """
        if self._closed:
            return
        self._closed = True
        self._calls.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._calls.end)
        try:
            await loop.run_in_executor(self._executor, self._appender.close)
        except StoreError as error:
            self._ends.fail(error)
            raise
        if self._appender.broken:
            error = Unavailable(self._appender.broken, str(self.root))
            self._ends.fail(error)
            if self.is_sync:
                return  # the callers whose messages are not durable have the error
            raise error
        self._ends.flushed(self._appender.flushed)

    async def _flush(self) -> None:
        self._ends.flushing()
        try:
            flushed = await self._do(self._appender.flush)
        except StoreError as error:
            self._ends.fail(error)
            raise
        self._ends.flushed(flushed)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Closed("the hot log was closed", str(self.root))

    async def _here_or_done(self, read: Read[T]) -> T:
        """Read on the event loop if that needs no wait, else in a thread.

        Runs other tasks once in `LOOP_HOLD_S_MAX`.
        """
        self._refuse_if_closed()
        try:
            found = read(waits=False)
        except OSError:  # the thread meets any other error again and translates it
            return await self._do(partial(read, waits=True))
        if self._hold.is_long():
            await self._clock.sleep(0)
        return found

    async def _do(self, work: Callable[[], T]) -> T:
        self._refuse_if_closed()

        def translated() -> T:
            with posix_errors(str(self.root)):
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._executor, translated)


@asynccontextmanager
async def open_hot_log(
    root: Path, *, options: HotWriteOptions, clock: Clock
) -> AsyncGenerator[HotLog]:
    """Open or create a store directory (`storePathRootDir`) for writing.

    Takes some milliseconds after a clean shutdown. After a crash it scans all records since the
    last checkpoint. Leaving the block writes all accepted messages, makes them durable and marks
    the directory as closed, so that a Java broker may be started on it.

    Raises:
        InUse: another process writes it, or another log of this process.
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
        where = Path(options.commit_log_path) if options.commit_log_path else None
        directory = StoreDirectory(root, where)
        try:
            return Appender(directory, options, clock)
        except BaseException:
            directory.close()
            raise


def _close_unused(opening: "asyncio.Future[Appender]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
