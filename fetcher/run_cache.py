"""Runs, and their cache, bounded by the bytes that they occupy (decision 0010).

A run holds consecutive messages of a queue, or those with certain tags, in one buffer.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.columns import Contents
from container.record.header import PHYSICAL_OFFSET_AT
from container.record.message import MessageDecoder, StoredMessage
from container.record.properties import tag_hash
from fetcher.options import COLUMN_BYTES
from fetcher.tag_filter import Subscription
from fetcher.window import GroupPosition
from provider.object_store import Buffer
from provider.ranges import QueueOffset

RUN_BYTES = 1024
"""Bytes of memory of a run without its messages."""
TAGS_KEPT_MAX = 4096
"""Most tags whose hashes are cached."""
REPLACEMENT = "\ufffd"

_hash_of = lru_cache(TAGS_KEPT_MAX)(tag_hash)


class CacheKey(NamedTuple):
    """Key of runs that continue each other: a queue's runs, whole or with certain tags only."""

    queue: QueueId
    subscription: Subscription | None
    generation: int = 0
    """Generation of the queue at the read. A tail truncation raises it and invalidates runs."""

    @property
    def whole(self) -> "CacheKey":
        """Key of the runs that have every message."""
        return CacheKey(self.queue, None, self.generation)


class CachedRun:
    """Messages of the offsets `[first, end)`: complete records as columns over one buffer.

    R1  `offsets` ascends inside `[first, end)`. Without a subscription it has every offset.
    R2  Every record lies in `data`, and `size_before[i]` is the sum of the sizes before message i.
    """

    __slots__ = (
        "_contents", "_decoder", "_odd_codes", "_untrue_tags", "ahead_of", "data", "end", "first",
        "key", "last_used_s", "nbytes", "offsets", "size_before", "sizes", "starts", "tag_hashes",
        "unread",
    )  # fmt: skip

    def __init__(
        self,
        key: CacheKey,
        first: QueueOffset,
        end: QueueOffset,
        data: Buffer,
        *,
        offsets: NDArray[np.int64],
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        tag_hashes: NDArray[np.int32],
        odd_codes: NDArray[np.bool_] | None = None,
        contents: Contents | None = None,
        ahead_of: GroupPosition | None = None,
    ) -> None:
        """Create a run of validated records.

        Args:
            key: queue and subscription of the messages.
            first: first offset that the run covers.
            end: offset after the last one that it covers.
            data: buffer of the records.
            offsets: queue offset of each message.
            starts: first byte of each record in `data`.
            sizes: length of each record in bytes.
            tag_hashes: the low 32 bits of each unit's tags code.
            odd_codes: mask of units whose tags code is not a hash of tags; None: no such unit.
            contents: result of `verify_contents`; None if it was not called.
            ahead_of: position of the group that the run was read ahead for; None for a demand read.
        """
        self.key = key
        self.first = first
        self.end = end
        self.offsets = offsets
        self.data = memoryview(data).toreadonly()
        self.starts = starts
        self.sizes = sizes
        self.tag_hashes = tag_hashes
        sums = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=sums[1:])
        self.size_before: memoryview[int] = sums.data  # a view returns plain ints, which are faster
        odd_bytes = 0 if odd_codes is None else len(odd_codes)
        self.nbytes = _pinned_bytes(self.data) + COLUMN_BYTES * len(starts) + odd_bytes + RUN_BYTES
        """Bytes of memory that the run keeps alive."""
        self.ahead_of = ahead_of
        self.unread = True
        """Whether the run was not served yet. `RunCache` maintains this and the next attribute."""
        self.last_used_s = 0.0
        self._decoder: MessageDecoder | None = None
        self._contents = contents
        self._odd_codes = odd_codes
        self._untrue_tags: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def __repr__(self) -> str:
        return f"<CachedRun [{self.first}, {self.end}): {len(self)} messages, {self.nbytes} bytes>"

    @property
    def has_all(self) -> bool:
        """Whether the run has every message of `[first, end)`, and so serves any subscription."""
        return self.key.subscription is None

    @property
    def log_end(self) -> int | None:
        """Log position after the last message; None if the run has no message."""
        if not len(self):
            return None
        record = int(self.starts[-1])
        place = self.data[record + PHYSICAL_OFFSET_AT :][:8]
        return int.from_bytes(place, "big") + int(self.sizes[-1])

    def cut(self, start: int, stop: int, bytes_max: int) -> int:
        """Return the index after the message that reaches `bytes_max`, counted from `start`.

        Returns at most `stop`. O(log n).
        """
        before = self.size_before
        wanted = before[start] + bytes_max
        if before[stop - 1] < wanted:
            return stop
        return bisect_left(before, wanted, start + 1, stop)

    def decode(self, picked: slice | NDArray[np.int64]) -> Iterator[StoredMessage]:
        """Iterate over messages of the run. The first call validates all of them together."""
        return self.decoder.messages(picked)

    @property
    def decoder(self) -> MessageDecoder:
        """Decoder of the run's messages. The first use validates all of them together."""
        if self._decoder is None:
            path = f"{self.key.queue}/COMMIT_LOG"
            self._decoder = MessageDecoder(
                self.data, self.starts, self.sizes, path=path, contents=self._contents
            )
        return self._decoder

    def first_untrue_tag(self, start: int, stop: int) -> int:
        """Return the first message of `start` to `stop` whose tags contradict its unit, or `stop`.

        The first filtered read of a run compares all messages, about 0.7 us each; later calls use
        the result. A run that was not verified is not compared. A unit whose tags code is not a
        hash (of a delayed message it is a time) is not compared, nor are tags that are not UTF-8.
        """
        if self._contents is None:
            return stop
        if self._untrue_tags is None:
            self._untrue_tags = self._compare_tags()
        place = int(np.searchsorted(self._untrue_tags, start))
        return min([stop, *self._untrue_tags[place : place + 1].tolist()])

    def _compare_tags(self) -> NDArray[np.int64]:
        """Return the indices of messages whose tags contradict their units, ascending."""
        tags = [message.tags for message in self.decode(slice(0, len(self)))]
        untrue = np.fromiter(map(_hash_of, tags), np.int32, len(tags)) != self.tag_hashes
        if self._odd_codes is not None:
            untrue &= ~self._odd_codes
        found = np.flatnonzero(untrue)
        return found[[REPLACEMENT not in tags[index] for index in found.tolist()]]

    def check(self) -> None:
        """Assert the invariants; for tests. O(n)."""
        lengths = {len(self.offsets), len(self.starts), len(self.sizes), len(self.tag_hashes)}
        assert len(lengths) == 1, f"R1: {self}"
        assert (np.diff(self.offsets) > 0).all(), f"R1: {self}"
        if len(self):
            assert self.first <= self.offsets[0], f"R1: {self}"
            assert self.offsets[-1] < self.end, f"R1: {self}"
            assert self.starts.min() >= 0, f"R2: {self}"
            assert (self.starts + self.sizes).max() <= len(self.data), f"R2: {self}"
        assert not self.has_all or len(self) == self.end - self.first, f"R1: {self}"
        assert list(self.size_before) == [0, *np.cumsum(self.sizes).tolist()], f"R2: {self}"


