"""Rows of one worker in a file, and back: Arrow's stream format. Blocks."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow ships no types.
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa

from container.names.queue_id import QueueId
from provider.posix.files import posix_errors, sync_directory
from tieredstore.hot.encoding import MessageRefused
from tieredstore.hot.options import HotWriteOptions
from tieredstore.offline.writing.new_rows import RowChecker, StagedRow
from tieredstore.reader.arrow import RecordBatch

_SCHEMA = pa.schema([
    ("topic", pa.string()),
    ("queue_id", pa.int32()),
    ("spread", pa.int64()),
    ("properties", pa.binary()),
    ("body", pa.binary()),
])  # fmt: skip
BATCH_BYTES = 8 << 20
"""Of bodies in one staged batch, about: who appends holds one."""


@dataclass(frozen=True, slots=True)
class StagingOrder:
    """Order for a worker. Holds no secret."""

    directory: str
    """Of this run; seen by all workers and by who appends under one name."""
    write_id: str
    options: HotWriteOptions
    """Write options of the store, which limit a message."""


class StagedPart(NamedTuple):
    """The rows of one worker's part, in a file."""

    number: int
    """Parts are appended in this order."""
    name: str
    """Of the file; "" where there is no row."""
    messages: int
    topics: frozenset[str]
    queues: frozenset[QueueId]
    """Queues that rows name. The store chooses a queue for other rows."""


def stage(batches: Iterable[RecordBatch], order: StagingOrder, number: int) -> StagedPart:
    """Check rows and write them into a file of its own; durable. Some 15 us a row of 1 KiB.

    A part that is written again, after a failure or beside a slow worker, is another file.

    Raises:
        MessageRefused: a row is no message of the store; says which and why.
        Denied, Unavailable: the staging directory cannot be written.
    """
    checker = RowChecker(order.options, order.write_id)
    rows = _checked(batches, checker, number)
    first = next(rows, None)
    if first is None:
        return StagedPart(number, "", 0, frozenset(), frozenset())
    directory = Path(order.directory)
    name = f"{number:06}-{uuid4().hex}.arrow"
    count = 0
    with posix_errors(str(directory / name)):
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / name).open("xb") as file:
            with pa.ipc.new_stream(file, _SCHEMA) as writer:
                for batch in _batches(first, rows):
                    writer.write_batch(batch)
                    count += batch.num_rows
            file.flush()
            os.fsync(file.fileno())
        sync_directory(str(directory))
    return StagedPart(number, name, count, frozenset(checker.topics), frozenset(checker.queues))


def _checked(
    batches: Iterable[RecordBatch], checker: RowChecker, number: int
) -> Iterator[StagedRow]:
    seen = 0
    for batch in batches:
        names = [name.lower() for name in batch.schema.names]
        columns = [column.to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            try:
                yield checker.staged(dict(zip(names, values, strict=True)))
            except MessageRefused as error:
                text = str(error).rstrip(".")
                raise MessageRefused(
                    f"row {seen} of partition {number}: {text[:1].lower()}{text[1:]}"
                ) from None
            seen += 1


def _batches(first: StagedRow, rows: Iterator[StagedRow]) -> Iterator[RecordBatch]:
    held, size = [first], len(first.body)
    for row in rows:
        if size >= BATCH_BYTES:
            yield _batch(held)
            held, size = [], 0
        held.append(row)
        size += len(row.body) + len(row.properties)
    yield _batch(held)


def _batch(rows: list[StagedRow]) -> RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def staged_rows(path: Path, first: int = 0) -> Iterator[StagedRow]:
    """The rows of a staged file from number `first` on; one batch is held.

    Raises:
        NotFound, Denied, Unavailable: it is not there, or cannot be read.
    """
    with posix_errors(str(path)), path.open("rb") as file:
        for batch in pa.ipc.open_stream(file):
            if first >= batch.num_rows:
                first -= batch.num_rows
                continue
            columns = [column.to_pylist() for column in batch.slice(first).columns]
            first = 0
            yield from map(StagedRow, *columns)
