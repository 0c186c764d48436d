"""Gets runs: from the cache, from a read that is under way, or by a read of its own."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Self

from container.names.queue_id import QueueId
from fetcher.loading import load_run
from fetcher.options import FetcherOptions
from fetcher.run import Run
from fetcher.run_cache import Lane, RunCache
from fetcher.single_flight import Flight, Flights, ReadBudget
from fetcher.source import TierQueue
from fetcher.window import WindowLimits
from provider.clock import Clock
from provider.errors import Closed, OutOfRange


class RunReads:
    """Owns the cache and the tasks that read, from `async with` to its end.

    Every read is one task here and goes on when those who wait for it are cancelled; leaving the
    block cancels the reads and waits for their end, and those who wait get `Closed`.
    """

    def __init__(self, *, options: FetcherOptions, limits: WindowLimits, clock: Clock) -> None:
        self._options = options
        self._limits = limits
        self._clock = clock
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._demands = asyncio.Semaphore(options.demands_max)
        self.cache = RunCache(
            bytes_max=options.cache_bytes_max if options.cache_enabled else 0,
            age_s_max=options.cache_age_s_max,
        )
        self.flights = Flights()
        self.budget = ReadBudget(options.bytes_in_flight_max)
        self.is_open = False
        self.runs_read = 0
        self.bytes_read = 0
        self.failed = 0
        self.prefetches = 0

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self.is_open = True
        self._start(self._expire())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.is_open = False
        for task in self._tasks:
            task.cancel()
        # Not told about the block's own error, the group does not wrap it.
        await self._group.__aexit__(None, None, None)
        self.cache.clear()

    def forget(self, queue: QueueId) -> None:
        """Drop what is cached of a queue, and let nobody join the reads under way of it."""
        self.cache.forget(queue)
        self.flights.forget(queue)

    def cached(self, lane: Lane, offset: int, now_s: float) -> Run | None:
        """The run that covers `offset` if it is there, preferably one of all messages."""
        run = self.cache.find(Lane(lane.queue, None), offset, now_s)
        if run is None and lane.subscription is not None:
            run = self.cache.find(lane, offset, now_s)
        return run

    async def run_at(
        self, queue: TierQueue, lane: Lane, offset: int, end: int, *, messages: int
    ) -> Run:
        """The run that covers `offset`.

        No request if it is cached or on its way, else one read of up to `messages` wanted ones
        of `[offset, end)`, which has no gap. Cancelling this does not stop a read.

        Raises:
            Closed: the fetcher was closed.
            And what `load_run` raises.
        """
        while True:
            now_s = self._clock.monotonic_s()
            run = self.cached(lane, offset, now_s)
            if run is not None:
                return run
            if not self.is_open:
                raise Closed("the fetcher is not open", f"{lane.queue}", offset)
            whole = Lane(lane.queue, None)
            flight = self.flights.find(whole, offset) or self.flights.find(lane, offset)
            was_ahead = flight is not None and flight.reader is not None
            if flight is None:
                flight = self._begin(queue, Flight(lane, offset, end), messages)
            flight.is_wanted = True
            await flight.done.wait()
            run = flight.run
            if flight.is_stale:
                raise OutOfRange("the queue was replaced meanwhile", f"{lane.queue}", offset)
            if run is not None and offset < run.end:
                self.cached(lane, offset, now_s)
                return run
            if flight.error is not None and not was_ahead:
                raise flight.error

    def read_ahead(self, queue: TierQueue, flight: Flight, *, messages: int) -> None:
        """Begin to read before anybody asks. Returns at once."""
        assert flight.reader is not None, "somebody's window is the reason for it"
        self.prefetches += 1
        flight.reader.ahead_until = flight.end
        self._begin(queue, flight, messages)

    def frontier(self, lane: Lane, offset: int, far: int) -> int:
        """How far from `offset` on all is cached or on its way, looking no farther than `far`."""
        whole = Lane(lane.queue, None)
        at = offset
        while at < far:
            end = self.cache.end_of(whole, at) or self.cache.end_of(lane, at)
            if end is None:
                flight = self.flights.find(whole, at) or self.flights.find(lane, at)
                if flight is None:
                    break
                end = flight.end
            at = end
        return at

    def _begin(self, queue: TierQueue, flight: Flight, messages: int) -> Flight:
        """Start a read that ends where something cached, or another read, begins."""
        start = flight.start
        for lane in (flight.lane, Lane(flight.lane.queue, None)):
            for known in (self.cache.next_first(lane, start), self.flights.next_start(lane, start)):
                if known is not None:
                    flight.end = min(flight.end, known)
        self.flights.begin(flight)
        self._start(self._fly(queue, flight, messages))
        return flight

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fly(self, queue: TierQueue, flight: Flight, messages: int) -> None:
        """Carry out one read; whatever comes of it is left in the flight for those who wait."""
        try:
            if flight.reader is not None:
                flight.run = await self._load(queue, flight, messages)
            else:
                async with self._demands:
                    flight.run = await self._load(queue, flight, messages)
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for the flight
            flight.error = error
            self.failed += 1
            if flight.reader is not None:
                flight.reader.shrink(self._limits, self._clock.monotonic_s())
        else:
            self._keep(flight, flight.run)
        finally:
            if flight.run is None and flight.error is None:
                flight.error = Closed(
                    "the fetcher was closed", f"{flight.lane.queue}", flight.start
                )
            self.flights.end(flight)

    async def _load(self, queue: TierQueue, flight: Flight, messages: int) -> Run:
        return await load_run(
            queue, flight, messages_max=messages, options=self._options, budget=self.budget
        )

    def _keep(self, flight: Flight, run: Run) -> None:
        self.runs_read += 1
        self.bytes_read += len(run.data)
        if flight.reader is not None:
            flight.reader.ahead_until = min(flight.reader.ahead_until, int(run.end))
        if flight.is_stale:
            return
        lane = Lane(flight.lane.queue, None) if run.is_whole else flight.lane
        now_s = self._clock.monotonic_s()
        self._shrink_for(self.cache.add(lane, run, now_s), now_s)

    def _shrink_for(self, wasted: list[Run], now_s: float) -> None:
        for run in wasted:
            if run.reader is not None:
                run.reader.shrink(self._limits, now_s)

    async def _expire(self) -> None:
        """Drop old runs also when nobody calls."""
        while True:
            await self._clock.sleep(max(self._options.cache_age_s_max / 2, 0.1))
            now_s = self._clock.monotonic_s()
            self._shrink_for(self.cache.expire(now_s), now_s)
