"""An export from plan to report: begun, gone on with, or brought up to date. Synchronous."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from container.errors import InUse
from container.names.queue_id import QueueId
from provider.errors import NotFound
from tieredstore.config.effective import Config
from tieredstore.offline.cutting import SPLIT_BYTES, extents_of
from tieredstore.offline.engine import Engine
from tieredstore.offline.export.continuing import (
    Gone,
    Reached,
    Source,
    gone,
    refuse_other_history,
)
from tieredstore.offline.export.ledger import DoneTask, Ledger, PlannedRun, PlannedTask
from tieredstore.offline.export.options import ExportOptions, Target, check_directory, columns_of
from tieredstore.offline.export.task import ExportTask, export_pieces, no_more
from tieredstore.offline.planning import TierPlan
from tieredstore.offline.split import LogPiece, Split, pieces_between
from tieredstore.offline.tables.open_tier import OpenTier
from tieredstore.offline.wanted_messages import WantedMessages


@dataclass(frozen=True, slots=True)
class TopicReport:
    """What an export has of one topic."""

    topic: str
    messages: int
    files: int
    bytes: int
    """Length of the files."""
    damaged: int
    """Stretches of logs in which no message could be read."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What a run did."""

    run: int
    tasks: int
    tasks_before: int
    """Of these, done by an earlier process."""
    topics: Sequence[TopicReport]
    """What the run wrote, earlier processes included."""


class Export:
    """A run that is planned: go on with `run`, or look at what it would do."""

    def __init__(
        self,
        directory: Path,
        about: Mapping[str, Any],
        tasks: Sequence[ExportTask],
        *,
        planned: PlannedRun,
        seen: PlannedRun | None,
        done: Mapping[int, DoneTask],
        gone: Sequence[Gone] = (),
    ) -> None:
        """`seen`: the newest run when this one was planned; `done`: tasks that need no doing."""
        self.gone = gone
        """What expired between the runs before and this one."""
        self._directory = directory
        self._about = about
        self._planned = planned
        self._tasks = tasks
        self._done = dict(done)
        self._seen = seen

    @property
    def waiting(self) -> Sequence[ExportTask]:
        """What is to be done."""
        return [task for task in self._tasks if task.number not in self._done]

    @property
    def bytes_waiting(self) -> int:
        """Bytes of logs that are to be read."""
        return sum(task.split.end - task.split.start for task in self.waiting)

    @property
    def queues(self) -> Mapping[QueueId, tuple[int, int]]:
        """Queue offsets `[from, to)` of the run, by queue."""
        return self._planned.offsets

    def run(self, engine: Engine, progress: Callable[[int], None] = lambda _: None) -> ExportReport:
        """Write what is not written yet; ended at any moment, the next one goes on from there.

        `progress` is told the bytes of logs that were read since the last call.

        Raises:
            InUse: another process writes this export.
            Corrupt: a message is damaged, and damage is not passed over.
            Unavailable, Denied: the storage does not answer or refuses.
            OSError: the directory cannot be written.
        """
        before = len(self._done)
        if not self._tasks and self._planned.number > 1:
            return ExportReport(self._planned.number, 0, 0, ())
        with Ledger(self._directory) as ledger:
            ledger.begin(self._about)
            last = ledger.last_run()
            if last is not None and last != self._seen:
                raise InUse("another process has written this export meanwhile: try again",
                            str(self._directory))  # fmt: skip
            ledger.remove_remains()
            ledger.plan(self._planned)
            waiting = self.waiting

            def told(index: int) -> None:
                split = waiting[index].split
                progress(split.end - split.start)

            engine.map_group(waiting, export_pieces, no_more, progress=told)
            self._done = ledger.done(self._planned.number)
        return ExportReport(self._planned.number, len(self._tasks), before, self._topics())

    def _topics(self) -> list[TopicReport]:
        of: dict[str, list[DoneTask]] = {}
        for task in self._tasks:
            of.setdefault(task.split.queue.topic, []).append(self._done[task.number])
        return [
            TopicReport(
                topic,
                sum(one.rows for one in done),
                sum(len(one.files) for one in done),
                sum(one.bytes for one in done),
                sum(one.damaged for one in done),
            )
            for topic, done in sorted(of.items())
        ]


