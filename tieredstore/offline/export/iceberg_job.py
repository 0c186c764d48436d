"""Export into an Iceberg table: missing messages, in portions of one snapshot each."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import NamedTuple, Self
from uuid import uuid4

import pyarrow as pa
from pyiceberg.io.pyarrow import pyarrow_to_schema, write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Table, WriteTask

from container.errors import InUse
from container.names.queue_id import QueueId
from provider.errors import Unavailable
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.offline.export.day_files import WrittenFile, is_period, rows_by_period
from tieredstore.offline.export.iceberg_table import (
    ExportTable,
    Origin,
    TableName,
    TableState,
    as_table_rows,
    columns_with_origin,
    table_columns,
)
from tieredstore.offline.export.job import (
    ExportQueues,
    ExportReport,
    queues_of_export,
    report_of,
)
from tieredstore.offline.export.ledger import DoneTask
from tieredstore.offline.export.options import (
    NO_SKIPS,
    ExportOptions,
    ExportSource,
    Gone,
    Reached,
    Skips,
    Span,
    Target,
    gone,
    other_history_text,
    refuse_older,
)
from tieredstore.offline.export.task import ExportScan, as_they_are
from tieredstore.offline.jobs.engine import Engine, Piece
from tieredstore.offline.scan.planning import (
    SPLIT_BYTES,
    LogExtent,
    TierPlan,
    extents_of,
    offsets_between,
)
from tieredstore.offline.scan.scanner import schema_of
from tieredstore.offline.scan.sources import source_of
from tieredstore.offline.scan.split import Split
from tieredstore.offline.tables.open_tier import OpenTier

# pyarrow ships no types.


FILE_BYTES = 64 << 20
"""Of rows as Arrow has them, in most files."""
HELD_BYTES = 128 << 20
"""Of rows of all days, above which the largest day is written."""
FILES = "files"


@dataclass(frozen=True, slots=True)
class TableTask:
    """A split of an export into a table. Can be pickled; holds no secret."""

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
    origin: Origin = ()
    per_day: int = 1
    """As in `partition_of`."""


class WrittenSplit(NamedTuple):
    """Result of a task: its data files, and the same as counts."""

    queue: QueueId
    files: Sequence[DataFile]
    done: DoneTask


def written_pieces(task: TableTask) -> Iterator[Piece]:
    """`write_split` as an engine's mapper."""
    yield Piece(FILES, task.number, pickle.dumps(write_split(task)))


def written_of(piece: Piece) -> WrittenSplit:
    """Unpickle the result of a task."""
    return pickle.loads(piece.payload)  # noqa: S301 - of a worker of ours


def write_split(task: TableTask) -> WrittenSplit:
    """Write the data files of a split. Done twice, it writes them twice, and one is committed.

    Memory: that of a scan, `HELD_BYTES`, and what compressing `FILE_BYTES` takes.

    Raises:
        Corrupt: a message is damaged, and damage is not passed over.
        BytesMissing: published bytes are not in the storage, and that is not passed over.
        Unavailable, Denied: as `scan`, or of the catalog.
        InUse: the table was recreated meanwhile.
        OSError: the table's place cannot be written.
    """
    table = ExportTable(task.table).loaded()
    if table is None or str(table.metadata.table_uuid) != task.table_uuid:
        raise InUse("the table was dropped or made again meanwhile", str(task.table))
    scanned = ExportScan(
        task.split, task.offsets, task.columns, task.tags, task.skips, task.per_day
    )
    with closing(source_of(task.split.place)) as read, _DayRows(table, task) as held:
        for rows, days in scanned.rows(read):
            for day, part in rows_by_period(as_table_rows(rows, task.origin), days, task.per_day):
                held.add(day, part)
    files = [
        WrittenFile(one.file_path, one.record_count, one.file_size_in_bytes) for one in held.files
    ]
    return WrittenSplit(task.split.queue, held.files, scanned.done(files))