def _pinned_bytes(view: memoryview) -> int:
    """Return the bytes of memory that a view keeps alive, which may exceed its length."""
    base = view.obj
    kept = _memory_of(base) if isinstance(base, np.ndarray) else memoryview(base).nbytes
    return max(view.nbytes, kept)


def _memory_of(array: NDArray[Any]) -> int:
    """Return the bytes of the array that owns the memory of this one."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.nbytes


def compact(data: Buffer) -> Buffer:
    """Return `data`, copied if it keeps over a quarter more memory alive than its length."""
    view = memoryview(data)
    return bytes(view) if _pinned_bytes(view) > view.nbytes + (view.nbytes >> 2) else view


class SortedRuns:
    """Runs of one key, sorted by first offset. A lookup costs O(log n)."""

    __slots__ = ("_firsts", "_runs")

    def __init__(self) -> None:
        self._firsts: list[int] = []  # separate from the runs, because bisection is faster
        self._runs: list[CachedRun] = []

    def __len__(self) -> int:
        return len(self._runs)

    def at(self, offset: int) -> CachedRun | None:
        """Return the run that covers `offset`; None if there is none."""
        index = bisect_right(self._firsts, offset) - 1
        if index < 0:
            return None
        run = self._runs[index]
        return run if offset < run.end else None

    def next_first(self, offset: int) -> int | None:
        """Return the first offset of the next run after `offset`; None if there is none."""
        index = bisect_right(self._firsts, offset)
        return self._firsts[index] if index < len(self._firsts) else None

    def beginning_at(self, first: int) -> CachedRun | None:
        """Return the run whose first offset is `first`; None if there is none."""
        run = self.at(first)
        return run if run is not None and run.first == first else None

    def insert(self, run: CachedRun) -> None:
        """Add a run. Its first offset must be new."""
        index = bisect_left(self._firsts, run.first)
        self._firsts.insert(index, run.first)
        self._runs.insert(index, run)

    def remove(self, run: CachedRun) -> None:
        """Remove a run, which must be present."""
        index = bisect_left(self._firsts, run.first)
        assert self._runs[index] is run, "first offsets are unique"
        del self._firsts[index], self._runs[index]

    def check(self) -> None:
        """Assert that the order is strict and `_firsts` agrees with it; for tests."""
        assert self._firsts == [run.first for run in self._runs] == sorted(set(self._firsts))


_NO_RUNS = SortedRuns()


class RunCache:
    """Cache of runs by queue, subscription and offset. No method waits; a lookup is O(log n).

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
        """Return the run of `key` that covers `offset`, and mark it as used; None without one."""
        run = self._sorted.get(key, _NO_RUNS).at(offset)
        if run is None or now_s - run.last_used_s > self._age_s_max:
            return None  # the next `expire` drops a run that is too old
        run.last_used_s = now_s
        self._by_use.move_to_end(run)
        if run.unread:
            run.unread = False
            if run.ahead_of is not None:
                self.unread_bytes -= run.nbytes
                self.prefetches_used += 1
        return run

    def end_of(self, key: CacheKey, offset: int) -> int | None:
        """Return the end of the run that covers `offset`, without a use; None if there is none."""
        run = self._sorted.get(key, _NO_RUNS).at(offset)
        return None if run is None else run.end

    def log_end_before(self, key: CacheKey, offset: int) -> int | None:
        """Return the log position after the whole run that ends at `offset`; None without one."""
        run = self._sorted.get(key.whole, _NO_RUNS).at(offset - 1)
        return run.log_end if run is not None and run.end == offset else None

    def next_first(self, key: CacheKey, offset: int) -> int | None:
        """Return the first offset of the next run of `key` after `offset`; None without one."""
        return self._sorted.get(key, _NO_RUNS).next_first(offset)

    def end_seen(self, queue: QueueId) -> int:
        """Return the highest end of any run cached of a queue so far; 0 if there was none."""
        return self._ends.get(queue, 0)

    def add(self, run: CachedRun, now_s: float) -> list[CachedRun]:
        """Add a run. Return the runs that were read ahead but never used, and dropped for room.

        A run is not added if it is larger than the cache or if a cached run contains it.
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
        """Drop old runs. Return those that were read ahead but never used."""
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
        """Drop one run. Return it if it was read ahead but never used."""
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
