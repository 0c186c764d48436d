"""Search for the offset at a time: by metadata, then units, then the heads of a few records."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from container.metadata.records import after_gaps
from container.queue.positions import Boundary, TimeRules, TimeStretch, UpperPlace, upper_offset
from container.record.batch import store_timestamps
from container.record.header import BORN_HOST_V6, Coda, RecordHeader, layout_of
from container.record.unit import UNIT_BYTES, Units
from container.record.verification import Fault, Faults, judge_records, leading_good_units
from fetcher.plan import places_in_reads, plan_reads
from fetcher.source import TierQueue
from provider.errors import Corrupt
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset

HEAD_BYTES = layout_of(BORN_HOST_V6).store_host
"""Bytes of a head: they contain the store timestamp of any record."""
NEAR_BYTES = 16 << 10
"""Bytes between two heads that are read as well, to save a request. `RANGES_MAX` may raise it."""
RANGES_MAX = 64
"""Approximate limit of the ranges of one round. Beyond it, larger gaps are read as well."""


async def load_store_timestamp(queue: TierQueue, offset: QueueOffset) -> int:
    """Read the store timestamp of one message, Unix ms.

    Costs two requests, the second for under 100 bytes.

    Raises:
        Corrupt: the message or its unit is damaged.
        OutOfRange: the message is not published any more.
        Unavailable: the storage did not respond; retry.
    """
    units = await queue.units(offset, QueueOffset(offset + 1))
    heads = Heads(queue, offset, units)
    if len(units) != 1 or not heads.units_are_good:
        path, position = f"{queue.id}/CONSUME_QUEUE", UNIT_BYTES * offset
        raise Corrupt(f"impossible unit {units.tolist()}", path, position)
    timestamps, _ = await heads.timestamps(offset, offset + 1)
    heads.refuse_damage(offset)
    return int(timestamps[0])


class Heads:
    """Heads of consecutive messages, read on demand."""

    def __init__(self, queue: TierQueue, first: int, units: Units) -> None:
        """Read nothing yet. `units` are those of the messages from offset `first` on."""
        self._queue = queue
        self._first = first
        self._positions = units["position"].astype(np.int64)
        self._sizes = units["size"].astype(np.int64)
        self._damaged: dict[int, tuple[Fault, int]] = {}

    @property
    def units_are_good(self) -> bool:
        """Whether all units are valid. If not, no other method may be called."""
        return leading_good_units(self._positions, self._sizes) == len(self._positions)

    def span_bytes(self, start: int, end: int) -> int:
        """Return the bytes of the log from the first to the last record of `[start, end)`."""
        first, last = start - self._first, end - self._first - 1
        return int(self._positions[last] + self._sizes[last] - self._positions[first])

    def around(self, offset: int, reach_bytes: int) -> tuple[int, int]:
        """Return the range of offsets whose records begin within `reach_bytes` of `offset`'s."""
        at = self._positions[offset - self._first]
        places = np.searchsorted(self._positions, [at - reach_bytes, at + reach_bytes])
        return self._first + int(places[0]), self._first + int(places[1])

    async def window(self, start: int, end: int) -> "HeadsWindow":
        """Read the heads of `[start, end)` in one round of requests, without decoding them.

        Reads the bytes between the heads as well, unless they are more than `NEAR_BYTES` a head.
        """
        rows = slice(start - self._first, end - self._first)
        positions, sizes = self._positions[rows], self._sizes[rows]
        first, last = int(positions[0]), int(positions[-1])
        heads_end = last + min(int(sizes[-1]), HEAD_BYTES)
        if heads_end - first <= NEAR_BYTES * len(positions):
            data = memoryview(await self._queue.log(ByteRange(first, heads_end)))
            return HeadsWindow(
                self._queue,
                start,
                positions,
                sizes,
                lambda row: data[int(positions[row]) - first :],
            )
        heads = await self._queue.log_many(
            [
                ByteRange(at, at + min(size, HEAD_BYTES))
                for at, size in zip(positions.tolist(), sizes.tolist(), strict=True)
            ]
        )
        return HeadsWindow(self._queue, start, positions, sizes, heads.__getitem__)

    async def timestamps(self, start: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Read the store timestamps, Unix ms, of `[start, end)`, and a mask of the valid heads.

        Costs one round of requests, and a second one if units point at codas of an old Java tier.
        """
        rows = np.arange(start - self._first, end - self._first)
        timestamps, faults = await self._read(rows, self._positions[rows])
        at_codas = np.flatnonzero(faults == Fault.CODA)
        if len(at_codas):  # the records lie after the codas
            moved = rows[at_codas]
            retried = await self._read(moved, self._positions[moved] + Coda.SIZE)
            timestamps[at_codas], faults[at_codas] = retried
        for row in np.flatnonzero(faults).tolist():
            self._damaged[start + row] = Fault(int(faults[row])), int(self._positions[rows[row]])
        return timestamps, faults == Fault.NONE

    def refuse_damage(self, offset: int | None = None) -> None:
        """Raise `Corrupt` if the message at `offset` was read and is damaged; None: any message."""
        at = next(iter(self._damaged), -1) if offset is None else offset
        if at in self._damaged:
            fault, position = self._damaged[at]
            raise Corrupt(fault.reason, f"{self._queue.id}/COMMIT_LOG", position)

    async def _read(
        self, rows: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], Faults]:
        """Return timestamps and faults of the messages whose records begin at `positions`."""
        lengths = np.minimum(self._sizes[rows], HEAD_BYTES)
        span = int(positions[-1] - positions[0])
        ranges = plan_reads(
            positions,
            lengths,
            gap_bytes_max=max(NEAR_BYTES, span // RANGES_MAX),
            read_bytes_max=max(1, span + HEAD_BYTES),
        )
        data = await self._log(ranges)
        starts = places_in_reads(positions, ranges)
        faults = judge_records(
            data,
            starts,
            self._sizes[rows],
            queue_id=self._queue.id.queue_id,
            queue_offsets=self._first + rows,
            positions=positions,
            heads_only=True,
        )
        timestamps = np.zeros(len(rows), np.int64)
        good = faults == Fault.NONE
        timestamps[good] = store_timestamps(data, starts[good])
        return timestamps, faults

    async def _log(self, ranges: list[ByteRange]) -> bytes | memoryview:
        if len(ranges) == 1:
            return memoryview(await self._queue.log(ranges[0]))
        return b"".join(await self._queue.log_many(ranges))


class HeadsWindow:
    """Heads of consecutive messages, decoded on demand.

    Decoding costs 3 us a head, so bisection is faster than decoding a few hundred heads.
    """

    def __init__(
        self,
        queue: TierQueue,
        first: int,
        positions: NDArray[np.int64],
        sizes: NDArray[np.int64],
        head_of: Callable[[int], Buffer],
    ) -> None:
        """Hold the heads from offset `first` on. `head_of(row)` may return more than the head."""
        self._queue_id = queue.id.queue_id
        self._first = first
        self._head_of = head_of
        self._positions = positions
        self._sizes = sizes

    def timestamp(self, offset: int) -> int | None:
        """Return the store timestamp of one message, Unix ms; None if its head is invalid."""
        row = offset - self._first
        position, size = int(self._positions[row]), int(self._sizes[row])
        try:
            header = RecordHeader.decode(self._head_of(row), path="", position=position)
        except Corrupt:
            return None
        place = (header.size, header.queue_id, header.queue_offset, header.physical_offset)
        is_there = place == (size, self._queue_id, offset, position)
        return header.store_timestamp if is_there else None


UNITS_MAX = 1 << 16
"""Most units that one search holds. An extent of 4 MiB has fewer."""
SPAN_BYTES_MAX = 8 << 20
"""Most bytes of records over which more than `RANGES_MAX` heads are read at once."""
WINDOW_BYTES = 64 << 10
"""Bytes of records around the probable place of the moment that are read together."""
INTERPOLATED = 2
"""Number of windows whose place is interpolated from the known times. Further windows bisect the
rest."""
REST_GAPS = 16
"""Multiple of `gap_bytes_max` below which the rest is read as a whole: 256 KiB of a directory; for
an object store 4 MiB, the rest of an extent, at once."""
WINDOW_MESSAGES = 8
"""Fewest messages of a window."""


@dataclass(frozen=True, slots=True)
class _Sought:
    """Target of a search: a moment, Unix ms, and the wanted side of it."""

    moment_ms: int
    boundary: Boundary
    rest_bytes: int
    """Size in bytes below which the rest of a stretch is read as a whole."""

    @property
    def is_lower(self) -> bool:
        return self.boundary is Boundary.LOWER

    def is_meant(self, timestamp: int) -> bool:
        """Whether a message with this store timestamp qualifies."""
        return timestamp >= self.moment_ms if self.is_lower else timestamp <= self.moment_ms

    def are_meant(self, timestamps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the store timestamps that qualify."""
        if self.is_lower:
            return timestamps >= self.moment_ms
        return timestamps <= self.moment_ms

    def all_meant(self, stretch: TimeStretch) -> bool:
        """Whether every message of the stretch qualifies by the metadata alone."""
        if stretch.times is None:
            return False
        low, high = stretch.times
        return low >= self.moment_ms if self.is_lower else high < self.moment_ms


@dataclass(frozen=True, slots=True)
class _Found:
    """Result of a search."""

    offset: int
    is_exact: bool
    """Whether the message was stored at exactly the moment."""


async def search_time(
    queue: TierQueue,
    moment_ms: int,
    boundary: Boundary,
    rules: TimeRules,
    *,
    gap_bytes_max: int,
) -> QueueOffset:
    """Find the offset at a moment, Unix ms: a readable offset, or the queue's end.

    Costs no request if the metadata decide. Otherwise costs one request for units and some rounds
    for heads of records. The first round reads at most 64 KiB around the place that is
    interpolated from the times of the extent; it suffices if the times are evenly spread. If not,
    the times in each window locate the next window, even if many messages share a time. An extent
    of 4 MiB costs at most seven rounds in a directory, and two in a store for which a request is
    worth 256 KiB (`gap_bytes_max`, `FetcherOptions`). It costs more if the broker's clock was set
    back or a head is damaged, because the extent is then read; and in a tier that RocketMQ's own
    store wrote, which has no extents. Holds an extent and its units in memory.

    Raises:
        Corrupt: a message next to the place is damaged.
        OutOfRange: the messages are not published any more; retry with newer metadata.
        Unavailable: the storage did not respond; retry.
    """
    sought = _Sought(moment_ms, boundary, REST_GAPS * gap_bytes_max)
    first, end = queue.min_offset, queue.next_offset
    found = await _found(queue, sought, first, end)
    if sought.is_lower:
        return QueueOffset(end if found is None else found.offset)
    if found is None:
        place = UpperPlace(None, is_exact=False, after=first_message(queue))
    else:
        after = after_gaps(queue.gaps, found.offset + 1)
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
            return _Found(offset, is_exact=False)  # unused for LOWER; for UPPER the time is less
        found = await _StretchSearch(queue, sought, stretch).run()
        if found is not None:
            return found
        if sought.is_lower:
            low = stretch.end
        else:
            high = stretch.start


class _StretchSearch:
    """Search in one stretch. `[low, high)` is the rest of it."""

    def __init__(self, queue: TierQueue, sought: _Sought, stretch: TimeStretch) -> None:
        self._queue = queue
        self._sought = sought
        self._times = stretch.times
        self._low: int = stretch.start
        self._high: int = stretch.end
        self._probed: dict[int, int] = {}
        """Store timestamps, Unix ms, of the messages that were decoded singly, by offset."""

    async def run(self) -> _Found | None:
        """Return the message that qualifies; None if there is none."""
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
        """Search by a few windows if the times ascend in them; else read every head."""
        first, last = self._low, self._high
        turn = await self._turn(heads)
        place = turn if self._sought.is_lower or turn is None else turn - 1
        if place is not None and first <= place < last:
            return _Found(place, is_exact=self._probed[place] == self._sought.moment_ms)
        return await self._in_part(heads, first, last)

    async def _turn(self, heads: Heads) -> int | None:
        """Return the first message after the moment, or the stretch's end; None on a damaged head.

        `[low, high)` lies between a message before the moment and one after it, within the
        stretch. Each window decides in which part the search continues.
        """
        for number in count():
            low, high = self._low, self._high
            if low == high:
                break
            start, end = self._window(heads, number)
            window = await heads.window(start, end)
            if (first_ms := self._probe(window, start)) is None:
                return None
            if self._is_after(first_ms):
                self._high = start
                self._times = (self._times[0], first_ms) if self._times else None
                continue
            if (last_ms := self._probe(window, end - 1)) is None:
                return None
            if not self._is_after(last_ms):
                self._low = end
                self._times = (last_ms, self._times[1]) if self._times else None
                continue
            return self._turn_within(window, start, end - 1)
        return self._low

    def _turn_within(self, window: HeadsWindow, before: int, after: int) -> int | None:
        """Bisect between a message before the moment and one after it; None on a damaged head."""
        while after - before > 1:
            middle = (before + after) // 2
            if (time_ms := self._probe(window, middle)) is None:
                return None
            if self._is_after(time_ms):
                after = middle
            else:
                before = middle
        return after

    def _probe(self, window: HeadsWindow, offset: int) -> int | None:
        """Return and keep the store timestamp of one message; None if its head is damaged."""
        time_ms = window.timestamp(offset)
        if time_ms is not None:
            self._probed[offset] = time_ms
        return time_ms

    def _is_after(self, time_ms: int) -> bool:
        """Whether the result is at or before this message for LOWER, or before it for UPPER."""
        return self._sought.is_meant(time_ms) is self._sought.is_lower

    async def _only(self) -> _Found | None:
        """Return the one message that is left, if it qualifies."""
        if self._low == self._high:
            return None
        timestamp = await load_store_timestamp(self._queue, QueueOffset(self._low))
        if not self._sought.is_meant(timestamp):
            return None
        return _Found(self._low, is_exact=timestamp == self._sought.moment_ms)

    async def _narrow(self, is_long: Callable[[], bool]) -> None:
        """Bisect by single messages while `is_long` returns True, as in tiers without extents."""
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

    def _window(self, heads: Heads, number: int) -> tuple[int, int]:
        """Return the next window after `number` others: interpolated at first, then the middle."""
        low, high = self._low, self._high
        whole_bytes = self._sought.rest_bytes if number else WINDOW_BYTES
        if high - low <= WINDOW_MESSAGES or heads.span_bytes(low, high) <= whole_bytes:
            return low, high
        share = 0.5
        is_told = self._times is not None and self._times[0] < self._times[1]
        if number < INTERPOLATED and self._times is not None and is_told:
            share = (self._sought.moment_ms - self._times[0]) / (self._times[1] - self._times[0])
        likely = low + int(min(max(share, 0.0), 1.0) * (high - 1 - low))
        start, end = heads.around(likely, WINDOW_BYTES // 2)
        half = WINDOW_MESSAGES // 2
        return max(low, min(start, likely - half)), min(high, max(end, likely + half))

    async def _in_part(self, heads: Heads, start: int, end: int) -> _Found | None:
        """Read every head of `[start, end)` and return the message that qualifies."""
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
    """Return the offset of the first readable message, or the queue's end."""
    return after_gaps(queue.gaps, queue.min_offset)
