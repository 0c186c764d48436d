"""Hot log of another process: polls of its store directory, and the port to the dispatcher."""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.unit import Units
from dispatcher.ports import HotQueue, Wanted, WantedUnits
from dispatcher.topic_filter import TopicFilter
from provider.clock import Clock
from provider.errors import Closed, Corrupt, Denied, NotFound, OutOfRange, StoreError, Unavailable
from provider.names import is_there
from provider.posix.files import BufferPool
from provider.ranges import QueueOffset
from tieredstore.following.directory.layout import has_rocksdb_queues, open_layout
from tieredstore.following.directory.queues import QueueDirectories
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.confirmation import confirmed_now
from tieredstore.following.log.followed_log import FollowedLog
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.log.round_read import BodyCheck, gather_round
from tieredstore.following.log_reader.log_scan import Remembered
from tieredstore.following.log_reader.logged_queues import LoggedQueues
from tieredstore.following.options import HotLogOptions
from tieredstore.following.queues.followed_queues import FollowedQueues
from tieredstore.following.queues.poll_schedule import PollSchedule
from tieredstore.following.queues.tail import PollTime
from tieredstore.following.statistics import ScanStatistics

NO_QUEUES = (
    "{} is missing or has no queues, though the CommitLog has messages: none can be tiered; copy "
    "it from where the CommitLog is from, or let a broker start on this store, which rebuilds it"
)


