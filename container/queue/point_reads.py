"""Point reads: few distant records of one queue or many, in two rounds of requests."""

from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Generic, Self, TypeVar

import numpy as np

from container.metadata.records import Queue, Segment
from container.names.queue_id import QueueId, SegmentType
from container.queue.message_queue_container import MessageQueueContainer, PlannedRead
from container.record.batch import decode_units
from container.record.header import BLANK_MAGIC, MAGIC_AT, Coda
from container.record.unit import UNIT_BYTES, Units
from container.record.verification import leading_good_units
from provider.errors import Corrupt, OutOfRange, StoreError
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange, QueueOffset, together

NEAR_UNITS = 4096 // UNIT_BYTES
"""Units with at most a page of other units between them are read as one range."""
_MAGIC = slice(MAGIC_AT, MAGIC_AT + 4)
_BLANK = BLANK_MAGIC.to_bytes(4, "big")


async def read_records_at(
    container: MessageQueueContainer,
    offsets: Sequence[QueueOffset],
    *,
    bytes_max: int,
    history: bool,
) -> list[bytes | None]:
    """Read the records at `offsets` as tiered: the leading ones that fit into `bytes_max` together.

    Returns at least one, of any size. Costs two `read_many` of the store with one range for each
    run of neighbours, and one more if units point at codas of an old Java tier. With `history`,
    also a request for each required manifest that is not cached; such a manifest grows with the
    queue's history.

    Args:
        container: the queue.
        offsets: at least one, ascending, published, and in no gap.
        bytes_max: limit of the records together, in bytes.
        history: include records in segments that only a manifest lists. Otherwise they are None.

    Raises:
        OutOfRange, NotFound, Unavailable: as `MessageQueueContainer.units`.
        Corrupt: a unit cannot belong to a record.
    """
    queue = container.record
    old = 0 if history else unknown_units(queue, offsets)
    if old == len(offsets):
        return [None] * old
    runs = UnitRuns.of(queue, offsets[old:])
    units = runs.chosen(await container.units_many(runs.ranges))
    places = RecordPlaces.of(queue, offsets[old:], units, history=history).leading(bytes_max)
    old += places.unknown
    if not places.spans:
        return [None] * old
    records = places.cut(await container.log_many(places.ranges))
    at_codas = [n for n, record in enumerate(records) if is_coda(record)]
    if at_codas:  # the records lie after the codas
        moved = [places.spans[number] for number in at_codas]
        shifted = RecordPlaces(
            0, [ByteRange(one.start + Coda.SIZE, one.end + Coda.SIZE) for one in moved]
        )
        found = shifted.cut(await container.log_many(shifted.ranges))
        for number, record in zip(at_codas, found, strict=True):
            records[number] = record
    return [*[None] * old, *records]


def unknown_units(queue: Queue, offsets: Sequence[QueueOffset]) -> int:
    """Number of leading offsets in segments that only a manifest lists. `offsets` ascend."""
    first = _known_from(queue.consume_queue)
    return bisect_left(offsets, first, key=_unit_position)


def is_coda(record: bytes) -> bool:
    """Whether a unit of an old Java tier points at the coda before its record."""
    return record[_MAGIC] == _BLANK


@dataclass(frozen=True, slots=True)
class UnitRuns:
    """Units of a few offsets, and those between near ones, as ranges to read."""

    offsets: Sequence[QueueOffset]
    runs: Sequence[tuple[QueueOffset, QueueOffset]]

    @classmethod
    def of(cls, queue: Queue, offsets: Sequence[QueueOffset]) -> Self:
        """Runs of ascending offsets. A run does not extend over a gap, which has no units."""
        gap_ends = [gap.end for gap in queue.gaps]
        runs: list[tuple[QueueOffset, QueueOffset]] = []
        for offset in offsets:
            next_offset = QueueOffset(offset + 1)
            if (
                runs
                and offset - runs[-1][1] <= NEAR_UNITS
                and bisect_right(gap_ends, runs[-1][0]) == bisect_right(gap_ends, offset)
            ):
                runs[-1] = (runs[-1][0], next_offset)
            else:
                runs.append((offset, next_offset))
        return cls(offsets, runs)

    @property
    def ranges(self) -> list[tuple[QueueOffset, QueueOffset]]:
        """`[start, end)` of each run."""
        return list(self.runs)

    def chosen(self, units_of_runs: Sequence[Units]) -> Units:
        """Select the units of the offsets from those of the runs."""
        units = np.concatenate(units_of_runs)
        places = np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in self.runs])
        return units[np.searchsorted(places, self.offsets)]


