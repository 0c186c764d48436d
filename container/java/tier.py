"""A tier written by the Java store, converted to our metadata for reading.

Java trusts the recorded size of every segment but the last, and uses the object's own length for
that one. So does this module, cut back to whole units with existing records. A damaged queue is
served as far as possible, and hides no other.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from container.index.layout import IndexHeader
from container.java.metadata import (
    UNSET_TIMESTAMP,
    FileKey,
    JavaMetadata,
    JavaSegment,
    KnownOffsets,
)
from container.metadata.records import Broker, CopyState, Extent, IndexFile, Queue, Segment, Topic
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType, check_path_component
from container.names.rocketmq import INDEX_QUEUE, INT64_MAX, index_name, segment_name
from container.record.batch import decode_units
from container.record.header import BORN_HOST_V6, RecordHeader, layout_of
from container.record.unit import UNIT_BYTES
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, StoreError
from provider.object_store import ObjectStore
from provider.ranges import ByteRange, QueueOffset

JAVA_DELETED = 2
UNITS_AT_ONCE = 4_096
RECORD_HEAD_BYTES_MAX = layout_of(BORN_HOST_V6).store_host
POSITION_BYTES = 8
"""Bytes of the position at the beginning of a unit."""
DAMAGE = (Corrupt, Denied, OutOfRange)
"""Errors that concern only the queue in which they occur."""


@dataclass(frozen=True, slots=True)
class JavaTier:
    """Readable parts of a Java tier."""

    state: TierState
    damage: Mapping[QueueId, StoreError]
    """Reasons why a queue is served only in part, or not at all. The key `INDEX_QUEUE` is for the
    index files. Damage that only reading shows, such as a missing file in the middle, is not here.
    """


@dataclass(slots=True)
class _Loading:
    """Queue being loaded."""

    key: FileKey
    damage: StoreError | None = None
    """First error that did not stop the load."""


async def load_java_tier(
    store: ObjectStore, metadata: JavaMetadata, *, cluster: str, broker: str
) -> JavaTier:
    """Convert a Java tier's data of `broker` to our metadata, without any checksum.

    Costs two sizes and three small reads a queue.

    Raises:
        NotFound: the metadata does not have this broker.
        Unavailable: retry later.
    """
    keys = {key for table in metadata.segments.values() for key in table}
    names = {key.broker_name for key in keys} | {queue.broker_name for queue in metadata.queues}
    if broker not in names:
        known = ", ".join(sorted(names)) or "no broker at all"
        raise NotFound(f"the Java metadata speaks of {known}, not of {broker}", broker)
    state = TierState()
    state.broker = Broker(cluster, broker)
    for topic in metadata.topics:
        state.topics[topic.topic] = Topic(
            topic.topic, topic.topic_id, topic.reserve_time, topic.update_timestamp
        )
    state.next_topic_id = 1 + max(
        metadata.topic_serial_number, *(topic.topic_id for topic in metadata.topics), -1
    )
    damage: dict[QueueId, StoreError] = {}
    for key in sorted(metadata.segments[SegmentType.COMMIT_LOG], key=str):
        if key.broker_name != broker or check_path_component(key.queue.topic) is not None:
            continue
        if key.queue.topic not in state.topics:
            state.topics[key.queue.topic] = Topic(key.queue.topic, state.next_topic_id)
            state.next_topic_id += 1
        queue, met = await _load_what_is_whole(store, metadata, key)
        if queue is not None:
            state.queues[key.queue] = queue
        if met is not None:
            damage[key.queue] = met
    index = metadata.segments[SegmentType.INDEX].get(FileKey(broker, INDEX_QUEUE), ())
    for found in index:
        try:
            await _load_index_file(store, found, state)
        except DAMAGE as error:
            damage.setdefault(INDEX_QUEUE, error)
    return JavaTier(state, damage)


async def _load_index_file(store: ObjectStore, found: JavaSegment, state: TierState) -> None:
    """Load one of Java's sealed index files, so that it is kept and can be exported again."""
    _refuse_impossible(SegmentType.INDEX.name, found.base_offset, found.size)
    if found.size < IndexHeader.SIZE:
        return
    name = index_name(found.base_offset)
    raw = await store.read(name, ByteRange(0, IndexHeader.SIZE))
    _, begin, end, slots, items = IndexHeader.LAYOUT.unpack(raw)
    state.index_files[name] = IndexFile(
        name, found.base_offset, found.size, begin, end, slots, items
    )


