"""Migration between the Java tiered store's metadata and ours, in place: import and export.

RocketMQ takes the number of slots of a sealed file from its configuration, and identifies its files
by their begin times. Messages that no index file of ours covers are read for their keys, so that
the broker finds every message.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from container.check.index_files import checksum_of
from container.errors import Refused
from container.index.layout import IndexHeader, KeyItems, joined, place_of
from container.index.merging import MergedPart, merge_sealed
from container.index.sealed import fitting_begin, fitting_slots, seal_index
from container.java.metadata import (
    UNSET_TIMESTAMP,
    FileKey,
    JavaMetadata,
    JavaQueue,
    JavaSegment,
    JavaTopic,
    KnownOffsets,
    encode_java_metadata,
)
from container.java.tier import DAMAGE
from container.lookup.find import part_of, read_whole
from container.metadata.coverage import covered_by_files, readable, without
from container.metadata.operations import Operation, PutIndexFile, PutQueue, PutTopic
from container.metadata.records import (
    Extent,
    IndexFile,
    Queue,
    Segment,
    check_queue,
    gap_at,
    next_gap_start,
)
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import INDEX_QUEUE, index_name, parse_segment_name, segment_name
from container.names.tier_objects import INDEX_PREFIX, IndexBase
from container.queue.commit_plan import EXTENT_MESSAGES_MAX, cut_runs
from container.queue.lenient_scan import key_items_of, read_verified_records
from container.queue.message_queue_container import MessageQueueContainer
from container.record.checksum import crc32c
from container.record.header import Coda
from container.record.unit import UNIT_BYTES, Units
from container.record.verification import (
    damaged_bodies,
    find_records,
    leading_good_units,
    verify_records,
)
from container.tier_view import TierReader
from provider.clock import Clock
from provider.disk_cache.use import cache_use
from provider.errors import Corrupt, Denied, OutOfRange, StoreError
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange, QueueOffset

JAVA_NEW = 0
"""Only status that Java 5.3 and later write."""


def export_java_metadata(
    state: TierState,
    segments: Mapping[QueueId, Sequence[Segment]],
    *,
    now_ms: int,
    index_files: Sequence[IndexFile] = (),
) -> JavaMetadata:
    """Convert the metadata to those of Java's tiered store for the same tree. Pure.

    `segments` holds all segments of every queue, including those in manifests. Only segments that
    are files of their own can be exported. Index files of ours are left out: Java reads only files
    with its configured number of slots. `index_files` are such files. Gaps are
    in a table of ours, for an import. Java ignores it.

    Raises:
        ValueError: a segment lies in packed objects.
    """
    tables: dict[SegmentType, dict[FileKey, tuple[JavaSegment, ...]]] = {
        kind: {} for kind in SegmentType
    }
    broker = state.broker.name
    for queue, found in segments.items():
        key = FileKey(broker, queue)
        for kind in FLAT_FILES:
            rows = [_java_segment(str(key), segment) for segment in found if segment.type == kind]
            tables[kind][key] = tuple(rows)
    index_key = FileKey(broker, INDEX_QUEUE)
    java_index = [file for file in state.index_files.values() if not file.coverage]
    java_index += index_files
    if java_index:
        tables[SegmentType.INDEX][index_key] = tuple(
            JavaSegment(
                path=str(index_key),
                type=int(SegmentType.INDEX),
                base_offset=file.base,
                status=JAVA_NEW,
                size=file.size,
                create_timestamp=file.begin_timestamp,
                begin_timestamp=file.begin_timestamp,
                end_timestamp=file.end_timestamp,
                seal_timestamp=0,
            )
            for file in sorted(java_index, key=lambda file: file.base)
        )
    queues = tuple(
        JavaQueue(broker, q.id.topic, q.id.queue_id, q.min_offset, q.next_offset, now_ms)
        for q in state.queues.values()
    )
    topics = tuple(
        JavaTopic(t.topic_id, t.name, JAVA_NEW, t.retention_hours, t.updated_ms)
        for t in state.topics.values()
    )
    offsets = {
        FileKey(broker, q.id): KnownOffsets(q.min_offset, q.next_offset, q.gaps)
        for q in state.queues.values()
        if q.gaps or q.min_offset == q.next_offset
    }
    return JavaMetadata(tables, queues, topics, state.next_topic_id - 1, offsets)


def _java_segment(path: str, segment: Segment) -> JavaSegment:
    if any(extent.object_name for extent in segment.extents):
        raise ValueError(f"{path}: the segment at {segment.base} has no file of its own")
    begin, end = segment.begin_timestamp, segment.end_timestamp
    return JavaSegment(
        path=path,
        type=int(segment.type),
        base_offset=segment.base,
        status=JAVA_NEW,
        size=segment.size,
        create_timestamp=segment.created_ms,
        begin_timestamp=UNSET_TIMESTAMP if begin is None else begin,
        end_timestamp=UNSET_TIMESTAMP if end is None else end,
        seal_timestamp=segment.sealed_ms or 0,
    )


UNITS_AT_ONCE = 4_096
LOG_BYTES_AT_ONCE = 16 << 20
"""Bytes of records in memory at once, unless one is longer."""


@dataclass(frozen=True, slots=True)
class _Items:
    """Records or units of a queue: the end of each in its flat file, and its message's time.

    Bytes between two records that hold none count as one, with the first offset that a gap lost.
    """

    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    alone: NDArray[np.bool_]
    """Items that hold no record. They are extents of their own."""
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    """Verified bytes of each. 0 for an item without a record."""
    sums: NDArray[np.uint32]
    """CRC-32C of those bytes."""

    def of(self, segment: Segment) -> "_Items":
        """Items that end in `segment`. The last ends with it, including a coda after it."""
        first = int(np.searchsorted(self.ends, segment.base, side="right"))
        last = int(np.searchsorted(self.ends, segment.end, side="right"))
        ends = self.ends[first:last].copy()
        ends[-1:] = segment.end
        rows = slice(first, last)
        return replace(self.rows(rows), ends=ends)

    def rows(self, rows: slice) -> "_Items":
        """Select some items."""
        return _Items(
            self.offsets[rows],
            self.ends[rows],
            self.timestamps[rows],
            self.alone[rows],
            self.starts[rows],
            self.sizes[rows],
            self.sums[rows],
        )

    def runs(self) -> list[slice]:
        """Slices for one extent each, without gaps and without bytes of no record inside."""
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
    """Return the record of a Java queue with extents like those of our own commits.

    Reads every byte twice, without caches. The first read verifies each record, with its body and
    its checksum. The second one derives the checksum of each extent from the same bytes. Holds 90
    bytes a message, and `LOG_BYTES_AT_ONCE` or an extent. `progress` is called with the bytes of
    records read since the last call. All segments but the last of each flat file become sealed.
    Bytes in the log after the last unit's record (Java crashed between the two writes) are dropped.

    Raises:
        Corrupt, OutOfRange: a unit, or the record that it points to, is damaged, or the second read
            returned other bytes. The position is its place.
    """
    with cache_use(past=True):
        return await _queue_with_checksums(container, store, extent_bytes_max, progress)


async def _queue_with_checksums(
    container: MessageQueueContainer,
    store: ObjectStore,
    extent_bytes_max: int,
    progress: Callable[[int], None],
) -> Queue:
    queue = container.record
    if not any(segment.extents for segment in queue.commit_log):
        return queue  # it has no message, and our export has its next offset
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
    """Segments up to byte `end` of their flat file. Each has one extent, as Java's have."""
    return [
        replace(s, extents=(s.extents[0]._replace(length=min(s.size, end - s.base)),))
        for s in segments
        if s.base < end and s.extents
    ]


