"""Making all metadata of a tier again, where nothing is left of it but the CommitLog files.

Records say of which queue they are, which offset they have and where they lie; so ConsumeQueues,
index files and the journal follow from them. Readers see nothing before the journal's first entry.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from container.check.finding import Finding
from container.metadata.operations import Operation, PutIndexFile, PutQueue, PutTopic
from container.metadata.records import Topic
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import INT64_MAX, parse_segment_name, segment_name
from container.names.tier_objects import BOUNDARY_PREFIX, JOURNAL_PREFIX, SNAPSHOT_PREFIX
from container.record.header import RecordHeader
from container.record.unit import UNIT_BYTES
from provider.clock import SystemClock
from provider.errors import Corrupt, NotFound
from provider.sequential import DirectorySource
from provider.staged_files import StagedFiles
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.offline.cutting import SPLIT_BYTES
from tieredstore.offline.engine import Engine
from tieredstore.offline.lost import gaps_told
from tieredstore.offline.rebuild_job import (
    INDEX,
    LOG,
    UNITS,
    IndexPart,
    RebuildReducer,
    RebuildTask,
    UnitRun,
    queue_of,
    rebuild_item,
    unknown_end,
)
from tieredstore.offline.remade_records import (
    QueueParts,
    first_free_number,
    index_file_of,
    queue_of_parts,
    runs_of,
)
from tieredstore.offline.report import MadeFile, RebuildReport
from tieredstore.offline.sources import place_of
from tieredstore.offline.split import LogPiece, ScanReport, Split, TierPlace, where_not_met
from tieredstore.opening import AS_OPTIONS, existing_tier
from tieredstore.owning import open_owner
from tieredstore.places import directory_of

ROUNDS_MAX = 5
"""Scans of the whole log: one, and one more each time that something turned out otherwise."""
INDEX_LOG_BYTES = 256 << 20
"""Messages whose keys go into one index file, in bytes of their log."""
HEAD_BYTES = 128
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LogFile:
    """A CommitLog file."""

    queue: QueueId
    base: int
    size: int
    limit: int
    """Where the next file begins, or this one ends."""

    @property
    def name(self) -> str:
        """Relative to the broker's directory."""
        return segment_name(self.queue, SegmentType.COMMIT_LOG, self.base)


@dataclass(slots=True)
class _Round:
    """What one pass over the log gave."""

    logs: dict[QueueId, list[dict[str, Any]]] = field(default_factory=dict[QueueId, Any])
    """By queue, what each split told, in order."""
    units: dict[str, dict[str, Any]] = field(default_factory=dict[str, Any])
    index: dict[str, dict[str, Any]] = field(default_factory=dict[str, Any])


def remake(
    config: Config,
    engine: Engine,
    *,
    split_bytes: int = SPLIT_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
    naming: str = AS_OPTIONS,
) -> RebuildReport:
    """Make ConsumeQueues, index files and the journal of a tier from its CommitLog files alone.

    Reads every message once, and once more where splits do not meet or messages are missing.
    ConsumeQueue files are cut as `tieredStoreConsumeQueueMaxSize` says. All files are made beside
    the tier first; then they are put at their places, and the journal's first entry makes them
    visible together. A run that is killed before leaves no journal, and the next one goes over it.

    Raises:
        NotFound: there is no tier, or no CommitLog file in it.
        ConfigError: it has a journal, is in an object store, or a setting is wrong.
        Unavailable: another rebuild is under way, or workers died again and again.
        Owned: the tier's owner lives.
        Denied: the storage refuses.
    """
    found = existing_tier(config, naming)
    root = local_root(found)
    refuse_journal(root)
    files = log_files(root)
    if not files:
        raise NotFound("no CommitLog file of a queue is there", str(root))
    with ExitStack() as stack:
        staged = None
        if not dry_run:
            staged = StagedFiles.begin(root)
            stack.callback(staged.close)
            refuse_journal(root)
        job = _Job(found, root, place_of(found), files, split_bytes, progress)
        made, directory = job.run(engine, staged)
        operations, placed, report = job.result(made, is_dry=dry_run)
        if staged is not None and operations:
            for name, target in placed:
                staged.install(name, f"{directory}/{target}")
            asyncio.run(_publish(found, operations))
    return report


def local_root(config: Config) -> Path:
    """The broker's directory.

    Raises:
        ConfigError: the tier is in an object store.
    """
    where = directory_of(config)
    if isinstance(where, TierUrl):
        raise ConfigError(
            f"the tier at {where} lies in parts: `rebuild --metadata` works on directories"
        )
    return where


