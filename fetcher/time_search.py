"""The offset that a moment stands for: metadata, then units, then the heads of a few records.

Where a broker's clock was set back, store timestamps do not ascend along a queue. Of LOWER the
result is then an offset whose message was stored at the moment or later, where no message in an
earlier extent was; of UPPER one whose message was stored at the moment or earlier, where none in a
later extent was. Inside one extent (`tieredStoreExtentMaxSize`, 4 MiB) it is one of the places at
which the moment is passed, as in RocketMQ, whose bisection goes over the whole queue.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from container.queue.time_boundary import Boundary, TimeRules, UpperPlace, upper_offset
from container.queue.time_stretch import TimeStretch
from fetcher.plan import gap_at
from fetcher.record_heads import RANGES_MAX, Heads, load_store_timestamp
from fetcher.source import TierQueue
from provider.ranges import QueueOffset

UNITS_MAX = 1 << 16
"""Units that one search holds: those of an extent of 4 MiB are fewer."""
SPAN_BYTES_MAX = 8 << 20
"""Bytes of records over which heads are read at once, if they are more than `RANGES_MAX`."""
WINDOW_BYTES = 64 << 10
"""Bytes of records around the place where the moment probably lies, which are read first."""
WINDOW_MESSAGES = 8
"""Messages of that place at least."""


@dataclass(frozen=True, slots=True)
class _Sought:
    """A moment and which side of it is meant."""

    moment_ms: int
    boundary: Boundary

    @property
    def is_lower(self) -> bool:
        return self.boundary is Boundary.LOWER

    def is_meant(self, timestamp: int) -> bool:
        """Whether a message stored then may be the one."""
        return timestamp >= self.moment_ms if self.is_lower else timestamp <= self.moment_ms

    def are_meant(self, timestamps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The same of many."""
        if self.is_lower:
            return timestamps >= self.moment_ms
        return timestamps <= self.moment_ms

    def all_meant(self, stretch: TimeStretch) -> bool:
        """Whether the metadata say so of each message; the time of none is needed then."""
        if stretch.times is None:
            return False
        low, high = stretch.times
        return low >= self.moment_ms if self.is_lower else high < self.moment_ms


@dataclass(frozen=True, slots=True)
class _Found:
    """The message that is meant."""

    offset: int
    is_exact: bool
    """Whether it was stored at exactly the moment."""


async def search_time(
    queue: TierQueue,
    moment_ms: int,
    boundary: Boundary,
    rules: TimeRules,
) -> QueueOffset:
    """The offset that a moment stands for; one that can be read, or the queue's end.

    No request where the metadata tell; else one for units and one or two rounds for heads of
    records: 64 KiB, or less, around the place that the times of the extent make likely, and if it
    is not there, what is left of the extent. More where the clock was set back, and in a tier
    that RocketMQ's own store wrote, which has no extents. Holds an extent, and its units.

    Raises:
        Corrupt: a message next to the place is damaged.
        OutOfRange: something is not published any more; the same again with newer metadata.
        Unavailable: try again.
    """
    sought = _Sought(moment_ms, boundary)
    first, end = queue.min_offset, queue.next_offset
    found = await _found(queue, sought, first, end)
    if sought.is_lower:
        return QueueOffset(end if found is None else found.offset)
    if found is None:
        place = UpperPlace(None, is_exact=False, after=first_message(queue))
    else:
        gap = gap_at(queue.gaps, found.offset + 1)
        after = found.offset + 1 if gap is None else gap.end
        place = UpperPlace(found.offset, found.is_exact, after)
    return QueueOffset(upper_offset(place, rules, min_offset=first))


async def _found(
    queue: TierQueue, sought: _Sought, low: QueueOffset, high: QueueOffset
) -> _Found | None:
    while True:
        moment_ms, boundary = sought.moment_ms, sought.boundary
        stretch = await queue.stretch_by_time(moment_ms, boundary, low, high)
        if stretch is None:
            return None
        if sought.all_meant(stretch):
            offset = stretch.start if sought.is_lower else stretch.end - 1
            return _Found(offset, is_exact=False)  # of LOWER it is not asked, of UPPER it is less
        found = await _StretchSearch(queue, sought, stretch).run()
        if found is not None:
            return found
        if sought.is_lower:
            low = stretch.end
        else:
            high = stretch.start


