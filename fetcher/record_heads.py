"""The first bytes of records, which say when they were stored, without the rest of them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from container.record.blank import Coda
from container.record.header import RecordHeader
from container.record.kernels import store_timestamps
from container.record.layout import BORN_HOST_V6, layout_of
from container.record.unit import UNIT_BYTES, Units
from container.record.unit_faults import Fault, Faults, judge_records
from container.record.verification import leading_good_units
from fetcher.plan import places_in_reads, plan_reads
from fetcher.source import TierQueue
from provider.errors import Corrupt
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset

HEAD_BYTES = layout_of(BORN_HOST_V6).store_host
"""Enough of any record for its store timestamp."""
NEAR_BYTES = 16 << 10
"""Bytes between two heads that are read too, to save a request ..."""
RANGES_MAX = 64
"""... or more, so that one round has no more than about so many ranges."""


async def load_store_timestamp(queue: TierQueue, offset: QueueOffset) -> int:
    """Store timestamp of one message in Unix ms. Two requests, the second for under 100 bytes.

    Raises:
        Corrupt: the message or its unit is damaged.
        OutOfRange: it is not published any more.
        Unavailable: try again.
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
    """The heads of consecutive messages, read when they are asked for."""

    def __init__(self, queue: TierQueue, first: int, units: Units) -> None:
        """`units` are those of the messages from offset `first` on."""
        self._queue = queue
        self._first = first
        self._positions = units["position"].astype(np.int64)
        self._sizes = units["size"].astype(np.int64)
        self._damaged: dict[int, tuple[Fault, int]] = {}

    @property
    def units_are_good(self) -> bool:
        """Whether all units can be those of a queue; nothing else may be asked for otherwise."""
        return leading_good_units(self._positions, self._sizes) == len(self._positions)

    def span_bytes(self, start: int, end: int) -> int:
        """Bytes that the records of `[start, end)` take."""
        first, last = start - self._first, end - self._first - 1
        return int(self._positions[last] + self._sizes[last] - self._positions[first])

    def around(self, offset: int, reach_bytes: int) -> tuple[int, int]:
        """From which to which offset records begin within `reach_bytes` of that at `offset`."""
        at = self._positions[offset - self._first]
        places = np.searchsorted(self._positions, [at - reach_bytes, at + reach_bytes])
        return self._first + int(places[0]), self._first + int(places[1])

    async def window(self, start: int, end: int) -> "HeadsWindow":
        """The heads of `[start, end)`, and what lies between them unless that is much. One round.

        Each is a place among what is returned; nothing is looked at yet.
        """
        rows = slice(start - self._first, end - self._first)
        positions, sizes = self._positions[rows], self._sizes[rows]
        first, last = int(positions[0]), int(positions[-1])
        behind = last + min(int(sizes[-1]), HEAD_BYTES)
        if behind - first <= NEAR_BYTES * len(positions):
            data = memoryview(await self._queue.log(ByteRange(first, behind)))
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
        """Store timestamp, Unix ms, of each message of `[start, end)`, and whether it is good.

        One round of requests; another one where units point at codas of an old Java tier.
        """
        rows = np.arange(start - self._first, end - self._first)
        timestamps, faults = await self._read(rows, self._positions[rows])
        at_codas = np.flatnonzero(faults == Fault.CODA)
        if len(at_codas):  # the records that are meant lie behind them
            behind = rows[at_codas]
            again = await self._read(behind, self._positions[behind] + Coda.SIZE)
            timestamps[at_codas], faults[at_codas] = again
        for row in np.flatnonzero(faults).tolist():
            self._damaged[start + row] = Fault(int(faults[row])), int(self._positions[rows[row]])
        return timestamps, faults == Fault.NONE

    def refuse_damage(self, offset: int | None = None) -> None:
        """Raise `Corrupt` if the message at `offset` was read and is damaged; None: if any was."""
        at = next(iter(self._damaged), -1) if offset is None else offset
        if at in self._damaged:
            fault, position = self._damaged[at]
            raise Corrupt(fault.reason, f"{self._queue.id}/COMMIT_LOG", position)

    async def _read(
        self, rows: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], Faults]:
        """Timestamps and faults of some messages whose records begin at `positions`."""
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
    """The heads of consecutive messages, of which only those that are asked for are decoded.

    That costs 3 us each, so that bisection takes less time than a look at all of a few hundred.
    """

    def __init__(
        self,
        queue: TierQueue,
        first: int,
        positions: NDArray[np.int64],
        sizes: NDArray[np.int64],
        head_of: Callable[[int], Buffer],
    ) -> None:
        """Of the messages from offset `first` on; `head_of` one may be followed by more bytes."""
        self._queue_id = queue.id.queue_id
        self._first = first
        self._head_of = head_of
        self._positions = positions
        self._sizes = sizes

    def timestamp(self, offset: int) -> int | None:
        """Store timestamp of one message, Unix ms; None if its head is damaged, or not there."""
        row = offset - self._first
        position, size = int(self._positions[row]), int(self._sizes[row])
        try:
            header = RecordHeader.decode(self._head_of(row), path="", position=position)
        except Corrupt:
            return None
        place = (header.size, header.queue_id, header.queue_offset, header.physical_offset)
        is_there = place == (size, self._queue_id, offset, position)
        return header.store_timestamp if is_there else None
