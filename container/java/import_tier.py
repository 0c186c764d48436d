"""Making a Java tier ours: the same segments, with extents, checksums and times of our own."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from container.metadata.records import Extent, Queue, Segment
from container.names.queue_id import SegmentType
from container.names.rocketmq import segment_name
from container.queue.boundaries import cut_runs
from container.queue.message_queue_container import MessageQueueContainer
from container.record.blank import Coda
from container.record.crc32c import crc32c
from container.record.kernels import store_timestamps
from container.record.unit import UNIT_BYTES, Units
from container.record.unit_faults import find_records, leading_good
from container.record.verification import leading_good_units
from provider.errors import Corrupt
from provider.object_store import ObjectStore
from provider.ranges import ByteRange, QueueOffset

UNITS_AT_ONCE = 4_096
LOG_BYTES_AT_ONCE = 16 << 20
"""Of records in memory at once, if one is not longer."""


@dataclass(frozen=True, slots=True)
class _Items:
    """Records or units of a queue: where each ends in its flat file, and its message's time.

    Bytes between two records that hold none are one too, with the first offset that a gap lost.
    """

    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    alone: NDArray[np.bool_]
    """Those that hold no record: they are extents of their own."""

    def of(self, segment: Segment) -> "_Items":
        """Those that end in `segment`; the last ends with it, a coda behind it included."""
        first = int(np.searchsorted(self.ends, segment.base, side="right"))
        last = int(np.searchsorted(self.ends, segment.end, side="right"))
        ends = self.ends[first:last].copy()
        ends[-1:] = segment.end
        rows = slice(first, last)
        return _Items(self.offsets[rows], ends, self.timestamps[rows], self.alone[rows])

    def runs(self) -> list[slice]:
        """What may be in one extent: neither a gap nor bytes without a record lie amid it."""
        apart = np.diff(self.offsets, prepend=self.offsets[:1]) > 1
        apart |= self.alone
        apart[1:] |= self.alone[:-1]
        starts = sorted({0, *map(int, np.flatnonzero(apart))})
        return [slice(a, b) for a, b in zip(starts, [*starts[1:], len(self.ends)], strict=True)]


async def queue_with_checksums(
    container: MessageQueueContainer,
    store: ObjectStore,
    *,
    extent_bytes_max: int,
    progress: Callable[[int], None],
) -> Queue:
    """The record of a Java queue with extents as our own commits would have made them.

    Reads every byte twice; holds 40 bytes a message, and `LOG_BYTES_AT_ONCE` or an extent.
    `progress` is told the bytes of records read since the last call. All segments but the last of
    each flat file become sealed. What lies in the log behind the last unit's record (Java died
    between the two) is no part of it.

    Raises:
        Corrupt, OutOfRange: a unit, or the record that it points to, is damaged; the position is
            the place.
    """
    queue = container.record
    if not any(segment.extents for segment in queue.commit_log):
        return queue  # it has no message, and our export says where it goes on
    records, units = await _items(container, progress)
    logs = _until(queue.commit_log, int(records.ends[-1]))
    log = [await _imported(store, queue, s, records, extent_bytes_max) for s in logs]
    row = [await _imported(store, queue, s, units, extent_bytes_max) for s in queue.consume_queue]
    goes_on = not (queue.gaps and queue.gaps[-1].end == queue.next_offset)
    return replace(
        queue,
        commit_log=_sealed(log, goes_on=goes_on),
        consume_queue=_sealed(row, goes_on=goes_on),
    )


def _until(segments: Sequence[Segment], end: int) -> list[Segment]:
    """The segments up to byte `end` of their flat file; each has one extent, as Java's have."""
    return [
        replace(s, extents=(s.extents[0]._replace(length=min(s.size, end - s.base)),))
        for s in segments
        if s.base < end and s.extents
    ]