def refuse_journal(root: Path) -> None:
    """Refuse a tier that has metadata.

    Raises:
        ConfigError: it has a journal, or a part of one.
    """
    for prefix in (JOURNAL_PREFIX, SNAPSHOT_PREFIX, BOUNDARY_PREFIX):
        if any((root / prefix).glob("*")):
            raise ConfigError(
                f"the tier in {root} has a journal, which is not made anew: `rebuild` without "
                f"--metadata makes lost files again; if the journal is damaged for good, move all "
                f"its `@` directories away"
            )


def log_files(root: Path) -> list[LogFile]:
    """All CommitLog files below a broker's directory, in order."""
    found: list[tuple[QueueId, int, int]] = []
    for path in root.glob("*/*/COMMIT_LOG/*"):
        name = parse_segment_name(path.relative_to(root).as_posix())
        if name is not None and name.type is SegmentType.COMMIT_LOG and path.stat().st_size:
            found.append((name.queue, name.base, path.stat().st_size))
    found.sort()
    follow = [*found[1:], None]
    return [
        LogFile(
            queue,
            base,
            size,
            after[1] if after is not None and after[0] == queue else base + size,
        )
        for (queue, base, size), after in zip(found, follow, strict=True)
    ]


async def _publish(config: Config, operations: Sequence[Operation]) -> None:
    async with open_owner(config, clock=SystemClock(), imported=operations) as tier:
        await tier.close()  # the entry that takes the tier has published everything


