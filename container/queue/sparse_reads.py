"""Reading a few records of each of many queues, in two rounds of requests for all of them.

What many queues have of one object is asked for together: the queues of a round of commits share
a part, and a store far away reads near ranges of an object in one request. In a directory, all
files are read in one hop into another thread.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from container.metadata.records import Queue
from container.names.queue_id import QueueId, SegmentType
from container.queue.message_queue_container import MessageQueueContainer, PlannedRead
from container.queue.sparse_read import RecordPlaces, UnitRuns, is_coda, unknown_units
from container.record.kernels import decode_units
from container.record.unit import UNIT_BYTES
from provider.errors import OutOfRange, StoreError
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange, QueueOffset, together

READ_BYTES_MAX = 8 << 20
"""Bytes that one call to the store may return, with those between near ranges that it reads too.
More is asked for in several calls, one after the other."""
NEAR_BYTES = 256 << 10
"""Bytes between two ranges of an object that count as read, for a store far away does so."""

RecordsOfQueues = Mapping[QueueId, Sequence[bytes | None]]
Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class _Asked(Generic[Work]):
    """What one queue asks the store for, and what the answers are for."""

    queue: QueueId
    work: Work
    read: PlannedRead


@dataclass(frozen=True, slots=True)
class _Units:
    container: MessageQueueContainer
    record: Queue
    old: int
    """So many leading offsets lie in segments that only a manifest names."""
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
    """The records at `offsets` of each queue, as `read_records_at` returns them without history.

    Yields some queues at a time, whose records have at most `bytes_max` together. Leaves out
    every queue of which something is in the way: whoever wants it asks for it alone, and learns
    why. These are queues whose records have more, or lie behind codas, and whatever shares a
    failed request.

    Costs two `read_many`, and more for each `READ_BYTES_MAX` and each `bytes_max`; in a store far
    away a request for each object and `NEAR_BYTES` that no queue has of it, twice. Memory:
    `READ_BYTES_MAX` and twice `bytes_max`.

    Args:
        containers: the queues, each once.
        offsets: of each at least one, ascending, published, and in no gap.
        store: where all of them lie.
        bytes_max: of records.
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
    """Where the units say that the records lie."""
    units = work.runs.chosen([decode_units(one) for one in raw])
    places = RecordPlaces.of(work.record, work.runs.offsets, units, history=False)
    return _Records(work.container, work.old, places)


def _records(work: _Records, raw: Sequence[Buffer]) -> Sequence[bytes | None] | None:
    """The records; None if units point at codas."""
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
    """What `made_of` makes of each one's answers, but for those of which something failed."""
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
    """Copies of the ranges, `READ_BYTES_MAX` at a time; None for those of a call that failed."""
    found: list[bytes | None] = [None] * len(requests)
    members: list[int] = []
    size_bytes = 0
    for one in [*together(requests, gap_bytes_max=NEAR_BYTES, bytes_max=READ_BYTES_MAX), None]:
        if members and (one is None or size_bytes + one.whole.length > READ_BYTES_MAX):
            try:
                answers = await store.read_many([requests[member] for member in members])
            except OutOfRange:  # one object is lost: those of the others are in other calls
                answers = []
            except StoreError:
                return found
            for member, answer in zip(members, answers, strict=False):
                found[member] = bytes(answer)  # the rest of what was read with it may go
            members, size_bytes = [], 0
        if one is not None:
            members += one.members
            size_bytes += one.whole.length
    return found