async def _load_what_is_whole(
    store: ObjectStore, metadata: JavaMetadata, key: FileKey
) -> tuple[Queue | None, StoreError | None]:
    """Load a queue as far as possible. Also return the first error, which shows a loss."""
    loading = _Loading(key)
    try:
        return await _load_queue(store, metadata, loading), loading.damage
    except DAMAGE as error:
        return None, loading.damage or error


async def _load_queue(
    store: ObjectStore, metadata: JavaMetadata, loading: _Loading
) -> Queue | None:
    """Load a queue. None if it has no messages. Missing newest files end the queue early."""
    key = loading.key
    flat: dict[SegmentType, list[Segment]] = {}
    for kind in FLAT_FILES:
        found = metadata.segments[kind].get(key, ())
        kept = [segment for segment in found if segment.status != JAVA_DELETED]
        flat[kind] = [_segment(key.queue, kind, segment) for segment in kept]
        while flat[kind]:
            newest = flat[kind].pop()
            try:
                size = await store.size(segment_name(key.queue, kind, newest.base))
            except (Denied, NotFound) as error:
                loading.damage = loading.damage or error
                continue
            if size < newest.size:
                loading.damage = loading.damage or Corrupt(
                    f"the file has {size:,} bytes, and the metadata say {newest.size:,}: "
                    f"{newest.size - size:,} bytes are lost",
                    segment_name(key.queue, kind, newest.base),
                    size,
                )
            flat[kind].append(_resized(newest, size))
            break
    known = metadata.offsets.get(key)
    logs, units = flat[SegmentType.COMMIT_LOG], flat[SegmentType.CONSUME_QUEUE]
    if not logs or not units or not logs[0].size:
        return _emptied(key.queue, known, logs, units) if loading.damage is None else None
    logs = [segment for segment in logs if segment.size]
    end = await _last_whole_unit(store, key.queue, units, log_end=logs[-1].end)
    ranges = ((one.base // UNIT_BYTES, one.end // UNIT_BYTES) for one in units)
    missing = sum(max(0, stop - max(start, end)) for start, stop in ranges)
    if missing > 0:
        loading.damage = loading.damage or Corrupt(
            f"units that point at records past the end of the log: {missing:,}",
            segment_name(key.queue, SegmentType.COMMIT_LOG, logs[-1].base),
            logs[-1].size,
        )
    units = [
        _resized(segment, min(segment.size, end * UNIT_BYTES - segment.base))
        for segment in units
        if segment.base < end * UNIT_BYTES
    ]
    if not units:
        return None
    gaps = () if known is None else known.gaps
    next_offset = next((gap.end for gap in gaps if gap.start == end), QueueOffset(end))
    gaps = tuple(gap for gap in gaps if gap.end <= next_offset)
    first = await _first_offset(store, key.queue, logs[0], units)
    min_offset = QueueOffset(min(max(units[0].base // UNIT_BYTES, first), end))
    return Queue(key.queue, min_offset, next_offset, tuple(logs), tuple(units), gaps=gaps)


def _emptied(
    queue: QueueId,
    known: KnownOffsets | None,
    logs: Sequence[Segment],
    units: Sequence[Segment],
) -> Queue | None:
    """Queue of ours without messages: its next offset, and its gaps. None for one of Java's.

    The metadata and the files must agree that there is no message.
    """
    if known is None or any(segment.size for segment in (*logs, *units)):
        return None
    return Queue(
        queue,
        known.min_offset,
        known.next_offset,
        tuple(logs[-1:]),
        tuple(units[-1:]),
        gaps=known.gaps,
    )


def _segment(queue: QueueId, kind: SegmentType, found: JavaSegment) -> Segment:
    """Segment with one extent over all of it."""
    base, size = found.base_offset, found.size
    _refuse_impossible(f"{queue}/{kind.name}", base, size)
    if kind == SegmentType.CONSUME_QUEUE and base % UNIT_BYTES:
        raise Corrupt(f"a segment begins inside a unit, at {base}", f"{queue}/{kind.name}", base)
    low = 0 if found.begin_timestamp == UNSET_TIMESTAMP else found.begin_timestamp
    high = 0 if found.end_timestamp == UNSET_TIMESTAMP else found.end_timestamp
    first = found.base_offset // UNIT_BYTES if kind == SegmentType.CONSUME_QUEUE else 0
    extent = Extent(0, found.size, None, QueueOffset(first), low, high)
    return Segment(
        kind,
        found.base_offset,
        found.create_timestamp,
        epoch=0,
        extents=(extent,) if found.size > 0 else (),
        sealed_ms=found.seal_timestamp or None,
        state=CopyState.COPY_FINISHED,
    )


def _refuse_impossible(path: str, base: int, size: int) -> None:
    """Raise `Corrupt` for an impossible segment."""
    if base < 0 or size < 0 or base + size > INT64_MAX:
        raise Corrupt(f"a segment of {size} bytes at {base}", path, max(base, 0))


def _resized(segment: Segment, size: int) -> Segment:
    """Copy of a segment with another length."""
    if size <= 0:
        return replace(segment, extents=())
    extent = segment.extents[0] if segment.extents else Extent(0, 0, None, QueueOffset(0), 0, 0)
    return replace(segment, extents=(extent._replace(length=size),))


async def _last_whole_unit(
    store: ObjectStore, queue: QueueId, units: Sequence[Segment], *, log_end: int
) -> int:
    """Offset after the last unit whose record lies in the log: the readable end."""
    for segment in reversed(units):
        count = segment.size // UNIT_BYTES
        name = segment_name(queue, SegmentType.CONSUME_QUEUE, segment.base)
        while count > 0:
            first = max(0, count - UNITS_AT_ONCE)
            raw = await store.read(name, ByteRange(first * UNIT_BYTES, count * UNIT_BYTES))
            part = decode_units(raw, path=name, position=first * UNIT_BYTES)
            whole = part["position"].astype(np.int64) + part["size"] <= log_end
            if whole.any():
                last = int(np.flatnonzero(whole)[-1])
                return segment.base // UNIT_BYTES + first + last + 1
            count = first
    return 0


async def _first_offset(
    store: ObjectStore, queue: QueueId, log: Segment, units: Sequence[Segment]
) -> int:
    """Queue offset of the log's first record. Units before it have lost their bytes.

    The record and its unit must point at each other. If they do not, the unit is searched for, so
    that damage there, or a missing file, hides nothing else.
    """
    name = segment_name(queue, SegmentType.COMMIT_LOG, log.base)
    low, high = units[0].base // UNIT_BYTES, units[-1].end // UNIT_BYTES
    try:
        raw = await store.read(name, ByteRange(0, min(log.size, RECORD_HEAD_BYTES_MAX)))
        offset = RecordHeader.decode(raw, path=name, position=0).queue_offset
    except DAMAGE:
        offset = -1
    if low <= offset < high and await _unit_position(store, queue, units, offset) == log.base:
        return offset
    offsets = [range(one.base // UNIT_BYTES, one.end // UNIT_BYTES) for one in units]
    unit_low, unit_high = 0, sum(map(len, offsets))
    while unit_low < unit_high:
        middle = (unit_low + unit_high) // 2
        if await _unit_position(store, queue, units, _nth(offsets, middle)) < log.base:
            unit_low = middle + 1
        else:
            unit_high = middle
    return high if unit_low == sum(map(len, offsets)) else _nth(offsets, unit_low)


def _nth(ranges: Sequence[range], number: int) -> int:
    """Offset of the unit `number`. A gap may lie between two segments."""
    for one in ranges:
        if number < len(one):
            return one[number]
        number -= len(one)
    raise AssertionError("there are not so many units")


async def _unit_position(
    store: ObjectStore, queue: QueueId, units: Sequence[Segment], offset: int
) -> int:
    """Log position that the unit of a queue offset points to. One request."""
    at = offset * UNIT_BYTES
    segment = units[bisect_right(units, at, key=lambda one: one.base) - 1]
    name = segment_name(queue, SegmentType.CONSUME_QUEUE, segment.base)
    inside = at - segment.base
    raw = await store.read(name, ByteRange(inside, inside + POSITION_BYTES))
    return int.from_bytes(raw, "big", signed=True)
