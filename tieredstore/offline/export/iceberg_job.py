"""An export into an Iceberg table: what the table lacks, in portions of one snapshot each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from provider.errors import Unavailable
from tieredstore.config.effective import Config
from tieredstore.offline.cutting import SPLIT_BYTES, LogExtent, extents_of, offsets_between
from tieredstore.offline.engine import Engine
from tieredstore.offline.export.continuing import (
    Gone,
    Reached,
    Source,
    Span,
    Told,
    gone,
    gone_of,
    other_history,
    other_history_text,
)
from tieredstore.offline.export.iceberg_schema import table_columns
from tieredstore.offline.export.iceberg_table import ExportTable, TableName, TableState
from tieredstore.offline.export.iceberg_task import (
    TableTask,
    WrittenSplit,
    written_of,
    written_pieces,
)
from tieredstore.offline.export.job import ExportReport, TopicReport
from tieredstore.offline.export.options import NO_SKIPS, ExportOptions, Skips, Target
from tieredstore.offline.export.task import as_they_are
from tieredstore.offline.planning import TierPlan
from tieredstore.offline.split import Split
from tieredstore.offline.tables.open_tier import OpenTier

SNAPSHOT_BYTES = 4 << 30
"""Of logs, whose messages become visible by one snapshot: what a run that is killed does again."""


@dataclass(frozen=True, slots=True)
class Portion:
    """What one snapshot adds."""

    covers: Mapping[QueueId, Span]
    """Queue offsets `[from, to)`."""
    splits: Sequence[Split]
    offsets: Sequence[Span]
    """Queue offsets between which the messages of each split lie."""


class TableExport:
    """An export that is planned: run it, or look at what it would do."""

    def __init__(
        self,
        table: ExportTable,
        portions: Sequence[Portion],
        *,
        seen: TableState | None,
        begun: TableState,
        queues: Mapping[QueueId, Queue],
        gone: Sequence[Gone],
        refused: Sequence[str],
        skips: Skips,
    ) -> None:
        """`seen`: what the table said when this was planned; `begun`: the same, or of a new one."""
        self.gone = gone
        """What expired between the runs before and this one."""
        self._table = table
        self._portions = portions
        self._seen = seen
        self._state = begun
        self._generations = {name: queue.generation for name, queue in queues.items()}
        self._options = ExportOptions.kept(begun.about)
        self._skips = skips
        self.refused = refused
        """Sentences of queues that the export takes no more messages of."""

    @property
    def waiting(self) -> Sequence[Split]:
        """What is to be done."""
        return [split for portion in self._portions for split in portion.splits]

    @property
    def bytes_waiting(self) -> int:
        """Bytes of logs that are to be read."""
        return sum(split.end - split.start for split in self.waiting)

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

        Ended at any moment, the table has whole portions, and the next run begins behind them.
        `progress` is told the bytes of logs that were read since the last call.

        Raises:
            InUse: another process exports into the table.
            Corrupt: a message is damaged, and damage is not passed over.
            BytesMissing: published bytes are not in the storage, and that is not passed over.
            Unavailable, Denied: the storage or the catalog does not answer or refuses.
            ConfigError: somebody changed the table so that it cannot be gone on with.
            OSError: the table's place cannot be written.
        """
        if self._seen is None:
            self._table.create(table_columns(self._options), self._state)
        written: list[WrittenSplit] = []
        for portion in self._portions:
            done = self._written(portion, engine, progress)
            after = self._state.behind(portion.covers, self._generations)
            files = [file for one in done for file in one.files]
            self._table.commit(files, before=self._state, after=after, covers=portion.covers)
            self._state = after
            written += done
        gone = gone_of(Told(one.queue, one.gone, one.read) for one in written)
        return ExportReport(self._state.number, len(self.waiting), 0, _topics(written, gone), gone)

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
                offsets, columns, self._options.tags or (), self._skips,
            )
            for number, (split, offsets) in enumerate(
                zip(portion.splits, portion.offsets, strict=True)
            )
        ]  # fmt: skip

        def told(index: int) -> None:
            progress(portion.splits[index].end - portion.splits[index].start)

        pieces = engine.map_group(tasks, written_pieces, as_they_are, progress=told)
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
) -> TableExport:
    """What an export into a table has to do now. Reads metadata and the catalog; writes nothing.

    A table that is not there is to be made. One that an export made gets what came since. Options
    that are not given are those it was begun with.

    Raises:
        ConfigError: other options than it was begun with, or another tier, or one that was made
            again; or the catalog is not configured, or the table is none of an export.
        NotFound: there is no tier, or no such topic.
        and as `planning.plan` and `ExportTable`.
    """
    table, target = ExportTable(name), Target("table", str(name))
    seen = table.state()
    if seen is not None:
        options = ExportOptions.kept(seen.about).given_again(options, target)
    table_columns(options)
    reached: Mapping[QueueId, Reached] = {} if seen is None else seen.reached
    java = None if java_metadata is None else str(java_metadata)
    with OpenTier(lambda: config, java, naming=naming) as tier:
        source = Source.of(tier.state())
        if seen is not None:
            Source.kept(seen.about).refuse_other(source, target)
        ends = {str(queue): one.end for queue, one in reached.items()}
        wanted = replace(options.wanted, starts=ends)
        queues = tier.queues(wanted) if seen is None else tier.queues_there(wanted)
        others = other_history(queues, reached)
        queues = {name: queue for name, queue in queues.items() if name not in others}
        selection = wanted.selection(queues)
        found = tier.plan(selection, split_bytes)
        portions: list[Portion] = []
        extents = _extents(found)
        for covers in portions_of(extents, _spans(found, reached), snapshot_bytes):
            part = tier.plan(replace(selection, by_queue=covers), split_bytes).splits
            portions.append(Portion(covers, part, [_within(one, extents, covers) for one in part]))
    begun = seen or TableState.begun({**source.as_kept(), "options": asdict(options)})
    return TableExport(
        table, portions, seen=seen, begun=begun, queues=found.state.queues,
        gone=gone(queues.values(), reached), skips=skips,
        refused=[other_history_text(one, reached[one], target) for one in sorted(others)],
    )  # fmt: skip


def portions_of(
    extents: Mapping[QueueId, Sequence[LogExtent]], spans: Mapping[QueueId, Span], bytes_max: int
) -> list[dict[QueueId, Span]]:
    """What each snapshot covers: queue offsets by queue, of some `bytes_max` of logs together.

    A portion ends where an extent does, so that none is read twice; those of a Java tier say
    nothing of offsets, so there a queue is not cut. Each offset of `spans` is in one portion.
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


def _topics(written: Sequence[WrittenSplit], gone: Sequence[Gone]) -> list[TopicReport]:
    of: dict[str, list[WrittenSplit]] = {}
    for one in written:
        of.setdefault(one.queue.topic, []).append(one)
    return [
        TopicReport(
            topic,
            sum(file.record_count for one in done for file in one.files),
            sum(len(one.files) for one in done),
            sum(file.file_size_in_bytes for one in done for file in one.files),
            sum(one.damaged for one in done),
            sum(one.end - one.start for one in gone if one.queue.topic == topic),
            sum(one.null_times for one in done),
        )
        for topic, done in sorted(of.items())
    ]
