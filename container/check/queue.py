"""Check of one queue: metadata, then every byte once, checksums, units and records."""

from bisect import bisect_right
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from container.errors import Finding
from container.metadata.objects import object_name, object_names
from container.metadata.records import Extent, Queue, Segment
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.queue.message_queue_container import MessageQueueContainer
from container.queue.positions import lost_bytes
from container.record.batch import decode_units
from container.record.body import check_compression, decompress
from container.record.checksum import body_crc_of, crc32c, record_crc_is_valid
from container.record.header import (
    BLANK_MAGIC,
    MAGIC_AT,
    Coda,
    RecordHeader,
    RecordParts,
    locate_parts,
)
from container.record.properties import NAME_END, PAIR_END, TAGS, tag_hash
from container.record.unit import UNIT_BYTES, Units
from container.record.verification import Fault, find_records
from provider.errors import Corrupt, Denied, NotFound, OutOfRange
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange, QueueOffset


def still_stands(judged: Queue, now: Queue | None) -> bool:
    """Whether all bytes that findings on `judged` refer to are still published at the same place.

    Commits, gaps at the end and sealing do not change them. A truncation, a merged manifest and the
    deletion of the queue may.
    """
    return (
        now is not None
        and now.generation == judged.generation
        and now.manifests == judged.manifests
        and now.min_offset == judged.min_offset
    )


_TAGS_NAME = (PAIR_END + TAGS + NAME_END).encode()
_PAIR_END = PAIR_END.encode()
_FIELDS = {
    Fault.QUEUE_ID: "queue_id",
    Fault.QUEUE_OFFSET: "queue_offset",
    Fault.POSITION: "physical_offset",
}
"""Header field of each fault. Other faults are described by `locate_parts`."""


@dataclass(slots=True)
class RecordCheck:
    """Checks the records of one queue in order of offset, a chunk at a time.

    `next_position` is the position of the next record: units are adjacent, except for a coda of an
    old Java tier between two segments.
    """

    queue: QueueId
    next_position: int
    decompresses: bool = False
    """Whether compressed bodies are decompressed, up to `BODY_BYTES_MAX`, which is slow. Otherwise
    only their first bytes are compared with the format."""
    tag_hashes: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def check(
        self, first_offset: QueueOffset, units: Units, log: Buffer, log_start: int
    ) -> Iterator[Finding]:
        """Yield all defects of the messages of `units`, whose bytes are in `log`.

        `log_start` is the log position of `log[0]`. About 6 us per message.
        """
        view = memoryview(log)
        found = find_records(
            log, log_start, units, queue_id=self.queue.queue_id, first_offset=first_offset
        )
        columns = (units["position"], units["tag_hash"], found.starts, found.sizes, found.faults)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for offset, (position, tags, at, size, number) in enumerate(rows, first_offset):
            if position != self.next_position and not self._coda_between(view, log_start, position):
                yield self._finding(
                    "units-do-not-join",
                    offset,
                    f"unit points to {position}, the record before ends at {self.next_position}",
                )
            self.next_position = log_start + at + max(size, 0)
            fault = Fault(number)
            if fault is Fault.OUTSIDE:
                yield self._finding(
                    "unit-outside-log", offset, f"unit points to [{position}, {position + size})"
                )
                continue
            yield from self._check_record(view[at : at + size], offset, log_start + at, tags, fault)

    def _coda_between(self, view: memoryview, log_start: int, position: int) -> bool:
        """Whether only a coda lies between the last record and `position`."""
        at = self.next_position - log_start
        return (
            position - self.next_position
            == Coda.SIZE
            == self._coda_bytes(view[max(at, 0) : max(at, 0) + Coda.SIZE])
        )

    @staticmethod
    def _coda_bytes(head: memoryview) -> int:
        """Length of the coda `head`. 0 if it is no coda."""
        magic = int.from_bytes(head[MAGIC_AT : MAGIC_AT + 4], "big")
        return Coda.SIZE if len(head) == Coda.SIZE and magic == BLANK_MAGIC else 0

    def _check_record(
        self, record: memoryview, offset: int, position: int, tags: int, fault: Fault
    ) -> Iterator[Finding]:
        try:
            header, parts = locate_parts(record, path=str(self.queue), position=position)
        except Corrupt as error:
            yield self._finding("record", offset, f"{error.reason} at log position {position}")
            return
        if fault:
            found = getattr(header, _FIELDS[fault])
            yield self._finding("record", offset, f"{fault.reason}: {found} at {position}")
        topic = bytes(record[parts.topic : parts.topic_end])
        if topic != self.queue.topic.encode():
            yield self._finding("record", offset, f"another topic: {topic!r}")
        yield from self._check_sums(record, header, parts, offset)
        found_hash = self._tag_hash(bytes(record[parts.properties :]))
        if tags != found_hash:
            yield self._finding("tag-hash", offset, f"unit has {tags}, the tags give {found_hash}")

    def _check_sums(
        self, record: memoryview, header: RecordHeader, parts: RecordParts, offset: int
    ) -> Iterator[Finding]:
        found = body_crc_of(record[parts.body : parts.body_end])
        if found != header.body_crc:
            yield self._finding(
                "body-crc", offset, f"body has CRC {found:#010x}, stored {header.body_crc:#010x}"
            )
        elif parts.body < parts.body_end:  # readers accept an empty body
            verify = decompress if self.decompresses else check_compression
            body = record[parts.body : parts.body_end]
            try:
                verify(body, header.sys_flag, path=str(self.queue), position=offset)
            except Corrupt as error:
                yield self._finding("body-compression", offset, error.reason)
        if not record_crc_is_valid(record):
            yield self._finding("record-crc", offset, "the whole-record CRC does not match")

    def _tag_hash(self, properties: bytes) -> int:
        """Tags code of the properties. The last TAGS counts."""
        _, found, rest = (_PAIR_END + properties).rpartition(_TAGS_NAME)
        tags = rest.partition(_PAIR_END)[0] if found else b""
        if tags not in self.tag_hashes:
            self.tag_hashes[tags] = tag_hash(tags.decode("utf-8", "replace"))
        return self.tag_hashes[tags]

    def _finding(self, kind: str, offset: int, detail: str) -> Finding:
        return Finding(kind, str(self.queue), offset, detail)


