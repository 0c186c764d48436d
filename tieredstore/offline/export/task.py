"""What one worker does for an export: scan a split, write its files, say that it is done."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow ships no types.
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.offline.engine import Piece
from tieredstore.offline.export.day_files import DAY_MS, DayFiles
from tieredstore.offline.export.ledger import DoneTask, write_done
from tieredstore.offline.scanner import scan, schema_of
from tieredstore.offline.sources import source_of
from tieredstore.offline.split import LogGap, Split

STORE_TIMESTAMP, TAGS = "store_timestamp", "tags"


@dataclass(frozen=True, slots=True)
class ExportTask:
    """One split of an export. Can be pickled."""

    directory: str
    """Of the export; the same place for all workers."""
    run: int
    number: int
    split: Split
    columns: tuple[str, ...]
    tags: tuple[str, ...] = ()
    """Only messages with one of these; (): all."""
    skips_damage: bool = False


def export_pieces(task: ExportTask) -> Iterator[Piece]:
    """`export_task` as an engine's mapper: what it did is in the ledger, so nothing comes out."""
    export_task(task)
    yield from ()


def no_more(target: str, pieces: Sequence[Piece]) -> Iterable[Piece]:
    """The reducer: nothing is left to do."""
    del target, pieces
    return ()


def export_task(task: ExportTask) -> DoneTask:
    """Write the files of a split, then the line in the ledger. Repeating it changes nothing.

    Memory: that of a scan, and a row group for each open day, 32 MiB.

    Raises:
        Corrupt: a message is damaged, and damage is not passed over; the task is not done.
        Unavailable, Denied: as `scan`.
        OSError: the directory cannot be written.
    """
    gaps: list[LogGap] = []
    schema = schema_of(task.columns)
    files = DayFiles(Path(task.directory), task.split.queue.topic, _name(task), schema)
    wanted = [*task.columns, *_needed_besides(task)]
    with closing(source_of(task.split.place)) as read, files:
        on_gap = gaps.append if task.skips_damage else None
        for batch in scan(read, task.split, wanted, on_gap=on_gap):
            kept = with_tags(batch, task.tags)
            files.write(kept.select(list(task.columns)), days_of(kept))
    write_done(Path(task.directory), task.run, task.number, files.written, len(gaps))
    return DoneTask(tuple(files.written), len(gaps))


def _name(task: ExportTask) -> str:
    """Of a task's files: no other task of the export has it.

    A later run may begin at the same byte, where an extent has grown since.
    """
    return f"{task.split.queue.queue_id}-{task.split.start:020d}-{task.run:06d}"


def _needed_besides(task: ExportTask) -> Sequence[str]:
    names = [STORE_TIMESTAMP, *([TAGS] if task.tags else [])]
    return [name for name in names if name not in task.columns]


def with_tags(batch: pa.RecordBatch, tags: Sequence[str]) -> pa.RecordBatch:
    """The messages with one of some tags; all where there is none."""
    if not tags:
        return batch
    return batch.filter(pc.is_in(batch.column(TAGS), value_set=pa.array(tags, pa.string())))


def days_of(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The day of each message by its store time in UTC, counted from 1970."""
    return np.asarray(batch.column(STORE_TIMESTAMP).cast(pa.int64())) // DAY_MS
