"""A flat file from its beginning to its end: each byte is read once, for checksums and contents."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from container.check.finding import Finding
from container.metadata.object_names import object_name
from container.metadata.records import Extent, Segment
from container.names.queue_id import QueueId
from container.record.crc32c import crc32c
from provider.errors import Corrupt, Denied, OutOfRange
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange


@dataclass(frozen=True, slots=True)
class _Run:
    """Extents that touch in one object and in the flat file, so that they are read together."""

    holder: str
    start: int
    """First byte in the flat file."""
    object_start: int
    extents: tuple[Extent, ...]
    there_bytes: int
    """As many of its bytes does the object have."""

    @property
    def end(self) -> int:
        return self.start + sum(extent.length for extent in self.extents)


class FlatStream:
    """Windows over a flat file that move forward, and what its checksums say meanwhile.

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
        """`sizes`: of the objects that are there. What lies in others is not read."""
        self._store = store
        self._piece_bytes = piece_bytes
        self._runs = list(_runs_of(queue, segments, sizes))
        self._chunks: list[tuple[int, Buffer]] = []
        """What is held, by first byte in the flat file; holes lie where nothing could be read."""
        self._run = 0
        self._at = self._runs[0].start if self._runs else 0
        self._extent = 0
        self._extent_bytes = 0
        self._crc = 0
        self.low = self._at
        """Bytes before it are not held any more."""
        self._findings: list[Finding] = []

    def __repr__(self) -> str:
        return f"<FlatStream at {self._at}, run {self._run} of {len(self._runs)}>"

    def findings(self) -> list[Finding]:
        """What was found since the last call."""
        found, self._findings = self._findings, []
        return found

    async def window(self, wanted: ByteRange) -> tuple[Buffer, list[ByteRange]]:
        """The bytes of a range that does not begin before `low`, and the holes in it.

        Drops all before it. A hole is what could not be read; it is filled with zeros, and told
        as long as it is known to be, which may be beyond the window.

        Raises:
            Unavailable: try again later.
        """
        assert wanted.start >= self.low, f"{wanted} lies behind {self.low}"
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
        """Read what is left, for its checksums."""
        self._drop(self._runs[-1].end if self._runs else 0)
        while self._run < len(self._runs):
            await self._read_piece(keep_from=self._runs[-1].end)

    def _drop(self, start: int) -> None:
        self.low = start
        self._chunks = [one for one in self._chunks if one[0] + len(one[1]) > start]

    async def _read_piece(self, *, keep_from: int) -> None:
        """Read the next piece; one that cannot be read leaves a hole as long as its run."""
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
    """The extents of segments, in as few runs as objects and holes allow."""
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