async def _items(
    container: MessageQueueContainer, progress: Callable[[int], None]
) -> tuple[_Items, _Items]:
    """Ends of the queue's records and units. Units before `min_offset` have no record."""
    queue = container.record
    offset = queue.min_offset
    found: list[_Items] = []
    unit_sums: list[NDArray[np.uint32]] = []
    bases = {segment.base for segment in queue.commit_log}
    while offset < queue.next_offset:
        gap = gap_at(queue.gaps, offset)
        if gap is not None:
            offset = gap.end
            continue
        limit = next_gap_start(queue.gaps, offset, queue.next_offset)
        end = QueueOffset(min(offset + UNITS_AT_ONCE, limit))
        part = await container.units(offset, end)
        starts, sizes = part["position"].astype(np.int64), part["size"].astype(np.int64)
        good = leading_good_units(starts, sizes)
        if not good:
            path = f"{queue.id}/CONSUME_QUEUE"
            raise Corrupt(f"impossible unit {part[:1].tolist()}", path, UNIT_BYTES * offset)
        together = np.searchsorted(starts + sizes - starts[0], LOG_BYTES_AT_ONCE, side="right")
        part = part[: min(good, max(1, int(together)))]
        raw = await container.log(_log_range(queue, part))
        records = _verified(queue, raw, part, offset)
        begins_at = int(records.starts[0])
        if found and offset - 1 > found[-1].offsets[-1]:
            before = found[-1].rows(slice(-1, None))
            if before.ends[0] < begins_at not in bases:
                found.append(_without_record(before.offsets + 1, begins_at, before.timestamps))
        found.append(records)
        at = UNIT_BYTES * np.arange(len(part))
        unit_sums.append(_sums(part.tobytes(), at, np.full(len(part), UNIT_BYTES)))
        progress(len(raw))
        offset = QueueOffset(offset + len(part))
    records = _joined(found)
    return records, _units_of(queue, records, np.concatenate(unit_sums))


