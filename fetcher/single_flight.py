"""Reads under way: one for each run, shared by all calls that wait for it and owned by none."""

import asyncio
from collections import defaultdict
from itertools import chain, pairwise

from container.names.queue_id import QueueId
from fetcher.run_cache import CachedRun, CacheKey
from fetcher.window import GroupPosition


class Flight:
    """Read of `[start, end)` of a key. `end` may become lower once the sizes are known."""

    __slots__ = (
        "ahead_of", "done", "end", "ends_with_fault", "error", "is_sequential", "is_stale",
        "is_wanted", "key", "log_start", "reads_whole", "runs", "start",
    )  # fmt: skip

    def __init__(
        self,
        key: CacheKey,
        start: int,
        end: int,
        ahead_of: GroupPosition | None = None,
        *,
        is_sequential: bool = False,
    ) -> None:
        """Create a read. `ahead_of` is the position to read ahead of; None for a demand read."""
        self.key = key
        self.is_sequential = is_sequential or ahead_of is not None
        """Whether it serves a sequential reader, so that it may end before `end` with an extent."""
        self.reads_whole = False
        """Whether to verify also the extents in which it begins and ends."""
        self.start = start
        self.end = end
        self.ahead_of = ahead_of
        self.log_start: int | None = None
        """Log position of the first message; None if unknown."""
        self.ends_with_fault = False
        """Whether the message at `end` is damaged."""
        self.is_wanted = ahead_of is None
        """Whether a call waits or waited for this read."""
        self.is_stale = False
        """Whether the queue was forgotten meanwhile, so that the outcome is discarded."""
        self.runs: tuple[CachedRun, ...] = ()
        """Runs read so far, contiguous from `start`."""
        self.error: Exception | None = None
        self.done = asyncio.Event()

    def run_at(self, offset: int) -> CachedRun | None:
        """Return the run that covers `offset`; None if the read did not reach it."""
        return next((run for run in self.runs if run.first <= offset < run.end), None)

    def __repr__(self) -> str:
        kind = "wanted" if self.is_wanted else "ahead"
        return f"<Flight {self.key.queue} [{self.start}, {self.end}) {kind}>"


class Flights:
    """Registry of the reads under way. A lookup is linear in the few reads of one key.

    F1  At most one read of a key covers an offset.
    F2  A read is registered from `begin` to `end` or `forget`, and `len` counts it until `end`.
    """

    def __init__(self) -> None:
        self._by_key: dict[CacheKey, list[Flight]] = {}
        self._ahead = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def ahead(self) -> int:
        """Number of reads that started as read-ahead."""
        return self._ahead

    def begin(self, flight: Flight) -> None:
        """Register a read."""
        self._by_key.setdefault(flight.key, []).append(flight)
        self._count += 1
        self._ahead += flight.ahead_of is not None

    def end(self, flight: Flight) -> None:
        """Remove a read and wake the waiting calls. The flight's outcome must be set."""
        flights = self._by_key.get(flight.key, [])
        if flight in flights:
            flights.remove(flight)
            if not flights:
                del self._by_key[flight.key]
        self._count -= 1
        self._ahead -= flight.ahead_of is not None
        flight.done.set()

    def forget(self, queue: QueueId) -> None:
        """Remove the reads of a queue and mark them stale. They continue to their end."""
        for key in [key for key in self._by_key if key.queue == queue]:
            for flight in self._by_key.pop(key):
                flight.is_stale = True

    def find(self, key: CacheKey, offset: int) -> Flight | None:
        """Return the read under way that covers `offset`; None if there is none."""
        for flight in self._by_key.get(key, ()):
            if flight.start <= offset < flight.end:
                return flight
        return None

    def next_start(self, key: CacheKey, offset: int) -> int | None:
        """Return the start of the next read under way after `offset`; None if there is none."""
        starts = (one.start for one in self._by_key.get(key, ()) if one.start > offset)
        return min(starts, default=None)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        for flights in self._by_key.values():
            spans = sorted((flight.start, flight.end) for flight in flights)
            for (_, end), (start, _) in pairwise(spans):
                assert end <= start, f"F1: {flights}"
        findable = list(chain.from_iterable(self._by_key.values()))
        assert not any(one.is_stale or one.done.is_set() for one in findable), f"F2: {findable}"
        ahead = sum(flight.ahead_of is not None for flight in findable)
        assert len(findable) <= self._count, f"F2: {findable}"
        assert ahead <= self._ahead <= self._count, f"F2: {findable}"


class ReadBudget:
    """Budget of bytes, or messages, of concurrent reads; demand before read-ahead.

    A read larger than the budget takes all of it. Cancelling a wait gives up its place.

    B1  The budget is the sum of the free part and of all grants that were not released.
    B2  A read waits only while some of the budget is in use, so that a `release` will follow.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = most
        self._waiting: dict[asyncio.Event, tuple[Flight, int]] = {}

    @property
    def in_use(self) -> int:
        """Amount granted and not released."""
        return self._most - self._free

    async def acquire(self, flight: Flight, wanted: int) -> int:
        """Wait for room. Return the granted amount, which the caller must `release`."""
        count = min(wanted, self._most)
        if not self._waiting and count <= self._free:
            self._free -= count
            return count
        granted = asyncio.Event()
        self._waiting[granted] = (flight, count)
        try:
            await granted.wait()
        except asyncio.CancelledError:
            if self._waiting.pop(granted, None) is None:
                self._free += count
            self._grant()
            raise
        return count

    def release(self, count: int) -> None:
        """Release an amount that `acquire` returned."""
        self._free += count
        self._grant()

    def check(self) -> None:
        """Assert the invariants; for tests."""
        assert 0 <= self._free <= self._most, "B1"
        assert not self._waiting or self.in_use > 0, "B2"

    def _grant(self) -> None:
        """Grant waiting reads in order until one does not fit."""
        for granted in self._turns():
            count = self._waiting[granted][1]
            if count > self._free:
                return
            del self._waiting[granted]
            self._free -= count
            granted.set()

    def _turns(self) -> list[asyncio.Event]:
        """Return the waiting reads: demand before read-ahead, then by arrival."""
        ranks: defaultdict[bool, list[asyncio.Event]] = defaultdict(list)
        for granted, (flight, _) in self._waiting.items():
            ranks[flight.is_wanted].append(granted)
        return ranks[True] + ranks[False]
