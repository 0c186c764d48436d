"""Source of runs: the cache, a read under way, or a new read."""

import asyncio
from collections.abc import Coroutine

from container.names.queue_id import QueueId
from fetcher.loading import load_runs
from fetcher.options import FetcherOptions
from fetcher.plan import ALONE_BYTES_MIN
from fetcher.run_cache import CachedRun, CacheKey, RunCache
from fetcher.single_flight import Flight, Flights, ReadBudget
from fetcher.source import TierQueue
from fetcher.window import GroupPosition
from provider.clock import Clock
from provider.disk_cache.use import Unconfirmed, cache_use
from provider.errors import Closed, Corrupt, OutOfRange
from provider.ranges import QueueOffset


class RunReads:
    """Owner of the cache and of the tasks that read, from `open` to `close`.

    Every read is one task. It continues if the calls that wait for it are cancelled.
    """

    def __init__(self, options: FetcherOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._demands = asyncio.Semaphore(options.demands_max)
        self._cache = RunCache(
            bytes_max=options.cache_bytes_max if options.cache_enabled else 0,
            age_s_max=options.cache_age_s_max,
        )
        self._flights = Flights()
        self._budget = ReadBudget(options.bytes_in_flight_max)
        self._messages = ReadBudget(options.messages_in_flight_max)
        self._doubted: dict[QueueId, int] = {}
        """Offset of the damaged message before which the last read of a queue ended. A read from
        there on verifies the whole extent again, which it would else have in part."""
        self._is_open = False
        self._runs_read = 0
        self._bytes_read = 0
        self._failed = 0
        self._prefetches = 0

    @property
    def is_open(self) -> bool:
        """Whether reads can start."""
        return self._is_open

    async def open(self) -> None:
        """Start the task group and the expiry of old runs. Can be called once."""
        await self._group.__aenter__()
        self._is_open = True
        self._start(self._expire())

    async def close(self) -> None:
        """Cancel the reads and wait for their end. Calls that wait for a read raise `Closed`.

        Idempotent.
        """
        if not self._is_open:
            return
        self._is_open = False
        for task in self._tasks:
            task.cancel()
        # Without arguments, the group does not wrap an error of the caller's block.
        await self._group.__aexit__(None, None, None)
        self._cache.clear()

    def forget(self, queue: QueueId) -> None:
        """Drop the cached runs of a queue. No later call joins a read of it under way."""
        self._cache.forget(queue)
        self._flights.forget(queue)
        self._doubted.pop(queue, None)

    def has_beyond(self, queue: QueueId, end: int) -> bool:
        """Whether offsets from `end` on were cached.

        If `end` is the present end of the queue, its tail was truncated.
        """
        return self._cache.end_seen(queue) > end

    def cached(self, key: CacheKey, offset: int, now_s: float) -> CachedRun | None:
        """Return the cached run that covers `offset`, preferably one of all messages; or None."""
        run = self._cache.find(key.whole, offset, now_s)
        if run is None and key.subscription is not None:
            run = self._cache.find(key, offset, now_s)
        return run

    async def run_at(
        self,
        queue: TierQueue,
        key: CacheKey,
        offset: int,
        end: int,
        *,
        messages: int,
        is_sequential: bool = False,
    ) -> CachedRun:
        """Return the run that covers `offset`.

        Costs no request if the run is cached or being read. Otherwise starts one read of up to
        `messages` wanted messages of `[offset, end)`, which must have no gap. Cancelling does not
        stop a read.

        Raises:
            Closed: the fetcher was closed.
            OutOfRange: the queue was forgotten or truncated meanwhile.
            StoreError: as `load_runs`.
        """
        while True:
            now_s = self._clock.monotonic_s()
            run = self.cached(key, offset, now_s)
            if run is not None:
                return run
            if not self._is_open:
                raise Closed("the fetcher is not open", f"{key.queue}", offset)
            flight = self._flight_at(key, offset)
            was_ahead = flight is not None and flight.ahead_of is not None
            if flight is None:
                flight = self._begin_demand(
                    queue, key, offset, end, messages, is_sequential=is_sequential
                )
            flight.is_wanted = True
            await flight.done.wait()
            run = flight.run_at(offset)
            if flight.is_stale:
                raise OutOfRange("the queue was replaced meanwhile", f"{key.queue}", offset)
            if run is not None:
                self.cached(key, offset, now_s)
                return run
            if flight.error is not None and not was_ahead:
                raise flight.error

    @property
    def may_read_ahead(self) -> bool:
        """Whether another read-ahead may start now."""
        return self._is_open and self._flights.ahead < self._options.prefetches_max

    @property
    def room_bytes(self) -> int:
        """Bytes left for read-ahead: half of the cache, minus unread runs and bytes in flight."""
        unread = self._cache.unread_bytes + self._budget.in_use
        return self._options.cache_bytes_max // 2 - unread

    def read_ahead(
        self,
        queue: TierQueue,
        key: CacheKey,
        start: int,
        end: int,
        position: GroupPosition,
        *,
        messages: int,
    ) -> None:
        """Start to read `[start, end)` ahead of `position`. Returns at once."""
        self._prefetches += 1
        position.reading_ahead(end)
        self._begin(queue, Flight(key, start, end, position), messages)

    def frontier(self, key: CacheKey, offset: int, far: int) -> int:
        """Return the offset up to which all from `offset` on is cached or being read.

        Stops at the first run that ends at or after `far`.
        """
        whole = key.whole
        at = offset
        while at < far:
            end = self._cache.end_of(whole, at) or self._cache.end_of(key, at)
            if end is None:
                flight = self._flight_at(key, at)
                if flight is None:
                    break
                end = flight.end
            at = end
        return at

    def counts(self) -> dict[str, int]:
        """Return the fields of `FetcherStatistics` for reads and the cache."""
        return {
            "runs_read": self._runs_read,
            "bytes_read": self._bytes_read,
            "reads_failed": self._failed,
            "prefetches": self._prefetches,
            "prefetches_used": self._cache.prefetches_used,
            "prefetches_wasted": self._cache.prefetches_wasted,
            "runs_held": len(self._cache),
            "bytes_held": self._cache.bytes_held,
            "unread_bytes": self._cache.unread_bytes,
            "reads_in_flight": len(self._flights),
            "bytes_in_flight": self._budget.in_use,
        }

    def check(self) -> None:
        """Assert the invariants of the cache and of the reads under way; for tests."""
        self._cache.check()
        self._flights.check()
        self._budget.check()
        self._messages.check()
        assert self._flights.ahead <= self._options.prefetches_max

    def _flight_at(self, key: CacheKey, offset: int) -> Flight | None:
        """Return the read under way that covers `offset`, preferably one of all messages."""
        whole = key.whole
        return self._flights.find(whole, offset) or self._flights.find(key, offset)

    def _begin(self, queue: TierQueue, flight: Flight, messages: int) -> Flight:
        """Start a read. It ends before the next cached run and the next read under way."""
        start = flight.start
        for key in (flight.key, flight.key.whole):
            for known in (self._cache.next_first(key, start), self._flights.next_start(key, start)):
                if known is not None:
                    flight.end = min(flight.end, known)
        flight.log_start = self._log_position(queue, flight.key, start)
        flight.reads_whole = self._doubted.get(queue.id) == start or self._is_first(flight)
        self._flights.begin(flight)
        self._start(self._fly(queue, flight, messages))
        return flight

    def _is_first(self, flight: Flight) -> bool:
        """Whether a sequential reader begins here, perhaps inside an extent. Not with tags.

        A read of certain messages would take a whole extent for each of them.
        """
        if not flight.is_sequential or flight.ahead_of is not None:
            return False
        key, before = flight.key, flight.start - 1
        if key.subscription is not None or self._cache.end_of(key, before) is not None:
            return False
        return self._flight_at(key, before) is None

    def _begin_demand(
        self,
        queue: TierQueue,
        key: CacheKey,
        start: int,
        end: int,
        messages: int,
        *,
        is_sequential: bool,
    ) -> Flight:
        """Start a demand read, or two concurrent ones if a large object ends in the range."""
        cut = end
        if key.subscription is None and self._options.cache_enabled:
            cut = self._large_object_end(queue, key, start, end)
        flight = self._begin(queue, Flight(key, start, cut, is_sequential=is_sequential), messages)
        is_there = self._cache.end_of(key, cut) is not None or self._flight_at(key, cut)
        if cut < end and not is_there:
            self._begin(queue, Flight(key, cut, end, is_sequential=is_sequential), messages)
        return flight

    def _large_object_end(self, queue: TierQueue, key: CacheKey, start: int, end: int) -> int:
        """Return the last end of an object in `(start, end)` that is far enough; else `end`.

        "Far enough" is `ALONE_BYTES_MIN` bytes of the log after `start`. A read that ends with an
        object requests units and records in one round.
        """
        ends = queue.object_ends(QueueOffset(start), QueueOffset(end))
        first = self._log_position(queue, key, start)
        last = queue.log_position(ends[-1]) if ends else None
        if first is None or last is None or last - first < ALONE_BYTES_MIN:
            return end
        return ends[-1]

    def _log_position(self, queue: TierQueue, key: CacheKey, offset: int) -> int | None:
        """Return the log position of a message, from the metadata or the run before it; or None."""
        position = queue.log_position(QueueOffset(offset))
        return self._cache.log_end_before(key, offset) if position is None else position

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fly(self, queue: TierQueue, flight: Flight, messages: int) -> None:
        """Run one read, and store its outcome in the flight for the waiting calls."""
        try:
            if flight.ahead_of is not None:
                flight.runs = await self._load(queue, flight, messages)
            else:
                async with self._demands:
                    flight.runs = await self._load(queue, flight, messages)
        except Exception as error:  # noqa: BLE001 - raised by the calls that wait for the flight
            flight.error = error
            self._failed += 1
            if flight.ahead_of is not None:
                flight.ahead_of.shrink(self._clock.monotonic_s())
        else:
            self._keep(flight)
        finally:
            if not flight.runs and flight.error is None:
                flight.error = Closed("the fetcher was closed", f"{flight.key.queue}", flight.start)
            self._flights.end(flight)

    async def _load(self, queue: TierQueue, flight: Flight, messages: int) -> tuple[CachedRun, ...]:
        granted = await self._messages.acquire(flight, flight.end - flight.start)
        try:  # always acquire messages before bytes: a fixed order rules out a deadlock
            runs = await self._verified(queue, flight, messages)
        finally:
            self._messages.release(granted)
        if queue.generation != flight.key.generation:
            raise OutOfRange("the queue was cut while it was read", f"{queue.id}", flight.start)
        return runs

    async def _verified(
        self, queue: TierQueue, flight: Flight, messages: int
    ) -> tuple[CachedRun, ...]:
        """Load the runs of a flight; retry once past caches if a cache returned damaged bytes.

        Disk caches keep the bytes of this read only if all of them passed verification. With
        `keeps_extents` the retry also follows a wrong checksum of an extent: what arrived wrong
        once may arrive right, and else the records decide.
        """
        with cache_use(confirms=self._options.keeps_extents) as use:

            async def load() -> tuple[CachedRun, ...]:
                return await load_runs(
                    queue, flight, messages_max=messages, options=self._options, budget=self._budget
                )

            try:
                runs = await load()
            except (Corrupt, Unconfirmed) as error:
                if isinstance(error, Corrupt) and (not use.was_used or use.is_past):
                    raise
                use.is_past = True
                return await load()
            if self._options.verify:
                await use.keep()
            return runs

    def _keep(self, flight: Flight) -> None:
        self._runs_read += len(flight.runs)
        self._bytes_read += sum(len(run.data) for run in flight.runs)
        if flight.ahead_of is not None:
            flight.ahead_of.has_read_ahead(flight.runs[-1].end)
        if flight.is_stale:
            return
        queue = flight.key.queue
        if self._doubted.get(queue) == flight.start:
            del self._doubted[queue]
        if flight.ends_with_fault:
            self._doubted[queue] = flight.end
        now_s = self._clock.monotonic_s()
        for run in flight.runs:
            _shrink_windows(self._cache.add(run, now_s), now_s)

    async def _expire(self) -> None:
        """Drop old runs periodically, also without calls."""
        while True:
            await self._clock.sleep(max(self._options.cache_age_s_max / 2, 0.1))
            now_s = self._clock.monotonic_s()
            _shrink_windows(self._cache.expire(now_s), now_s)


def _shrink_windows(wasted: list[CachedRun], now_s: float) -> None:
    """Halve the windows of the groups for which these unused runs were read ahead."""
    for run in wasted:
        if run.ahead_of is not None:
            run.ahead_of.shrink(now_s)