class _Job:
    """One rebuild of everything."""

    def __init__(  # noqa: PLR0917 - one caller
        self,
        config: Config,
        root: Path,
        place: TierPlace,
        files: Sequence[LogFile],
        split_bytes: int,
        progress: Progress | None,
    ) -> None:
        self._config = config
        self._root = root
        self._place = place
        self._files = files
        self._split_bytes = split_bytes
        self._progress = progress
        self._units_per_file = config.tier.consume_queue_bytes_max // UNIT_BYTES
        self._topics = {
            name: number for number, name in enumerate(sorted({one.queue.topic for one in files}))
        }
        self._unsplit: set[str] = set()
        """Names of files that are scanned in one piece."""
        self._runs: dict[QueueId, tuple[UnitRun, ...]] = {}
        with_first = {one.queue: one for one in reversed(files)}
        for queue, first in with_first.items():
            self._runs[queue] = (unknown_end(self._first_offset(first), self._units_per_file),)
        self._group_of: dict[tuple[QueueId, int], str] = {}
        """Which index file the keys of a split go into, by queue and start."""

    def run(self, engine: Engine, staged: StagedFiles | None) -> tuple[_Round, str]:
        """Scan until everything fits together; what the last round gave, and where it staged."""
        for number in range(ROUNDS_MAX):
            tasks = self._tasks()
            directory = f"round-{number}"
            staging = "" if staged is None else f"{staged.directory}/{directory}"
            extent_bytes_max = self._config.tier.extent_bytes_max
            reducer = RebuildReducer(staging, extent_bytes_max=extent_bytes_max)
            made = self._scan(engine, tasks, reducer)
            if not self._differs(tasks, made):
                return made, directory
        raise Corrupt("the parts of a log do not meet, however it is split", str(self._root))

    def _scan(
        self, engine: Engine, tasks: Sequence[RebuildTask], reducer: RebuildReducer
    ) -> _Round:
        total, done = sum(task.split.end - task.split.start for task in tasks), 0

        def told(index: int) -> None:
            nonlocal done
            done += tasks[index].split.end - tasks[index].split.start
            if self._progress is not None:
                self._progress(done, total)

        made = _Round()
        for piece in engine.map_group(tasks, rebuild_item, reducer, progress=told):
            said = orjson.loads(piece.payload)
            if piece.target.startswith(LOG):
                made.logs[queue_of(piece.target)] = said
            elif piece.target.startswith(UNITS):
                made.units[piece.target.removeprefix(UNITS)] = said
            else:
                made.index[piece.target.removeprefix(INDEX)] = said
        return made

    def _tasks(self) -> list[RebuildTask]:
        tasks: list[RebuildTask] = []
        self._group_of.clear()
        held, group = 0, 0
        for file in self._files:
            for split in self._splits(file):
                if held >= INDEX_LOG_BYTES:
                    held, group = 0, group + 1
                held += split.end - split.start
                index: tuple[IndexPart, ...] = ()
                if self._config.keeps_index:
                    name = f"{group:08}"
                    self._group_of[split.queue, split.start] = name
                    index = (IndexPart(name, 0, INT64_MAX),)
                topic_id = self._topics[split.queue.topic]
                extent_bytes_max = self._config.tier.extent_bytes_max
                tasks.append(
                    RebuildTask(split, topic_id, self._runs[file.queue], index, extent_bytes_max)
                )
        return tasks

    def _splits(self, file: LogFile) -> Iterator[Split]:
        step = file.limit - file.base if file.name in self._unsplit else self._split_bytes
        pieces = (LogPiece(file.base, file.limit - file.base, file.name, 0),)
        for start in range(file.base, file.limit, step):
            end = min(start + step, file.limit)
            anchor = start if start == file.base else None
            yield Split(file.queue, start, end, anchor, file.limit, pieces, place=self._place)

    def _differs(self, tasks: Sequence[RebuildTask], made: _Round) -> bool:
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
                self._unsplit.add(pair.behind.pieces[0].object_name)
                self._unsplit.add(pair.before.pieces[0].object_name)
                again = True
            actual = runs_of(said)
            used = self._runs[queue]
            is_open = len(actual) == len(used) == 1 and used[0].first == actual[0][0]
            wanted = tuple(UnitRun(a, b, self._units_per_file) for a, b in actual)
            if not missed and wanted and not is_open and wanted != used:
                self._runs[queue] = wanted
                again = True
        return again

    def result(
        self, made: _Round, *, is_dry: bool
    ) -> tuple[list[Operation], list[tuple[str, str]], RebuildReport]:
        """What is to be published, which staged files go where, and the report."""
        now_ms = SystemClock().now_ms()
        operations: list[Operation] = []
        placed: list[tuple[str, str]] = []
        files: list[MadeFile] = []
        findings: list[Finding] = []
        messages = 0
        for queue, said in sorted(made.logs.items()):
            findings += gaps_told(str(queue), said)
            parts = QueueParts(
                queue,
                [(one.base, one.limit) for one in self._files if one.queue == queue],
                said,
                {name: made.units[name] for name in sorted(made.units) if _is_of(name, queue)},
            )
            try:
                record = queue_of_parts(parts, now_ms=now_ms)
            except Corrupt as error:
                findings.append(Finding("queue-left-out", str(queue), error.position, error.reason))
                continue
            messages += sum(one["records"] for one in said)
            operations.append(PutQueue(record))
            for name, unit in parts.units.items():
                placed.append((name, f"{UNITS}{name}"))
                files.append(MadeFile(name, unit["bytes"]))
        kept = {one.queue.id for one in operations if isinstance(one, PutQueue)}
        topics = [
            PutTopic(Topic(name, number, updated_ms=now_ms))
            for name, number in self._topics.items()
            if any(queue.topic == name for queue in kept)
        ]
        indexes: list[Operation] = []
        starts: dict[QueueId, list[int]] = {}
        for file in self._files:
            starts.setdefault(file.queue, []).extend(one.start for one in self._splits(file))
        first_free = first_free_number(self._root)
        for group, said in sorted(made.index.items()):
            coverage = [
                (queue, int(a), int(b))
                for queue in sorted(kept)
                for one, split_start in zip(made.logs[queue], starts[queue], strict=True)
                if self._group_of.get((queue, split_start)) == group
                for a, b in one["offsets"]
            ]
            file = index_file_of(first_free + len(indexes), said, coverage)
            indexes.append(PutIndexFile(file))
            placed.append((file.object_name, f"{INDEX}{group}"))
            files.append(MadeFile(file.object_name, said["bytes"]))
        findings += self._strangers({name for name, _ in placed})
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

    def _strangers(self, made: set[str]) -> Iterator[Finding]:
        """Derived files that were there and that nothing refers to from now on."""
        for kind in (SegmentType.CONSUME_QUEUE, SegmentType.INDEX):
            for path in sorted(self._root.glob(f"*/*/{kind.name}/*")):
                name = path.relative_to(self._root).as_posix()
                if name not in made and parse_segment_name(name) is not None:
                    yield Finding("orphan", name, 0, "nothing refers to it: it may be deleted")

    def _first_offset(self, file: LogFile) -> int:
        """Queue offset of the first record; 0 where it cannot be told, which a scan corrects."""
        head = bytearray(HEAD_BYTES)
        source = DirectorySource(self._root)
        count = source.read_into(file.name, 0, memoryview(head))
        source.close()
        try:
            header = RecordHeader.decode(bytes(head[:count]), path=file.name, position=0)
        except Corrupt:
            return 0
        return max(header.queue_offset, 0)


def _is_of(name: str, queue: QueueId) -> bool:
    parsed = parse_segment_name(name)
    return parsed is not None and parsed.queue == queue
