"""One checker for the command line, for tests after every run, and for audits: all findings."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from container.check.finding import Finding
from container.check.journal import check_journal, own_objects
from container.check.records import RecordCheck
from container.metadata.object_names import object_name, object_names
from container.metadata.records import Queue, Segment
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import parse_segment_name, segment_name
from container.queue.message_queue_container import MessageQueueContainer
from container.record.blank import Coda
from container.record.crc32c import crc32c
from container.record.unit import UNIT_BYTES, Units
from container.tier_view import TierView
from provider.errors import Corrupt, Denied, OutOfRange
from provider.object_store import ObjectStore
from provider.packed_segments import PartName
from provider.ranges import ByteRange, QueueOffset

UNITS_AT_ONCE = 4_096
LOG_BYTES_AT_ONCE = 16 << 20
LOG_RANGE_BYTES_MAX = 128 << 20
"""No message is as long; what sound units of one read point to is far shorter."""


def _unseen(_bytes: int) -> None:
    """Default progress callback: does nothing."""


async def check_tier(
    tier: TierView, *, journal: bool = True, progress: Callable[[int], None] = _unseen
) -> AsyncIterator[Finding]:
    """Yield everything that is wrong with a tier, never stopping at the first finding.

    Both directions: what the metadata says is there whole (objects, checksums, units, records,
    joins), and what is there is known to the metadata (orphans). `journal` is False for a tier
    of the Java store, which has none. Reads every byte twice, for its checksum and for what it
    says; memory is bounded by an extent, `LOG_BYTES_AT_ONCE` and the listing. `progress` is told
    the bytes of CommitLogs followed by their units since the last call.

    Raises:
        Unavailable: the storage does not answer, so nothing can be said.
    """
    sizes = {entry.name: entry.size_bytes for entry in await tier.store.list("")}
    if journal:
        async for finding in check_journal(tier.store, tier.state, sizes):
            yield finding
    known = set(own_objects(tier.state))
    for queue in sorted(tier.state.queues):
        container = tier.container(queue)
        if container is not None:
            async for finding in _check_queue(container, tier.store, sizes, known, progress):
                yield finding
    for name in sorted(sizes.keys() - known):
        if not is_metadata(name) and not may_be_a_commit(tier.state, name):
            yield Finding("orphan", name, 0, f"nothing refers to these {sizes[name]} bytes")


def is_metadata(name: str) -> bool:
    """Whether an object is none that holds messages, by its name; `check_journal` sees to those."""
    return name.startswith("@") and PartName.parse(name) is None


def may_be_a_commit(state: TierState, name: str) -> bool:
    """Whether a commit that is not published, perhaps never will be, may have made this object.

    One commit may end a segment and begin others, and the first commit of a queue is not known by
    anything else. The next commit of that range writes the same files. A part can be published
    only while the owner that made it has the tier.
    """
    part = PartName.parse(name)
    if part is not None:
        return part.epoch >= state.broker.epoch
    parsed = parse_segment_name(name)
    if parsed is None or parsed.type not in FLAT_FILES:
        return False
    queue = state.queues.get(parsed.queue)
    return queue is None or parsed.base >= queue.flat_end(parsed.type)


async def _check_queue(
    container: MessageQueueContainer,
    store: ObjectStore,
    sizes: Mapping[str, int],
    known: set[str],
    progress: Callable[[int], None],
) -> AsyncIterator[Finding]:
    """Check one queue; adds the names of its objects to `known`."""
    flat: dict[SegmentType, list[Segment]] = {}
    try:
        for kind in FLAT_FILES:
            flat[kind] = await container.segments(kind)
    except (Corrupt, Denied, OutOfRange) as error:
        yield Finding("manifest", error.path, error.position, error.reason)
        return
    for kind, segments in flat.items():
        known.update(object_names(container.id, segments))
        flat[kind] = [segment for segment in segments if segment.is_readable]
    for finding in _check_segments(container.record, flat, sizes):
        yield finding
    for segments in flat.values():
        async for finding in _check_checksums(store, container.id, segments, sizes):
            yield finding
    async for finding in _check_messages(container, flat, progress):
        yield finding


def _check_segments(
    queue: Queue, flat: Mapping[SegmentType, Sequence[Segment]], sizes: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield what is wrong with the metadata of a queue's segments, and objects that are short."""
    jumps = {UNIT_BYTES * gap.start: UNIT_BYTES * gap.end for gap in queue.gaps}
    for kind, segments in flat.items():
        for before, after in pairwise(segments):
            jump = jumps.get(before.end) if kind == SegmentType.CONSUME_QUEUE else None
            if after.base not in {before.end, jump}:
                name = segment_name(queue.id, kind, after.base)
                yield Finding(
                    "segments-do-not-join", name, 0, f"the one before ends at {before.end}"
                )
        for segment in segments:
            name = segment_name(queue.id, kind, segment.base)
            yield from _check_extents(queue.id, segment, name, sizes)
    units = flat[SegmentType.CONSUME_QUEUE]
    end = units[-1].end if units else UNIT_BYTES * queue.next_offset
    if jumps.get(end, end) != UNIT_BYTES * queue.next_offset:
        detail = f"units end at offset {end // UNIT_BYTES}, the queue at {queue.next_offset}"
        yield Finding("units-and-commit-offset", str(queue.id), queue.next_offset, detail)


