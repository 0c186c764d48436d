"""The Parquet files of one task: one for each day, complete under their names or not there."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow ships no types.
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tieredstore.offline.export.export_directory import ExportDirectory, NewFile

DAY_MS = 86_400_000
NO_DAY = "__HIVE_DEFAULT_PARTITION__"
"""The day of messages whose time is in no year from 1 to 9999; readers take it for null."""
ROW_GROUP_BYTES = 32 << 20
"""Of rows as Arrow has them: held for each open day."""
ROW_GROUP_ROWS_MAX = 1 << 20
DAYS_OPEN_MAX = 8
"""Days with an open file. Messages come nearly in the order of their times, so a task has few."""
Days = np.ndarray[Any, np.dtype[np.int64]]
"""Of some rows: the day or hour of each, counted from 1970."""
_FIRST_DAY, _LAST_DAY = (date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days


class WrittenFile(NamedTuple):
    """A file that is complete."""

    path: str
    """Below the export's directory."""
    rows: int
    bytes: int


_FILE = re.compile(
    r"(topic=[^/]*)/day=[^/]*/(?:hour=[^/]*/)?([0-9]+-[0-9]{20}-[0-9]{6})(?:-[0-9]+)?\.parquet",
    re.DOTALL,
)
SAID, ROWS = b"tieredstore.task", "rows"
"""Key in the footers of a task's last files: JSON of what it did, and the rows of all its files."""
_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""Characters that Hive and Spark write as `%XX` in names of partitions (`escapePathName`). Spark
reads `%XX` as one character, so bytes of UTF-8 must not be written in this way."""


def partition_of(topic: str, period: int, *, per_day: int = 1, as_older: bool = False) -> str:
    """The directory of a topic's day, counted from 1970: `topic=Orders/day=2026-11-21`.

    With 24 periods `per_day`, that of an hour below the day: `.../hour=07`.

    Named as Spark and Hive name partitions. `as_older`: all but ASCII as `%XX`, as in exports that
    an older program began.
    """
    text = hour = NO_DAY
    if is_period(period, per_day):
        day, number = divmod(period, per_day)
        text = date.fromordinal(date(1970, 1, 1).toordinal() + day).isoformat()
        hour = f"{number:02}"
    if per_day > 1:
        text += f"/hour={hour}"
    if as_older:
        return f"topic={quote(topic, safe=' !$&(),-.;@^_`|~')}/day={text}"
    return f"topic={partition_value(topic)}/day={text}"


def partition_value(text: str) -> str:
    """The text as Spark and Hive write it in the name of a partition."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def files_by_task(directory: ExportDirectory) -> dict[str, list[str]]:
    """Paths below an export's directory of all its files, by `topic=TOPIC/` and `DayFiles.name`.

    One listing of the whole directory.
    """
    found: dict[str, list[str]] = {}
    for name in directory.names():
        if of_task := _FILE.fullmatch(name):
            found.setdefault(f"{of_task[1]}/{of_task[2]}", []).append(name)
    return found


def whole_before(
    directory: ExportDirectory, paths: Sequence[str]
) -> tuple[list[WrittenFile], dict[str, Any]] | None:
    """The files at these paths, all of one task, and what the task said; None if some are missing.

    So are they where the task ended before it had completed the last one, or an older program
    wrote them. Reads their footers.
    """
    files: list[WrittenFile] = []
    said: dict[str, Any] = {}
    for path in paths:
        found = directory.footer(path)
        if found is None:
            return None
        footer, size = found
        files.append(WrittenFile(path, footer.num_rows, size))
        said |= orjson.loads((footer.metadata or {}).get(SAID, b"{}"))
    rows = said.pop(ROWS, None)
    return (files, said) if rows == sum(file.rows for file in files) else None


def is_period(period: int, per_day: int) -> bool:
    """Whether a period, counted from 1970, is in a year from 1 to 9999."""
    return _FIRST_DAY <= period // per_day <= _LAST_DAY


