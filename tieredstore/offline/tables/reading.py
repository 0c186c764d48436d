"""The rows of one part of a table, as record batches. By a worker, with sources of its own."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow ships no types.
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa

from container.errors import BytesMissing, Expired
from container.index.layout import IndexHeader, IndexItem, KeyItems
from container.index.sealed import SealedIndex
from container.names.queue_id import QueueId, SegmentType
from container.record.batch import decode_units
from container.record.unit import UNIT_BYTES
from provider.sequential import ByteSource, ObjectRange
from tieredstore.offline.scan.relocation import (
    PlannedQueue,
    Relocated,
    Relocator,
    expired,
    newest_state,
)
from tieredstore.offline.scan.scanner import scan
from tieredstore.offline.scan.sources import source_of
from tieredstore.offline.scan.split import LogGap, LogPiece
from tieredstore.offline.tables.planning import (
    KeysPart,
    MessagesPart,
    Part,
    RowsPart,
    TablePlan,
    UnitsPart,
    rows_seen,
)
from tieredstore.offline.tables.schemas import KEYS, SCHEMAS, UNITS
from tieredstore.reader.arrow import RecordBatch

LOGGER = logging.getLogger("tieredstore.offline.tables")
UNITS_AT_ONCE = 1 << 17
ITEMS_AT_ONCE = 1 << 16


def rows_of(part: Part, columns: Sequence[str]) -> Iterator[RecordBatch]:
    """The rows of a part with these columns, in this order. Memory: as `scan`, or some MiB.

    Raises:
        Corrupt: bytes contradict the format.
        Expired: messages left the tier after the part was planned, and `skips_expired` is false.
        BytesMissing: published bytes are not in the storage; path names the object.
        NotFound: this process sees no tier at the part's place.
        Unavailable, Denied: the storage does not answer or refuses.
    """
    if isinstance(part, MessagesPart):
        yield from _messages(part, columns)
    elif isinstance(part, RowsPart):
        names = SCHEMAS[part.table]
        schema = pa.schema([names.field(name) for name in columns])
        yield pa.RecordBatch.from_pylist([dict(row) for row in part.rows], schema)
    else:
        with closing(source_of(part.place)) as read:
            yield from (
                _units(read, part, columns)
                if isinstance(part, UnitsPart)
                else _keys(read, part, columns)
            )


def has_changed(plan: TablePlan) -> bool:
    """Whether the table has other rows than when it was planned. Reads the newest metadata.

    Raises:
        NotFound, Unavailable, Denied, Corrupt: as `Relocator.moved`.
        ConfigError: of several brokers, none fits a pattern any more.
    """
    if plan.brokers is not None and plan.brokers.has_changed():
        return True
    return plan.rows != rows_seen(newest_state(plan.place, plan.seen), plan.table, plan.wanted)


def _messages(part: MessagesPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with closing(source_of(part.split.place)) as read:
        yield from scan(
            read,
            part.split,
            columns,
            on_gap=_pass_over if part.skips_damage else None,
            on_expired=partial(_pass_over_expired, part) if part.skips_expired else None,
        )


def _pass_over(gap: LogGap) -> None:
    """Say that damage was passed over, in the worker's log."""
    LOGGER.warning("passed over %s", gap)


def _pass_over_expired(part: MessagesPart, found: Relocated) -> None:
    """Log messages that left the tier, in the worker's log."""
    LOGGER.warning("passed over what left the tier: %s", expired(part.split.queue, found))


