"""Lenient scan of a queue: sound messages in order, damage skipped and reported."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from container.index.keys import items_of_records
from container.index.layout import KeyItems
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.queue.message_queue_container import MessageQueueContainer
from container.record.batch import PREFIX_DTYPE, as_bytes, headers_at, store_timestamps
from container.record.columns import verify_contents
from container.record.header import Coda
from container.record.verification import Fault, find_records, leading_good_units
from provider.disk_cache.use import cache_use
from provider.errors import Corrupt, OutOfRange
from provider.ranges import ByteRange, QueueOffset

UNITS_AT_ONCE = 4_096


@dataclass(frozen=True, slots=True)
class SoundRecords:
    """Sound messages of a range of offsets."""

    end: QueueOffset
    """First offset that was not scanned."""
    damage: tuple[Corrupt, ...]
    """Reasons of missing messages."""
    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    """Queue offset of each message."""
    starts: NDArray[np.int64]
    """First byte of each record in `data`."""
    sizes: NDArray[np.int64]
    """Length of each record in bytes."""
    positions: NDArray[np.int64]
    """Position of each record in the queue's log."""
    store_timestamps: NDArray[np.int64]
    """Unix ms."""


async def read_sound_records(
    container: MessageQueueContainer, start: QueueOffset, end: QueueOffset, *, bytes_max: int
) -> SoundRecords:
    """Read the first messages of `[start, end)`, which lies in no gap: at least one, or damage.

    A record is sound if all of its verifiable parts agree (`verify_contents`). Two requests if the
    range lies in one segment. Holds `bytes_max` bytes, or one message.

    Raises:
        OutOfRange: some are not published, or no longer published.
        Unavailable: retry later.
    """
    units = await container.units(start, QueueOffset(min(end, start + UNITS_AT_ONCE)))
    places, sizes = units["position"].astype(np.int64), units["size"].astype(np.int64)
    good = leading_good_units(places, sizes)
    if not good:
        error = Corrupt(f"impossible unit of offset {start}: {units[0]}", str(container.id), 0)
        return _nothing(QueueOffset(start + 1), error)
    ends = places[:good] + sizes[:good] - places[0]
    units = units[: max(1, int(np.searchsorted(ends, bytes_max, side="right")))]
    log_start = int(places[0])
    last_end = int(places[len(units) - 1] + sizes[len(units) - 1])
    log_end = min(last_end + Coda.SIZE, container.record.flat_end(SegmentType.COMMIT_LOG))
    if log_end <= log_start:
        error = Corrupt(
            f"the unit of offset {start} points past the end of the log", str(container.id), 0
        )
        return _nothing(QueueOffset(start + 1), error)
    try:
        raw = as_bytes(await container.log(ByteRange(log_start, log_end)))
    except (OutOfRange, Corrupt):  # perhaps only of bytes after the last record
        raw = as_bytes(await container.log(ByteRange(log_start, min(last_end, log_end))))
    found = find_records(raw, log_start, units, queue_id=container.id.queue_id, first_offset=start)
    path = f"{container.id}/{SegmentType.COMMIT_LOG.name}"
    damage = [
        Corrupt(Fault(int(found.faults[row])).reason, path, log_start + int(found.starts[row]))
        for row in np.flatnonzero(found.faults).tolist()
    ]
    rows, more = _sound(
        raw, found.starts, found.sizes, np.flatnonzero(found.faults == 0), container
    )
    damage += [Corrupt(why, path, log_start + int(found.starts[row])) for row, why in more]
    starts = found.starts[rows]
    return SoundRecords(
        QueueOffset(start + len(units)),
        tuple(damage),
        raw,
        start + rows,
        starts,
        found.sizes[rows],
        log_start + starts,
        store_timestamps(raw, starts),
    )


def _sound(
    raw: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rows: NDArray[np.int64],
    container: MessageQueueContainer,
) -> tuple[NDArray[np.int64], list[tuple[int, str]]]:
    """Rows with sound contents, and each other row with its reason."""
    sound: list[NDArray[np.int64]] = []
    damaged: list[tuple[int, str]] = []
    topic = container.id.topic.encode()
    while len(rows):
        headers = headers_at(raw, starts[rows], PREFIX_DTYPE)
        contents = verify_contents(raw, starts[rows], sizes[rows], headers, topic=topic)
        sound.append(rows[: contents.good])
        if contents.good < len(rows):
            damaged.append((int(rows[contents.good]), contents.reason))
        rows = rows[contents.good + 1 :]
    return np.concatenate(sound) if sound else np.empty(0, np.int64), damaged


async def read_verified_records(
    container: MessageQueueContainer, start: QueueOffset, end: QueueOffset, *, bytes_max: int
) -> SoundRecords:
    """As `read_sound_records`, from extents whose checksums hold in the storage itself.

    For lasting derivations from messages: a record's own checksum does not cover its properties.
    Reads whole extents and bypasses caches. No message of an extent with a wrong checksum is sound.

    Raises:
        OutOfRange, Unavailable: as `read_sound_records`.
        Corrupt: a manifest is damaged.
    """
    container = container.verifying()
    with cache_use(past=True):
        try:
            return await read_sound_records(container, start, end, bytes_max=bytes_max)
        except Corrupt:
            edge = min(await _extent_edges(container, start, end))
        try:
            return await read_sound_records(container, start, edge, bytes_max=bytes_max)
        except Corrupt as error:
            return _nothing(edge, error)


async def _extent_edges(
    container: MessageQueueContainer, start: QueueOffset, end: QueueOffset
) -> list[QueueOffset]:
    """Offsets in `(start, end]` before which an extent of either type ends, and `end`."""
    segments = [one for kind in FLAT_FILES for one in await container.segments(kind)]
    edges = [extent.first_offset for one in segments for extent in one.extents]
    return [end, *(edge for edge in edges if start < edge < end)]


def _nothing(end: QueueOffset, error: Corrupt) -> SoundRecords:
    none = np.empty(0, np.int64)
    return SoundRecords(end, (error,), np.empty(0, np.uint8), none, none, none, none, none)


def key_items_of(found: SoundRecords, queue: QueueId, topic_id: int) -> KeyItems:
    """Index items of messages that were read. Costs and errors as `keys_of_records`."""
    items = items_of_records(
        found.data,
        found.starts,
        found.sizes,
        topic=queue.topic,
        queue_id=queue.queue_id,
        positions=found.positions,
        store_timestamps=found.store_timestamps,
    )
    items["topic_id"] = topic_id
    return items
