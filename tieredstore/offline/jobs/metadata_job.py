"""Job of a metadata rebuild: scans of logs until they fit together."""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from container.errors import Finding
from container.metadata.operations import Operation, PutIndexFile, PutQueue, PutTopic
from container.metadata.records import Queue, Topic
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import parse_segment_name, segment_name
from container.names.tier_objects import IndexBase
from container.record.unit import UNIT_BYTES
from provider.clock import SystemClock
from provider.errors import Corrupt
from tieredstore.config.effective import Config
from tieredstore.offline.jobs.derived import IndexPart, index_parts
from tieredstore.offline.jobs.engine import BytesProgress, Engine
from tieredstore.offline.jobs.metadata_records import (
    FIRST_EPOCH,
    QueueParts,
    Said,
    index_file_of,
    queue_of_parts,
    runs_of,
)
from tieredstore.offline.jobs.rebuild_job import (
    INDEX,
    LOG,
    UNITS,
    RebuildReducer,
    RebuildTask,
    UnitRun,
    queue_of,
    rebuild_item,
    unknown_end,
)
from tieredstore.offline.jobs.repair_plan import gap_findings
from tieredstore.offline.jobs.report import MadeFile, RebuildReport
from tieredstore.offline.scan.split import LogPiece, ScanReport, Split, TierPlace, where_not_met

ROUNDS_MAX = 6
"""Scans of the whole log: one, and one more each time that something turned out otherwise."""
ReducerOf = Callable[[int], RebuildReducer]
"""Of a round."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A CommitLog file."""

    queue: QueueId
    base: int
    size: int
    limit: int
    """Position at which the next file begins, or this one ends."""
    first_offset: int = 0
    """Queue offset of the first record of a queue's first file; 0 if it is unknown."""
    parts: tuple[LogPiece, ...] = ()
    """Pieces of its bytes, if it has no file of its own; a record begins at each."""

    @property
    def pieces(self) -> tuple[LogPiece, ...]:
        """Pieces of its bytes."""
        return self.parts or (LogPiece(self.base, self.limit - self.base, self.name, 0),)

    @property
    def name(self) -> str:
        """Relative to the broker's directory."""
        return segment_name(self.queue, SegmentType.COMMIT_LOG, self.base)


@dataclass(slots=True)
class Round:
    """Result of a pass over the log."""

    logs: dict[QueueId, list[dict[str, Any]]] = field(default_factory=dict[QueueId, Any])
    """Reports of the splits by queue, in order."""
    units: dict[str, dict[str, Any]] = field(default_factory=dict[str, Any])
    index: dict[str, dict[str, Any]] = field(default_factory=dict[str, Any])


class LeftOut(NamedTuple):
    """A queue that cannot be published."""

    said: Sequence[Said]
    """Report of each split, in order."""
    error: Corrupt