def _units(read: ByteSource, part: UnitsPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    at, end = (offset * UNIT_BYTES for offset in part.offsets)
    planned = PlannedQueue(part.queue, part.generation or 0, part.seen)
    relocator = Relocator(part.place, planned, SegmentType.CONSUME_QUEUE, end)
    pieces = _expected(read, part.pieces)
    while at < end:
        piece = next(one for one in pieces if at < one.end)
        length = min(UNITS_AT_ONCE * UNIT_BYTES, piece.end - at)
        start = piece.object_offset + at - piece.position
        try:
            raw = _read(read, piece, at - piece.position, length)
        except BytesMissing:
            found = None if part.generation is None else relocator.moved(piece, start)
            if found is None:
                raise
            if not found.pieces or found.pieces[0].position > at:
                raise expired(part.queue, found) from None
            pieces = _expected(read, found.pieces)
            continue
        units = decode_units(raw, path=piece.object_name, position=start)
        first = at // UNIT_BYTES
        yield _batch(UNITS, columns, len(units), {
            "topic": part.queue.topic,
            "queue_id": part.queue.queue_id,
            "queue_offset": np.arange(first, first + len(units)),
            "position": units["position"].astype(np.int64),
            "size": units["size"].astype(np.int32),
            "tags_code": units["tag_hash"].astype(np.int64),
        })  # fmt: skip
        at += length


def _expected(read: ByteSource, pieces: Sequence[LogPiece]) -> Sequence[LogPiece]:
    """The same pieces, read ahead from now on."""
    read.expect([ObjectRange(one.object_name, one.object_offset, one.length) for one in pieces])
    return pieces


def _keys(read: ByteSource, part: KeysPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        yield from _items(read, part, columns)
    except BytesMissing as error:
        if not part.is_ours:
            raise
        if part.object_name in newest_state(part.place, part.seen).index_files:
            raise
        raise Expired(
            f"the index file {part.object_name} was merged or expired after this was planned: run "
            f"it again",
            part.object_name,
        ) from error


def _items(read: ByteSource, part: KeysPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    whole = LogPiece(0, part.size, part.object_name, 0)
    read.expect([ObjectRange(part.object_name, 0, part.size)])
    head = _read(read, whole, 0, min(IndexHeader.SIZE, part.size))
    index = SealedIndex.of(head, part.size, path=part.object_name)
    for at in range(index.first_item, index.items_end, ITEMS_AT_ONCE * IndexItem.SIZE):
        length = min(ITEMS_AT_ONCE * IndexItem.SIZE, index.items_end - at)
        items = index.items(_read(read, whole, at, length), position=at)
        items = items[_are_wanted(items, part)]
        yield _batch(KEYS, columns, len(items), {
            "topic": np.array([part.topics[one] for one in items["topic_id"].tolist()], object),
            "queue_id": items["queue_id"],
            "key_hash": items["key_hash"],
            "position": items["position"],
            "size": items["size"],
            "store_timestamp": items["store_timestamp"],
            "index_file": part.object_name,
        })  # fmt: skip


def _are_wanted(items: KeyItems, part: KeysPart) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    times = items["store_timestamp"]
    wanted = np.isin(items["topic_id"], list(part.topics))
    wanted &= (times >= part.times_ms[0]) & (times < part.times_ms[1])
    if part.queues is None:
        return wanted
    is_one = np.zeros(len(items), np.bool_)
    for queue in part.queues:
        of = items["queue_id"] == (queue.queue_id if isinstance(queue, QueueId) else queue)
        if isinstance(queue, QueueId):
            ids = [number for number, name in part.topics.items() if name == queue.topic]
            of &= np.isin(items["topic_id"], ids)
        is_one |= of
    return wanted & is_one


def _read(read: ByteSource, piece: LogPiece, at: int, length: int) -> bytearray:
    """Bytes of a piece, all of them."""
    raw = bytearray(length)
    count = read.read_into(piece.object_name, piece.object_offset + at, memoryview(raw))
    if count < length:
        raise BytesMissing(
            "bytes that were published are gone",
            piece.object_name,
            piece.object_offset + at + count,
        )
    return raw


def _batch(
    table: str, columns: Sequence[str], count: int, made: dict[str, object]
) -> pa.RecordBatch:
    """Return a batch of some columns; a text or number fills its whole column."""
    schema = pa.schema([SCHEMAS[table].field(name) for name in columns])
    arrays = [
        pa.repeat(pa.scalar(made[field.name], field.type), count)
        if isinstance(made[field.name], str | int)
        else pa.array(np.ascontiguousarray(made[field.name])).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