def _units_of(queue: Queue, records: _Items, sums: NDArray[np.uint32]) -> _Items:
    """The units of records, and those before them, which have no record left to verify them."""
    first = queue.consume_queue[0].base // UNIT_BYTES
    lost = np.arange(first, queue.min_offset, dtype=np.int64)
    for one in queue.gaps:
        lost = lost[(lost < one.start) | (lost >= one.end)]
    jumps = np.concatenate((lost, records.offsets[~records.alone]))
    timestamps = records.timestamps[~records.alone]
    return _Items(
        jumps,
        UNIT_BYTES * (jumps + 1),
        np.concatenate((np.full(len(lost), timestamps[0]), timestamps)),
        np.zeros(len(jumps), np.bool_),
        UNIT_BYTES * jumps,
        np.repeat(np.array([0, UNIT_BYTES]), (len(lost), len(sums))),
        np.concatenate((np.zeros(len(lost), np.uint32), sums)),
    )


def _verified(queue: Queue, raw: Buffer, units: Units, first: QueueOffset) -> _Items:
    """The records of some units in `raw`, which begins where the first unit points to.

    Raises:
        Corrupt: a record, its body or its own checksum is damaged; position is the place.
    """
    log_start = int(units["position"][0])
    number = queue.id.queue_id
    found = find_records(raw, log_start, units, queue_id=number, first_offset=first)
    offsets = first + np.arange(len(units), dtype=np.int64)
    verified = verify_records(
        raw,
        found.starts,
        found.sizes,
        queue_id=number,
        queue_offsets=offsets,
        physical_positions=log_start + found.starts,
        topic=queue.id.topic.encode(),
    )
    count, reason = verified.count, verified.reason
    bad = damaged_bodies(raw, found.starts[:count], found.sizes[:count])
    if len(bad):
        count, reason = int(bad[0]), "the body or the whole record fails its CRC"
    if count < len(units):
        path = f"{queue.id}/COMMIT_LOG"
        raise Corrupt(reason, path, int(log_start + found.starts[count]))
    return _Items(
        offsets,
        log_start + found.starts + found.sizes,
        verified.store_timestamps,
        np.zeros(len(units), np.bool_),
        log_start + found.starts,
        found.sizes,
        _sums(raw, found.starts, found.sizes),
    )


def _without_record(offsets: NDArray[np.int64], end: int, timestamps: NDArray[np.int64]) -> _Items:
    """Bytes up to `end` that hold none."""
    at, none = np.array([end]), np.zeros(1, np.int64)
    return _Items(offsets, at, timestamps, np.ones(1, np.bool_), at, none, none.astype(np.uint32))


def _joined(parts: Sequence[_Items]) -> _Items:
    """All of them in one."""
    names = [field.name for field in fields(_Items)]
    return _Items(*(np.concatenate([getattr(one, name) for one in parts]) for name in names))