class _DayRows:
    """Rows that wait until they are enough for a file."""

    def __init__(self, table: Table, task: TableTask) -> None:
        there = table.schema().column_names
        names = columns_with_origin(schema_of(task.columns).names, task.origin)
        missing = [one for one in names if one not in there]
        if missing:
            raise ConfigError(f"{task.table} has no column {missing[0]} any more")
        self._table = table
        self._topic = task.split.queue.topic
        self._per_day = task.per_day
        self._uuid = uuid4()
        self._numbers = count()
        self._held: dict[int, list[pa.RecordBatch]] = {}
        self._bytes: dict[int, int] = {}
        self.files: list[DataFile] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write the waiting splits; after an exception, remove the written files."""
        if kind is None:
            for day in sorted(self._held):
                self._write(day)
            return
        for file in self.files:
            with suppress(Exception):  # they are in no table, whether they can be deleted or not
                self._table.io.delete(file.file_path)

    def add(self, day: int, rows: pa.RecordBatch) -> None:
        """Add rows of one day or hour."""
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
            PartitionFieldValue(by_day, day if is_period(day, self._per_day) else None),
        ]
        task = WriteTask(
            self._uuid,
            next(self._numbers),
            pyarrow_to_schema(batches[0].schema, name_mapping=schema.name_mapping),
            batches,
            partition_key=PartitionKey(values, spec, schema),
        )
        self.files += write_file(self._table.io, table, iter([task]))


SNAPSHOT_BYTES = 4 << 30
"""Bytes of logs of a snapshot: a killed run repeats at most these."""


@dataclass(frozen=True, slots=True)
class Portion:
    """Content of a snapshot: the splits that it adds."""

    covers: Mapping[QueueId, Span]
    """Queue offsets `[from, to)`."""
    splits: Sequence[Split]
    offsets: Sequence[Span]
    """Queue offsets between which the messages of each split lie."""


class TableExport:
    """A planned export: run it, or show its plan."""

    def __init__(
        self,
        table: ExportTable,
        portions: Sequence[Portion],
        *,
        seen: TableState | None,
        begun: TableState,
        planned: TierPlan,
        gone: Sequence[Gone],
        refused: Sequence[str],
        skips: Skips,
        has_lease: bool,
    ) -> None:
        """`seen`: state of the table at planning time; `begun`: the same, or a new table's."""
        self.gone = gone
        """Messages that expired between the previous run and this one."""
        self._table = table
        self._portions = portions
        self._seen = seen
        self._state = begun
        self._planned = planned
        self._options = ExportOptions.kept(begun.about)
        self._skips = skips
        self._has_lease = has_lease
        self._is_there = seen is not None
        self.refused = refused
        """Sentences of queues that the export takes no more messages of."""

    @property
    def waiting(self) -> Sequence[Split]:
        """Splits that are not written yet."""
        return [split for portion in self._portions for split in portion.splits]

    @property
    def bytes_waiting(self) -> int:
        """Bytes of logs that are to be read."""
        return sum(split.end - split.start for split in self.waiting)

    @property
    def topics(self) -> set[str]:
        """Wanted topics that the tier has, with new messages or without."""
        return {queue.topic for queue in self._planned.segments}

    @property
    def before(self) -> int:
        """Number of the last commit of the export when this one was planned; 0: none."""
        return 0 if self._seen is None else self._seen.number

    @property
    def after(self) -> int:
        """Number of its last commit so far."""
        return self._state.number

    def locked(self) -> AbstractContextManager[object]:
        """Keep other followers out of the table during a block. Creates a missing table.

        Of two commits after one state, the table takes the first, also without it.

        Raises:
            InUse: another process follows into the table, or created it meanwhile.
            and as `ExportTable.create`.
        """
        self._create()
        self._has_lease = True
        return self._table.lease()

    @property
    def queues(self) -> Mapping[QueueId, Span]:
        """Queue offsets `[from, to)` of the run, by queue."""
        found: dict[QueueId, Span] = {}
        for portion in self._portions:
            for queue, (first, end) in portion.covers.items():
                found[queue] = (found.get(queue, (first, end))[0], end)
        return found

    def run(self, engine: Engine, progress: Callable[[int], None] = lambda _: None) -> ExportReport:
        """Write the data files of each portion, then commit them.

        If the run ends at any moment, the table has whole portions, and the next run continues
        after them. `progress` receives the bytes of logs read since the last call.

        Raises:
            InUse: another process exports into the table.
            Corrupt: a message is damaged, and damage is not passed over.
            BytesMissing: published bytes are not in the storage, and that is not passed over.
            Unavailable, Denied: the storage or the catalog does not answer or refuses.
            ConfigError: the table was changed by another program, so it cannot be continued.
            OSError: the table's place cannot be written.
        """
        self._create()
        is_free = self._has_lease or not self._table.is_leased()
        with nullcontext() if is_free else self._table.lease():
            return self._commit_portions(engine, progress)

    def _create(self) -> None:
        if not self._is_there:
            self._table.create(table_columns(self._options), self._state)
            self._is_there = True

    def _commit_portions(self, engine: Engine, progress: Callable[[int], None]) -> ExportReport:
        written: list[WrittenSplit] = []
        for portion in self._portions:
            done = self._written(portion, engine, progress)
            after = self._state.behind(portion.covers, self._planned)
            files = [file for one in done for file in one.files]
            self._table.commit(files, before=self._state, after=after, covers=portion.covers)
            self._state = after
            written += done
        done = [(one.queue, one.done) for one in written]
        return report_of(self._state.number, len(self.waiting), done)

    def _written(
        self, portion: Portion, engine: Engine, progress: Callable[[int], None]
    ) -> list[WrittenSplit]:
        table = self._table.loaded()
        if table is None:
            raise Unavailable("the table was dropped meanwhile", str(self._table.name))
        columns = table_columns(self._options)
        tasks = [
            TableTask(
                self._table.name, str(table.metadata.table_uuid), number, split,
                offsets, columns, self._options.tags or (), self._skips, self._table.origin,
                self._options.periods_per_day,
            )
            for number, (split, offsets) in enumerate(
                zip(portion.splits, portion.offsets, strict=True)
            )
        ]  # fmt: skip

        def report(index: int) -> None:
            progress(portion.splits[index].end - portion.splits[index].start)

        pieces = engine.map_group(tasks, written_pieces, as_they_are, progress=report)
        return [written_of(piece) for piece in pieces]


