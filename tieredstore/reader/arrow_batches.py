"""Queues and topics as Arrow record batches."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.batch import as_bytes
from container.record.body import decompress
from container.record.columns import RecordColumns, locate_columns
from container.record.header import COMPRESSED
from fetcher.result import Selection
from provider.errors import Corrupt
from tieredstore.reader.arrow_columns import (
    PROPERTY_KINDS,
    SCHEMA,
    ColumnMaker,
    body_texts,
    gathered,
)
from tieredstore.reader.cursor import CursorOf, OnDamage, Wanted

# pyarrow ships no types; what the other modules take from here is given one.


BODY = "body"
BODY_KINDS = ("text", "json")
"""Forms of a body besides bytes."""
KIND = b"tieredstore.kind"
"""Key of a derived field's metadata."""
BODIES_BYTES_MAX = 32 << 20
"""Bytes of decompressed bodies after which a batch ends."""


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of some columns, in the order given; None: all.

    Besides the names of `SCHEMA`, a column may be `body:text` or `body:json`, which is the body as
    a text, or `NAME:string`, `NAME:long`, `NAME:double` or `NAME:boolean`, which is a property.

    Raises:
        ValueError: there is no such column, which names the nearest; or one is named twice.
    """
    if columns is None:
        return SCHEMA
    if isinstance(columns, str):
        raise ValueError(f"columns are a list of names: write [{columns!r}]")  # noqa: TRY004 - said
    fields = [_field_of(name) for name in columns]
    for number, field in enumerate(fields):
        if any(field.name == other.name for other in fields[:number]):  # engines refuse it
            raise ValueError(f"the column {field.name!r} is named twice")
    return pa.schema(fields)


def _field_of(name: str) -> pa.Field:
    """Field of a column. One that is derived keeps its kind as metadata."""
    if name in SCHEMA.names:
        return SCHEMA.field(name)
    base, _, kind = str(name).rpartition(":")
    if base == BODY and kind in BODY_KINDS:
        return pa.field(BODY, pa.string(), metadata={KIND: kind})
    if base and base not in SCHEMA.names and kind in PROPERTY_KINDS:
        return pa.field(base, PROPERTY_KINDS[kind], metadata={KIND: kind})
    if base == BODY:
        raise ValueError(
            f"there is no column {name!r}: write {BODY}:{f' or {BODY}:'.join(BODY_KINDS)}"
        )
    if base in SCHEMA.names:
        raise ValueError(f"{base!r} is a column of every message: the property needs another name")
    if base:
        kinds = ", ".join(PROPERTY_KINDS)
        raise ValueError(f"there is no type {kind!r} for the property {base!r}: use one of {kinds}")
    near = get_close_matches(str(name).lower(), SCHEMA.names, 1) or SCHEMA.names
    raise ValueError(f"there is no column {name!r}: did you mean {' or '.join(near)}?")


ORIGIN = ("cluster", "broker")
"""Columns of messages of several brokers, besides those of each."""


def schema_with_origin(columns: Sequence[str] | None) -> pa.Schema:
    """As `schema_of`, for several brokers: `cluster` and `broker` are columns, too.

    Raises:
        ValueError: as `schema_of`.
    """
    if columns is None or isinstance(columns, str):
        columns = [*ORIGIN, *schema_of(columns).names]
    schema_of([name for name in columns if name not in ORIGIN])  # of all of them together
    fields = [
        pa.field(name, pa.string()) if name in ORIGIN else _field_of(name) for name in columns
    ]
    for name in ORIGIN:
        if sum(field.name == name for field in fields) > 1:
            raise ValueError(f"the column {name!r} is named twice")
    return pa.schema(fields)


def with_origin(
    batch: pa.RecordBatch, schema: pa.Schema, cluster: str, broker: str
) -> pa.RecordBatch:
    """A batch of one broker in a schema of `schema_with_origin`."""
    names = dict(zip(ORIGIN, (cluster, broker), strict=True))
    arrays = [
        pa.repeat(names[name], batch.num_rows) if name in names else batch.column(name)
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def reader_of(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Batches in the form that pandas, polars and DuckDB take."""
    return pa.RecordBatchReader.from_batches(schema, batches)


