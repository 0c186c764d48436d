"""Ledger in the directory of an export: its options, plans and finished tasks.

    _tieredstore/export.json          the tier, the selection of messages, and the columns
    _tieredstore/plan-000001.json     the tasks of the first run, of the second, ...
    _tieredstore/done-000001/000017   the files of task 17 of the first run
    _tieredstore/lock                 held by the process that writes the export

The plan of a run has all that the runs before it did: it replaces their plans and finished tasks.

A task is done once its `done` file exists, which is written after the task's files. Readers of
partitioned tables skip names that begin with `_` or `.`.
"""

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, cast

import orjson

from container.errors import InUse
from container.names.queue_id import QueueId
from provider.errors import AlreadyExists, Corrupt
from tieredstore.config.sources import ConfigError
from tieredstore.offline.export.day_files import WrittenFile
from tieredstore.offline.export.export_directory import LEDGER, ExportDirectory
from tieredstore.offline.export.options import Reached
from tieredstore.offline.scan.split import NOT_KNOWN, Seen

ABOUT = f"{LEDGER}/export.json"
FORMAT = 1
_PLAN = re.compile(rf"{LEDGER}/plan-([0-9]+)\.json")
_DONE = re.compile(rf"{LEDGER}/done-([0-9]+)/([0-9]+)")


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
    """The export in a directory. Nothing is written before `locked`."""

    def __init__(self, directory: ExportDirectory, name: str) -> None:
        """`name`: of the directory, for errors."""
        self.directory = directory
        """Directory of the export."""
        self._name = name
        self._holders = 0
        self._has_remains = True

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other writers out during a block, which may have further such blocks in it.

        Raises:
            InUse: another process writes this export.
            OSError, Denied, Unavailable: the directory cannot be written.
        """
        if self._holders:
            yield
            return
        with self.directory.lock():
            self._holders += 1
            try:
                yield
            finally:
                self._holders -= 1

    def about(self) -> dict[str, Any] | None:
        """Return the tier and the options of the export; None if the directory has none.

        Raises:
            ConfigError: a newer version wrote it, or the directory holds other files.
            Corrupt: the ledger is damaged.
        """
        raw = self.directory.read(ABOUT)
        if raw is None:
            if any(entry != LEDGER for entry in self.directory.entries()):
                raise ConfigError(
                    f"{self._name} is not empty, and holds no export: name another directory"
                )
            return None
        found = _parsed(raw, ABOUT)
        if found.get("format") != FORMAT:
            raise ConfigError(
                f"{self._name} holds an export of format {found.get('format')}: install a "
                f"newer tieredstore"
            )
        return found["about"]

    def begin(self, about: Mapping[str, Any]) -> None:
        """Record what the export is about, once; remove what a killed run has left.

        Raises:
            OSError, Denied, Unavailable: the directory cannot be written.
        """
        if self._has_remains:
            self.directory.remove_remains()
            self._has_remains = False
        if self.directory.read(ABOUT) is None:
            self.directory.write(ABOUT, orjson.dumps({"format": FORMAT, "about": dict(about)}))

    def last_run(self) -> PlannedRun | None:
        """The newest run that was planned."""
        while plans := self._found(_PLAN):
            name = plans[-1].string
            if (raw := self.directory.read(name)) is not None:  # else the next run replaced it
                return _run_of(_parsed(raw, name))
        return None

    def plan(self, run: PlannedRun) -> None:
        """Record what a run is to write, then remove the records of the runs before.

        Raises:
            InUse: another process has planned this run.
        """
        offsets = [
            [*queue, *span, run.reached[queue].generation]
            for queue, span in sorted(run.offsets.items())
        ]
        tasks = [[*task.queue, *task[1:]] for task in run.tasks]
        found = {"number": run.number, "offsets": offsets, "tasks": tasks}
        found |= run.seen.as_kept()
        try:
            self.directory.create(f"{LEDGER}/plan-{run.number:06d}.json", orjson.dumps(found))
        except AlreadyExists as error:
            raise met(self._name) from error
        for one in [*self._found(_DONE), *self._found(_PLAN)]:
            if int(one[1]) < run.number:
                self.directory.remove(one.string)

    def done(self, run: int) -> dict[int, DoneTask]:
        """The tasks of a run that are done, by number."""
        found: dict[int, DoneTask] = {}
        for one in self._found(_DONE):
            raw = self.directory.read(one.string) if int(one[1]) == run else None
            if raw is not None:
                row = _parsed(raw, one.string)
                files = tuple(WrittenFile(*file) for file in row["files"])
                found[int(one[2])] = DoneTask.of(row, files)
        return found

    def _found(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        names = self.directory.names(LEDGER)
        return [found for name in names if (found := pattern.fullmatch(name))]


def met(name: str) -> InUse:
    """Return the error of a run that met another one."""
    return InUse("another process has written this export meanwhile: try again", name)


def write_done(directory: ExportDirectory, run: int, number: int, done: DoneTask) -> None:
    """Record that a task is done; its files are durable. By the worker that did it."""
    row = {"files": [list(one) for one in done.files], **done.counts}
    directory.write(f"{LEDGER}/done-{run:06d}/{number:06d}", orjson.dumps(row))


def _run_of(found: Mapping[str, Any]) -> PlannedRun:
    rows = found["offsets"]
    offsets = {QueueId(topic, one): (a, b) for topic, one, a, b, *_ in rows}
    reached = {QueueId(row[0], row[1]): Reached(*row[3:]) for row in rows}
    tasks = [PlannedTask(QueueId(row[0], row[1]), *row[2:]) for row in found["tasks"]]
    return PlannedRun(found["number"], offsets, tasks, reached, Seen.kept(found))


def _parsed(raw: bytes, name: str) -> dict[str, Any]:
    try:
        found: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"the ledger of the export is damaged: {error}", name, 0) from error
    if not isinstance(found, dict):
        raise Corrupt("the ledger of the export is damaged", name, 0)
    return cast("dict[str, Any]", found)