@dataclass(frozen=True, slots=True)
class _Run:
    """Extents that are adjacent in one object and in the flat file, to read together."""

    holder: str
    start: int
    """First byte in the flat file."""
    object_start: int
    extents: tuple[Extent, ...]
    there_bytes: int
    """Number of its bytes that the object has."""

    @property
    def end(self) -> int:
        return self.start + sum(extent.length for extent in self.extents)


class FlatStream:
    """Forward windows over a flat file, which verify its checksums on the way.

    Memory: a window and `piece_bytes`. Requests: one for each piece, and for each object.
    """

    def __init__(
        self,
        store: ObjectStore,
        queue: QueueId,
        segments: Sequence[Segment],
        sizes: Mapping[str, int],
        *,
        piece_bytes: int,
    ) -> None:
        """`sizes`: of the existing objects. Bytes in other objects are not read."""
        self._store = store
        self._piece_bytes = piece_bytes
        self._runs = list(_runs_of(queue, segments, sizes))
        self._chunks: list[tuple[int, Buffer]] = []
        """Held bytes, by first byte in the flat file. Unreadable bytes are holes."""
        self._run = 0
        self._at = self._runs[0].start if self._runs else 0
        self._extent = 0
        self._extent_bytes = 0
        self._crc = 0
        self.low = self._at
        """Bytes before it are no longer held."""
        self._findings: list[Finding] = []

    def __repr__(self) -> str:
        return f"<FlatStream at {self._at}, run {self._run} of {len(self._runs)}>"

    def findings(self) -> list[Finding]:
        """Return the findings since the last call."""
        found, self._findings = self._findings, []
        return found

    async def window(self, wanted: ByteRange) -> tuple[Buffer, list[ByteRange]]:
        """Return the bytes of a range that does not begin before `low`, and the holes in it.

        Drops all bytes before it. A hole is an unreadable range. It is filled with zeros, and
        returned in its known length, which may exceed the window.

        Raises:
            Unavailable: retry later.
        """
        assert wanted.start >= self.low, f"{wanted} begins below {self.low}"
        self._drop(wanted.start)
        while self._run < len(self._runs) and self._at < wanted.end:
            await self._read_piece(keep_from=wanted.start)
        parts: list[Buffer] = []
        holes: list[ByteRange] = []
        at = wanted.start
        for start, chunk in self._chunks:
            if start >= wanted.end:
                break
            if start > at:
                holes.append(ByteRange(at, start))
                parts.append(bytes(start - at))
                at = start
            part = memoryview(chunk)[at - start : wanted.end - start]
            parts.append(part)
            at += len(part)
        if at < wanted.end:
            holes.append(ByteRange(at, max(wanted.end, self._at)))
            parts.append(bytes(wanted.end - at))
        return (parts[0] if len(parts) == 1 else b"".join(parts)), holes

    async def drain(self) -> None:
        """Read the rest, for its checksums."""
        self._drop(self._runs[-1].end if self._runs else 0)
        while self._run < len(self._runs):
            await self._read_piece(keep_from=self._runs[-1].end)

    def _drop(self, start: int) -> None:
        self.low = start
        self._chunks = [one for one in self._chunks if one[0] + len(one[1]) > start]

    async def _read_piece(self, *, keep_from: int) -> None:
        """Read the next piece. An unreadable one leaves a hole as long as its run."""
        run = self._runs[self._run]
        if not (self._extent or self._extent_bytes):
            self._at = run.start
        inside = self._at - run.start
        length = min(self._piece_bytes, run.there_bytes - inside)
        piece: Buffer | None = None
        if length > 0:
            place = ByteRange(run.object_start + inside, run.object_start + inside + length)
            try:
                piece = await self._store.read(run.holder, place)
            except (Corrupt, Denied, OutOfRange) as error:
                reason = error.reason
                self._findings.append(Finding("unreadable", run.holder, place.start, reason))
        if piece is None:
            self._next_run(run)
            return
        self._sum(run, memoryview(piece))
        if self._at + length > keep_from:
            self._chunks.append((self._at, piece))
        self._at += length
        if self._at == run.end:
            self._next_run(run)

    def _next_run(self, run: _Run) -> None:
        self._at, self._run = run.end, self._run + 1
        self._extent = self._extent_bytes = self._crc = 0

    def _sum(self, run: _Run, piece: memoryview) -> None:
        """Continue the checksums of the run's extents over a piece."""
        while len(piece):
            extent = run.extents[self._extent]
            part = piece[: extent.length - self._extent_bytes]
            if extent.crc32c is not None:
                self._crc = crc32c(part, self._crc)
            self._extent_bytes += len(part)
            piece = piece[len(part) :]
            if self._extent_bytes < extent.length:
                return
            if extent.crc32c is not None and self._crc != extent.crc32c:
                detail = (
                    f"{extent.length} bytes have {self._crc:#010x}, published {extent.crc32c:#010x}"
                )
                place = extent.object_offset
                self._findings.append(Finding("checksum", run.holder, place, detail))
            self._extent, self._extent_bytes, self._crc = self._extent + 1, 0, 0