def _sums(raw: Buffer, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint32]:
    """CRC-32C of each of some ranges of `raw`."""
    view = memoryview(raw)
    spans = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    return np.array([crc32c(view[start:end]) for start, end in spans], np.uint32)


def _log_range(queue: Queue, units: Units) -> ByteRange:
    """Log range of some units' records. The last may lie after a coda."""
    start = int(units["position"][0])
    end = int(units["position"][-1]) + int(units["size"][-1]) + Coda.SIZE
    end = min(end, queue.flat_end(SegmentType.COMMIT_LOG))
    return ByteRange(start, max(end, start + 1))


async def _imported(
    store: ObjectStore, queue: Queue, segment: Segment, items: _Items, bytes_max: int
) -> Segment:
    """Segment with extents that were read and summed."""
    mine = items.of(segment)
    items_max = EXTENT_MESSAGES_MAX if segment.type is SegmentType.COMMIT_LOG else None
    name = segment_name(queue.id, segment.type, segment.base)
    extents: list[Extent] = []
    begin = segment.base
    for run in mine.runs():
        part = mine.rows(run)
        cuts = cut_runs(
            part.ends, begin, open_start=begin, bytes_max=bytes_max, items_max=items_max
        )
        for cut in cuts:
            inside = ByteRange(
                cut.start - segment.base, int(part.ends[cut.last - 1]) - segment.base
            )
            held = part.rows(slice(cut.first, cut.last))
            raw = await store.read(name, inside)
            differ = np.flatnonzero(_sums(raw, held.starts - cut.start, held.sizes) != held.sums)
            if len(differ):
                place = int(held.starts[differ[0]]) - segment.base
                raise Corrupt("it was read otherwise when it was verified", name, place)
            extents.append(
                Extent(
                    inside.start,
                    inside.length,
                    crc32c(raw),
                    QueueOffset(int(held.offsets[0])),
                    int(held.timestamps.min()),
                    int(held.timestamps.max()),
                    object_offset=inside.start,
                )
            )
        begin = int(part.ends[-1])
    return replace(segment, extents=tuple(extents))


def _sealed(segments: Sequence[Segment], *, goes_on: bool) -> tuple[Segment, ...]:
    """Seal all but the last segment. Segments without messages are dropped.

    Not `goes_on`: the queue ends with a gap, and the next message begins a segment.
    """
    kept = [segment for segment in segments if segment.extents]
    closed = [replace(s, sealed_ms=s.sealed_ms or s.end_timestamp) for s in kept]
    if goes_on:
        closed[-1:] = [replace(one, sealed_ms=None) for one in closed[-1:]]
    return tuple(closed)


async def java_metadata_of(
    reader: TierReader, *, clock: Clock, index_files: Sequence[IndexFile] = ()
) -> bytes:
    """Text of a `tieredStoreMetadata.json` with which the Java store opens this tree.

    Reads the manifests, no message. `index_files`: files that `rebuild_index` has written for it.

    Raises:
        ValueError: a segment lies in packed objects, which Java does not know.
    """
    segments: dict[QueueId, list[Segment]] = {}
    for queue in sorted(reader.state.queues):
        container = reader.container(queue)
        assert container is not None, "a reader's state does not change by itself"
        segments[queue] = [one for kind in FLAT_FILES for one in await container.segments(kind)]
    exported = export_java_metadata(
        reader.state, segments, now_ms=clock.now_ms(), index_files=index_files
    )
    return encode_java_metadata(exported)


@dataclass(frozen=True, slots=True)
class JavaContents:
    """Contents of a Java tier, with checksums and times of our own."""

    queues: list[Queue]
    """Queues that are intact."""
    index_files: list[IndexFile]
    damage: dict[QueueId, StoreError]
    """Reasons why other queues cannot be imported. The key `INDEX_QUEUE` is for an index file."""
    unlisted: dict[QueueId, StoreError]
    """Queues with messages that the metadata lacks, in other files of the tier."""


