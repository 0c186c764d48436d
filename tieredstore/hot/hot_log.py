"""Our own hot log: appended to by many tasks, read by queue offset, in RocketMQ's local format."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from container.names.queue_id import QueueId
from container.queue.time_index import Boundary, TimeRules
from container.record.message import StoredMessage
from container.record.unit import UNIT_BYTES
from provider.clock import Clock, LoopHold
from provider.errors import Closed, OutOfRange, StoreError, Unavailable
from provider.posix.files import posix_errors
from tieredstore.hot.appender import Appender, Deletion
from tieredstore.hot.appending import AppendCalls, QueueEnds
from tieredstore.hot.encoding import Appended, NewMessage
from tieredstore.hot.log.files import ESTIMATED_SHARE
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
from tieredstore.hot.retention import RetentionOptions, Trim
from tieredstore.hot.trimming import HoldsBack, trim

T = TypeVar("T")


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
        self._ends = QueueEnds(appender.next_offsets, is_sync=self.is_sync)
        self._first: dict[QueueId, tuple[int, int]] = {}
        """First offset with a record, and the least position for which that was found out."""
        self._deletions = 0
        self._flush_due = asyncio.Event()
        self._calls = AppendCalls(appender, self._ends, clock, self._flush_due.set)
        self._trimming = asyncio.Lock()
        self._closed = False
        self._hold = LoopHold(clock)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<HotLog {self._appender.directory.root}: {len(self._ends.visible)} queues{state}>"

    @property
    def root(self) -> Path:
        """The store directory."""
        return self._appender.directory.root

    @property
    def commit_log(self) -> Path:
        """Where the CommitLog's files lie."""
        return self._appender.directory.commit_log

    @property
    def is_sync(self) -> bool:
        """Whether an append is acknowledged when it is on the disk."""
        return self._options.flush == "SYNC_FLUSH"

    @property
    def news(self) -> asyncio.Event:
        """Set when messages became durable; whoever waits for it clears it."""
        return self._ends.news

    def tell(self, on_visible: Callable[[Mapping[QueueId, int]], None]) -> None:
        """Have `on_visible` called with the new ends of queues that can be read further."""
        self._ends.on_visible = on_visible

    async def append(self, message: NewMessage) -> Appended:
        """Append one message; see `append_many`. Where the loop writes it, some 7 us in all."""
        return self._calls.append_at_once(message) or (await self.append_many([message]))[0]

    async def append_many(
        self, messages: Sequence[NewMessage], *, together: bool = False
    ) -> list[Appended]:
        """Append messages one after the other; returns where each is once it is acknowledged.

        With SYNC_FLUSH they are on the disk then; calls that wait together share the sync. With
        ASYNC_FLUSH the kernel has them. They are appended all or none, but for a crash in between.
        Cancelling a call does not take its messages back. With `together` they go to one CommitLog
        file, as RocketMQ does with the batch of a client.

        The loop itself writes small calls into the page cache (`appending.py` bounds that):
        some 5 us a call and 2 us a message; a thread takes others, for 30 us more. Waits while
        `waiting_bytes_max` bytes wait already.

        Raises:
            MessageRefused: one of them breaks a limit; none is appended.
            Unavailable: no space left: none is appended, and a later call may succeed. Or the
                device failed: whether they are there shows when the store is opened again.
            Closed: the log was closed.
        """
        return await self._calls.append_many(messages, together=together)

    @property
    def revision(self) -> int:
        """Raised whenever a queue can be read further, or was deleted."""
        return self._ends.revision

    @property
    def log_bytes(self) -> int:
        """Bytes of the CommitLog that are there."""
        return self._appender.end - self._appender.log.min_position

    @property
    def is_new(self) -> bool:
        """Whether nothing was put here, as far as is known, and no queue continues anywhere."""
        appender = self._appender
        return not (any(self._ends.visible.values()) or appender.end or appender.deleted)

    def queues(self) -> list[QueueId]:
        """The queues that have or had messages, in order."""
        return sorted(self._ends.visible)

    def has(self, queue: QueueId) -> bool:
        """Whether a queue has or had messages. O(1)."""
        return queue in self._ends.visible

    def next_file_offset(self, offset: int) -> int:
        """The first offset of the ConsumeQueue file after the one that holds `offset`."""
        units = self._options.queue_file_bytes // UNIT_BYTES
        return (offset // units + 1) * units

    def end_offset(self, queue: QueueId) -> int:
        """The offset after the last message of a queue that can be read; 0 if it is not there."""
        return self._ends.visible.get(queue, 0)

    def next_offset(self, queue: QueueId) -> int:
        """The offset that the next message of a queue gets, also of one without messages."""
        return self._appender.next_offset(queue)

    async def continue_queues(
        self, offsets: Mapping[QueueId, int], compared: Mapping[QueueId, int] | None = None
    ) -> frozenset[QueueId]:
        """Continue queues that end below `offsets` there; see `Appender.continue_queues`.

        Returns those of them. Messages that this log has of them cannot be read from it any more.

        Raises:
            Unavailable, Denied: the store cannot be written; nothing was changed, or files of
                queues that were continued are still on the disk.
            Closed: the log was closed.
        """
        self._refuse_if_closed()
        async with self._trimming:
            return await self._delete(lambda: self._appender.continue_queues(offsets, compared))

    async def bounds(self, queue: QueueId) -> Bounds:
        """Which messages of a queue can be read; (0, 0) for one that is not there.

        Some 20 units are read after a file was deleted, else nothing.

        Raises:
            Unavailable, Denied: its files cannot be read.
            Closed: the log was closed.
        """
        self._refuse_if_closed()
        end = self._ends.visible.get(queue)
        if not end:  # nothing to keep: its first message may come at any offset
            return Bounds(0, 0)
        least = self._appender.log.min_position
        known = self._first.get(queue)
        if known is None or known[0] != least:
            deletions = self._deletions
            first = await self._do(lambda: first_with_record(self._appender, queue))
            known = (least, first)
            if deletions == self._deletions:  # else it may be that of a queue that is gone
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
        """Consecutive messages from `offset` on that were acknowledged; at least one.

        Ends before `messages_max` or `bytes_max` would be exceeded, but for a first message.
        One read a message where they do not lie side by side; a hop as `pick`.

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
        """The offset that a moment, Unix ms, stands for; 0 for a queue that is not there.

        LOWER: the first message stored then or later, or the queue's end. UPPER: the last one
        stored then or earlier, or the queue's first offset; `rules` change it. By bisection, with
        a small read a step: where the clock was set back, it is one of the places at which the
        moment is passed.

        Raises:
            Corrupt: a record that was asked is not that of the message.
            Unavailable, Denied: its files cannot be read.
            Closed: the log was closed.
        """
        first, end = await self.bounds(queue)
        wanted = queue, end, moment_ms, boundary, rules, first
        return await self._here_or_done(partial(search_time, self._appender, *wanted))

    async def message_store_time(self, queue: QueueId, offset: int) -> int | None:
        """Store time of one message, Unix ms; None if it is not there. Two small reads.

        Errors as `offset_by_time`.
        """
        if not 0 <= offset < self._ends.visible.get(queue, 0):
            return None
        return await self._here_or_done(partial(store_time, self._appender, queue, offset))

    async def earliest_message_time(self, queue: QueueId) -> int | None:
        """Store time of a queue's first message, Unix ms; None if there is none.

        Errors as `offset_by_time`.
        """
        return await self.message_store_time(queue, (await self.bounds(queue)).min_offset)

    async def pick(
        self, queue: QueueId, offset: int, count: int, choose: Choose
    ) -> tuple[Picks, list[StoredMessage]] | None:
        """What `choose` takes of up to `count` units from `offset` on, with their messages.

        Only messages that were acknowledged; of one ConsumeQueue file; None where there is none.
        `choose` is called on the loop or in a thread, and perhaps twice. A read for each run of
        records; a hop only where the page cache lacks something, or there is much to read.

        Raises:
            OutOfRange: a message that was chosen was deleted meanwhile.
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
        """Whether `count` messages from `offset` on are in memory, as far as the kernel tells.

        No if there is none at `offset`. One hop, some 20 us. Errors as `get`.
        """
        self._refuse_if_closed()
        count = min(max(count, 1), self._ends.visible.get(queue, 0) - offset)
        if offset < 0 or count <= 0:
            return False
        asked = self._appender, queue, offset, count, estimated_share
        return await self._do(partial(are_resident, *asked))

    def durable_offset(self, queue: QueueId) -> int:
        """The offset after the last message of a queue that is on the disk for certain."""
        return self._ends.durable.get(queue, 0)

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

    async def delete_topics(self, topics: Collection[str]) -> None:
        """Delete all queues of topics with what was handed in before; other topics go on meanwhile.

        It is durable when the call returns. The records stay in the CommitLog until its files
        expire. A queue of such a name begins above the old end. A topic that is not there is
        passed over. Some ten syncs in all, and one for each topic; appends wait for them.

        Raises:
            Unavailable, Denied: the disk failed. Call it again: what is not deleted is there, or is
                deleted already and still takes room.
            Closed: the log was closed.
        """
        self._refuse_if_closed()
        async with self._trimming:
            await self._delete(lambda: self._appender.delete_topics(topics))

    async def _delete(self, delete: Callable[[], Deletion]) -> frozenset[QueueId]:
        """Delete queues behind what was handed in; raises what kept something on the disk."""
        deletion = await self._calls.do(delete, self._forget)
        if deletion.failed is not None:
            raise deletion.failed
        return deletion.queues

    async def set_retention(self, topic: str, hours: int | None) -> None:
        """Note in `config/topics.json` for how many hours the tier keeps a topic. Durable.

        `hours`: None: as long as `tieredStoreFileReservedTime` says.

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
            with suppress(StoreError):  # whoever waits for it was told
                await self._flush()

    async def flush_queues_forever(self) -> None:
        """Sync the ConsumeQueues and write the checkpoint from time to time."""
        while not self._closed:
            await self._clock.sleep(self._options.flush_queues_interval_s)
            with suppress(StoreError):  # the next append tells, or it was closed
                await self._do(self._appender.flush_queues)

    async def close(self) -> None:
        """Write what was handed in, make it durable, and let go of the directory. Idempotent.

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
            self._ends.fail(Unavailable(self._appender.broken, str(self.root)))
            return
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
        """Read on the loop if nothing has to be waited for, else in a thread.

        Lets other tasks run once in `LOOP_HOLD_S_MAX`.
        """
        self._refuse_if_closed()
        try:
            found = read(waits=False)
        except OSError:  # whatever it was, the thread meets it again and translates it
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
