"""Runs that may be wanted again, bounded by the bytes that they occupy (decision 0010).

The least recently used run is dropped first, and one that was not used for `age_s_max` is dropped
however much room there is. One order of use gives both; cachetools' timed caches count the age
from the insertion, and would drop a run that a slow reader is in the middle of.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict

from container.names.queue_id import QueueId
from fetcher.cached_run import CachedRun, CacheKey


class SortedRuns:
    """The runs of one key by first offset. A look-up costs O(log n)."""

    __slots__ = ("_firsts", "_runs")

    def __init__(self) -> None:
        self._firsts: list[int] = []  # beside the runs, because bisecting it is faster
        self._runs: list[CachedRun] = []

    def __len__(self) -> int:
        return len(self._runs)

    def at(self, offset: int) -> CachedRun | None:
        """The run that covers `offset`."""
        index = bisect_right(self._firsts, offset) - 1
        if index < 0:
            return None
        run = self._runs[index]
        return run if offset < run.end else None

    def next_first(self, offset: int) -> int | None:
        """Where the next run after `offset` begins."""
        index = bisect_right(self._firsts, offset)
        return self._firsts[index] if index < len(self._firsts) else None

    def beginning_at(self, first: int) -> CachedRun | None:
        """The run whose first offset is `first`."""
        run = self.at(first)
        return run if run is not None and run.first == first else None

    def insert(self, run: CachedRun) -> None:
        """Add a run; none with the same first offset may be there."""
        index = bisect_left(self._firsts, run.first)
        self._firsts.insert(index, run.first)
        self._runs.insert(index, run)

    def remove(self, run: CachedRun) -> None:
        """Take out a run that is there."""
        index = bisect_left(self._firsts, run.first)
        assert self._runs[index] is run, "first offsets are unique"
        del self._firsts[index], self._runs[index]

    def check(self) -> None:
        """Assert that the order is strict and `_firsts` agrees with it; for tests."""
        assert self._firsts == [run.first for run in self._runs] == sorted(set(self._firsts))


_NO_RUNS = SortedRuns()


class RunCache:
    """Runs by queue, subscription and offset. No method waits; a look-up costs O(log n).

    I1  `bytes_held` is the sum of `nbytes` over the runs held, and at most `bytes_max`.
    I2  `unread_bytes` is that sum over the runs that were read ahead and not served yet.
    I3  Every run is in the order of use once and among the sorted runs of its key once.
    """

    def __init__(self, *, bytes_max: int, age_s_max: float) -> None:
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._sorted: dict[CacheKey, SortedRuns] = {}
        self._ends: dict[QueueId, int] = {}
        self._by_use: OrderedDict[CachedRun, None] = OrderedDict()
        self.bytes_held = 0
        self.unread_bytes = 0
        self.prefetches_used = 0
        self.prefetches_wasted = 0

    def __len__(self) -> int:
        return len(self._by_use)

    def __repr__(self) -> str:
        return f"<RunCache: {len(self)} runs, {self.bytes_held} of {self._bytes_max} bytes>"

    def find(self, key: CacheKey, offset: int, now_s: float) -> CachedRun | None:
        """The run of `key` that covers `offset`; counts as a use of it."""
        run = self._sorted.get(key, _NO_RUNS).at(offset)
        if run is None or now_s - run.last_used_s > self._age_s_max:
            return None  # one that is too old is dropped by the next `expire`
        run.last_used_s = now_s
        self._by_use.move_to_end(run)
        if run.unread:
            run.unread = False
            if run.ahead_of is not None:
                self.unread_bytes -= run.nbytes
                self.prefetches_used += 1
        return run

    def end_of(self, key: CacheKey, offset: int) -> int | None:
        """The end of the run that covers `offset`, without using it; None if there is none."""
        run = self._sorted.get(key, _NO_RUNS).at(offset)
        return None if run is None else run.end

    def log_end_before(self, key: CacheKey, offset: int) -> int | None:
        """Log position behind the run of all messages that ends at `offset`, if there is one."""
        run = self._sorted.get(key.whole, _NO_RUNS).at(offset - 1)
        return run.log_end if run is not None and run.end == offset else None

    def next_first(self, key: CacheKey, offset: int) -> int | None:
        """First offset of the next run of the key after `offset`."""
        return self._sorted.get(key, _NO_RUNS).next_first(offset)

    def end_seen(self, queue: QueueId) -> int:
        """The highest end of a run that was cached of a queue; 0 if there was none."""
        return self._ends.get(queue, 0)

    def add(self, run: CachedRun, now_s: float) -> list[CachedRun]:
        """Keep a run; returns the runs read ahead in vain that were dropped to make room.

        One that is larger than the cache is not kept, nor one that a kept run contains.
        """
        if run.nbytes > self._bytes_max:
            return []
        wasted = self.expire(now_s)
        present = self._sorted.get(run.key, _NO_RUNS).beginning_at(run.first)
        if present is not None:
            if present.end >= run.end:
                return wasted
            wasted += self._drop(present)
        while self.bytes_held + run.nbytes > self._bytes_max:
            wasted += self._drop(next(iter(self._by_use)))
        self._sorted.setdefault(run.key, SortedRuns()).insert(run)
        self._by_use[run] = None
        queue = run.key.queue
        self._ends[queue] = max(self.end_seen(queue), run.end)
        run.last_used_s = now_s
        self.bytes_held += run.nbytes
        if run.ahead_of is not None and run.unread:
            self.unread_bytes += run.nbytes
        return wasted

    def expire(self, now_s: float) -> list[CachedRun]:
        """Drop what is too old; returns the runs among it that were read ahead in vain."""
        wasted: list[CachedRun] = []
        while self._by_use:
            run = next(iter(self._by_use))
            if now_s - run.last_used_s <= self._age_s_max:
                break
            wasted += self._drop(run)
        return wasted

    def forget(self, queue: QueueId) -> None:
        """Drop every run of a queue. O(runs held) if it has any."""
        if self._ends.pop(queue, None) is None:
            return
        for run in [run for run in self._by_use if run.key.queue == queue]:
            self._drop(run)

    def clear(self) -> None:
        """Drop everything."""
        for run in list(self._by_use):
            self._drop(run)

    def check(self) -> None:
        """Assert the invariants, and those of the runs; for tests. O(messages held)."""
        assert self.bytes_held == sum(run.nbytes for run in self._by_use) <= self._bytes_max, "I1"
        unread = (run for run in self._by_use if run.unread and run.ahead_of is not None)
        assert self.unread_bytes == sum(run.nbytes for run in unread), "I2"
        assert sum(map(len, self._sorted.values())) == len(self._by_use), "I3"
        assert all(self._sorted.values()), "I3: no key without runs"
        for runs in self._sorted.values():
            runs.check()
        for run in self._by_use:
            assert self._sorted[run.key].beginning_at(run.first) is run, "I3"
            run.check()

    def _drop(self, run: CachedRun) -> list[CachedRun]:
        """Drop one run; returns it if it was read ahead in vain."""
        del self._by_use[run]
        runs = self._sorted[run.key]
        runs.remove(run)
        if not runs:
            del self._sorted[run.key]
        self.bytes_held -= run.nbytes
        if run.ahead_of is None or not run.unread:
            return []
        self.unread_bytes -= run.nbytes
        self.prefetches_wasted += 1
        return [run]
