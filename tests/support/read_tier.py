"""A tier in memory for the fetcher's tests: real records, counted requests, stalls and faults."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from container.metadata.records import Extent, Gap
from container.names.queue_id import QueueId
from container.queue.message_queue_container import ExtentChecks
from container.queue.positions import Boundary, TimeStretch, stretch_by_time
from container.record.batch import decode_units
from container.record.header import RecordHeader
from container.record.properties import tag_hash
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit, Units
from provider.errors import Corrupt, NotFound, OutOfRange
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset
from tests.support.messages import make_record

QUEUE = QueueId("T", 0)
OBJECT_MESSAGES = 0
"""What `MemoryQueue.object_messages` begins with."""


class MemoryQueue:
    """One queue: bytes of its CommitLog and ConsumeQueue, and what was asked of them."""

    def __init__(self, queue: QueueId = QUEUE, first: int = 0) -> None:
        self._id = queue
        self.base = first
        self.generation = 0
        self.min_offset = QueueOffset(first)
        self.next_offset = QueueOffset(first)
        self.gaps: tuple[Gap, ...] = ()
        self.commit_log = bytearray()
        self.consume_queue = bytearray()
        self.timestamps: dict[int, int] = {}
        """The store timestamp of each message that was committed, by its offset."""
        self.extent_messages: int | None = 100
        """Messages of an extent; None: a tier without extents, as RocketMQ's own store writes."""
        self.object_messages = OBJECT_MESSAGES
        """Messages of an object of which is known where they lie; 0: that is not known."""
        self.places: dict[int, int] = {}
        """Where each message begins in the log."""
        self.spans: list[tuple[int, int]] = []
        """Reads of units and records together."""
        self.damaged_units = False
        """Whether the checksum of its units does not match."""
        self.requests: Counter[str] = Counter()
        self.unit_reads: list[tuple[int, int]] = []
        self.log_reads: list[ByteRange] = []
        self.faults: list[Exception] = []
        """Raised by the next requests, one each."""
        self.open_gate = asyncio.Event()
        """Requests wait while it is not set."""
        self.open_gate.set()
        self.waiting = 0

    @property
    def id(self) -> QueueId:
        return self._id

    def append(self, records: Iterable[bytes], tags: Iterable[str]) -> None:
        """Commit records behind the last one."""
        for record, tag in zip(records, tags, strict=True):
            place = len(self.commit_log)
            self.consume_queue += ConsumeQueueUnit.LAYOUT.pack(place, len(record), tag_hash(tag))
            self.places[self.next_offset] = place
            self.commit_log += record
            header = RecordHeader.decode(record, path="", position=0)
            self.timestamps[self.next_offset] = header.store_timestamp
            self.next_offset = QueueOffset(self.next_offset + 1)

    def fill(self, count: int, *, body_bytes: int = 20, tags: Sequence[str] = ("",)) -> None:
        """Commit `count` messages with bodies of this length and the tags in turn."""
        for offset in range(self.next_offset, self.next_offset + count):
            tag = tags[offset % len(tags)]
            properties = {"TAGS": tag} if tag else {}
            body = offset.to_bytes(8, "big").ljust(body_bytes, b".")[:body_bytes]
            place = len(self.commit_log)
            record = make_record(
                self._id.topic, self._id.queue_id, offset, body, properties=properties,
                physical_offset=place,
            )  # fmt: skip
            self.append([record], [tag])

    def lose(self, count: int) -> Gap:
        """Record a gap of `count` offsets behind the last message."""
        start, kept = self.next_offset, self.gaps
        if kept and kept[-1].end == start:  # one longer gap, as in the journal
            start, kept = kept[-1].start, kept[:-1]
        gap = Gap(start, QueueOffset(self.next_offset + count), "lost", 0)
        self.gaps = (*kept, gap)
        self.consume_queue += bytes(UNIT_BYTES * count)
        self.next_offset = gap.end
        return gap

    def record(self, offset: int) -> bytes:
        """The record at an offset, straight from the bytes."""
        unit = self._units(offset, offset + 1)[0]
        start = int(unit["position"])
        return bytes(self.commit_log[start : start + int(unit["size"])])

    def _units(self, start: int, end: int) -> Units:
        first, last = (UNIT_BYTES * (offset - self.base) for offset in (start, end))
        return decode_units(bytes(self.consume_queue[first:last]))

    async def _request(self, verb: str) -> None:
        self.requests[verb] += 1
        self.waiting += 1
        try:
            await asyncio.sleep(0)
            await self.open_gate.wait()
        finally:
            self.waiting -= 1
        if self.faults:
            raise self.faults.pop(0)

    async def stretch_by_time(
        self, moment_ms: int, boundary: Boundary, low: QueueOffset, high: QueueOffset
    ) -> TimeStretch | None:
        if self.extent_messages is None:
            return TimeStretch(low, high, None) if low < high else None
        extents = self._extents(self.extent_messages)
        return stretch_by_time(
            extents, self.next_offset, self.gaps, moment_ms, boundary, within=(low, high)
        )

    def _extents(self, messages_max: int) -> list[Extent]:
        """As many messages in each as `messages_max`, fewer before a gap."""
        extents: list[Extent] = []
        for offset, time in self.timestamps.items():
            last = extents[-1] if extents else None
            if (
                last is None
                or offset - last.first_offset >= messages_max
                or any(last.first_offset < gap.start <= offset for gap in self.gaps)
            ):
                extents.append(Extent(0, 1, 0, QueueOffset(offset), time, time))
            else:
                low, high = min(last.min_timestamp, time), max(last.max_timestamp, time)
                extents[-1] = Extent(0, 1, 0, last.first_offset, low, high)
        return extents

    async def units(self, start: QueueOffset, end: QueueOffset, *, verified: bool = False) -> Units:
        if not self.min_offset <= start < end <= self.next_offset:
            raise OutOfRange("no such units", str(self._id), start)
        assert not any(gap.start < end and start < gap.end for gap in self.gaps), "touches a gap"
        self.unit_reads.append((start, end))
        await self._request("units")
        if verified and self.damaged_units:
            raise Corrupt("CRC-32C is not as published", str(self._id), 0)
        return self._units(start, end)

    def log_position(self, offset: QueueOffset) -> int | None:
        if offset == self.next_offset:
            return len(self.commit_log) if self.object_messages else None
        if not self.object_messages or offset % self.object_messages:
            return None
        return self.places.get(offset)

    def object_ends(self, low: QueueOffset, high: QueueOffset) -> list[QueueOffset]:
        if not self.object_messages:
            return []
        ends = range(0, high, self.object_messages)
        return [QueueOffset(end) for end in ends if low < end and end in self.places]

    async def extent_ends(self, span: ByteRange) -> list[int]:
        return []

    async def units_and_pieces(
        self,
        start: QueueOffset,
        end: QueueOffset,
        span: ByteRange,
        checks: ExtentChecks | None = None,
    ) -> tuple[Units, list[Buffer]]:
        self.spans.append((start, end))
        return await self.units(start, end), (await self.log_pieces([span]))[0]

    async def log(self, wanted: ByteRange) -> Buffer:
        return (await self.log_many([wanted]))[0]

    async def log_many(self, wanted: Sequence[ByteRange]) -> list[Buffer]:
        for part in wanted:
            if part.end > len(self.commit_log):
                raise OutOfRange("no such bytes", str(self._id), part.start)
        self.log_reads.extend(wanted)
        await self._request("log")
        return [bytes(self.commit_log[part.start : part.end]) for part in wanted]

    async def log_pieces(
        self, wanted: Sequence[ByteRange], checks: ExtentChecks | None = None
    ) -> list[list[Buffer]]:
        return [[one] for one in await self.log_many(wanted)]


class MemoryTier:
    """Queues by id; `newer` is what the next refresh brings."""

    def __init__(self, *queues: MemoryQueue) -> None:
        self.queues = {queue.id: queue for queue in queues}
        self.newer: list[MemoryQueue] = []
        self.refreshes = 0

    def container(self, queue: QueueId) -> MemoryQueue | None:
        return self.queues.get(queue)

    async def refresh(self, *, doubted: bool = False) -> bool:
        self.refreshes += 1
        for queue in self.newer:
            self.queues[queue.id] = queue
        found, self.newer = bool(self.newer), []
        return found


def filled(count: int, **options: object) -> MemoryQueue:
    """A queue of `count` messages; options as for `MemoryQueue.fill`."""
    queue = MemoryQueue()
    queue.fill(count, **options)  # pyright: ignore[reportArgumentType] - checked by fill
    return queue


def gone() -> NotFound:
    """What a read of a deleted object raises."""
    return NotFound("deleted", "object")