def _check_extents(
    queue: QueueId, segment: Segment, name: str, sizes: Mapping[str, int]
) -> Iterator[Finding]:
    end = 0
    for extent in segment.extents:
        if extent.position != end or extent.length <= 0:
            yield Finding("extents-do-not-join", name, extent.position, f"expected {end}")
        end = extent.end
        holder = object_name(queue, segment, extent)
        if holder not in sizes:
            yield Finding("object-missing", holder, extent.object_offset, "published, not there")
        elif sizes[holder] < extent.object_offset + extent.length:
            detail = f"published to {extent.object_offset + extent.length}, has {sizes[holder]}"
            yield Finding("object-short", holder, sizes[holder], f"{detail} bytes")


async def _check_checksums(
    store: ObjectStore, queue: QueueId, segments: Sequence[Segment], sizes: Mapping[str, int]
) -> AsyncIterator[Finding]:
    """Read every extent whole and compare its CRC-32C."""
    for segment in segments:
        for extent in segment.extents:
            holder = object_name(queue, segment, extent)
            whole = extent.object_offset + extent.length
            if extent.crc32c is None or sizes.get(holder, -1) < whole:
                continue
            try:
                found = crc32c(await store.read(holder, ByteRange(extent.object_offset, whole)))
            except (Denied, OutOfRange) as error:
                yield Finding("unreadable", holder, extent.object_offset, error.reason)
                continue
            if found != extent.crc32c:
                detail = (
                    f"{extent.length} bytes have {found:#010x}, published {extent.crc32c:#010x}"
                )
                yield Finding("checksum", holder, extent.object_offset, detail)


async def _check_messages(
    container: MessageQueueContainer,
    flat: Mapping[SegmentType, Sequence[Segment]],
    progress: Callable[[int], None],
) -> AsyncIterator[Finding]:
    """Follow every unit of a queue to its record."""
    check: RecordCheck | None = None
    for segment in flat[SegmentType.CONSUME_QUEUE]:
        offset = segment.base // UNIT_BYTES
        last = segment.end // UNIT_BYTES
        if segment.size % UNIT_BYTES:
            yield Finding("torn-unit", str(container.id), last, f"{segment.size} bytes of units")
        offset = max(offset, container.min_offset)
        while offset < last:
            end = min(offset + UNITS_AT_ONCE, last)
            try:
                units = await container.units(QueueOffset(offset), QueueOffset(end))
                end = offset + _fitting(units["position"].tolist(), units["size"].tolist())
                units = units[: end - offset]
                check = check or RecordCheck(container.id, int(units["position"][0]))
                place = _log_range(container, units, check.next_position)
                log = await container.log(place)
                for finding in check.check(QueueOffset(offset), units, log, place.start):
                    yield finding
                progress(len(log))
            except (Corrupt, Denied, OutOfRange, ValueError) as error:
                detail = f"messages [{offset}, {end}) cannot be read: {error}"
                yield Finding("unreadable", str(container.id), offset, detail)
                check = None
            offset = end
    log_end = container.record.flat_end(SegmentType.COMMIT_LOG)
    if check is not None and check.next_position < log_end - Coda.SIZE:
        detail = f"units end at log position {check.next_position}, the log at {log_end}"
        yield Finding("log-outruns-units", str(container.id), container.next_offset, detail)


def _log_range(container: MessageQueueContainer, units: Units, next_position: int) -> ByteRange:
    """Where the records of some units lie, from the record before on, so that codas are seen.

    Raises:
        ValueError: the units are damaged: together they point to more than is ever read at once.
    """
    start = min(int(units["position"][0]), next_position)
    end = int(units["position"][-1]) + int(units["size"][-1]) + Coda.SIZE
    end = min(max(end, start + 1), container.record.flat_end(SegmentType.COMMIT_LOG))
    if end - start > LOG_RANGE_BYTES_MAX:
        raise ValueError(f"their units point to [{start}, {end})")
    return ByteRange(start, end)


def _fitting(positions: Sequence[int], sizes: Sequence[int]) -> int:
    """How many leading units to read at once; at least one, even where they are damaged."""
    ends = [at + size - positions[0] for at, size in zip(positions, sizes, strict=True)]
    return max(1, bisect_right(ends, LOG_BYTES_AT_ONCE))
