"""Gets runs: from the cache, from a read that is under way, or by a read of its own."""

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
from provider.disk_cache.use import cache_use
from provider.errors import Closed, Corrupt, OutOfRange
from provider.ranges import QueueOffset


class RunReads:
    """Owns the cache and the tasks that read, from `open` to `close`.

    Every read is one task, and continues when the calls that wait for it are cancelled.
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
        self._is_open = False
        self._runs_read = 0
        self._bytes_read = 0
        self._failed = 0
        self._prefetches = 0

    @property
    def is_open(self) -> bool:
        """Whether reads can begin."""
        return self._is_open

    async def open(self) -> None:
        """Begin to serve, once."""
        await self._group.__aenter__()
        self._is_open = True
        self._start(self._expire())

    async def close(self) -> None:
        """Cancel the reads and wait for their end; calls that wait for one get `Closed`.

        Idempotent.
        """
        if not self._is_open:
            return
        self._is_open = False
        for task in self._tasks:
            task.cancel()
        # Not told about the error of the caller's block, the group does not wrap it.
        await self._group.__aexit__(None, None, None)
        self._cache.clear()

    def forget(self, queue: QueueId) -> None:
        """Drop what is cached of a queue, and let no call join the reads of it under way."""
        self._cache.forget(queue)
        self._flights.forget(queue)

    def has_beyond(self, queue: QueueId, end: int) -> bool:
        """Whether offsets from `end` on were cached: if it is the queue's end, it went back."""
        return self._cache.end_seen(queue) > end

    def cached(self, key: CacheKey, offset: int, now_s: float) -> CachedRun | None:
        """The run that covers `offset` if it is cached, preferably one of all messages."""
        run = self._cache.find(key.whole, offset, now_s)
        if run is None and key.subscription is not None:
            run = self._cache.find(key, offset, now_s)
        return run

    async def run_at(
        self, queue: TierQueue, key: CacheKey, offset: int, end: int, *, messages: int
    ) -> CachedRun:
        """The run that covers `offset`.

        No request if it is cached or on its way, else one read of up to `messages` wanted ones
        of `[offset, end)`, which has no gap. Cancelling this does not stop a read.

        Raises:
            Closed: the fetcher was closed.
            And what `load_runs` raises.
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
                flight = self._begin_demand(queue, key, offset, end, messages)
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
        """Whether another read ahead may begin now."""
        return self._is_open and self._flights.ahead < self._options.prefetches_max

    @property
    def room_bytes(self) -> int:
        """Bytes that reading ahead may still take: half of the cache, less what is unread."""
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
        """Begin to read `[start, end)` before `position` comes there. Returns at once."""
        self._prefetches += 1
        position.reading_ahead(end)
        self._begin(queue, Flight(key, start, end, position), messages)

    def frontier(self, key: CacheKey, offset: int, far: int) -> int:
        """How far from `offset` on all is cached or on its way, up to about `far`."""
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
        """The fields of `FetcherStatistics` that are about reads and the cache."""
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
        """The read under way that covers `offset`, preferably one of all messages."""
        whole = key.whole
        return self._flights.find(whole, offset) or self._flights.find(key, offset)

    def _begin(self, queue: TierQueue, flight: Flight, messages: int) -> Flight:
        """Start a read that ends where something cached, or another read, begins."""
        start = flight.start
        for key in (flight.key, flight.key.whole):
            for known in (self._cache.next_first(key, start), self._flights.next_start(key, start)):
                if known is not None:
                    flight.end = min(flight.end, known)
        flight.log_start = self._log_position(queue, flight.key, start)
        self._flights.begin(flight)
        self._start(self._fly(queue, flight, messages))
        return flight

    def _begin_demand(
        self, queue: TierQueue, key: CacheKey, start: int, end: int, messages: int
    ) -> Flight:
        """Start what a call waits for: one read, or two side by side where an object ends."""
        cut = end
        if key.subscription is None and self._options.cache_enabled:
            cut = self._large_object_end(queue, key, start, end)
        flight = self._begin(queue, Flight(key, start, cut), messages)
        is_there = self._cache.end_of(key, cut) is not None or self._flight_at(key, cut)
        if cut < end and not is_there:
            self._begin(queue, Flight(key, cut, end), messages)
        return flight

    def _large_object_end(self, queue: TierQueue, key: CacheKey, start: int, end: int) -> int:
        """The last place in `(start, end)` where an object ends behind many bytes; else `end`.

        A read that ends there asks for units and records at once.
        """
        ends = queue.object_ends(QueueOffset(start), QueueOffset(end))
        before = self._log_position(queue, key, start)
        behind = queue.log_position(ends[-1]) if ends else None
        if before is None or behind is None or behind - before < ALONE_BYTES_MIN:
            return end
        return ends[-1]

    def _log_position(self, queue: TierQueue, key: CacheKey, offset: int) -> int | None:
        """Where in the log a message begins, by the metadata or by the run before it."""
        position = queue.log_position(QueueOffset(offset))
        return self._cache.log_end_before(key, offset) if position is None else position

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fly(self, queue: TierQueue, flight: Flight, messages: int) -> None:
        """Carry out one read; its outcome is left in the flight for the calls that wait."""
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
        try:  # whoever has bytes has messages, so that nobody waits for what one has who waits
            runs = await self._verified(queue, flight, messages)
        finally:
            self._messages.release(granted)
        if queue.generation != flight.key.generation:
            raise OutOfRange("the queue was cut while it was read", f"{queue.id}", flight.start)
        return runs

    async def _verified(
        self, queue: TierQueue, flight: Flight, messages: int
    ) -> tuple[CachedRun, ...]:
        """The runs of a flight, with one more try past caches if a cache served damage.

        Caches on disk keep what was read only if it was verified and all of it is sound.
        """
        with cache_use() as use:

            async def load() -> tuple[CachedRun, ...]:
                return await load_runs(
                    queue, flight, messages_max=messages, options=self._options, budget=self._budget
                )

            try:
                runs = await load()
            except Corrupt:
                if not use.was_used or use.is_past:
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
        now_s = self._clock.monotonic_s()
        for run in flight.runs:
            _shrink_windows(self._cache.add(run, now_s), now_s)

    async def _expire(self) -> None:
        """Drop old runs also while there are no calls."""
        while True:
            await self._clock.sleep(max(self._options.cache_age_s_max / 2, 0.1))
            now_s = self._clock.monotonic_s()
            _shrink_windows(self._cache.expire(now_s), now_s)


def _shrink_windows(wasted: list[CachedRun], now_s: float) -> None:
    """Halve the windows of the groups for which these runs were read in vain."""
    for run in wasted:
        if run.ahead_of is not None:
            run.ahead_of.shrink(now_s)