async def _items(
    container: MessageQueueContainer, progress: Callable[[int], None]
) -> tuple[_Items, _Items]:
    """Where the queue's records and units end. Units before `min_offset` have no record left."""
    queue = container.record
    offset = queue.min_offset
    ends: list[NDArray[np.int64]] = []
    stamps: list[NDArray[np.int64]] = []
    offsets: list[NDArray[np.int64]] = []
    alone: list[NDArray[np.bool_]] = []
    bases = {segment.base for segment in queue.commit_log}
    while offset < queue.next_offset:
        number = bisect_right(queue.gaps, offset, key=lambda one: one.end)
        gap = queue.gaps[number] if number < len(queue.gaps) else None
        if gap is not None and gap.start <= offset:
            offset = gap.end
            continue
        behind = queue.next_offset if gap is None else gap.start
        end = QueueOffset(min(offset + UNITS_AT_ONCE, behind))
        part = await container.units(offset, end)
        starts, sizes = part["position"].astype(np.int64), part["size"].astype(np.int64)
        good = leading_good_units(starts, sizes)
        if not good:
            path = f"{queue.id}/CONSUME_QUEUE"
            raise Corrupt(f"impossible unit {part[:1].tolist()}", path, UNIT_BYTES * offset)
        together = np.searchsorted(starts + sizes - starts[0], LOG_BYTES_AT_ONCE, side="right")
        part = part[: min(good, max(1, int(together)))]
        raw = await container.log(_log_range(queue, part))
        found = find_records(
            raw, int(starts[0]), part, queue_id=queue.id.queue_id, first_offset=offset
        )
        count, fault = leading_good(found.faults)
        if fault:
            path = f"{queue.id}/COMMIT_LOG"
            raise Corrupt(fault.reason, path, int(starts[0] + found.starts[count]))
        begins_at = int(starts[0] + found.starts[0])
        if ends and offset - 1 > offsets[-1][-1] and ends[-1][-1] < begins_at not in bases:
            alone.append(np.ones(1, np.bool_))
            ends.append(np.array([begins_at]))
            stamps.append(stamps[-1][-1:])
            offsets.append(offsets[-1][-1:] + 1)
        ends.append(starts[0] + found.starts + found.sizes)
        stamps.append(store_timestamps(raw, found.starts))
        offsets.append(np.arange(offset, offset + len(part), dtype=np.int64))
        alone.append(np.zeros(len(part), np.bool_))
        progress(len(raw))
        offset = QueueOffset(offset + len(part))
    first = queue.consume_queue[0].base // UNIT_BYTES
    records = _Items(
        np.concatenate(offsets),
        np.concatenate(ends),
        np.concatenate(stamps),
        np.concatenate(alone),
    )
    lost = np.arange(first, queue.min_offset, dtype=np.int64)
    for one in queue.gaps:
        lost = lost[(lost < one.start) | (lost >= one.end)]
    told = np.concatenate((lost, records.offsets[~records.alone]))
    timestamps = records.timestamps[~records.alone]
    units = _Items(
        told,
        UNIT_BYTES * (told + 1),
        np.concatenate((np.full(len(lost), timestamps[0]), timestamps)),
        np.zeros(len(told), np.bool_),
    )
    return records, units


def _log_range(queue: Queue, units: Units) -> ByteRange:
    """Where the records of some units lie; the last may lie behind a coda."""
    start = int(units["position"][0])
    end = int(units["position"][-1]) + int(units["size"][-1]) + Coda.SIZE
    end = min(end, queue.flat_end(SegmentType.COMMIT_LOG))
    return ByteRange(start, max(end, start + 1))


async def _imported(
    store: ObjectStore, queue: Queue, segment: Segment, items: _Items, bytes_max: int
) -> Segment:
    """The segment with extents that were read."""
    mine = items.of(segment)
    name = segment_name(queue.id, segment.type, segment.base)
    extents: list[Extent] = []
    begin = segment.base
    for run in mine.runs():
        ends = mine.ends[run]
        for cut in cut_runs(ends, begin, open_start=begin, bytes_max=bytes_max):
            inside = ByteRange(cut.start - segment.base, int(ends[cut.last - 1]) - segment.base)
            stamps = mine.timestamps[run][cut.first : cut.last]
            extents.append(
                Extent(
                    inside.start,
                    inside.length,
                    crc32c(await store.read(name, inside)),
                    QueueOffset(int(mine.offsets[run][cut.first])),
                    int(stamps.min()),
                    int(stamps.max()),
                    object_offset=inside.start,
                )
            )
        begin = int(ends[-1])
    return replace(segment, extents=tuple(extents))


def _sealed(segments: Sequence[Segment], *, goes_on: bool) -> tuple[Segment, ...]:
    """All but the last are closed for good; those without messages go.

    Not `goes_on`: the queue ends with a gap, and what follows begins a segment.
    """
    kept = [segment for segment in segments if segment.extents]
    closed = [replace(s, sealed_ms=s.sealed_ms or s.end_timestamp) for s in kept]
    if goes_on:
        closed[-1:] = [replace(one, sealed_ms=None) for one in closed[-1:]]
    return tuple(closed)
