"""Ledger in the directory of an export: its options, plans and finished tasks.

    _tieredstore/export.json          the tier, the selection of messages, and the columns
    _tieredstore/plan-000001.json     the tasks of the first run, of the second, ...
    _tieredstore/done-000001/000017   the files of task 17 of the first run
    _tieredstore/lock                 held by the process that writes the export

A task is done once its `done` file exists, which is written after the task's files. Readers of
partitioned tables skip names that begin with `_` or `.`.
"""

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import orjson

from container.errors import InUse
from container.names.queue_id import QueueId
from provider.errors import Corrupt
from provider.names import is_directory, is_there
from provider.posix.files import sync_directory
from tieredstore.config.sources import ConfigError
from tieredstore.offline.export.day_files import TEMPORARY_SUFFIX, WrittenFile
from tieredstore.offline.export.options import Reached
from tieredstore.offline.scan.split import NOT_KNOWN, Seen

LEDGER = "_tieredstore"
FORMAT = 1


class PlannedTask(NamedTuple):
    """A part of a queue's log that one worker writes."""

    queue: QueueId
    start: int
    end: int
    """It has the records that start in `[start, end)` of the queue's log."""
    anchor: int | None
    limit: int
    """As in `Split`."""
    first_offset: int = 0
    next_offset: int | None = None
    """Queue offsets `[from, to)` between which its messages lie; None in an older plan."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Plan of a run of an export."""

    number: int
    offsets: Mapping[QueueId, tuple[int, int]]
    """Queue offsets `[from, to)` of each queue. The next run begins where they end."""
    tasks: Sequence[PlannedTask]
    reached: Mapping[QueueId, Reached]
    """State of each queue after the run."""
    seen: Seen = NOT_KNOWN
    """Position of the tier's journal; older plans have less of it, or nothing."""


class DoneTask(NamedTuple):
    """Result of a task: its files and counts."""

    files: tuple[WrittenFile, ...]
    damaged: int
    """Stretches of the log in which no message could be read."""
    gone: tuple[tuple[int, int, str], ...] = ()
    """Queue offsets `[from, to)` that left the tier before they were written, and why."""
    null_times: int = 0
    """Times that are null, because they are in no year from 1 to 9999."""
    read: tuple[int, int] | None = None
    """As in `TaskRead`; missing in ledgers of older versions."""

    @classmethod
    def of(cls, counts: Mapping[str, Any], files: Sequence[WrittenFile]) -> Self:
        """The result with these `counts`."""
        gone = tuple((low, high, why) for low, high, why in counts.get("gone", ()))
        read = (*counts["read"],) if "read" in counts else None
        return cls((*files,), counts["damaged"], gone, counts.get("null_times", 0), read)

    @property
    def counts(self) -> dict[str, object]:
        """All but the files, as JSON has it."""
        found: dict[str, object] = {"damaged": self.damaged}
        if self.null_times:
            found["null_times"] = self.null_times
        if self.gone:
            found["gone"] = [list(one) for one in self.gone]
        if self.read is not None:
            found["read"] = list(self.read)
        return found

    @property
    def rows(self) -> int:
        """Messages in the files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Length of the files."""
        return sum(file.bytes for file in self.files)


class Ledger:
    """The export in a directory. Nothing is written before `begin`."""

    def __init__(self, directory: Path) -> None:
        self._root = directory / LEDGER
        self._directory = directory
        self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        fd, self._lock = self._lock, -1
        if fd >= 0:
            os.close(fd)

    def about(self) -> dict[str, Any] | None:
        """Return the tier and the options of the export; None if the directory has none.

        Raises:
            ConfigError: a newer version wrote it, or the directory holds other files.
            Corrupt: the ledger is damaged.
        """
        path = self._root / "export.json"
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            entries = self._directory.iterdir() if is_directory(self._directory) else ()
            if any(entry.name != LEDGER for entry in entries):
                raise ConfigError(
                    f"{self._directory} is not empty, and holds no export: name another directory"
                ) from None
            return None
        found = _parsed(raw, path)
        if found.get("format") != FORMAT:
            raise ConfigError(
                f"{self._directory} holds an export of format {found.get('format')}: install a "
                f"newer tieredstore"
            )
        return found["about"]

    def begin(self, about: Mapping[str, Any]) -> None:
        """Take the directory for this process, and say what the export is about.

        Raises:
            InUse: another process writes this export.
            OSError: the directory cannot be written.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUse(
                "another process writes this export: wait until it has ended", str(self._directory)
            ) from error
        path = self._root / "export.json"
        if not is_there(path):
            _write(path, {"format": FORMAT, "about": dict(about)})

    def last_run(self) -> PlannedRun | None:
        """The newest run that was planned."""
        paths = sorted(self._root.glob("plan-*.json"))
        if not paths:
            return None
        found = _parsed(paths[-1].read_bytes(), paths[-1])
        rows = found["offsets"]
        offsets = {QueueId(topic, one): (a, b) for topic, one, a, b, *_ in rows}
        reached = {QueueId(row[0], row[1]): Reached(*row[3:]) for row in rows}
        seen = Seen.kept(found)
        tasks = [PlannedTask(QueueId(row[0], row[1]), *row[2:]) for row in found["tasks"]]
        return PlannedRun(found["number"], offsets, tasks, reached, seen)

    def plan(self, run: PlannedRun) -> None:
        """Keep what a run is to write."""
        offsets = [
            [*queue, *span, run.reached[queue].generation]
            for queue, span in sorted(run.offsets.items())
        ]
        tasks = [[*task.queue, *task[1:]] for task in run.tasks]
        found = {"number": run.number, "offsets": offsets, "tasks": tasks}
        found |= run.seen.as_kept()
        self._done(run.number).mkdir(exist_ok=True)
        _write(self._root / f"plan-{run.number:06d}.json", found)

    def done(self, run: int) -> dict[int, DoneTask]:
        """The tasks of a run that are done, by number."""
        found: dict[int, DoneTask] = {}
        for path in sorted(self._done(run).glob("[0-9]*")):
            if path.name.isdecimal():
                row = _parsed(path.read_bytes(), path)
                files = tuple(WrittenFile(*file) for file in row["files"])
                found[int(path.name)] = DoneTask.of(row, files)
        return found

    def remove_remains(self) -> int:
        """Delete what a run that was ended in the middle left under temporary names."""
        count = 0
        for pattern in (f"topic=*/day=*/.*{TEMPORARY_SUFFIX}", f"{LEDGER}/**/.*{TEMPORARY_SUFFIX}"):
            for path in self._directory.glob(pattern):
                path.unlink(missing_ok=True)
                count += 1
        return count

    def _done(self, run: int) -> Path:
        return self._root / f"done-{run:06d}"


def write_done(directory: Path, run: int, number: int, done: DoneTask) -> None:
    """Record that a task is done; its files are durable. By the worker that did it."""
    path = directory / LEDGER / f"done-{run:06d}" / f"{number:06d}"
    _write(path, {"files": [list(one) for one in done.files], **done.counts})


def _write(path: Path, value: object) -> None:
    """A small file, whole or not there."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    with hidden.open("wb") as file:
        file.write(orjson.dumps(value))
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(path)
    sync_directory(str(path.parent))


def _parsed(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        found: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"the ledger of the export is damaged: {error}", str(path), 0) from error
    if not isinstance(found, dict):
        raise Corrupt("the ledger of the export is damaged", str(path), 0)
    return cast("dict[str, Any]", found)
