"""Tasks of an export: a worker scans a split, writes its files, and records the task as done."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow ships no types.
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.errors import BytesMissing
from container.names.queue_id import QueueId
from provider.errors import Corrupt
from provider.sequential import ByteSource
from tieredstore.offline.export.day_files import DAY_MS, DayFiles, Days, WrittenFile, whole_before
from tieredstore.offline.export.export_directory import (
    ExportDirectory,
    ExportPlace,
    directory_at,
)
from tieredstore.offline.export.ledger import DoneTask, write_done
from tieredstore.offline.export.options import NO_SKIPS, Skips, Span
from tieredstore.offline.jobs.engine import Piece
from tieredstore.offline.scan.relocation import Relocated
from tieredstore.offline.scan.scanner import scan, schema_of
from tieredstore.offline.scan.sources import source_of
from tieredstore.offline.scan.split import LogGap, ScanReport, Split
from tieredstore.reader.arrow_columns import TIME_MS_END

STORE_TIMESTAMP, TAGS = "store_timestamp", "tags"


@dataclass(frozen=True, slots=True)
class ExportTask:
    """A split of an export. Can be pickled."""

    place: ExportPlace
    """Of the export; the same for all workers."""
    run: int
    number: int
    queue: QueueId
    start: int
    """The planned split's, by which the files are named."""
    offsets: tuple[int, int]
    """Queue offsets `[from, to)` between which the planned messages lie."""
    split: Split | None
    """The remaining part of the planned split; None if nothing is left."""
    columns: tuple[str, ...]
    tags: tuple[str, ...] = ()
    """Only messages with one of these; (): all."""
    skips: Skips = NO_SKIPS
    gone: tuple[tuple[int, int, str], ...] = ()
    """Messages that left the tier before this attempt, as in `DoneTask`."""
    as_older: bool = False
    """As in `partition_of`, like the next one."""
    per_day: int = 1
    before: tuple[str, ...] = ()
    """Paths of files that an earlier attempt completed."""

    @property
    def name(self) -> str:
        """Of a task's files: no other task of its topic has it.

        A later run may begin at the same byte, where an extent has grown since.
        """
        return f"{self.queue.queue_id}-{self.start:020d}-{self.run:06d}"

    @property
    def bytes(self) -> int:
        """Bytes of the log that it reads."""
        return 0 if self.split is None else self.split.end - self.split.start


MISSING = "missing"
"""Target of the pieces of tasks that are not done, because published bytes are not in storage."""


def export_pieces(task: ExportTask) -> Iterator[Piece]:
    """`export_task` as an engine's mapper: what it did is in the ledger.

    What is missing ends this task alone, and is yielded.
    """
    try:
        export_task(task)
    except BytesMissing as error:
        yield Piece(MISSING, task.number, str(error).encode())


def as_they_are(target: str, pieces: Sequence[Piece]) -> Iterable[Piece]:
    """The reducer: the driver takes all of them."""
    del target
    return pieces


def export_task(task: ExportTask) -> DoneTask:
    """Write the files of a split, then the line in the ledger. Repeating it changes nothing.

    Memory: that of a scan, and a row group for each open day, 32 MiB.

    Raises:
        Corrupt: a message is damaged, and damage is not passed over; the task is not done.
        BytesMissing: published bytes are not in the storage; the task is not done.
        Unavailable, Denied: as `scan`, or of the export's own place.
        OSError: the directory cannot be written.
    """
    directory = directory_at(task.place)
    done = _done_before(task, directory)
    if done is None:
        nothing = DoneTask((), 0, task.gone)
        done = nothing if task.split is None else _written(task, task.split, directory)
    write_done(directory, task.run, task.number, done)
    return done


def _done_before(task: ExportTask, directory: ExportDirectory) -> DoneTask | None:
    """The result of an earlier attempt that ended when its files were there, but for the line."""
    found = whole_before(directory, task.before) if task.before else None
    return None if found is None else DoneTask.of(found[1], found[0])


def _written(task: ExportTask, split: Split, directory: ExportDirectory) -> DoneTask:
    scanned = ExportScan(
        split, task.offsets, task.columns, task.tags, task.skips, task.per_day, [*task.gone]
    )
    files = DayFiles(
        directory,
        task.queue.topic,
        task.name,
        schema_of(task.columns),
        lambda: scanned.done(()).counts,
        per_day=task.per_day,
        as_older=task.as_older,
    )
    with closing(source_of(split.place)) as read, files:
        for rows, days in scanned.rows(read):
            files.write(rows, days)
    return scanned.done(files.written)


@dataclass(slots=True)
class ExportScan:
    """A scan for an export, which counts what it has to leave out."""

    split: Split
    offsets: Span
    """As in `ExportTask`, like the next four."""
    columns: Sequence[str]
    tags: Sequence[str]
    skips: Skips
    per_day: int
    gone: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    """As in `DoneTask`, like the rest."""
    damaged: int = 0
    null_times: int = 0
    read: Span | None = None

    def rows(self, read: ByteSource) -> Iterator[tuple[pa.RecordBatch, Days]]:
        """The wanted messages and the day or hour of each; raises as `scan`."""
        report = ScanReport(self.split)

        def on_expired(found: Relocated) -> None:
            last = report.last_offset
            first = self.offsets[0] if last is None else last + 1
            end = min(self.offsets[1], found.min_offset) if found.pieces else self.offsets[1]
            if first < end:
                self.gone.append((first, end, found.cause))

        names = schema_of(self.columns).names
        needed = [STORE_TIMESTAMP, *([TAGS] if self.tags else [])]
        for batch in scan(
            read,
            self.split,
            [*self.columns, *(name for name in needed if name not in self.columns)],
            on_gap=self._count if any(self.skips) else None,
            on_expired=on_expired,
            keeps_missing=self.skips.missing,
            report=report,
        ):
            kept = _with_tags(batch, self.tags)
            rows = kept.select(names)
            self.null_times += _null_times_in(rows)
            yield rows, _periods_of(kept, self.per_day)
        if report.first_offset is not None and report.last_offset is not None:
            self.read = report.first_offset, report.last_offset + 1

    def done(self, files: Iterable[WrittenFile]) -> DoneTask:
        """The result, once all rows are in `files`."""
        return DoneTask(tuple(files), self.damaged, tuple(self.gone), self.null_times, self.read)

    def _count(self, gap: LogGap) -> None:
        if not gap.is_missing and not self.skips.damage:
            raise Corrupt(str(gap), *self.split.place_of(gap.position))
        self.damaged += 1


def _with_tags(batch: pa.RecordBatch, tags: Sequence[str]) -> pa.RecordBatch:
    """The messages with one of some tags; all where there is none."""
    if not tags:
        return batch
    return batch.filter(pc.is_in(batch.column(TAGS), value_set=pa.array(tags, pa.string())))


def _periods_of(batch: pa.RecordBatch, per_day: int) -> Days:
    """The period of each message by its store time in UTC, counted from 1970; none for no time."""
    times = batch.column(STORE_TIMESTAMP).cast(pa.int64()).fill_null(TIME_MS_END)
    return np.asarray(times) // (DAY_MS // per_day)


def _null_times_in(batch: pa.RecordBatch) -> int:
    """Count the times of these messages outside the years 1 to 9999, which are null."""
    return sum(one.null_count for one in batch.columns if pa.types.is_timestamp(one.type))
