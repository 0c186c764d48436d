"""One look at a queue: its metadata, then every byte once, for its checksum and what it says."""

from bisect import bisect_right
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from container.check.finding import Finding
from container.check.flat_stream import FlatStream
from container.check.records import RecordCheck
from container.metadata.object_names import object_name, object_names
from container.metadata.records import Queue, Segment
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.queue.log_places import lost_bytes
from container.queue.message_queue_container import MessageQueueContainer
from container.record.blank import Coda
from container.record.kernels import decode_units
from container.record.unit import UNIT_BYTES, Units
from provider.errors import Corrupt, Denied, NotFound, OutOfRange
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange, QueueOffset

UNITS_AT_ONCE = 4_096
UNIT_PIECE_BYTES = 1 << 20
LOG_BYTES_AT_ONCE = 16 << 20
"""Records that are followed at once; read in pieces of as much."""
LOG_RANGE_BYTES_MAX = 128 << 20
"""No message is as long; what sound units of one read point to is far shorter."""


async def look_at_queue(
    container: MessageQueueContainer,
    store: ObjectStore,
    sizes: dict[str, int],
    known: set[str],
    progress: Callable[[int], None],
    *,
    bodies: bool = False,
    contents: bool = True,
) -> AsyncIterator[list[Finding]]:
    """Yield what is wrong with a queue as its record says, some findings at a time.

    `container` must always give the same record. Adds the names of its objects to `known`. Objects
    that `sizes` lacks, or has shorter than published, are asked for again first. `bodies`: also
    decompress them.

    Raises:
        Unavailable: the storage does not answer, so nothing can be said.
    """
    flat: dict[SegmentType, list[Segment]] = {}
    try:
        for kind in FLAT_FILES:
            flat[kind] = await container.segments(kind)
    except (Corrupt, Denied, OutOfRange) as error:
        yield [Finding("manifest", error.path, error.position, error.reason)]
        return
    for kind, segments in flat.items():
        known.update(object_names(container.id, segments))
        flat[kind] = [segment for segment in segments if segment.is_readable]
    now = ChainMap(await grown(store, container.id, flat, sizes), sizes)
    found = list(check_joins(container.record, flat))
    for segments in flat.values():
        for segment in segments:
            found += check_extents(container.id, segment, now)
    yield found
    if not contents:
        return
    look = _QueueLook(container, store, flat, now, progress, bodies=bodies)
    async for batch in look.batches():
        yield batch


async def grown(
    store: ObjectStore,
    queue: QueueId,
    flat: Mapping[SegmentType, Sequence[Segment]],
    sizes: Mapping[str, int],
) -> dict[str, int]:
    """Sizes of objects that a listing has not shown, or not as long as they are published."""
    grown: dict[str, int] = {}
    for segments in flat.values():
        for segment in segments:
            for extent in segment.extents:
                holder = object_name(queue, segment, extent)
                if holder in grown:
                    continue
                if sizes.get(holder, -1) < extent.object_offset + extent.length:
                    try:
                        grown[holder] = await store.size(holder)
                    except (NotFound, Denied):
                        continue
    return grown


def check_joins(queue: Queue, flat: Mapping[SegmentType, Sequence[Segment]]) -> Iterator[Finding]:
    """Yield where a queue's segments do not join, or its units do not reach its end. Pure."""
    jumps = {UNIT_BYTES * gap.start: UNIT_BYTES * gap.end for gap in queue.gaps}
    for kind, segments in flat.items():
        for before, after in pairwise(segments):
            jump = jumps.get(before.end) if kind == SegmentType.CONSUME_QUEUE else None
            if after.base not in {before.end, jump}:
                name = segment_name(queue.id, kind, after.base)
                yield Finding(
                    "segments-do-not-join", name, 0, f"the one before ends at {before.end}"
                )
    units = flat[SegmentType.CONSUME_QUEUE]
    end = units[-1].end if units else UNIT_BYTES * queue.next_offset
    if jumps.get(end, end) != UNIT_BYTES * queue.next_offset:
        detail = f"units end at offset {end // UNIT_BYTES}, the queue at {queue.next_offset}"
        yield Finding("units-and-commit-offset", str(queue.id), queue.next_offset, detail)


def check_extents(queue: QueueId, segment: Segment, sizes: Mapping[str, int]) -> Iterator[Finding]:
    """Yield extents of a segment that do not join, and objects that are missing or short. Pure."""
    name, end = segment_name(queue, segment.type, segment.base), 0
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


