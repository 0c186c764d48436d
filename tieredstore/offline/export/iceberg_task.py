"""What one worker does for a table: scan a split, write data files, and tell which.

The files are written by pyiceberg, under names that no other file has; they are in the table once
they are committed. What a worker that died has written is in no table.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow ships no types.
import pickle
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, Self
from uuid import uuid4

import pyarrow as pa
from pyiceberg.io.pyarrow import pyarrow_to_schema, write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Table, WriteTask

from container.errors import InUse
from container.names.queue_id import QueueId
from tieredstore.config.sources import ConfigError
from tieredstore.offline.engine import Piece
from tieredstore.offline.export.continuing import Span
from tieredstore.offline.export.day_files import is_day, rows_by_day
from tieredstore.offline.export.iceberg_schema import as_table_rows
from tieredstore.offline.export.iceberg_table import ExportTable, TableName
from tieredstore.offline.export.options import NO_SKIPS, Skips
from tieredstore.offline.export.task import TAGS, ScanWatch, days_of, null_times_in, with_tags
from tieredstore.offline.sources import source_of
from tieredstore.offline.split import Split

FILE_BYTES = 64 << 20
"""Of rows as Arrow has them, in most files."""
HELD_BYTES = 128 << 20
"""Of rows of all days, above which the largest day is written."""
FILES = "files"


@dataclass(frozen=True, slots=True)
class TableTask:
    """One split of an export into a table. Can be pickled; holds no secret."""

    table: TableName
    table_uuid: str
    number: int
    split: Split
    offsets: tuple[int, int]
    """Queue offsets `[from, to)` between which its messages lie."""
    columns: tuple[str, ...]
    tags: tuple[str, ...] = ()
    """Only messages with one of these; (): all."""
    skips: Skips = NO_SKIPS


class WrittenSplit(NamedTuple):
    """What a task wrote."""

    queue: QueueId
    files: Sequence[DataFile]
    damaged: int
    """Stretches of the log in which no message could be read."""
    gone: Sequence[tuple[int, int, str]]
    """As in `DoneTask`."""
    null_times: int
    read: Span | None
    """As in `Told`."""


def written_pieces(task: TableTask) -> Iterator[Piece]:
    """`write_split` as an engine's mapper."""
    yield Piece(FILES, task.number, pickle.dumps(write_split(task)))


def written_of(piece: Piece) -> WrittenSplit:
    """What a task told."""
    return pickle.loads(piece.payload)  # noqa: S301 - of a worker of ours


def write_split(task: TableTask) -> WrittenSplit:
    """Write the data files of a split. Done twice, it writes them twice, and one is committed.

    Memory: that of a scan, `HELD_BYTES`, and what compressing `FILE_BYTES` takes.

    Raises:
        Corrupt: a message is damaged, and damage is not passed over.
        BytesMissing: published bytes are not in the storage, and that is not passed over.
        Unavailable, Denied: as `scan`, or of the catalog.
        InUse: the table was made again meanwhile.
        OSError: the table's place cannot be written.
    """
    table = ExportTable(task.table).loaded()
    if table is None or str(table.metadata.table_uuid) != task.table_uuid:
        raise InUse("the table was dropped or made again meanwhile", str(task.table))
    null_times = 0
    watch = ScanWatch(task.split, task.offsets, task.skips, [])
    wanted = [*task.columns, *(name for name in [TAGS] if task.tags and TAGS not in task.columns)]
    with closing(source_of(task.split.place)) as read, _DayRows(table, task) as rows:
        for batch in watch.scan(read, wanted):
            kept = with_tags(batch, task.tags)
            days, wanted_rows = days_of(kept), kept.select(list(task.columns))
            null_times += null_times_in(wanted_rows)
            for day, part in rows_by_day(as_table_rows(wanted_rows), days):
                rows.add(day, part)
    queue = task.split.queue
    gone = tuple(watch.gone)
    return WrittenSplit(queue, rows.files, watch.damaged, gone, null_times, watch.read)


class _DayRows:
    """Rows that wait until they are enough for a file."""

    def __init__(self, table: Table, task: TableTask) -> None:
        missing = [one for one in task.columns if one not in table.schema().column_names]
        if missing:
            raise ConfigError(f"{task.table} has no column {missing[0]} any more")
        self._table = table
        self._topic = task.split.queue.topic
        self._uuid = uuid4()
        self._numbers = count()
        self._held: dict[int, list[pa.RecordBatch]] = {}
        self._bytes: dict[int, int] = {}
        self.files: list[DataFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write what waits; after an exception, remove what was written."""
        if kind is None:
            for day in sorted(self._held):
                self._write(day)
            return
        for file in self.files:
            with suppress(Exception):  # they are in no table, whether they can be deleted or not
                self._table.io.delete(file.file_path)

    def add(self, day: int, rows: pa.RecordBatch) -> None:
        """Add rows of one day."""
        self._held.setdefault(day, []).append(rows)
        self._bytes[day] = self._bytes.get(day, 0) + rows.nbytes
        if self._bytes[day] >= FILE_BYTES:
            self._write(day)
        elif sum(self._bytes.values()) >= HELD_BYTES:
            self._write(max(self._bytes, key=self._bytes.__getitem__))

    def _write(self, day: int) -> None:
        batches = self._held.pop(day)
        del self._bytes[day]
        table = self._table.metadata
        schema, spec = table.schema(), table.spec()
        by_topic, by_day = spec.fields
        values = [
            PartitionFieldValue(by_topic, self._topic),
            PartitionFieldValue(by_day, day if is_day(day) else None),
        ]
        task = WriteTask(
            self._uuid,
            next(self._numbers),
            pyarrow_to_schema(batches[0].schema, name_mapping=schema.name_mapping),
            batches,
            partition_key=PartitionKey(values, spec, schema),
        )
        self.files += write_file(self._table.io, table, iter([task]))