async def read_java_tier(
    reader: TierReader,
    *,
    without: AbstractSet[QueueId] = frozenset(),
    extent_bytes_max: int,
    progress: Callable[[int], None],
) -> JavaContents:
    """Read every queue of a Java tier, except some. Damage of one does not stop the others.

    Reads every byte twice and index files once, and lists the tier once. `progress` is called with
    the bytes of records read since the last call.

    Raises:
        Unavailable: retry later.
    """
    found = JavaContents([], [], {}, await _unknown_files(reader))
    for queue in sorted(reader.state.queues.keys() - without):
        container = reader.container(queue)
        assert container is not None, "a reader's state does not change by itself"
        try:
            whole = await queue_with_checksums(
                container, reader.store, extent_bytes_max=extent_bytes_max, progress=progress
            )
            check_queue(whole)
        except (*DAMAGE, Refused) as error:
            found.damage[queue] = error
        else:
            found.queues.append(whole)
    if INDEX_QUEUE in without:
        return found
    for name, file in reader.state.index_files.items():
        try:
            with cache_use(past=True):
                checksum = await checksum_of(reader.store, name, file.size)
        except DAMAGE as error:
            found.damage.setdefault(INDEX_QUEUE, error)
        else:
            found.index_files.append(replace(file, crc32c=checksum))
    return found


async def _unknown_files(reader: TierReader) -> dict[QueueId, StoreError]:
    """Queues with a log file beyond the metadata, which are therefore outdated."""
    found: dict[QueueId, StoreError] = {}
    for entry in await reader.store.list(""):
        name = parse_segment_name(entry.name)
        if name is None or name.type is not SegmentType.COMMIT_LOG or not entry.size_bytes:
            continue
        queue = reader.state.queues.get(name.queue)
        if queue is None and name.queue in reader.queue_damage:
            continue  # its damage is the reason
        if queue is None:
            why = "the metadata do not know this queue; without it: move it out of the tier"
        elif name.base >= queue.flat_end(SegmentType.COMMIT_LOG):
            why = "the metadata are older than this file, and do not know it"
        else:
            continue
        found.setdefault(name.queue, Corrupt(why, entry.name))
    return found


def import_of(reader: TierReader, contents: JavaContents) -> list[Operation]:
    """Operations that import the topics, queues and index files of a Java tier. Pure.

    The entry that takes over the tier publishes them. An owner that did not know the files would
    treat them as garbage of a dead owner, and overwrite them.
    """
    topics = sorted(reader.state.topics.values(), key=lambda topic: topic.topic_id)
    operations: list[Operation] = [*map(PutTopic, topics), *map(PutQueue, contents.queues)]
    operations += map(PutIndexFile, contents.index_files)
    return operations


FILE_ITEMS_MAX = 1 << 21
"""Items of one file, unless one of ours has more. Some 250 bytes of memory each, with its parts."""
COLLECTED_ITEMS_MAX = 1 << 18
PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class JavaIndexLimits:
    """Limits of index files from the broker's configuration."""

    slots: int
    """Number of slots of a file (`tieredStoreIndexFileMaxHashSlotNum`)."""
    items_max: int = FILE_ITEMS_MAX
    """Items of one file. A broker also reads files with more items than its own limit."""


async def rebuild_index(reader: TierReader, limits: JavaIndexLimits) -> list[IndexFile]:
    """Write index files for a Java broker into the tier. They are not part of our metadata.

    A file of an earlier call is reused. Reads the index files, and every message that none of them
    covers. Costs one listing, and one or two requests a file. Holds `limits.items_max` items at
    some 250 bytes, and the slots of a file.

    Raises:
        Denied, Unavailable: the tier cannot be read, or written to.
        ValueError: this number of slots does not fit into a file.
    """
    writer = _Writer(reader, limits)
    await writer.prepare()
    group: list[MergedPart] = []
    total = 0
    async for part, items in _parts(reader):
        if group and total + items > limits.items_max:
            await writer.write(group)
            group, total = [], 0
        group.append(part)
        total += items
    if group:
        await writer.write(group)
    return writer.written


async def _parts(reader: TierReader) -> AsyncIterator[tuple[MergedPart, int]]:
    """Keys of all messages: from files, and read for messages that no good file covers."""
    good: list[IndexFile] = []
    ours = [one for one in reader.state.index_files.values() if one.coverage]
    for file in sorted(ours, key=lambda one: (one.end_timestamp, one.base)):
        if file.cuts:
            continue  # it has items of other messages, which a Java broker would accept
        try:
            raw = await read_whole(reader.store, file)
        except (Corrupt, Denied, OutOfRange):
            continue  # its messages are read
        yield part_of(reader.state, file, raw), file.items
        good.append(file)
    collected: list[KeyItems] = []
    async for items in _read_items(reader, good):
        collected.append(items)
        if sum(map(len, collected)) >= COLLECTED_ITEMS_MAX:
            yield _merged(collected)
            collected = []
    if collected:
        yield _merged(collected)