class _StretchSearch:
    """The search in one stretch: `[low, high)` is what is left of it."""

    def __init__(self, queue: TierQueue, sought: _Sought, stretch: TimeStretch) -> None:
        self._queue = queue
        self._sought = sought
        self._times = stretch.times
        self._low: int = stretch.start
        self._high: int = stretch.end

    async def run(self) -> _Found | None:
        """The message that is meant; None if none is."""
        await self._narrow(lambda: self._high - self._low > UNITS_MAX)
        if self._low == self._high:
            return None
        queue, low, high = self._queue, QueueOffset(self._low), QueueOffset(self._high)
        heads = Heads(queue, low, await queue.units(low, high))
        if not heads.units_are_good:
            await self._narrow(lambda: self._high - self._low > 1)
            return await self._only()
        await self._narrow(lambda: self._is_long(heads))
        found = await self._in_stretch(heads)
        if found is None:
            heads.refuse_damage()
        return found

    async def _in_stretch(self, heads: Heads) -> _Found | None:
        window = self._window(heads)
        found = await self._in_part(heads, *window)
        if found is not None and self._is_certain(found, *window):
            return found
        nearer, farther = (self._low, window[0]), (window[1], self._high)
        if not self._sought.is_lower:
            nearer, farther = farther, nearer
        if found is not None:
            return await self._in_part(heads, *nearer) or found
        return await self._in_part(heads, *farther) or await self._in_part(heads, *nearer)

    async def _only(self) -> _Found | None:
        """The one message that is left, if it is meant."""
        if self._low == self._high:
            return None
        timestamp = await load_store_timestamp(self._queue, QueueOffset(self._low))
        if not self._sought.is_meant(timestamp):
            return None
        return _Found(self._low, is_exact=timestamp == self._sought.moment_ms)

    async def _narrow(self, is_long: Callable[[], bool]) -> None:
        """Bisect, one message at a time, while the stretch is longer than an extent of ours."""
        while is_long():
            is_lower = self._sought.is_lower
            middle = (self._low + self._high - is_lower) // 2
            timestamp = await load_store_timestamp(self._queue, QueueOffset(middle))
            if self._sought.is_meant(timestamp) is is_lower:
                self._high = middle + is_lower
            else:
                self._low = middle + is_lower

    def _is_long(self, heads: Heads) -> bool:
        count = self._high - self._low
        return count > RANGES_MAX and heads.span_bytes(self._low, self._high) > SPAN_BYTES_MAX

    def _window(self, heads: Heads) -> tuple[int, int]:
        """Where to look first."""
        low, high = self._low, self._high
        if high - low <= WINDOW_MESSAGES or heads.span_bytes(low, high) <= WINDOW_BYTES:
            return low, high
        share = 0.5
        if self._times is not None and self._times[0] < self._times[1]:
            share = (self._sought.moment_ms - self._times[0]) / (self._times[1] - self._times[0])
        likely = low + int(min(max(share, 0.0), 1.0) * (high - 1 - low))
        start, end = heads.around(likely, WINDOW_BYTES // 2)
        half = WINDOW_MESSAGES // 2
        return max(low, min(start, likely - half)), min(high, max(end, likely + half))

    def _is_certain(self, found: _Found, start: int, end: int) -> bool:
        """Whether the message that was found in `[start, end)` has one that is not meant beside."""
        if self._sought.is_lower:
            return found.offset > start or start == self._low
        return found.offset < end - 1 or end == self._high

    async def _in_part(self, heads: Heads, start: int, end: int) -> _Found | None:
        """The message that is meant among those of `[start, end)`."""
        if start >= end:
            return None
        timestamps, good = await heads.timestamps(start, end)
        places = np.flatnonzero(good & self._sought.are_meant(timestamps))
        if not len(places):
            return None
        place = int(places[0] if self._sought.is_lower else places[-1])
        heads.refuse_damage(start + place + (-1 if self._sought.is_lower else 1))
        return _Found(start + place, is_exact=int(timestamps[place]) == self._sought.moment_ms)


def first_message(queue: TierQueue) -> QueueOffset:
    """The offset of the first message that can be read, or the queue's end."""
    gap = gap_at(queue.gaps, queue.min_offset)
    return queue.min_offset if gap is None else gap.end