class StoreScan:
    """State of following one store. `poll` and its callees hold one lock. Reads hold none."""

    def __init__(
        self,
        root: Path,
        options: HotLogOptions,
        topics: TopicFilter,
        clock: Clock | None = None,
    ) -> None:
        """Find the store's directories and the pins of earlier processes.

        `clock` measures the cost of polls. Without one they count as free.

        Raises:
            NotAStore: `root` holds no RocketMQ store that can be followed.
            Denied: the directory for pins is unsuitable, or something may not be read.
            Unavailable: something cannot be read right now.
        """
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._layout = open_layout(root, options)
        self.statistics = ScanStatistics()
        self._files = MappedFiles(options.files_mapped_max, options.resident_bytes_max)
        self._buffers = BufferPool(options.buffer_bytes_max)
        self._log = FollowedLog(self._files, self._layout.commit_logs, options, self.statistics)
        self._queues = self._queues_of(topics)
        self._bodies = BodyCheck(self._log.files, self.statistics, self._lock)
        self._known_position = 0
        """End of the CommitLog before the last full scan of directories and queues."""
        self._scanned_position = -1
        """End of the CommitLog when the directories were scanned."""
        self._low = 0
        """First position that may have held an untiered message at the last full scan."""
        self._all_is_wanted = False
        """Whether the next poll scans everything, whatever it costs."""
        self._schedule = PollSchedule(
            settle_s=options.settle_s_max,
            scan_s_min=options.scan_s_min,
            scan_s_max=options.scan_s_max,
        )

    def __repr__(self) -> str:
        return f"<StoreScan {self._layout.root}: {self._queues}, {self._log}, {self._files}>"

    def check(self) -> None:
        """Assert the invariants between two polls, of this object and its parts. O(files).

        S1  The settled part of the CommitLog, below which pins may be dropped, is not beyond its
            end.
        """
        with self._lock:
            assert self._known_position <= self._log.tail.position, f"S1: {self}"
            self._queues.check()
            self._schedule.check()
            self._log.check()
            self._files.check()
            self._buffers.check()

    @property
    def log(self) -> CommitLogFiles:
        """CommitLog by position."""
        return self._log.files

    @property
    def queues(self) -> Mapping[QueueId, HotQueue]:
        """Queues as of the last poll."""
        return self._queues.watermarks.known

    def poll(self, now_s: float) -> dict[QueueId, HotQueue]:
        """Poll the store and update `queues`. Return the queues that changed.

        A queue whose own files cannot be read is UNREADABLE until they can be. The others are
        polled all the same.

        Raises:
            Unavailable, Denied: the log cannot be read right now.
            Closed: another log has replaced it.
        """
        with self._looking():
            return self._poll(now_s)

    def poll_again(self, queues: Collection[QueueId]) -> dict[QueueId, HotQueue]:
        """See `HotLog.poll_again`. Return the queues that changed.

        Raises:
            Unavailable, Denied, Closed: as `poll`.
        """
        with self._looking():
            self.statistics.looks_anew += 1
            self._log.check_identity()
            self._files.forget_all()
            self._log.files.forget()
            self._log.scan(lambda: self._low)
            now_s = 0.0 if self._clock is None else self._clock.monotonic_s()
            return self._queues.publish(self._queues.poll_again(queues, self._moment(now_s)))

    @contextmanager
    def _looking(self) -> Generator[None]:
        """Hold the lock during a poll.

        Files deleted meanwhile raise Unavailable: the next poll retries.
        """
        try:
            with self._lock:
                yield
        except (NotFound, OutOfRange) as error:
            raise Unavailable(
                f"it changed during the look: {error}", str(self._layout.root)
            ) from error

    def _poll(self, now_s: float) -> dict[QueueId, HotQueue]:
        log, queues = self._log, self._queues
        self.statistics.polls += 1
        log.check_identity()
        begun = log.tail.position
        schedule = self._schedule
        if self._all_is_wanted:
            self._all_is_wanted = False
            schedule.poll_now()
        if queues.take_doubt():
            schedule.poll_soon(now_s)
        is_due = schedule.is_full_poll_due(now_s)
        if is_due or log.has_news():
            log.scan(lambda: self._low)
        found = self._scan_queues(now_s) if is_due else {}
        self._note_growth(now_s)
        if is_due:
            self.statistics.troubles = self._troubles()
        polls_all = schedule.polls_all(now_s)
        named = schedule.named(now_s)
        if polls_all or named or queues.has_report:
            found |= queues.poll(self._moment(now_s), None if polls_all else named)
        changed = queues.publish(found)
        if is_due:  # only now: after a failure half way the next poll scans again at once
            self._known_position = begun
            self._low = self._first_needed()
            log.sync_pins(lambda: self._low)
        if polls_all:
            ended_s = now_s if self._clock is None else self._clock.monotonic_s()
            schedule.polled_all(now_s, ended_s, is_full=is_due)
        return changed

    def poll_all(self) -> None:
        """See `RocketMqHotLog.poll_all`. Never waits for a running poll."""
        self._all_is_wanted = True

    def has_news(self, now_s: float) -> bool:
        """Whether a poll may find something. One small read, no lock held."""
        return not self._schedule.is_settled(now_s) or self.has_more or self._log.has_news()

    @property
    def has_more(self) -> bool:
        """Whether a poll left a readable part of the CommitLog unread."""
        return isinstance(self._queues, LoggedQueues) and self._queues.has_more

    @property
    def is_of_log_alone(self) -> bool:
        """Whether the store has no ConsumeQueue files."""
        return isinstance(self._queues, LoggedQueues)

    @property
    def read_position(self) -> int:
        """End of the read part of the log of a store without ConsumeQueue files; 0 for others."""
        return self._queues.position if isinstance(self._queues, LoggedQueues) else 0

    def resume(self, remembered: Remembered) -> None:
        """Begin at the replay position. Before the first poll. See `RocketMqHotLog.resume`."""
        if isinstance(self._queues, LoggedQueues):
            self._queues.resume(remembered)

    def remembered(self) -> Remembered | None:
        """See `RocketMqHotLog.remembered`."""
        if not isinstance(self._queues, LoggedQueues):
            return None
        with self._lock:
            return self._queues.remembered()

    def references(self, queue: QueueId, start: QueueOffset, messages_max: int) -> Units:
        """See `FollowedQueues.references`."""
        return self._queues.references(queue, start, messages_max)

    def references_of_queues(self, wanted: Sequence[WantedUnits]) -> list[Units | StoreError]:
        """See `HotLog.references_of_queues`.

        Raises:
            Closed: the log was replaced.
        """
        answers: list[Units | StoreError] = []
        for one in wanted:
            try:
                answers.append(self._queues.references(*one))
            except Closed:
                raise
            except StoreError as error:
                answers.append(error)
        return answers

    def records(self, wanted: Sequence[Wanted]) -> list[MessageBatch | StoreError]:
        """See `HotLog.records`. Failures are reported to the next poll."""
        answers = gather_round(
            self._log.files,
            wanted,
            bytes_max=self._options.round_bytes_max,
            buffers=self._buffers,
        )
        for item, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Corrupt):
                self._queues.report_damage(item.queue, item.start, str(answer))
            elif isinstance(answer, Unavailable | Denied):
                self._queues.report(item.queue, item.start)
            elif self._options.checks_bodies and isinstance(answer, MessageBatch):
                self._bodies.verify(item, answer)
        self._log.check_identity()  # after the copy, to prove that it is of the followed log
        return answers

    def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Record that messages of `queue` below `offset` are tiered.

        The next scan drops their pins.
        """
        self._queues.release(queue, offset)

    def close(self) -> None:
        """Close files and mappings. Idempotent."""
        self._files.close()
        self._log.files.close()
        if isinstance(self._queues, LoggedQueues):
            self._queues.close()

    def _queues_of(self, topics: TopicFilter) -> FollowedQueues | LoggedQueues:
        layout, log, lock = self._layout, self._log, self._lock
        if self._options.queues_in_rocksdb or has_rocksdb_queues(layout):
            return LoggedQueues(log, layout, topics.excludes, self.statistics, lock)
        directories = QueueDirectories(layout, topics.excludes)
        return FollowedQueues(log, self._files, directories, self.statistics, lock)

    def _scan_queues(self, now_s: float) -> dict[QueueId, HotQueue]:
        position = self._log.tail.position
        has_grown = not self._schedule.is_settled(now_s) or self._scanned_position != position
        found = self._queues.scan(has_grown=has_grown)
        self._scanned_position = position
        return found

    def _note_growth(self, now_s: float) -> None:
        """Schedule polls of the queues of new records, or of all queues if those are unknown."""
        if isinstance(self._queues, LoggedQueues):
            if self._log.tail.has_grown(self._log.files):
                self._schedule.grew(now_s, None)
            return
        if not self._log.tail.reach(self._log.files, 0):
            return
        passed = self._log.tail.take_passed()
        named = {self._log.files.queue_of(*record) for record in passed.records}
        if not passed.is_all or None in named or self._options.replicated:
            self._schedule.grew(now_s, None)
            return
        queues = {queue for queue in named if queue is not None}
        self._schedule.grew(now_s, queues)
        if not all(self._queues.has(queue) for queue in queues):
            self._schedule.poll_soon(now_s)

    def _first_needed(self) -> int:
        # One file below the end before the directories were scanned: the unit of a record there may
        # not have been seen yet, nor the directory of its queue.
        return self._queues.first_needed(self._known_position - self._log.file_bytes)

    def _troubles(self) -> list[str]:
        """Return causes that prevent scans of topics, or of all if messages have no queue."""
        found = self._queues.found
        if isinstance(self._queues, LoggedQueues):
            return sorted(found.troubles)
        has_queues = found.queues or found.refused or found.excluded or found.troubles
        if has_queues or self._queues.has_deleted or self._log.is_empty:
            return sorted(found.troubles)
        return [NO_QUEUES.format(self._layout.consume_queue)]

    def _moment(self, now_s: float) -> PollTime:
        """Return the time of a poll, and the state of the broker."""
        confirmed = None
        if self._options.replicated:
            confirmed = confirmed_now(
                self._files,
                self._layout,
                hold_s=self._options.unconfirmed_s_max,
                now_ms=0 if self._clock is None else self._clock.now_ms(),
                last_ms=self._queues.newest_ms,
            )
        return PollTime(now_s, confirmed, not is_there(self._layout.abort))


T = TypeVar("T")
LOGGER = logging.getLogger("tieredstore.following")
REPORT_EVERY_S = 10.0


class RocketMqHotLog:
    """Follow reader of a Java broker's store directory, whether it runs, stopped or crashed.

    Implements `dispatcher.ports.HotLog`. Opens no file for writing and creates none in the
    directory. Calls that may touch a cold page run in a few threads. Cancelling a call leaves its
    thread to finish, without an effect for callers.
    """

    def __init__(
        self,
        scan: StoreScan,
        *,
        options: HotLogOptions,
        clock: Clock,
        executor: Executor,
        owned: ThreadPoolExecutor | None,
    ) -> None:
        self._scan = scan
        self._options = options
        self._clock = clock
        self._executor = executor
        self._owned = owned
        self._polling = asyncio.Lock()
        self._unreported: dict[QueueId, HotQueue] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<RocketMqHotLog {self._scan!r}{', closed' if self._closed else ''}>"

    @classmethod
    async def open(
        cls,
        store_dir: Path,
        *,
        options: HotLogOptions,
        clock: Clock,
        cluster: str,
        broker: str,
        topics: TopicFilter | None = None,
        executor: Executor | None = None,
    ) -> Self:
        """Find the store. The first `poll` reads its queues.

        Args:
            store_dir: the broker's `storePathRootDir`.
            options: options of following it.
            clock: time source of `poll` and `wait`.
            cluster: the broker's `brokerClusterName`; the topic of that name is not tiered.
            broker: its `brokerName`, likewise.
            topics: topics that the dispatcher never tiers; None: RocketMQ's rule. Such topics cost
                nothing here: their directories are not read and their messages not pinned.
            executor: threads for reads; None: own threads, which `close` ends.

        Raises:
            NotAStore: the directory holds no RocketMQ store that can be followed.
            Denied: the directory for pins is unsuitable, or something may not be read.
            Unavailable: something cannot be read right now.
        """
        owned = None
        if executor is None:
            executor = owned = ThreadPoolExecutor(options.threads, thread_name_prefix="hot-log")
        chosen = topics if topics is not None else TopicFilter(cluster, broker)
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(executor, StoreScan, store_dir, options, chosen, clock)
        opened = False
        try:
            scan = await opening
            opened = True
        finally:
            if owned is not None and not opened:
                owned.shutdown(wait=False)
        return cls(scan, options=options, clock=clock, executor=executor, owned=owned)

    @property
    def statistics(self) -> ScanStatistics:
        """Costs and findings of following so far."""
        return self._scan.statistics

    def check(self) -> None:
        """Assert the invariants that hold between two polls. For tests; blocks.

        Raises:
            AssertionError: one does not hold; it is named.
        """
        self._scan.check()

    async def poll(self) -> Sequence[HotQueue]:
        """Poll for new messages and new queues. Return the queues that changed since the last poll.

        Reads 8 bytes if nothing changed, else a unit for each queue. A cancelled poll loses
        nothing: the next one returns its changes, too.

        Raises:
            Unavailable, Denied: the log cannot be read right now.
            Closed: it was closed, or its CommitLog was replaced: open it again.
        """
        async with self._polling:
            await self._poll_to_end()
            changed, self._unreported = self._unreported, {}
            return list(changed.values())

    async def poll_again(self, queues: Collection[QueueId]) -> Sequence[HotQueue]:
        """Poll these queues without reusing earlier state; see `HotLog.poll_again`.

        Costs a first poll of these queues, and a `stat` of every topic. With pins it also scans the
        pinned files that lie below their ConsumeQueue files (see `units_in`).

        Raises:
            Unavailable, Denied, Closed: as `poll`.
        """
        async with self._polling:
            await self._do(lambda: self._poll_again(queues))
            return [seen for queue in queues if (seen := self.queue(queue)) is not None]

    def poll_all(self) -> None:
        """Make the next poll read all queues. Polls otherwise defer some queues to save time.

        Does not wait, even for a poll that hangs.
        """
        self._scan.poll_all()

    async def wait(self, seconds: float) -> None:
        """Wait until there may be new messages, for at most `seconds`.

        Writes through a mapping raise no inotify events, so this polls the CommitLog's end every
        `poll_s_max` seconds.

        Raises:
            Unavailable, Denied, Closed: as `poll`.
        """
        end_s = self._clock.monotonic_s() + seconds
        while True:
            left_s = end_s - self._clock.monotonic_s()
            await self._clock.sleep(min(left_s, self._options.poll_s_max))
            now_s = self._clock.monotonic_s()
            if now_s >= end_s or await self._do(lambda: self._scan.has_news(now_s)):  # noqa: B023 - awaited before now_s changes
                return

    def queues(self) -> Collection[QueueId]:
        """The queues as of the last poll."""
        return self._scan.queues.keys()

    def queue(self, queue: QueueId) -> HotQueue | None:
        """Return a queue as of the last poll; None if there is none of that name."""
        return self._scan.queues.get(queue)

    async def references(self, queue: QueueId, start: QueueOffset, *, messages_max: int) -> Units:
        """Return units of `[start, start + n)`, 1 <= n <= messages_max, with CommitLog positions.

        May end before `messages_max`, at a unit that cannot be right. Such a unit is returned
        alone.

        Raises:
            OutOfRange: `start` is not within the queue, or its files were deleted meanwhile.
            Corrupt: the ConsumeQueue file was truncated.
            Unavailable, Denied, Closed: as `poll`.
        """
        return await self._do(lambda: self._scan.references(queue, start, messages_max))

    async def references_of_queues(
        self, wanted: Sequence[WantedUnits]
    ) -> Sequence[Units | StoreError]:
        """Return units of several queues, read in one thread.

        Errors of `references` are results here.

        Raises:
            Closed: as `poll`.
        """
        return await self._do(lambda: self._scan.references_of_queues(wanted))

    async def records_of_round(
        self, wanted: Sequence[Wanted]
    ) -> Sequence[MessageBatch | StoreError]:
        """Copy and verify the records of all `wanted` in one thread; see `HotLog`.

        Takes at most `round_bytes_max` bytes in total, and at least one message of each queue. A
        queue with a Corrupt result is DAMAGED from the next poll on, if that record is at or above
        the released offset, so that it is still to be tiered.

        Raises:
            Closed: as `poll`.
        """
        return await self._do(lambda: self._scan.records(wanted))

    @property
    def is_of_log_alone(self) -> bool:
        """Whether the store has no ConsumeQueue files: queues are derived from the CommitLog."""
        return self._scan.is_of_log_alone

    async def read_ahead(self) -> None:
        """Do the work of a first poll: read a store without ConsumeQueue files to its end.

        That may take longer than the caller of a poll would wait. Does nothing for other stores.
        Logs its progress every `REPORT_EVERY_S` seconds.

        Raises:
            Unavailable, Denied, Closed: as `poll`; a later call continues from there.
        """
        if self.is_of_log_alone:
            async with self._polling:
                await self._poll_to_end()

    async def resume(self, remembered: Remembered) -> None:
        """Begin at the replay position of an earlier process. Before the first poll.

        Without it, the first poll of a store without ConsumeQueue files reads the whole CommitLog.
        The same happens if `remembered` does not fit the log. Does nothing for other stores.

        Args:
            remembered: the earlier result of `remembered`, if no message was removed from the tier
                since.
        """
        await self._do(lambda: self._scan.resume(remembered))

    async def remembered(self) -> Remembered | None:
        """Return the replay position, from which a later process can `resume`.

        None before the first poll, and for stores with ConsumeQueue files. Waits for a running
        poll.

        Raises:
            Closed: as `poll`.
        """
        return await self._do(self._scan.remembered)

    async def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Record that messages of `queue` below `offset` are durable in the tier.

        Their pins may be dropped.
        """
        self._scan.release(queue, offset)

    async def close(self) -> None:
        """Close files, mappings and own threads. Pins stay for the next start. Idempotent."""
        self._closed = True
        self._scan.close()
        if self._owned is not None:
            self._owned.shutdown(wait=False)

    async def _poll_to_end(self) -> None:
        """Poll until nothing is left unread, so that one poll covers the whole log."""
        await self._do(self._poll)
        reported_s = self._clock.monotonic_s()
        while self._scan.has_more:
            await self._do(self._poll)
            if self._clock.monotonic_s() - reported_s >= REPORT_EVERY_S:
                reported_s = self._clock.monotonic_s()
                at, end = self._scan.read_position, self._scan.log.table.end
                LOGGER.info("the CommitLog is read to find its queues: %d of %d bytes", at, end)

    def _poll(self) -> None:
        self._unreported |= self._scan.poll(self._clock.monotonic_s())

    def _poll_again(self, queues: Collection[QueueId]) -> None:
        self._unreported |= self._scan.poll_again(queues)

    async def _do(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise Closed("the hot log was closed", repr(self._scan))
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
