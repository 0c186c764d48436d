"""Making a Java tier ours: the same segments, with extents, checksums and times of our own."""

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
    """Records or units of a queue: where each ends in its flat file, and its message's time."""

    first_offset: int
    ends: NDArray[np.int64]
    timestamps: NDArray[np.int64]

    def of(self, segment: Segment) -> "_Items":
        """Those that end in `segment`; the last ends with it, a coda behind it included."""
        first = int(np.searchsorted(self.ends, segment.base, side="right"))
        last = int(np.searchsorted(self.ends, segment.end, side="right"))
        ends = self.ends[first:last].copy()
        ends[-1:] = segment.end
        return _Items(self.first_offset + first, ends, self.timestamps[first:last])


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
    records, units = await _items(container, progress)
    logs = _until(queue.commit_log, int(records.ends[-1]))
    log = [await _imported(store, queue, s, records, extent_bytes_max) for s in logs]
    row = [await _imported(store, queue, s, units, extent_bytes_max) for s in queue.consume_queue]
    return replace(queue, commit_log=_sealed(log), consume_queue=_sealed(row))


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
    while offset < queue.next_offset:
        end = QueueOffset(min(offset + UNITS_AT_ONCE, queue.next_offset))
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
        ends.append(starts[0] + found.starts + found.sizes)
        stamps.append(store_timestamps(raw, found.starts))
        progress(len(raw))
        offset = QueueOffset(offset + len(part))
    first = queue.consume_queue[0].base // UNIT_BYTES
    timestamps = np.concatenate(stamps)
    lost = np.full(queue.min_offset - first, timestamps[0])
    unit_ends = UNIT_BYTES * np.arange(first + 1, queue.next_offset + 1, dtype=np.int64)
    return (
        _Items(queue.min_offset, np.concatenate(ends), timestamps),
        _Items(first, unit_ends, np.concatenate((lost, timestamps))),
    )


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
    cuts = cut_runs(mine.ends, segment.base, open_start=segment.base, bytes_max=bytes_max)
    extents: list[Extent] = []
    for cut in cuts:
        inside = ByteRange(cut.start - segment.base, int(mine.ends[cut.last - 1]) - segment.base)
        stamps = mine.timestamps[cut.first : cut.last]
        extents.append(
            Extent(
                inside.start,
                inside.length,
                crc32c(await store.read(name, inside)),
                QueueOffset(mine.first_offset + cut.first),
                int(stamps.min()),
                int(stamps.max()),
                object_offset=inside.start,
            )
        )
    return replace(segment, extents=tuple(extents))


def _sealed(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """All but the last are closed for good; those without messages go."""
    kept = [segment for segment in segments if segment.extents]
    closed = [replace(s, sealed_ms=s.sealed_ms or s.end_timestamp) for s in kept[:-1]]
    return (*closed, *[replace(s, sealed_ms=None) for s in kept[-1:]])