@dataclass(frozen=True, slots=True)
class RecordPlaces:
    """Positions of a few records of a queue in its CommitLog."""

    unknown: int
    """Number of leading records in segments that only a manifest lists. They are in no span."""
    spans: Sequence[ByteRange]
    """Spans of the other records, ascending."""

    @classmethod
    def of(
        cls,
        queue: Queue,
        offsets: Sequence[QueueOffset],
        units: Units,
        *,
        history: bool,
    ) -> Self:
        """Positions of the records by the units of `offsets`.

        Raises:
            Corrupt: a unit cannot belong to a record.
        """
        starts, sizes = units["position"].astype(np.int64), units["size"].astype(np.int64)
        good = leading_good_units(starts, sizes)
        if good < len(units):
            reason = f"impossible unit at {offsets[good]}: {units[good]}"
            raise Corrupt(reason, str(queue.id))
        first = 0 if history else _known_from(queue.commit_log)
        unknown = int(np.searchsorted(starts, first))
        places = zip(starts[unknown:].tolist(), sizes[unknown:].tolist(), strict=True)
        return cls(unknown, [ByteRange(start, start + size) for start, size in places])

    def leading(self, bytes_max: int) -> Self:
        """Leading records that fit into `bytes_max` together, at least one."""
        ends = list(accumulate(span.length for span in self.spans))
        return replace(self, spans=self.spans[: max(1, bisect_right(ends, bytes_max))])

    @property
    def records_bytes(self) -> int:
        """Bytes of all records."""
        return sum(span.length for span in self.spans)

    @property
    def ranges(self) -> list[ByteRange]:
        """Ranges to read. Adjacent records share one range."""
        wanted: list[ByteRange] = []
        for span in self.spans:
            if wanted and wanted[-1].end == span.start:
                wanted[-1] = ByteRange(wanted[-1].start, span.end)
            else:
                wanted.append(span)
        return wanted

    def cut(self, logs: Sequence[Buffer]) -> list[bytes]:
        """Cut the records out of the bytes of `ranges`."""
        return [
            bytes(memoryview(log)[span.start - part.start : span.end - part.start])
            for part, log in zip(self.ranges, logs, strict=True)
            for span in self.spans
            if part.start <= span.start < part.end
        ]


def _known_from(segments: Sequence[Segment]) -> int:
    """First byte of a flat file that is found without a manifest."""
    return segments[0].base if segments else 0


def _unit_position(offset: QueueOffset) -> int:
    return offset * UNIT_BYTES


READ_BYTES_MAX = 8 << 20
"""Limit of bytes that one call to the store returns, including those between near ranges. Larger
reads take several calls, one after the other."""
NEAR_BYTES = 256 << 10
"""Bytes between two ranges of an object that are read along: a remote store reads them too."""

RecordsOfQueues = Mapping[QueueId, Sequence[bytes | None]]
Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class _Asked(Generic[Work]):
    """Requests of one queue to the store, and the purpose of the answers."""

    queue: QueueId
    work: Work
    read: PlannedRead


@dataclass(frozen=True, slots=True)
class _Units:
    container: MessageQueueContainer
    record: Queue
    old: int
    """Number of leading offsets in segments that only a manifest lists."""
    runs: UnitRuns


@dataclass(frozen=True, slots=True)
class _Records:
    container: MessageQueueContainer
    old: int
    places: RecordPlaces


