"""The torn tail of a CommitLog: what is truncated, and the bytes that are kept of it."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from container.names.queue_id import QueueId
from container.names.rocketmq import local_file_name
from provider.names import is_there
from tieredstore.hot.commit_log import CommitLogWriter
from tieredstore.hot.files import CHUNK_BYTES, FLAGS, sync_directories, write_all
from tieredstore.hot.record_scan import sound_records

QUEUES_MAX = 8
"""Queues of a truncation that are named."""


@dataclass(slots=True)
class Truncation:
    """What a start truncated."""

    path: str
    """The CommitLog file that the new end lies in."""
    position: int
    """The new end."""
    bytes: int
    """From there to the last byte that was not zero."""
    kept: list[Path] = field(default_factory=list[Path])
    """Files that the bytes were copied to: sound records follow what is torn."""
    offsets: dict[QueueId, tuple[int, int]] = field(default_factory=dict[QueueId, tuple[int, int]])
    """Offsets `[first, end)` of the units that were dropped, of each queue."""

    def __str__(self) -> str:
        """One sentence."""
        said = f"the CommitLog ends at {self.position} ({self.path})"
        if self.bytes:
            said += f": it was truncated there, for the {self.bytes} bytes after it begin with no"
            said += " whole record"
        if self.offsets:
            named = [
                f"{queue} {first} to {end - 1}"
                for queue, (first, end) in sorted(self.offsets.items())[:QUEUES_MAX]
            ]
            more = len(self.offsets) - len(named)
            said += f"; offsets without a record were dropped: {', '.join(named)}" + (
                f", and those of {more} more queues" if more else ""
            )
        if self.kept:
            said += "; sound records follow, so the bytes are kept in "
            said += ", ".join(map(str, self.kept))
        return said


def truncate(log: CommitLogWriter, end: int, *, aside: Path) -> Truncation | None:
    """Make `end` the end of the log; None if nothing but zeros followed it. Durable.

    Bytes that sound records are among are copied to `aside` first.

    Raises:
        OSError: a file cannot be read or written; the log is as it was, or truncated in part.
    """
    found = None
    data_end = log.data_end(end)
    if data_end > end:
        found = Truncation(str(log.path(log.base_of(end))), end, data_end - end)
        if _has_sound_record(log, end):
            found.kept = keep(log, end, data_end, aside)
    log.cut(end)
    return found


def keep(log: CommitLogWriter, start: int, end: int, aside: Path) -> list[Path]:
    """Copy the bytes `[start, end)` of the log to files below `aside`. Durable.

    Raises:
        OSError: one cannot be read or written.
    """
    kept: list[Path] = []
    aside.mkdir(exist_ok=True)
    while start < end:
        base = log.base_of(start)
        stop = min(end, base + log.file_bytes)
        path = _new_name(aside, start)
        fd = os.open(path, FLAGS | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            for at in range(start, stop, CHUNK_BYTES):
                write_all(fd, at - start, log.read(at, min(CHUNK_BYTES, stop - at)))
            os.fsync(fd)
        finally:
            os.close(fd)
        kept.append(path)
        start = stop
    sync_directories([aside, aside.parent])
    return kept


def _new_name(aside: Path, position: int) -> Path:
    path, number = aside / local_file_name(position), 0
    while is_there(path):
        number += 1
        path = aside / f"{local_file_name(position)}.{number}"
    return path


def _has_sound_record(log: CommitLogWriter, start: int) -> bool:
    for base in [base for base in log.bases if base + log.file_bytes > start]:
        with log.mapped(base) as view:
            end = base + len(view)
            if any(True for _ in sound_records(view, base, max(start, base), end)):
                return True
    return False