class RemakeJob:
    """A rebuild of all metadata."""

    def __init__(  # noqa: PLR0917 - one caller
        self,
        config: Config,
        place: TierPlace,
        files: Sequence[SegmentFile],
        split_bytes: int,
        progress: BytesProgress | None,
        first_free: int,
    ) -> None:
        """`first_free`: index files are numbered from there on."""
        self._config = config
        self._place = place
        self._files = files
        self._split_bytes = split_bytes
        self._progress = progress
        unit_bytes_max = config.tier.consume_queue_bytes_max
        if any(file.parts for file in files):
            unit_bytes_max = min(unit_bytes_max, config.upkeep.repack_bytes_max)
        self._units_per_file = unit_bytes_max // UNIT_BYTES
        self._topics = {
            name: number for number, name in enumerate(sorted({one.queue.topic for one in files}))
        }
        self._unsplit: set[str] = set()
        """Names of files that are scanned in one piece."""
        self._runs: dict[QueueId, tuple[UnitRun, ...]] = {}
        with_first = {one.queue: one for one in reversed(files)}
        for queue, first in with_first.items():
            self._runs[queue] = (unknown_end(first.first_offset, self._units_per_file),)
        self._next_number = first_free
        """Of index files."""
        self._left_out: dict[QueueId, LeftOut] = {}
        """Queues that are not scanned again: no index file may have a key of theirs."""

    def run(self, engine: Engine, reducer_of: ReducerOf) -> Round:
        """Scan until everything fits together; what the last round gave.

        Raises:
            Corrupt: it never does.
            what the engine raises.
        """
        for number in range(ROUNDS_MAX):
            tasks = self._tasks()
            made = self._scan(engine, tasks, reducer_of(number)) if tasks else Round()
            if not self._differs(tasks, made) and not self._leaves_out(made):
                return made
        path = self._place.location
        raise Corrupt("the parts of a log do not meet, however it is split", path)

    def _scan(self, engine: Engine, tasks: Sequence[RebuildTask], reducer: RebuildReducer) -> Round:
        total, done = sum(task.split.end - task.split.start for task in tasks), 0

        def report(index: int) -> None:
            nonlocal done
            done += tasks[index].split.end - tasks[index].split.start
            if self._progress is not None:
                self._progress(done, total)

        made = Round()
        for piece in engine.map_group(tasks, rebuild_item, reducer, progress=report):
            said = orjson.loads(piece.payload)
            if piece.target.startswith(LOG):
                made.logs[queue_of(piece.target)] = said
            elif piece.target.startswith(UNITS):
                made.units[piece.target.removeprefix(UNITS)] = said
            else:
                made.index[piece.target.removeprefix(INDEX)] = said
        numbers = [base.number_of_owner for base in map(IndexBase.parse, made.index) if base]
        self._next_number = max([self._next_number - 1, *numbers]) + 1
        return made

    def _tasks(self) -> list[RebuildTask]:
        files = [file for file in self._files if file.queue not in self._left_out]
        splits = [split for file in files for split in self._splits(file)]
        index: list[tuple[IndexPart, ...]] = [()] * len(splits)
        if self._config.keeps_index:
            lengths = [split.end - split.start for split in splits]
            parts = index_parts(lengths, epoch=FIRST_EPOCH, first_number=self._next_number)
            index = [(part,) for part in parts]
        extent_bytes_max = self._config.tier.extent_bytes_max
        return [
            RebuildTask(
                split,
                self._topics[split.queue.topic],
                self._runs[split.queue],
                parts,
                extent_bytes_max,
            )
            for split, parts in zip(splits, index, strict=True)
        ]

    def _splits(self, file: SegmentFile) -> Iterator[Split]:
        step = file.limit - file.base if file.name in self._unsplit else self._split_bytes
        for run in _together(file.pieces, step):
            begin, limit = run[0].position, run[-1].end
            for start in range(begin, limit, step) if len(run) == 1 else (begin,):
                end = min(start + step, limit) if len(run) == 1 else limit
                anchor = start if start == begin else None
                yield Split(file.queue, start, end, anchor, limit, run, place=self._place)

    def _differs(self, tasks: Sequence[RebuildTask], made: Round) -> bool:
        """Whether another round is needed; notes what it has to do otherwise."""
        again = False
        by_queue: dict[QueueId, list[Split]] = {}
        for task in tasks:
            by_queue.setdefault(task.split.queue, []).append(task.split)
        for queue, splits in by_queue.items():
            said = made.logs[queue]
            reports = [
                ScanReport(split, first=one["first"], end=one["ended"])
                for split, one in zip(splits, said, strict=True)
            ]
            missed = where_not_met(reports)
            for pair in missed:
                self._unsplit.update(self._files_of(pair.before), self._files_of(pair.behind))
                again = True
            actual = runs_of(said)
            used = self._runs[queue]
            is_open = len(actual) == len(used) == 1 and used[0].first == actual[0][0]
            wanted = tuple(UnitRun(a, b, self._units_per_file) for a, b in actual)
            if not missed and wanted and not is_open and wanted != used:
                self._runs[queue] = wanted
                again = True
        return again

    def _leaves_out(self, made: Round) -> bool:
        """Whether queues turned out that cannot be published, and have keys in index files."""
        known = len(self._left_out)
        for queue, one in self._queues(made, now_ms=0).items():
            if isinstance(one, LeftOut):
                self._left_out[queue] = one
        return len(self._left_out) > known and bool(made.index)

    def _queues(
        self, made: Round, *, now_ms: int
    ) -> dict[QueueId, "tuple[QueueParts, Queue] | LeftOut"]:
        """Return the new metadata of each queue, or the reason why it is left out."""
        found: dict[QueueId, tuple[QueueParts, Queue] | LeftOut] = dict(self._left_out)
        files: dict[QueueId, list[SegmentFile]] = {}
        for file in self._files:
            files.setdefault(file.queue, []).append(file)
        units: dict[QueueId, dict[str, dict[str, Any]]] = {}
        for name in sorted(made.units):
            parsed = parse_segment_name(name)
            assert parsed is not None, "it was planned"
            units.setdefault(parsed.queue, {})[name] = made.units[name]
        for queue, said in made.logs.items():
            parts = QueueParts(
                queue,
                [(one.base, one.limit) for one in files[queue]],
                said,
                units.get(queue, {}),
                [piece for one in files[queue] for piece in one.parts],
            )
            try:
                found[queue] = parts, queue_of_parts(parts, now_ms=now_ms)
            except Corrupt as error:
                found[queue] = LeftOut(said, error)
        return found

    def _files_of(self, split: Split) -> Iterator[str]:
        """The files that a split lies in."""
        for file in self._files:
            if file.queue == split.queue and file.base <= split.start < file.limit:
                yield file.name

    def result(
        self, made: Round, *, is_dry: bool
    ) -> tuple[list[Operation], list[tuple[str, str]], RebuildReport]:
        """Return the operations to publish, the staged files with their names, and the report."""
        now_ms = SystemClock().now_ms()
        operations: list[Operation] = []
        placed: list[tuple[str, str]] = []
        files: list[MadeFile] = []
        findings: list[Finding] = []
        messages = 0
        for queue, one in sorted(self._queues(made, now_ms=now_ms).items()):
            if isinstance(one, LeftOut):
                findings += gap_findings(one.said)
                why = one.error
                findings.append(Finding("queue-left-out", str(queue), why.position, why.reason))
                continue
            parts, record = one
            findings += gap_findings(parts.said)
            messages += sum(behind - first for first, behind in runs_of(parts.said))
            operations.append(PutQueue(record))
            for name, unit in parts.units.items():
                placed.append((name, f"{UNITS}{name}"))
                files.append(MadeFile(name, unit["bytes"]))
        kept = {one.queue.id for one in operations if isinstance(one, PutQueue)}
        kept_topics = {queue.topic for queue in kept}
        topics = [
            PutTopic(Topic(name, number, updated_ms=now_ms))
            for name, number in self._topics.items()
            if name in kept_topics
        ]
        covered = self._covered(made, kept)
        indexes: list[Operation] = []
        for name, said in sorted(made.index.items()):
            indexes.append(PutIndexFile(index_file_of(name, said, covered.get(name, []))))
            placed.append((name, f"{INDEX}{name}"))
            files.append(MadeFile(name, said["bytes"]))
        report = RebuildReport(
            self._config.cluster,
            self._config.broker,
            sorted(files, key=lambda file: file.path),
            messages,
            findings,
            makes_metadata=True,
            is_dry=is_dry,
        )
        return ([*topics, *operations, *indexes] if operations else []), placed, report

    @staticmethod
    def _covered(
        made: Round, kept: AbstractSet[QueueId]
    ) -> dict[str, list[tuple[QueueId, int, int]]]:
        """By index file, which offsets of which queues have their keys in it."""
        found: dict[str, list[tuple[QueueId, int, int]]] = {}
        for queue in sorted(kept):
            for one in made.logs[queue]:
                for name, runs in one["index"].items():
                    found.setdefault(name, []).extend((queue, int(a), int(b)) for a, b in runs)
        return found


def _together(pieces: Sequence[LogPiece], step: int) -> Iterator[tuple[LogPiece, ...]]:
    """Neighbours of `step` bytes together or a little more; a longer piece is alone."""
    run: list[LogPiece] = []
    length = 0
    for piece in pieces:
        if run and (length >= step or piece.length > step):
            yield tuple(run)
            run, length = [], 0
        run.append(piece)
        length += piece.length
    if run:
        yield tuple(run)