async def read_records_of_queues(
    containers: Sequence[MessageQueueContainer],
    offsets: Mapping[QueueId, Sequence[QueueOffset]],
    store: ObjectStore,
    *,
    bytes_max: int,
) -> AsyncGenerator[RecordsOfQueues]:
    """Read the records at `offsets` of each queue, as `read_records_at` without history.

    Yields batches of queues whose records have at most `bytes_max` bytes together. Leaves out
    queues whose records have more bytes or lie after codas, and queues that share a failed request.
    The caller reads such a queue alone, which raises its error.

    Costs two `read_many`, and more for each `READ_BYTES_MAX` and each `bytes_max`. A remote store
    reads each object, and `NEAR_BYTES` of it that no queue needs, twice. Memory: `READ_BYTES_MAX`
    and twice `bytes_max`.

    Args:
        containers: the queues, each once.
        offsets: of each queue at least one, ascending, published, and in no gap.
        store: the store of all of them.
        bytes_max: limit of the records of a batch, in bytes.
    """
    found: dict[QueueId, Sequence[bytes | None]] = {}
    asked: list[_Asked[_Units]] = []
    for container in containers:
        try:
            record, wanted = container.record, offsets[container.id]
            old = unknown_units(record, wanted)
            if old == len(wanted):
                found[container.id] = [None] * old
                continue
            runs = UnitRuns.of(record, wanted[old:])
            spans = [ByteRange(UNIT_BYTES * one, UNIT_BYTES * end) for one, end in runs.ranges]
            read = await container.planned_read(SegmentType.CONSUME_QUEUE, spans)
        except StoreError:
            continue
        asked.append(_Asked(container.id, _Units(container, record, old, runs), read))
    placed = await _answered(store, asked, _places)
    piece: list[_Asked[_Records]] = []
    room = bytes_max
    for queue, work in placed.items():
        size = work.places.records_bytes
        if not size:
            found[queue] = [None] * (work.old + work.places.unknown)
        elif size <= bytes_max:
            try:
                read = await work.container.planned_read(SegmentType.COMMIT_LOG, work.places.ranges)
            except StoreError:
                continue
            if size > room:
                yield await _answered(store, piece, _records)
                piece, room = [], bytes_max
            piece.append(_Asked(queue, work, read))
            room -= size
    yield found | await _answered(store, piece, _records)


def _places(work: _Units, raw: Sequence[Buffer]) -> _Records:
    """Positions of the records by the units read."""
    units = work.runs.chosen([decode_units(one) for one in raw])
    places = RecordPlaces.of(work.record, work.runs.offsets, units, history=False)
    return _Records(work.container, work.old, places)


def _records(work: _Records, raw: Sequence[Buffer]) -> Sequence[bytes | None] | None:
    """Cut out the records. None if units point at codas."""
    records = work.places.cut(raw)
    if any(map(is_coda, records)):
        return None
    return [*[None] * (work.old + work.places.unknown), *records]


Found = TypeVar("Found")


async def _answered(
    store: ObjectStore,
    asked: Sequence[_Asked[Work]],
    made_of: Callable[[Work, Sequence[Buffer]], Found | None],
) -> dict[QueueId, Found]:
    """Results of `made_of` by queue, without the queues of failed requests."""
    requests = [request for one in asked for request in one.read.requests]
    answers = await _read(store, requests)
    found: dict[QueueId, Found] = {}
    at = 0
    for one in asked:
        end = at + len(one.read.requests)
        own = [answer for answer in answers[at:end] if answer is not None]
        if len(own) == end - at:
            try:
                made = made_of(one.work, one.read.results(own))
            except StoreError:
                made = None
            if made is not None:
                found[one.queue] = made
        at = end
    return found


async def _read(
    store: ObjectStore, requests: Sequence[tuple[str, ByteRange]]
) -> list[bytes | None]:
    """Copies of the ranges, read `READ_BYTES_MAX` at a time. None for those of failed calls."""
    found: list[bytes | None] = [None] * len(requests)
    members: list[int] = []
    size_bytes = 0
    for one in [*together(requests, gap_bytes_max=NEAR_BYTES, bytes_max=READ_BYTES_MAX), None]:
        if members and (one is None or size_bytes + one.whole.length > READ_BYTES_MAX):
            try:
                answers = await store.read_many([requests[member] for member in members])
            except OutOfRange:  # one object is lost: ranges of others are in other calls
                answers = []
            except StoreError:
                return found
            for member, answer in zip(members, answers, strict=False):
                found[member] = bytes(answer)  # frees the bytes that were read along
            members, size_bytes = [], 0
        if one is not None:
            members += one.members
            size_bytes += one.whole.length
    return found