class _QueueLook:
    """Follows every unit of a queue to its record, over both flat files side by side."""

    def __init__(
        self,
        container: MessageQueueContainer,
        store: ObjectStore,
        flat: Mapping[SegmentType, Sequence[Segment]],
        sizes: Mapping[str, int],
        progress: Callable[[int], None],
        *,
        bodies: bool,
    ) -> None:
        self._container = container
        self._bodies = bodies
        self._progress = progress
        self._segments = flat[SegmentType.CONSUME_QUEUE]
        self._units = FlatStream(
            store, container.id, self._segments, sizes, piece_bytes=UNIT_PIECE_BYTES
        )
        logs = flat[SegmentType.COMMIT_LOG]
        self._log = FlatStream(store, container.id, logs, sizes, piece_bytes=LOG_BYTES_AT_ONCE)
        self._lost = lost_bytes(container.record, logs) if container.record.gaps else {}
        self._check: RecordCheck | None = None

    async def batches(self) -> AsyncIterator[list[Finding]]:
        """Yield what is wrong, a few thousand messages at a time."""
        container = self._container
        for segment in self._segments:
            offset = segment.base // UNIT_BYTES
            last = segment.end // UNIT_BYTES
            if segment.size % UNIT_BYTES:
                detail = f"{segment.size} bytes of units"
                yield [Finding("torn-unit", str(container.id), last, detail)]
            offset = max(offset, container.min_offset)
            while offset < last:
                end = min(offset + UNITS_AT_ONCE, last)
                found, end = await self._follow(QueueOffset(offset), QueueOffset(end))
                yield [*found, *self._units.findings(), *self._log.findings()]
                offset = end
        await self._units.drain()
        await self._log.drain()
        yield [*self._units.findings(), *self._log.findings(), *self._unclaimed()]

    async def _follow(self, offset: QueueOffset, end: QueueOffset) -> tuple[list[Finding], int]:
        """What is wrong with the first messages of a range, and the offset behind them."""
        container = self._container
        try:
            units, holes = await self._units_of(offset, end)
            first, behind = _messages_in(holes, end)
            if first <= offset:
                return [self._unread(offset, behind, "their units cannot be read")], behind
            units = units[: first - offset]
            end = QueueOffset(offset + _fitting(units["position"].tolist(), units["size"].tolist()))
            units = units[: end - offset]
            place = _log_range(container, units, self._next_position(units))
            log, holes = await self._log_window(place)
        except (Corrupt, Denied, OutOfRange, ValueError) as error:
            self._check = None
            return [self._unread(offset, end, str(error))], end
        found: list[Finding] = []
        for start, stop, is_there in _parts(units, holes):
            at, part = QueueOffset(offset + start), units[start:stop]
            if not is_there:
                found.append(self._unread(at, offset + stop, "their bytes cannot be read"))
                continue
            check = RecordCheck(container.id, self._next_position(part), self._bodies)
            found += check.check(at, part, log, place.start)
            self._check = check
        self._progress(len(log))
        return found, end

    def _next_position(self, units: Units) -> int:
        """Where the first of some units must point to, as the record before it says."""
        if self._check is None:
            return int(units["position"][0])
        return self._lost.get(self._check.next_position, self._check.next_position)

    def _unread(self, offset: int, end: int, reason: str) -> Finding:
        """The finding of messages that nothing can be said of; what follows begins anew."""
        self._check = None
        detail = f"messages [{offset}, {end}) were not checked: {reason}"
        return Finding("unreadable", str(self._container.id), offset, detail)

    async def _units_of(
        self, offset: QueueOffset, end: QueueOffset
    ) -> tuple[Units, list[ByteRange]]:
        """The units of a range, with their holes; read again only where damaged segments overlap.

        A hole is in bytes of the flat file.
        """
        if offset * UNIT_BYTES < self._units.low:
            return await self._container.units(offset, end), []
        place = ByteRange(offset * UNIT_BYTES, end * UNIT_BYTES)
        units, holes = await self._units.window(place)
        return decode_units(units), holes

    async def _log_window(self, place: ByteRange) -> tuple[Buffer, list[ByteRange]]:
        """Bytes of the log, with their holes; read again only where damaged units point back."""
        if place.start < self._log.low:
            return await self._container.log(place), []
        return await self._log.window(place)

    def _unclaimed(self) -> Iterator[Finding]:
        container, check = self._container, self._check
        log_end = container.record.flat_end(SegmentType.COMMIT_LOG)
        if check is not None and check.next_position < log_end - Coda.SIZE:
            detail = f"units end at log position {check.next_position}, the log at {log_end}"
            yield Finding("log-outruns-units", str(container.id), container.next_offset, detail)


def _messages_in(holes: Sequence[ByteRange], end: QueueOffset) -> tuple[int, int]:
    """The messages before `end` whose units lie in the first hole: [first, behind)."""
    if not holes:
        return end, end
    hole = holes[0]
    return hole.start // UNIT_BYTES, min(-(-hole.end // UNIT_BYTES), end)


def _parts(units: Units, holes: Sequence[ByteRange]) -> Iterator[tuple[int, int, bool]]:
    """Units by whether their records can be read: (first, behind, is there), in order, all."""
    starts = units["position"].astype(np.int64)
    ends = starts + units["size"]
    is_there = np.ones(len(units), np.bool_)
    for hole in holes:
        is_there &= (ends <= hole.start) | (starts >= hole.end)
    edges = [0, *(np.flatnonzero(np.diff(is_there)) + 1).tolist(), len(units)]
    for first, behind in pairwise(edges):
        yield first, behind, bool(is_there[first])


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