def planned_table_export(
    config: Config,
    name: TableName,
    options: ExportOptions,
    *,
    split_bytes: int = SPLIT_BYTES,
    snapshot_bytes: int = SNAPSHOT_BYTES,
    skips: Skips = NO_SKIPS,
    java_metadata: Path | None = None,
    naming: str,
    is_alone: bool = True,
    has_lease: bool = False,
) -> TableExport:
    """Plan an export into a table. Reads metadata and the catalog; writes nothing.

    The run creates a missing table. A table of an earlier export gets the messages that came since.
    Missing options are those of the first run. Unless it `is_alone`, the table is of several
    brokers, and another one may have a topic. Such a table has the columns `cluster` and `broker`,
    and a state for each broker. `has_lease`: the process has that of an earlier plan.

    Raises:
        ConfigError: the options or the tier differ from those of the first run, or the tier was
            created again; or the catalog is not configured, or no export made the table.
        NotFound: there is no tier, or no such topic.
        and as `planning.plan` and `ExportTable`.
    """
    origin = () if is_alone else (config.cluster, config.broker)
    table, target = ExportTable(name, origin), Target("table", str(name))
    seen = table.state()
    about = table.about_others() if seen is None else seen.about
    if about is not None:
        options = ExportOptions.kept(about).given_again(options, target)
    table_columns(options)
    reached: Mapping[QueueId, Reached] = {} if seen is None else seen.reached
    java = None if java_metadata is None else str(java_metadata)
    with OpenTier(lambda: config, java, naming=naming) as tier:
        source = ExportSource.of(tier.state())
        if seen is not None:
            ExportSource.kept(seen.about).refuse_other(source, target)
            refuse_older(tier, seen.seen, target)
        ends = {str(queue): one.end for queue, one in reached.items()}
        wanted = replace(options.wanted, starts=ends)

        def planned_tier() -> tuple[ExportQueues, TierPlan, list[Portion]]:
            queues = queues_of_export(tier, wanted, reached, is_new=seen is None and is_alone)
            selection = wanted.selection(queues.there)
            found = tier.plan(selection, split_bytes)
            portions: list[Portion] = []
            extents = _extents(found)
            for covers in portions_of(extents, _spans(found, reached), snapshot_bytes):
                part = tier.plan(replace(selection, by_queue=covers), split_bytes).splits
                within = [_within(one, extents, covers) for one in part]
                portions.append(Portion(covers, part, within))
            return queues, found, portions

        queues, found, portions = tier.by_newest(planned_tier)
    begun = seen or TableState.begun({**source.as_kept(), "options": asdict(options)})
    return TableExport(
        table, portions, seen=seen, begun=begun, planned=found,
        gone=gone(queues.there.values(), reached), skips=skips,
        has_lease=has_lease,
        refused=[other_history_text(one, reached[one], target) for one in queues.others],
    )  # fmt: skip


def portions_of(
    extents: Mapping[QueueId, Sequence[LogExtent]], spans: Mapping[QueueId, Span], bytes_max: int
) -> list[dict[QueueId, Span]]:
    """Return the queue offsets of each snapshot, by queue: about `bytes_max` of logs together.

    A portion ends at the end of an extent, so no extent is read twice. Extents of a Java tier have
    no offsets, so its queues are not divided. Each offset of `spans` is in exactly one portion.
    """
    made: list[dict[QueueId, Span]] = [{}]
    held = 0
    for queue, (first, last) in sorted(spans.items()):
        begin = first
        for extent in extents.get(queue, ()):
            if extent.first_offset >= last or extent.next_offset <= first:
                continue
            held += extent.piece.length
            end = min(extent.next_offset, last)
            if held >= bytes_max and begin < end < last:
                made[-1][queue] = (begin, end)
                made.append({})
                begin, held = end, 0
        if begin < last:
            made[-1][queue] = (begin, last)
        if held >= bytes_max:
            made.append({})
            held = 0
    return [covers for covers in made if covers]


def _within(
    split: Split, extents: Mapping[QueueId, Sequence[LogExtent]], covers: Mapping[QueueId, Span]
) -> Span:
    """Queue offsets between which the messages of a split lie."""
    low, high = covers[split.queue]
    first, end = offsets_between(extents[split.queue], split.start, split.end)
    return max(low, first), min(high, end)


def _extents(found: TierPlan) -> dict[QueueId, Sequence[LogExtent]]:
    return {
        queue: extents_of(found.state.queues[queue], segments)
        for queue, segments in found.segments.items()
    }


def _spans(found: TierPlan, reached: Mapping[QueueId, Reached]) -> dict[QueueId, Span]:
    """Queue offsets that the table lacks, of each queue that has some."""
    spans: dict[QueueId, Span] = {}
    for queue in found.segments:
        record = found.state.queues[queue]
        first = max(reached.get(queue, Reached(0)).end, record.min_offset)
        if first < record.next_offset:
            spans[queue] = (first, record.next_offset)
    return spans