def planned_export(
    config: Config,
    directory: Path,
    options: ExportOptions,
    *,
    split_bytes: int = SPLIT_BYTES,
    skips_damage: bool = False,
    java_metadata: Path | None = None,
    naming: str,
) -> Export:
    """What an export into a directory has to do now. Reads the metadata; writes nothing.

    In a directory without an export, one is begun. One that was ended in the middle goes on with
    its own plan, whatever was tiered since. One that is complete gets the messages that came since,
    in files of their own. Options that are not given are those it was begun with.

    Raises:
        ConfigError: other options than it was begun with, or another tier; or the directory has
            something else, or is a URL.
        NotFound: there is no tier, or no such topic, or messages of the plan have expired since.
        and as `planning.plan`.
    """
    check_directory(directory)
    ledger, target = Ledger(directory), Target("directory", str(directory))
    about = ledger.about()
    if about is not None:
        options = ExportOptions.kept(about).given_again(options, target)
    columns = columns_of(options)
    last = ledger.last_run()
    reached: Mapping[QueueId, Reached] = {} if last is None else last.reached
    ends = {str(queue): one.end for queue, one in reached.items()}
    java = None if java_metadata is None else str(java_metadata)
    with OpenTier(lambda: config, java, naming=naming) as tier:
        source = Source.of(tier.state())
        if about is not None:
            Source.kept(about).refuse_other(source, target)
        wanted = replace(options.wanted, starts=ends)
        queues = tier.queues(wanted)
        refuse_other_history(queues, reached, target)
        done = ledger.done(last.number) if last is not None else {}
        goes_on = last is not None and len(done) < len(last.tasks)
        found = tier.plan((options.wanted if goes_on else wanted).selection(queues), split_bytes)
    if last is not None and goes_on:
        made = [_split_again(task, last, found, options) for task in last.tasks]
        planned = last
        missed: list[Gone] = []
    else:
        made, done = list(found.splits), {}
        missed = gone(queues.values(), reached)
        planned = _next_run(found, wanted, last)
    about = {**source.as_kept(), "options": asdict(options)}
    tasks = [
        ExportTask(
            str(directory.absolute()), planned.number, number, split, columns,
            options.tags or (), skips_damage,
        )
        for number, split in enumerate(made)
    ]  # fmt: skip
    return Export(directory, about, tasks, planned=planned, seen=last, done=done, gone=missed)


def _next_run(found: TierPlan, wanted: WantedMessages, last: PlannedRun | None) -> PlannedRun:
    """A run over what the tier has and the runs before did not have."""
    reached: dict[QueueId, Reached] = {} if last is None else dict(last.reached)
    offsets = {queue: (one.end, one.end) for queue, one in reached.items()}
    for queue in found.segments:
        record = found.state.queues[queue]
        first = max(wanted.starts.get(str(queue), 0), record.min_offset)
        offsets[queue] = (first, max(first, record.next_offset))
        reached[queue] = Reached(offsets[queue][1], record.generation)
    tasks = [
        PlannedTask(split.queue, split.start, split.end, split.anchor, split.limit)
        for split in found.splits
    ]
    return PlannedRun(1 if last is None else last.number + 1, offsets, tasks, reached)


def _split_again(
    task: PlannedTask, run: PlannedRun, found: TierPlan, options: ExportOptions
) -> Split:
    """The split of a task, by where its bytes lie now."""
    first = task.start if task.anchor is None else task.anchor
    pieces = pieces_between(_pieces(found, task.queue), first, task.limit)
    if not pieces or pieces[0].position > first or pieces[-1].end < task.limit:
        raise NotFound(
            f"messages of {task.queue} that the export was to have are not in the tier any more: "
            f"remove its directory and begin again",
            found.place.location,
        )
    return Split(
        task.queue, task.start, task.end, task.anchor, task.limit, pieces,
        run.offsets[task.queue], options.wanted.times_ms, found.place,
    )  # fmt: skip


def _pieces(found: TierPlan, queue: QueueId) -> Sequence[LogPiece]:
    record = found.state.queues.get(queue)
    if record is None:
        return ()
    return [extent.piece for extent in extents_of(record, found.segments.get(queue, ()))]
