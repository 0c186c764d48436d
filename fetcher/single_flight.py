"""Reads under way: one for each run, whoever asks; who waits for one does not own it."""

import asyncio
from collections import defaultdict

from container.names.queue_id import QueueId
from fetcher.read_ahead import Reader
from fetcher.run import Run
from fetcher.run_cache import Lane


class Flight:
    """One read of `[start, end)` of a lane; `end` may come out lower once the sizes are known."""

    __slots__ = ("done", "end", "error", "is_stale", "is_wanted", "lane", "reader", "run", "start")

    def __init__(self, lane: Lane, start: int, end: int, reader: Reader | None = None) -> None:
        """`reader`: for whom it is read ahead; None if somebody waits for it from the start."""
        self.lane = lane
        self.start = start
        self.end = end
        self.reader = reader
        self.is_wanted = reader is None
        """Somebody waits for it, perhaps only since it was begun."""
        self.is_stale = False
        """The queue was forgotten meanwhile: the outcome is of no use."""
        self.run: Run | None = None
        self.error: Exception | None = None
        self.done = asyncio.Event()

    def __repr__(self) -> str:
        kind = "wanted" if self.is_wanted else "ahead"
        return f"<Flight {self.lane.queue} [{self.start}, {self.end}) {kind}>"


class Flights:
    """All reads under way. A look-up is linear in the few reads of one lane."""

    def __init__(self) -> None:
        self._by_lane: dict[Lane, list[Flight]] = {}
        self._ahead = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def ahead(self) -> int:
        """How many were begun for nobody who waits."""
        return self._ahead

    def begin(self, flight: Flight) -> None:
        """Make a read findable."""
        self._by_lane.setdefault(flight.lane, []).append(flight)
        self._count += 1
        self._ahead += flight.reader is not None

    def end(self, flight: Flight) -> None:
        """Wake who waits. The flight's outcome must be set."""
        flights = self._by_lane.get(flight.lane, [])
        if flight in flights:
            flights.remove(flight)
            if not flights:
                del self._by_lane[flight.lane]
        self._count -= 1
        self._ahead -= flight.reader is not None
        flight.done.set()

    def forget(self, queue: QueueId) -> None:
        """Let nobody find the reads of a queue any more; they end for themselves."""
        for lane in [lane for lane in self._by_lane if lane.queue == queue]:
            for flight in self._by_lane.pop(lane):
                flight.is_stale = True

    def find(self, lane: Lane, offset: int) -> Flight | None:
        """The read under way that will cover `offset`."""
        for flight in self._by_lane.get(lane, ()):
            if flight.start <= offset < flight.end:
                return flight
        return None

    def next_start(self, lane: Lane, offset: int) -> int | None:
        """Where the next read under way behind `offset` begins."""
        starts = (one.start for one in self._by_lane.get(lane, ()) if one.start > offset)
        return min(starts, default=None)


class ReadBudget:
    """Bytes that may be read at once, demand first.

    A read that is larger than everything takes everything. Cancelling a wait gives up its place.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes_free = bytes_max
        self._waiting: dict[asyncio.Event, tuple[Flight, int]] = {}

    @property
    def bytes_in_use(self) -> int:
        """Bytes granted and not given back."""
        return self._bytes_max - self._bytes_free

    async def acquire(self, flight: Flight, wanted_bytes: int) -> int:
        """Wait for room; returns the bytes to give back."""
        count = min(wanted_bytes, self._bytes_max)
        if not self._waiting and count <= self._bytes_free:
            self._bytes_free -= count
            return count
        granted = asyncio.Event()
        self._waiting[granted] = (flight, count)
        try:
            await granted.wait()
        except asyncio.CancelledError:
            if self._waiting.pop(granted, None) is None:
                self._bytes_free += count
            self._grant()
            raise
        return count

    def release(self, count: int) -> None:
        """Give back what `acquire` returned."""
        self._bytes_free += count
        self._grant()

    def _grant(self) -> None:
        """Let in those who wait, demand before read-ahead, else in order of arrival."""
        ranks: defaultdict[bool, list[asyncio.Event]] = defaultdict(list)
        for granted, (flight, _) in self._waiting.items():
            ranks[flight.is_wanted].append(granted)
        for granted in ranks[True] + ranks[False]:
            count = self._waiting[granted][1]
            if count > self._bytes_free:
                return
            del self._waiting[granted]
            self._bytes_free -= count
            granted.set()
