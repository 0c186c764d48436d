"""A hot log that another process writes: the store directory of a RocketMQ broker."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.unit import Units
from dispatcher.ports import HotQueue, Wanted, WantedUnits
from dispatcher.topic_filter import TopicFilter
from provider.clock import Clock
from provider.errors import Closed, StoreError
from provider.ranges import QueueOffset
from tieredstore.following.options import HotLogOptions
from tieredstore.following.reput.remembered import Remembered
from tieredstore.following.statistics import ScanStatistics
from tieredstore.following.store_scan import StoreScan

T = TypeVar("T")
LOGGER = logging.getLogger("tieredstore.following")
TOLD_EVERY_S = 10.0


class RocketMqHotLog:
    """Follows a Java broker's store directory, whether the broker runs, stopped or crashed.

    Implements `dispatcher.ports.HotLog`. Opens nothing for writing and creates nothing in the
    directory. Everything that may touch a cold page runs in a few threads; cancelling a call
    leaves its thread to finish, which changes nothing that a caller sees.
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
        """Find the store; the first `poll` looks at its queues.

        Args:
            store_dir: the broker's `storePathRootDir`.
            options: how to follow it.
            clock: what `poll` and `wait` measure time by.
            cluster: the broker's `brokerClusterName`; the topic of that name is not tiered.
            broker: its `brokerName`, likewise.
            topics: what the dispatcher never tiers, RocketMQ's rule if None. Such topics cost
                nothing here: their directories are not read and their messages not pinned.
            executor: threads to work in; own ones, which `close` ends, if None.

        Raises:
            NotAStore: the directory holds no RocketMQ store that can be followed.
            Denied: the place for pins does not do, or something may not be read.
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
        """What following cost and found so far."""
        return self._scan.statistics

    def check(self) -> None:
        """Assert the invariants that hold between two polls. For tests; blocks.

        Raises:
            AssertionError: one does not hold; it is named.
        """
        self._scan.check()

    async def poll(self) -> Sequence[HotQueue]:
        """Look for new messages and new queues; returns the queues that changed since last time.

        8 bytes are read when nothing happened; else a unit for each queue. A poll that is
        cancelled loses nothing: the next one returns its changes too.

        Raises:
            Unavailable, Denied: the log cannot be read right now.
            Closed: it was closed, or its CommitLog was replaced: open it again.
        """
        async with self._polling:
            await self._poll_to_end()
            changed, self._unreported = self._unreported, {}
            return list(changed.values())

    async def look_anew(self, queues: Collection[QueueId]) -> Sequence[HotQueue]:
        """What there is of these queues by a look that keeps nothing; see `HotLog.look_anew`.

        Costs a first look at these queues, and a `stat` of every topic; with pins a walk through
        the pinned files that lie below their ConsumeQueue files (see `units_in`).

        Raises:
            Unavailable, Denied, Closed: as `poll`.
        """
        async with self._polling:
            await self._do(lambda: self._look_anew(queues))
            return [seen for queue in queues if (seen := self.queue(queue)) is not None]

    def look_at_all(self) -> None:
        """Let the next poll see all that is there; polls leave queues to later ones to save time.

        Waits for nothing, also where a poll does not come back.
        """
        self._scan.look_at_all()

    async def wait(self, seconds: float) -> None:
        """Return when there may be something new, or after `seconds`, whichever is first.

        Writes through a mapping raise no inotify events, so this looks at the CommitLog's end
        every `poll_s_max` seconds.

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

    def queue(self, queue: QueueId) -> HotQueue | None:
        """What the last poll saw of one queue; None if there is none of that name."""
        return self._scan.queues.get(queue)

    async def references(self, queue: QueueId, start: QueueOffset, *, messages_max: int) -> Units:
        """Units of `[start, start + n)`, 1 <= n <= messages_max; positions are the CommitLog's.

        May end before `messages_max`: at a unit that cannot be right, which then comes alone.

        Raises:
            OutOfRange: `start` is not within the queue, or its files were deleted meanwhile.
            Corrupt: the ConsumeQueue file was truncated.
            Unavailable, Denied, Closed: as `poll`.
        """
        return await self._do(lambda: self._scan.references(queue, start, messages_max))

    async def references_of_queues(
        self, wanted: Sequence[WantedUnits]
    ) -> Sequence[Units | StoreError]:
        """Units of several queues in one thread; what `references` raises is an answer here.

        Raises:
            Closed: as `poll`.
        """
        return await self._do(lambda: self._scan.references_of_queues(wanted))

    async def records_of_round(
        self, wanted: Sequence[Wanted]
    ) -> Sequence[MessageBatch | StoreError]:
        """Copy and verify the records of all `wanted` in one thread; see `HotLog`.

        Takes `round_bytes_max` bytes at most over all, and at least one message of each. A queue
        answered by Corrupt is DAMAGED from the next poll on if that record is at or above the
        released offset: still to be tiered.

        Raises:
            Closed: as `poll`.
        """
        return await self._do(lambda: self._scan.records(wanted))

    @property
    def is_of_log_alone(self) -> bool:
        """Whether queues are made from the CommitLog, for the store has no ConsumeQueue files."""
        return self._scan.is_of_log_alone

    async def read_ahead(self) -> None:
        """Do what a first poll has to: a store without ConsumeQueue files is read to its end.

        That may take long, and whoever waits for a poll may have less patience. For other stores
        nothing is done. Says every `TOLD_EVERY_S` how far it is.

        Raises:
            Unavailable, Denied, Closed: as `poll`, which goes on there.
        """
        if self.is_of_log_alone:
            async with self._polling:
                await self._poll_to_end()

    async def resume(self, remembered: Remembered) -> None:
        """Begin where an earlier process came to; before the first poll.

        Else a store without ConsumeQueue files has its whole CommitLog read at the first poll; so
        it is where `remembered` does not fit the log. Does nothing for other stores.

        Args:
            remembered: what `remembered` returned then, if no message was taken out of the tier
                since.
        """
        await self._do(lambda: self._scan.resume(remembered))

    async def remembered(self) -> Remembered | None:
        """What spares a later process to read the CommitLog from its beginning; see `resume`.

        None before the first poll, and where queues have files. Blocks on polls.

        Raises:
            Closed: as `poll`.
        """
        return await self._do(self._scan.remembered)

    async def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Everything of `queue` below `offset` is durable in the tier: its pins may go."""
        self._scan.release(queue, offset)

    async def close(self) -> None:
        """Close files, mappings and own threads; pins stay for the next start. Idempotent."""
        self._closed = True
        self._scan.close()
        if self._owned is not None:
            self._owned.shutdown(wait=False)

    async def _poll_to_end(self) -> None:
        """Poll until nothing is left unread: what there is belongs to one poll, however much."""
        await self._do(self._poll)
        told_s = self._clock.monotonic_s()
        while self._scan.has_more:
            await self._do(self._poll)
            if self._clock.monotonic_s() - told_s >= TOLD_EVERY_S:
                told_s = self._clock.monotonic_s()
                at, end = self._scan.read_position, self._scan.log.table.end
                LOGGER.info("the CommitLog is read to find its queues: %d of %d bytes", at, end)

    def _poll(self) -> None:
        self._unreported |= self._scan.poll(self._clock.monotonic_s())

    def _look_anew(self, queues: Collection[QueueId]) -> None:
        self._unreported |= self._scan.look_anew(queues)

    async def _do(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise Closed("the hot log was closed", repr(self._scan))
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
