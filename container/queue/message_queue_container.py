"""Reader's view of one tiered queue: its units and its log, over any number of segments."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from container.errors import BytesMissing
from container.metadata.objects import object_name
from container.metadata.records import Extent, Gap, ManifestRef, Queue, Segment
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.queue.positions import (
    Boundary,
    TimeStretch,
    log_position,
    object_ends,
    stretch_by_time,
)
from container.record.batch import decode_units
from container.record.checksum import crc32c, flipped_byte
from container.record.unit import UNIT_BYTES, Units
from provider.disk_cache.use import CacheUse, Unconfirmed, current_use
from provider.errors import Corrupt, NotFound, OutOfRange
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange, QueueOffset

HISTORY_SHIFT = 48
"""Bits of a generation below the number of the history."""
ROUNDED_BYTES = 256 << 10
"""Bytes that a read of any length may have more, so that a disk cache keeps whole extents: they
take about as long as the request. A longer read may have twice its own bytes."""
ALONG_SHARE = 8
"""Bytes read along up to this share of the needed ones stay in memory with them, uncopied."""


class DamagedExtent(NamedTuple):
    """Extent of a CommitLog whose bytes differ from its CRC-32C."""

    span: ByteRange
    """Log positions."""
    difference: int
    """Exclusive or of both checksums."""

    @property
    def reason(self) -> str:
        """Description of the fault."""
        return f"CRC-32C of its extent, of {self.span.length} bytes, is not as published"

    def flipped_position(self) -> int | None:
        """Log position of the byte with one flipped bit; None if that is not the damage."""
        at = flipped_byte(self.difference, self.span.length)
        return None if at is None else self.span.start + at


class ExtentChecks:
    """Verification of the extents of a CommitLog that a read has as a whole, by log position."""

    def __init__(self, *, reads_whole: bool = False) -> None:
        """`reads_whole`: read extents as a whole where a range begins or ends in them."""
        self.reads_whole = reads_whole
        self.damaged: list[DamagedExtent] = []


class Manifests(Protocol):
    """Source of the segments in manifests."""

    async def segments(self, ref: ManifestRef) -> tuple[Segment, ...]:
        """Return the segments of a manifest, in order of base. One request, or none if cached."""
        ...


class MessageQueueContainer:
    """CommitLog and ConsumeQueue of one queue, for reading. RocketMQ 5.1 has this term.

    It keeps no copy of the metadata: every call uses the newest record of the queue, so it follows
    commits. It reads only published bytes.
    """

    def __init__(
        self,
        queue: QueueId,
        lookup: Callable[[QueueId], Queue | None],
        store: ObjectStore,
        manifests: Manifests,
        *,
        verify: bool = False,
        history: Callable[[], int] = lambda: 0,
    ) -> None:
        """`verify`: verify the CRC-32C of each extent that is read, which reads extents as a whole.

        `history`: the number of the tier's history, which a reader raises (`generation`).
        """
        self._history = history
        self._id = queue
        self._lookup = lookup
        self._store = store
        self._manifests = manifests
        self._verify = verify

    def __repr__(self) -> str:
        return f"<MessageQueueContainer {self._id}: [{self.min_offset}, {self.next_offset})>"

    @property
    def id(self) -> QueueId:
        """Topic and number of the queue."""
        return self._id

    @property
    def record(self) -> Queue:
        """Newest published record of the queue.

        Raises:
            NotFound: the queue was deleted.
        """
        queue = self._lookup(self._id)
        if queue is None:
            raise NotFound("the tier has no such queue any more", str(self._id))
        return queue

    def as_of(self, queue: Queue) -> "MessageQueueContainer":
        """Copy that keeps one record of the queue, whatever is published later."""
        return MessageQueueContainer(
            self._id,
            lambda _: queue,
            self._store,
            self._manifests,
            verify=self._verify,
            history=self._history,
        )

    def verifying(self) -> "MessageQueueContainer":
        """Copy that verifies the CRC-32C of each extent that is read."""
        return MessageQueueContainer(
            self._id,
            self._lookup,
            self._store,
            self._manifests,
            verify=True,
            history=self._history,
        )

    @property
    def generation(self) -> int:
        """Generation of the queue. Each truncation of the tail raises it.

        Data read in another generation may not be published. A restore of the tier from a backup
        raises the generation for a reader too.
        """
        return self.record.generation + (self._history() << HISTORY_SHIFT)

    @property
    def min_offset(self) -> QueueOffset:
        """First readable offset."""
        return self.record.min_offset

    @property
    def next_offset(self) -> QueueOffset:
        """Commit offset: the end of the readable offsets, exclusive."""
        return self.record.next_offset

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Ranges of offsets that were lost before they could be tiered."""
        return self.record.gaps

    async def segments(self, segment_type: SegmentType) -> list[Segment]:
        """Return all segments of one flat file in order of base, including those in manifests.

        Includes segments that are not readable: copies that are unfinished or being deleted. Costs
        a request for each manifest that is not cached.
        """
        found = [one async for run in self.runs_of_segments(segment_type) for one in run]
        return sorted(found, key=lambda one: one.base)  # segments that are deleted come first

    async def runs_of_segments(self, segment_type: SegmentType) -> AsyncIterator[Sequence[Segment]]:
        """Yield what `segments` returns, one manifest at a time. Readable ones are in order.

        Segments in the record replace those in manifests.
        """
        queue = self.record
        live = queue.segments(segment_type)
        replaced = {one.base for one in live}
        for ref in queue.manifests:
            if ref.type == segment_type:
                listed = await self._manifests.segments(ref)
                yield [one for one in listed if one.base not in replaced]
        yield live

    async def segment_at(self, segment_type: SegmentType, at: int) -> Segment:
        """Return the readable segment that has byte `at` of a flat file. At most one request.

        Raises:
            OutOfRange: nothing is published there.
            BytesMissing, Corrupt, Unavailable: of a manifest.
        """
        return await self._segment_at(self.record, segment_type, at)

    async def stretch_by_time(
        self, moment_ms: int, boundary: Boundary, low: QueueOffset, high: QueueOffset
    ) -> TimeStretch | None:
        """Range of `[low, high)` for a search by time. See `positions.stretch_by_time`.

        At most two requests, one for each of two manifests that are not cached. A tier that
        RocketMQ's own store wrote has no reliable times: its range is all of `[low, high)`.

        Raises:
            BytesMissing, Corrupt, Unavailable: of a manifest.
        """
        queue = self.record
        live = [extent for segment in queue.readable(SegmentType.COMMIT_LOG)
                for extent in segment.extents]  # fmt: skip
        if live and live[-1].crc32c is None:
            return TimeStretch(low, high, None) if low < high else None
        refs = [ref for ref in queue.manifests if ref.type == SegmentType.COMMIT_LOG]
        is_lower = boundary is Boundary.LOWER
        for number in [*range(len(refs)), None] if is_lower else [None, *range(len(refs))[::-1]]:
            extents, end = live, int(queue.next_offset)
            if number is not None:
                ref = refs[number]
                if (ref.max_timestamp < moment_ms) if is_lower else (ref.min_timestamp > moment_ms):
                    continue
                extents = await self._extents(ref)
                after = await self._extents(refs[number + 1]) if number + 1 < len(refs) else live
                end = after[0].first_offset if after else end
            found = stretch_by_time(
                extents, end, queue.gaps, moment_ms, boundary, within=(low, high)
            )
            if found is not None:
                return found
        return None

    async def _extents(self, ref: ManifestRef) -> list[Extent]:
        segments = await self._manifests.segments(ref)
        return [extent for segment in segments for extent in segment.extents]

    async def units(self, start: QueueOffset, end: QueueOffset, *, verified: bool = False) -> Units:
        """Read the units of `[start, end)`, in order. One request per segment.

        `verified`: verify the CRC-32C of each extent that is read, which reads extents as a whole.
        `verify` of the constructor does this for all reads.

        Raises:
            OutOfRange: some of them are not published, or lie in a gap.
            BytesMissing: a segment was deleted since, or is damaged. Refresh the metadata and retry
                once.
            Unavailable: retry later.
            Corrupt: a verified checksum does not match.
        """
        wanted = [ByteRange(start * UNIT_BYTES, end * UNIT_BYTES)]
        verify = verified or self._verify
        return decode_units((await self._read(SegmentType.CONSUME_QUEUE, wanted, verify=verify))[0])

    async def units_many(self, wanted: Sequence[tuple[QueueOffset, QueueOffset]]) -> list[Units]:
        """Read the units of several `[start, end)` in one round of requests. Errors as `units`."""
        ranges = [ByteRange(start * UNIT_BYTES, end * UNIT_BYTES) for start, end in wanted]
        found = await self._read(SegmentType.CONSUME_QUEUE, ranges, verify=self._verify)
        return [decode_units(raw) for raw in found]

    def log_position(self, offset: QueueOffset) -> int | None:
        """Log position of the message at `offset`, None if unknown (`positions.py`)."""
        return log_position(self.record, offset)

    def object_ends(self, low: QueueOffset, high: QueueOffset) -> list[QueueOffset]:
        """Offsets between two others before which an object ends (`positions.py`)."""
        return object_ends(self.record, low, high)

    async def extent_ends(self, span: ByteRange) -> list[int]:
        """Log positions in `span`, or at its end, at which an extent with a checksum ends.

        Ascending, up to the log's end. Costs a request for a manifest that is not cached. Errors as
        for `units`.
        """
        queue = self.record
        found: list[int] = []
        at = span.start
        while at < min(span.end, queue.flat_end(SegmentType.COMMIT_LOG)):
            segment = await self._segment_at(queue, SegmentType.COMMIT_LOG, at)
            extents = segment.extents
            first = bisect_right(extents, at - segment.base, key=_extent_end)
            last = bisect_right(extents, span.end - segment.base, key=_extent_end)
            found += [
                segment.base + extent.end
                for extent in extents[first:last]
                if extent.crc32c is not None
            ]
            at = segment.end
        return found

    async def units_and_pieces(
        self,
        start: QueueOffset,
        end: QueueOffset,
        span: ByteRange,
        checks: ExtentChecks | None = None,
    ) -> tuple[Units, list[Buffer]]:
        """As `units`, and as `log_pieces` of one range, in one round of requests."""
        units = ByteRange(start * UNIT_BYTES, end * UNIT_BYTES)
        planned = [
            await self.planned_read(SegmentType.CONSUME_QUEUE, [units]),
            await self.planned_read(SegmentType.COMMIT_LOG, [span], checks=checks),
        ]
        answers = await self._asked([request for one in planned for request in one.requests])
        count = len(planned[0].requests)
        (raw,), (pieces,) = planned[0].results(answers[:count]), planned[1].pieces(answers[count:])
        return decode_units(raw), pieces

    async def log(self, wanted: ByteRange) -> Buffer:
        """Read bytes of the queue's tier CommitLog by log position. Errors as for `units`."""
        return (await self.log_many([wanted]))[0]

    async def log_many(self, wanted: Sequence[ByteRange]) -> list[Buffer]:
        """Read several ranges of the CommitLog in one round of requests. Errors as for `units`."""
        return await self._read(SegmentType.COMMIT_LOG, wanted, verify=self._verify)

    async def log_pieces(
        self, wanted: Sequence[ByteRange], checks: ExtentChecks | None = None
    ) -> list[list[Buffer]]:
        """As `log_many`. Each range is returned as the storage's buffers, in order and not joined.

        A buffer ends at the end of an object, or of a run of its extents. `checks` gets the results
        of verifying the extents that are read as a whole, also in the other methods.
        """
        planned = await self.planned_read(SegmentType.COMMIT_LOG, wanted, checks=checks)
        return planned.pieces(await self._asked(planned.requests))

    async def planned_read(
        self,
        segment_type: SegmentType,
        wanted: Sequence[ByteRange],
        *,
        verify: bool | None = None,
        checks: ExtentChecks | None = None,
    ) -> "PlannedRead":
        """Plan the requests for a read of several ranges of a flat file.

        A caller that reads several queues may send the requests of all in one batch. Sends no
        request, except one for each required manifest that is not cached. `verify` None: as the
        container.

        Raises:
            OutOfRange: nothing is published there.
            BytesMissing, Corrupt, Unavailable: of a manifest.
        """
        verify = self._verify if verify is None else verify
        parts = [
            await self._pieces(segment_type, part, verify=verify, checks=checks) for part in wanted
        ]
        return PlannedRead(parts)

    async def _read(
        self, segment_type: SegmentType, wanted: Sequence[ByteRange], *, verify: bool
    ) -> list[Buffer]:
        planned = await self.planned_read(segment_type, wanted, verify=verify)
        return planned.results(await self._asked(planned.requests))

    async def _asked(self, requests: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        try:
            return await self._store.read_many(requests)
        except OutOfRange as error:
            raise BytesMissing.of(error) from error

    async def _pieces(
        self,
        segment_type: SegmentType,
        wanted: ByteRange,
        *,
        verify: bool,
        checks: ExtentChecks | None,
    ) -> "list[_Piece]":
        """Requests for the bytes of a flat file's range."""
        queue = self.record
        use = current_use()
        if use is not None and (use.is_past or not use.confirms):
            use = None
        pieces: list[_Piece] = []
        at = wanted.start
        while at < wanted.end:
            segment = await self._segment_at(queue, segment_type, at)
            until = min(wanted.end, segment.end)
            inside = ByteRange(at - segment.base, until - segment.base)
            pieces.extend(
                pieces_of_segment(self._id, segment, inside, verify=verify, use=use, checks=checks)
            )
            at = until
        return pieces

    async def _segment_at(self, queue: Queue, segment_type: SegmentType, at: int) -> Segment:
        """Segment that holds byte `at` of a flat file."""
        live = queue.readable(segment_type)
        if not live or at < live[0].base:
            for ref in queue.manifests:
                if ref.type == segment_type and ref.base <= at < ref.end:
                    live = await self._manifests.segments(ref)
                    break
        index = bisect_right(live, at, key=lambda segment: segment.base) - 1
        if index < 0 or at >= live[index].end:
            raise OutOfRange(
                f"nothing is published there in the {segment_type.name} of {self._id}",
                segment_name(self._id, segment_type, 0),
                at,
            )
        return live[index]


class PlannedRead:
    """Ranges of a flat file, as requests to the store."""

    def __init__(self, parts: "Sequence[Sequence[_Piece]]") -> None:
        """`parts` has the pieces of each range."""
        self._parts = parts
        self.requests = [(piece.object_name, piece.read) for pieces in parts for piece in pieces]

    def __repr__(self) -> str:
        return f"<PlannedRead: {len(self._parts)} ranges, {len(self.requests)} requests>"

    def results(self, answers: Iterable[Buffer]) -> list[Buffer]:
        """Return the bytes of each range, from one answer for each of `requests`, in order.

        Raises:
            Corrupt: a verified checksum does not match.
        """
        return [_joined(pieces) for pieces in self.pieces(answers)]

    def pieces(self, answers: Iterable[Buffer]) -> list[list[Buffer]]:
        """As `results`, with each range as the buffers that it consists of, in order."""
        left = iter(answers)
        return [[piece.cut(next(left)) for piece in pieces] for pieces in self._parts]


class _Piece:
    """Request to the store, and the needed bytes of its answer."""

    __slots__ = (
        "checks", "drop", "extents", "is_strict", "length", "log_shift", "object_name", "read",
        "use",
    )  # fmt: skip

    def __init__(
        self,
        object_name: str,
        read: ByteRange,
        needed: ByteRange,
        *,
        extents: Sequence[Extent] = (),
        is_strict: bool = True,
        use: CacheUse | None = None,
        checks: ExtentChecks | None = None,
        log_shift: int = 0,
    ) -> None:
        """Describe a request that has all bytes of `extents`, whose checksums are verified.

        `use` gets the sound ranges of the object, `checks` the damaged extents of the log,
        `log_shift` bytes further. Another checksum raises `Corrupt` if it `is_strict`, else
        `Unconfirmed` with `use`.
        """
        self.object_name = object_name
        self.read = read
        self.drop = needed.start - read.start
        self.length = needed.length
        self.extents = extents
        self.is_strict = is_strict
        self.use = use
        self.checks = checks
        self.log_shift = log_shift

    def cut(self, answer: Buffer) -> memoryview:
        """Verify the answer if required, and return the needed bytes."""
        view = memoryview(answer)
        for extent in self.extents:
            begin = extent.object_offset - self.read.start
            found = crc32c(view[begin : begin + extent.length])
            if found == extent.crc32c:
                self._confirm(extent)
            elif self.is_strict:
                raise Corrupt(
                    f"CRC-32C of {extent.length} bytes is not {extent.crc32c:#010x} as published",
                    self.object_name,
                    extent.object_offset,
                )
            elif self.use is not None:
                raise Unconfirmed
            elif self.checks is not None:
                difference = found ^ (extent.crc32c or 0)
                self.checks.damaged.append(DamagedExtent(self._in_log(extent), difference))
        needed = view[self.drop : self.drop + self.length]
        if self.use is None or len(view) - self.length <= self.length // ALONG_SHARE:
            return needed
        return memoryview(bytes(needed))  # frees the bytes that were read along

    def _confirm(self, extent: Extent) -> None:
        if self.use is not None:
            begin = extent.object_offset
            self.use.confirm(self.object_name, ByteRange(begin, begin + extent.length))

    def _in_log(self, extent: Extent) -> ByteRange:
        begin = extent.object_offset + self.log_shift
        return ByteRange(begin, begin + extent.length)


def pieces_of_segment(
    queue: QueueId,
    segment: Segment,
    inside: ByteRange,
    *,
    verify: bool,
    use: CacheUse | None = None,
    checks: ExtentChecks | None = None,
) -> list[_Piece]:
    """Split a range of a segment by the objects that hold it. Pure."""
    extents = segment.extents
    first = bisect_right(extents, inside.start, key=lambda extent: extent.position) - 1
    last = bisect_right(extents, inside.end - 1, key=lambda extent: extent.position)
    runs: list[list[Extent]] = []
    for extent in extents[first:last]:
        if runs and (
            extent.object_name == runs[-1][-1].object_name
            and extent.object_offset == runs[-1][-1].object_offset + runs[-1][-1].length
        ):
            runs[-1].append(extent)
        else:
            runs.append([extent])
    is_log = segment.type == SegmentType.COMMIT_LOG
    sums_for = use if is_log else None
    pieces = [
        _piece_of_run(
            run,
            object_name(queue, segment, run[0]),
            inside,
            verify=verify,
            use=sums_for,
            checks=checks,
            base=segment.base,
        )
        for run in runs
    ]
    if use is not None and not is_log:  # each read compares units with their records
        for piece in pieces:
            use.confirm(piece.object_name, piece.read)
    return pieces


def _piece_of_run(
    run: list[Extent],
    name: str,
    inside: ByteRange,
    *,
    verify: bool,
    use: CacheUse | None,
    checks: ExtentChecks | None,
    base: int,
) -> _Piece:
    """Single request for adjacent extents in the object `name`.

    With `verify` it is for whole extents; for `use` likewise, if that adds few bytes, and for
    `checks` if these say so.
    """
    shift = run[0].object_offset - run[0].position
    start, end = max(inside.start, run[0].position), min(inside.end, run[-1].end)
    read = needed = ByteRange(start + shift, end + shift)
    if not verify and use is None and checks is None:
        return _Piece(name, read, needed)
    whole = ByteRange(run[0].object_offset, run[-1].object_offset + run[-1].length)
    is_short = use is not None and whole.length - needed.length <= max(needed.length, ROUNDED_BYTES)
    has_sums = any(extent.crc32c is not None for extent in run)
    if has_sums and (verify or is_short or (checks is not None and checks.reads_whole)):
        read = whole
    extents = [
        extent
        for extent in run
        if extent.crc32c is not None
        and read.start <= extent.object_offset
        and extent.object_offset + extent.length <= read.end
    ]
    return _Piece(
        name,
        read,
        needed,
        extents=extents,
        is_strict=verify,
        use=use,
        checks=checks,
        log_shift=base - shift,
    )


def _extent_end(extent: Extent) -> int:
    return extent.end


def _joined(parts: list[Buffer]) -> Buffer:
    return parts[0] if len(parts) == 1 else b"".join(parts)