async def record_batches(
    cursor_of: CursorOf, queues: Sequence[QueueId], wanted: Wanted, schema: pa.Schema
) -> AsyncIterator[pa.RecordBatch]:
    """Queue after queue, a batch or more for each fetch; decoded in a thread.

    Holds one fetch (`readAheadMessageSizeThreshold`) and one batch.
    """
    left = wanted.messages_max
    for queue in queues:
        if left is not None and left <= 0:
            return
        async for result in cursor_of(queue, replace(wanted, messages_max=left), None):
            if left is not None:
                left -= len(result.messages)
            for selection in result.messages.selections:
                batches = batches_of(selection, queue, schema, on_damage=wanted.on_damage)
                while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                    yield batch


def batches_of(
    selection: Selection, queue: QueueId, schema: pa.Schema, *, on_damage: OnDamage | None
) -> Iterator[pa.RecordBatch]:
    """The messages of one run as batches: one, unless their bodies become large.

    About 1 us a message with all columns, and the decompression of bodies.

    Raises:
        Corrupt: a record contradicts the format, or, without `on_damage`, a body cannot be
            decompressed.
    """
    run, picked = selection.run, selection.picked
    records = locate_columns(
        run.data, run.starts[picked], run.sizes[picked], path=f"{queue}/COMMIT_LOG"
    )
    report = None if on_damage is None else partial(on_damage, queue)
    yield from batches_of_records(
        as_bytes(run.data), records, schema, path=str(queue), on_damage=report
    )


def batches_of_records(
    raw: NDArray[np.uint8],
    records: RecordColumns,
    schema: pa.Schema,
    *,
    path: str,
    on_damage: Callable[[int, Corrupt], None] | None,
) -> Iterator[pa.RecordBatch]:
    """Yield located records as batches: a single one, unless their bodies are large.

    All bytes are copied. `on_damage` receives the queue offset of each message whose body cannot be
    decompressed, and the error.

    Raises:
        Corrupt: a body cannot be decompressed, and `on_damage` is None; names `path`.
    """
    flags, lengths = records.headers["sys_flag"], records.tails["body_length"]
    if BODY not in schema.names or not ((flags & COMPRESSED != 0) & (lengths > 0)).any():
        bodies = gathered(raw, records.bodies) if BODY in schema.names else None
        yield _batch(raw, records, bodies, schema)
        return
    for rows, bodies in _decompressed(raw, records, path, on_damage):
        if len(rows):
            yield _batch(raw, records.taken(rows), pa.array(bodies, pa.binary()), schema)


def _batch(
    raw: NDArray[np.uint8], records: RecordColumns, bodies: pa.Array | None, schema: pa.Schema
) -> pa.RecordBatch:
    maker = ColumnMaker(raw, records)
    columns = [_column(maker, bodies, field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(maker: ColumnMaker, bodies: pa.Array | None, field: pa.Field) -> pa.Array:
    kind = (field.metadata or {}).get(KIND, b"").decode()
    if field.name == BODY:
        return body_texts(bodies, kind) if kind else bodies
    return maker.property(field.name, kind) if kind else maker.column(field.name)


def _decompressed(
    raw: NDArray[np.uint8],
    records: RecordColumns,
    path: str,
    on_damage: Callable[[int, Corrupt], None] | None,
) -> Iterator[tuple[NDArray[np.int64], list[bytes]]]:
    """Yield rows with their bodies in portions, which bounds the memory."""
    view = raw.data
    rows: list[int] = []
    bodies: list[bytes] = []
    held = 0
    spans = zip(records.bodies.starts.tolist(), records.bodies.ends.tolist(), strict=True)
    flags = records.headers["sys_flag"].tolist()
    for row, (start, end) in enumerate(spans):
        position = int(records.headers["physical_offset"][row])
        try:
            body = (
                decompress(view[start:end], flags[row], path=path, position=position)
                if end > start
                else b""
            )
        except Corrupt as error:
            if on_damage is None:
                raise
            on_damage(int(records.headers["queue_offset"][row]), error)
            continue
        rows.append(row)
        bodies.append(body)
        held += len(body)
        if held >= BODIES_BYTES_MAX:
            yield np.array(rows), bodies
            rows, bodies, held = [], [], 0
    yield np.array(rows, np.int64), bodies