def _runs_of(
    queue: QueueId, segments: Sequence[Segment], sizes: Mapping[str, int]
) -> Iterator[_Run]:
    """Extents of segments, in as few runs as objects and holes allow."""
    held: list[Extent] = []
    start, holder, is_whole = 0, "", False
    there_bytes = 0
    for segment in segments:
        for extent in segment.extents:
            if extent.length <= 0:
                continue
            name = object_name(queue, segment, extent)
            there = min(max(0, sizes.get(name, 0) - extent.object_offset), extent.length)
            if held and not (
                name == holder
                and is_whole
                and held[-1].end == extent.position
                and held[-1].object_offset + held[-1].length == extent.object_offset
            ):
                yield _Run(holder, start, held[0].object_offset, tuple(held), there_bytes)
                held, there_bytes = [], 0
            if not held:
                start, holder = segment.base + extent.position, name
            is_whole = there == extent.length
            there_bytes += there
            held.append(extent)
        if held:
            yield _Run(holder, start, held[0].object_offset, tuple(held), there_bytes)
            held, there_bytes = [], 0


UNITS_AT_ONCE = 4_096
UNIT_PIECE_BYTES = 1 << 20
LOG_BYTES_AT_ONCE = 16 << 20
"""Bytes of records that are followed at once, and of one read."""
LOG_RANGE_BYTES_MAX = 128 << 20
"""Limit of the range of one read. No message is as long, and sound units span far less."""


