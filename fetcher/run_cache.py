"""Runs that may be wanted again, bounded by the bytes they really occupy.

The least recently used run goes first, and one that nobody looked at for `age_s_max` goes
whatever the room. Both follow from one order of use; cachetools' timed caches count the age from
the insertion instead, which would drop a run that a slow reader is in the middle of.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import NamedTuple

from container.names.queue_id import QueueId
from fetcher.run import Run
from fetcher.tag_filter import Subscription


class Lane(NamedTuple):
    """Runs that continue each other: those of a queue, whole or with certain tags only."""

    queue: QueueId
    subscription: Subscription | None


class _Shelf:
    """The runs of one lane by first offset; `firsts` is there to bisect."""

    __slots__ = ("firsts", "lane", "runs")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.firsts: list[int] = []
        self.runs: list[Run] = []


class RunCache:
    """Runs by queue, subscription and offset. No method waits; a look-up costs O(log n).

    I1  `bytes_held` is the sum of `nbytes` over the runs held, and at most `bytes_max`.
    I2  `unread_bytes` is that sum over runs read ahead that nobody has looked at.
    """

    def __init__(self, *, bytes_max: int, age_s_max: float) -> None:
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._shelves: dict[Lane, _Shelf] = {}
        self._ends: dict[QueueId, int] = {}
        self._by_use: OrderedDict[Run, _Shelf] = OrderedDict()
        self.bytes_held = 0
        self.unread_bytes = 0
        self.prefetches_used = 0
        self.prefetches_wasted = 0

    def __len__(self) -> int:
        return len(self._by_use)

    def __repr__(self) -> str:
        return f"<RunCache: {len(self)} runs, {self.bytes_held} of {self._bytes_max} bytes>"

    def find(self, lane: Lane, offset: int, now_s: float) -> Run | None:
        """The run of `lane` that covers `offset`; marks it as used."""
        shelf = self._shelves.get(lane)
        if shelf is None:
            return None
        index = bisect_right(shelf.firsts, offset) - 1
        if index < 0:
            return None
        run = shelf.runs[index]
        if offset >= run.end:
            return None
        if now_s - run.last_used_s > self._age_s_max:
            return None  # the next `expire` takes it
        run.last_used_s = now_s
        self._by_use.move_to_end(run)
        if run.unread:
            run.unread = False
            if run.reader is not None:
                self.unread_bytes -= run.nbytes
                self.prefetches_used += 1
        return run

    def end_of(self, lane: Lane, offset: int) -> int | None:
        """The end of the run that covers `offset`, without using it; None if there is none."""
        shelf = self._shelves.get(lane)
        index = bisect_right(shelf.firsts, offset) - 1 if shelf else -1
        if shelf is None or index < 0 or offset >= shelf.runs[index].end:
            return None
        return shelf.runs[index].end

    def next_first(self, lane: Lane, offset: int) -> int | None:
        """First offset of the next run of the lane behind `offset`."""
        shelf = self._shelves.get(lane)
        index = bisect_right(shelf.firsts, offset) if shelf else 0
        return shelf.firsts[index] if shelf and index < len(shelf.firsts) else None

    def end_seen(self, queue: QueueId) -> int:
        """Behind the highest offset that was cached of a queue; 0 when nothing was."""
        return self._ends.get(queue, 0)

    def add(self, lane: Lane, run: Run, now_s: float) -> list[Run]:
        """Keep a run; returns the runs read ahead in vain that had to make room for it.

        One larger than the whole cache is not kept.
        """
        if run.nbytes > self._bytes_max:
            return []
        dropped = self.expire(now_s)
        shelf = self._shelves.setdefault(lane, _Shelf(lane))
        index = bisect_left(shelf.firsts, run.first)
        if index < len(shelf.firsts) and shelf.firsts[index] == run.first:
            if shelf.runs[index].end >= run.end:
                return dropped
            dropped += self._drop(shelf.runs[index])
            shelf = self._shelves.setdefault(lane, shelf)
        while self.bytes_held + run.nbytes > self._bytes_max:
            dropped += self._drop(next(iter(self._by_use)))
        shelf = self._shelves.setdefault(lane, shelf)
        index = bisect_left(shelf.firsts, run.first)
        shelf.firsts.insert(index, run.first)
        shelf.runs.insert(index, run)
        self._by_use[run] = shelf
        self._ends[lane.queue] = max(self.end_seen(lane.queue), run.end)
        run.last_used_s = now_s
        self.bytes_held += run.nbytes
        if run.reader is not None and run.unread:
            self.unread_bytes += run.nbytes
        return dropped

    def expire(self, now_s: float) -> list[Run]:
        """Drop what is too old; returns the runs read ahead in vain among it."""
        wasted: list[Run] = []
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
        for run, shelf in list(self._by_use.items()):
            if shelf.lane.queue == queue:
                self._drop(run)

    def clear(self) -> None:
        """Drop everything."""
        for run in list(self._by_use):
            self._drop(run)

    def check(self) -> None:
        """Assert the invariants. O(runs held)."""
        assert self.bytes_held == sum(run.nbytes for run in self._by_use) <= self._bytes_max, "I1"
        unread = (run for run in self._by_use if run.unread and run.reader is not None)
        assert self.unread_bytes == sum(run.nbytes for run in unread), "I2"
        assert sum(len(shelf.runs) for shelf in self._shelves.values()) == len(self._by_use)

    def _drop(self, run: Run) -> list[Run]:
        shelf = self._by_use.pop(run)
        index = bisect_left(shelf.firsts, run.first)
        assert shelf.runs[index] is run, "first offsets are unique in a lane"
        del shelf.firsts[index], shelf.runs[index]
        if not shelf.runs:
            del self._shelves[shelf.lane]
        self.bytes_held -= run.nbytes
        if run.reader is None or not run.unread:
            return []
        self.unread_bytes -= run.nbytes
        self.prefetches_wasted += 1
        return [run]