def rows_by_period(
    batch: pa.RecordBatch, days: Days, per_day: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each day or hour. What is in no day comes as one such number."""
    if not len(days):
        return
    # What is in no day has one directory, so it has one file.
    end = (_LAST_DAY + 1) * per_day
    days = np.where((days < _FIRST_DAY * per_day) | (days >= end), end, days)
    cuts = np.flatnonzero(np.diff(days)) + 1
    if len(np.unique(days)) == len(cuts) + 1:  # days one after another: slices are enough
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(days)], strict=True):
            yield int(days[first]), batch.slice(first, last - first)
        return
    for day in np.unique(days).tolist():
        yield day, batch.filter(pa.array(days == day))


class DayFiles:
    """Writes messages of one topic into files by day of their store time, in UTC.

    No reader sees a partial file. The same messages in the same batches give the same bytes.
    Memory: `ROW_GROUP_BYTES` a day, and at a URL the files that are open.
    """

    def __init__(
        self,
        directory: ExportDirectory,
        topic: str,
        name: str,
        schema: pa.Schema,
        said: Callable[[], dict[str, object]] = dict,
        *,
        per_day: int = 1,
        as_older: bool = False,
    ) -> None:
        """Prepare; nothing is written yet.

        Args:
            directory: the export's.
            topic: of all messages.
            name: of every file, without the suffix; no other task has it in this directory.
            schema: of the files.
            said: what the task did, once all messages are added; `whole_before` returns it.
            per_day: as in `partition_of`, like the next one.
            as_older: as there.
        """
        self._per_day = per_day
        self._directory = directory
        self._topic = topic
        self._as_older = as_older
        self._name = name
        self._schema = schema
        self._said = said
        self._rows = 0
        self._open: dict[int, OpenFile] = {}
        self._parts: dict[int, int] = {}
        self.written: list[WrittenFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Complete the files; after an exception, remove what is not complete."""
        said = b"" if kind else orjson.dumps({**self._said(), ROWS: self._rows})
        while self._open:
            day, file = next(iter(self._open.items()))
            if kind is None:
                self._complete(day, said)
            else:
                del self._open[day]
                file.remove()

    def write(self, batch: pa.RecordBatch, days: Days) -> None:
        """Add messages."""
        self._rows += batch.num_rows
        for day, rows in rows_by_period(batch, days, self._per_day):
            self._file(day).add(rows)

    def _partition(self, day: int) -> str:
        return partition_of(self._topic, day, per_day=self._per_day, as_older=self._as_older)

    def _file(self, day: int) -> "OpenFile":
        if day not in self._open:
            if len(self._open) == DAYS_OPEN_MAX:
                self._complete(next(iter(self._open)))
            part = self._parts.get(day, 0)
            self._parts[day] = part + 1
            name = f"{self._name}{f'-{part}' if part else ''}.parquet"
            path = f"{self._partition(day)}/{name}"
            self._open[day] = OpenFile(self._directory, path, self._schema)
        return self._open[day]

    def _complete(self, day: int, said: bytes = b"") -> None:
        self.written.append(self._open.pop(day).complete(said))


class OpenFile:
    """A file that has not its name yet."""

    def __init__(self, directory: ExportDirectory, path: str, schema: pa.Schema) -> None:
        """`path`: of the file, below `directory`."""
        self._directory = directory
        self._path = path
        self._schema = schema
        self._made: NewFile = directory.new_file(path)
        self._writer = pq.ParquetWriter(self._made.sink, schema, compression="zstd")
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._held_bytes = 0
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; writes them when they are enough for a row group."""
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._held_bytes >= ROW_GROUP_BYTES or self._held_rows >= ROW_GROUP_ROWS_MAX:
            self._flush()

    def complete(self, said: bytes) -> WrittenFile:
        """Give the file its name, durably. Return what has the name.

        A file of an earlier attempt stays where it has more rows: messages left the tier since.
        """
        self._flush()
        if said:
            self._writer.add_key_value_metadata({SAID: said})
        self._writer.close()
        before = self._directory.footer(self._path)
        if before is not None and before[0].num_rows > self._rows:
            self._made.discard()
            return WrittenFile(self._path, before[0].num_rows, before[1])
        return WrittenFile(self._path, self._rows, self._made.complete())

    def remove(self) -> None:
        """Give it up, if it is not complete."""
        with suppress(Exception):  # what was held is lost on purpose
            self._writer.close()
        self._made.discard()

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held, self._schema)
            self._writer.write_table(table, row_group_size=self._held_rows)
        self._held, self._held_rows, self._held_bytes = [], 0, 0