async def verify_queue(
    container: MessageQueueContainer,
    store: ObjectStore,
    sizes: dict[str, int],
    known: set[str],
    progress: Callable[[int], None],
    *,
    bodies: bool = False,
    contents: bool = True,
) -> AsyncIterator[list[Finding]]:
    """Yield defects of a queue against its record, some findings at a time.

    `container` must always return the same record. Adds the names of its objects to `known`. Sizes
    of objects that `sizes` lacks, or has shorter than published, are first queried again. `bodies`:
    decompress them too.

    Raises:
        Unavailable: the storage does not answer, so the result is unknown.
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
    verification = _QueueVerification(container, store, flat, now, progress, bodies=bodies)
    async for batch in verification.batches():
        yield batch


async def grown(
    store: ObjectStore,
    queue: QueueId,
    flat: Mapping[SegmentType, Sequence[Segment]],
    sizes: Mapping[str, int],
) -> dict[str, int]:
    """Sizes of objects that a listing has missed, or shown shorter than published."""
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
    """Yield places where a queue's segments are not adjacent, or its units end early. Pure."""
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
    """Yield extents of a segment that are not adjacent, and missing or short objects. Pure."""
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


class _QueueVerification:
    """Follows every unit of a queue to its record, over both flat files in parallel."""

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
        """Yield defects, a few thousand messages at a time."""
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
        """Check the first messages of a range. Return the findings and the next offset."""
        container = self._container
        try:
            units, holes = await self._units_of(offset, end)
            first, stop = _messages_in(holes, end)
            if first <= offset:
                return [self._unread(offset, stop, "their units cannot be read")], stop
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
        """Expected position of the first of some units, after the previous record."""
        if self._check is None:
            return int(units["position"][0])
        return self._lost.get(self._check.next_position, self._check.next_position)

    def _unread(self, offset: int, end: int, reason: str) -> Finding:
        """Create the finding for unreadable messages. The check restarts after them."""
        self._check = None
        detail = f"messages [{offset}, {end}) were not checked: {reason}"
        return Finding("unreadable", str(self._container.id), offset, detail)

    async def _units_of(
        self, offset: QueueOffset, end: QueueOffset
    ) -> tuple[Units, list[ByteRange]]:
        """Units of a range, with their holes. Read again only if damaged segments overlap.

        A hole is in bytes of the flat file.
        """
        if offset * UNIT_BYTES < self._units.low:
            return await self._container.units(offset, end), []
        place = ByteRange(offset * UNIT_BYTES, end * UNIT_BYTES)
        units, holes = await self._units.window(place)
        return decode_units(units), holes

    async def _log_window(self, place: ByteRange) -> tuple[Buffer, list[ByteRange]]:
        """Bytes of the log, with their holes. Read again only if damaged units point back."""
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
    """Messages before `end` whose units lie in the first hole: [first, stop)."""
    if not holes:
        return end, end
    hole = holes[0]
    return hole.start // UNIT_BYTES, min(-(-hole.end // UNIT_BYTES), end)


def _parts(units: Units, holes: Sequence[ByteRange]) -> Iterator[tuple[int, int, bool]]:
    """Groups of units by readable records: (first, stop, is there), in order, all of them."""
    starts = units["position"].astype(np.int64)
    ends = starts + units["size"]
    is_there = np.ones(len(units), np.bool_)
    for hole in holes:
        is_there &= (ends <= hole.start) | (starts >= hole.end)
    edges = [0, *(np.flatnonzero(np.diff(is_there)) + 1).tolist(), len(units)]
    for first, stop in pairwise(edges):
        yield first, stop, bool(is_there[first])


def _log_range(container: MessageQueueContainer, units: Units, next_position: int) -> ByteRange:
    """Log range of some units' records, from the previous record on, to include codas.

    Raises:
        ValueError: the units are damaged: their range exceeds the limit of one read.
    """
    start = min(int(units["position"][0]), next_position)
    end = int(units["position"][-1]) + int(units["size"][-1]) + Coda.SIZE
    end = min(max(end, start + 1), container.record.flat_end(SegmentType.COMMIT_LOG))
    if end - start > LOG_RANGE_BYTES_MAX:
        raise ValueError(f"their units point to [{start}, {end})")
    return ByteRange(start, end)


def _fitting(positions: Sequence[int], sizes: Sequence[int]) -> int:
    """Number of leading units to read at once. At least one, even if they are damaged."""
    ends = [at + size - positions[0] for at, size in zip(positions, sizes, strict=True)]
    return max(1, bisect_right(ends, LOG_BYTES_AT_ONCE))