async def _read_items(reader: TierReader, good: Iterable[IndexFile]) -> AsyncIterator[KeyItems]:
    """Read the keys of messages that no file covers. Damaged messages have none."""
    covered = covered_by_files(good)
    for queue in sorted(reader.state.queues.values(), key=lambda one: one.id):
        container = reader.container(queue.id)
        assert container is not None, "a reader's state does not change by itself"
        for span in without(readable(queue), covered.get(queue.id, ())):
            at, end = span
            while at < end:
                found = await read_verified_records(
                    container, QueueOffset(at), QueueOffset(end), bytes_max=PIECE_BYTES
                )
                yield key_items_of(found, queue.id, reader.state.topics[queue.id.topic].topic_id)
                at = found.end


def _merged(collected: list[KeyItems]) -> tuple[MergedPart, int]:
    """Seal collected items to a part like any other."""
    items = joined(collected)
    begin = fitting_begin(int(items["store_timestamp"].min())) if len(items) else 0
    raw = seal_index(items, slots=fitting_slots(len(items)), begin_timestamp=begin)
    queues = np.unique(items[["topic_id", "queue_id"]])
    places = np.array([place_of(*one) for one in queues.tolist()], np.int64)
    return MergedPart("", raw.data, places, np.zeros(len(places), np.int64)), len(items)


class _Writer:
    """Writes files after those that a Java broker has written."""

    def __init__(self, reader: TierReader, limits: JavaIndexLimits) -> None:
        self._reader = reader
        self._limits = limits
        theirs = [one for one in reader.state.index_files.values() if not one.coverage]
        self._begins = {one.begin_timestamp for one in theirs}
        self._next_base = max((one.base + one.size for one in theirs), default=0)
        self._left: dict[int, list[tuple[int, str]]] = {}
        """Files that an earlier export may have left, by size."""
        self.written: list[IndexFile] = []

    async def prepare(self) -> None:
        """Find the existing files. One listing."""
        for entry in await self._reader.store.list(INDEX_PREFIX):
            base = IndexBase.parse(entry.name)
            if base is None or base.epoch:
                continue
            self._next_base = max(self._next_base, base.number + entry.size_bytes)
            if entry.name not in self._reader.state.index_files:
                self._left.setdefault(entry.size_bytes, []).append((base.number, entry.name))

    async def write(self, group: list[MergedPart]) -> None:
        """Merge some parts into one file, under the next base."""
        begin = self._free_begin(group)
        raw = merge_sealed(
            group, slots=self._limits.slots, begin_timestamp=begin, newest_first=True
        )
        header = IndexHeader.decode(raw.data, path="")
        if not header.items:
            return
        checksum = crc32c(raw.data)
        base, name = await self._stored(raw, checksum)
        self._begins.add(begin)
        self.written.append(
            IndexFile(
                name,
                base,
                len(raw),
                begin,
                header.end_timestamp,
                header.used_slots,
                header.items,
                crc32c=checksum,
            )
        )

    def _free_begin(self, group: list[MergedPart]) -> int:
        """Begin that no other file has: a Java broker keeps one file of each."""
        headers = [IndexHeader.decode(part.raw, path=part.path) for part in group]
        begin = min((one.begin_timestamp for one in headers if one.items), default=0)
        while begin in self._begins:
            begin -= 1
        return begin

    async def _stored(self, raw: NDArray[np.uint8], checksum: int) -> tuple[int, str]:
        """Write the bytes, unless they exist. Return their base and name."""
        store = self._reader.store
        for base, name in self._left.get(len(raw), ()):
            if crc32c(await store.read(name)) == checksum:
                return base, name
        base = self._next_base
        name = index_name(base)
        await store.create(name, [raw.data])
        self._next_base = base + len(raw)
        return base, name
