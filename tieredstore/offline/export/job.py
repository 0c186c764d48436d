"""An export from plan to report: begun, gone on with, or brought up to date. Synchronous."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from tieredstore.config.effective import Config
from tieredstore.config.location import Location
from tieredstore.offline.export.day_files import files_by_task, partition_of
from tieredstore.offline.export.export_directory import ExportPlace, directory_at
from tieredstore.offline.export.joining import Joined, joined
from tieredstore.offline.export.ledger import DoneTask, Ledger, PlannedRun, PlannedTask, met
from tieredstore.offline.export.options import (
    NO_SKIPS,
    ExportOptions,
    ExportSource,
    Gone,
    Reached,
    Skips,
    Target,
    TaskRead,
    columns_of,
    gone,
    gone_of,
    other_history,
    other_history_text,
    refuse_older,
)
from tieredstore.offline.export.task import ExportTask, as_they_are, export_pieces
from tieredstore.offline.jobs.engine import Engine
from tieredstore.offline.scan.planning import (
    SPLIT_BYTES,
    LogExtent,
    TierPlan,
    WantedMessages,
    extents_of,
    offsets_between,
)
from tieredstore.offline.scan.relocation import DELETED, EXPIRED, REPLACED
from tieredstore.offline.scan.split import NOT_KNOWN, Split, pieces_between
from tieredstore.offline.tables.open_tier import OpenTier

PARTITIONS = "partitions"
"""In a ledger: how partitions are named; an older program's has no such line."""


@dataclass(frozen=True, slots=True)
class TopicReport:
    """Counts of an export for a topic."""

    topic: str
    messages: int
    files: int
    bytes: int
    """Length of the files."""
    damaged: int
    """Stretches of logs in which no message could be read."""
    gone: int = 0
    """Queue offsets that left the tier before they were exported."""
    null_times: int = 0
    """Times that are null, because they are in no year from 1 to 9999."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """Result of a run."""

    run: int
    tasks: int
    tasks_before: int
    """Of these, done by an earlier process."""
    topics: Sequence[TopicReport]
    """Output of the run by topic, earlier processes included."""
    gone: Sequence[Gone] = ()
    """Messages that left the tier before this run could write them."""
    missing: Sequence[str] = ()
    """Why tasks are not done: published bytes are not in the storage. The next run tries again."""

    @property
    def is_whole(self) -> bool:
        """Whether the export has every message that it was to have."""
        lacks = any(topic.damaged or topic.gone for topic in self.topics)
        return not (lacks or self.gone or self.missing)


class Export:
    """A planned run: start it with `run`, or show its plan."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        about: Mapping[str, Any],
        tasks: Sequence[ExportTask],
        *,
        planned: PlannedRun,
        seen: PlannedRun | None,
        done: Mapping[int, DoneTask],
        gone: Sequence[Gone] = (),
        refused: Sequence[str] = (),
    ) -> None:
        """`seen`: the newest run when this one was planned; `done`: tasks that need no doing.

        `name`: of the directory, for errors.
        """
        self.refused = refused
        """Sentences of queues that the export takes no more messages of."""
        self.gone = gone
        """Messages that expired between the previous run and this one."""
        self.ledger = ledger
        """Ledger of the directory, for a later plan."""
        self._name = name
        self._about = about
        self._planned = planned
        self._tasks = tasks
        self._done = dict(done)
        self._seen = seen

    @property
    def waiting(self) -> Sequence[ExportTask]:
        """Tasks that are not done yet."""
        return [task for task in self._tasks if task.number not in self._done]

    @property
    def bytes_waiting(self) -> int:
        """Bytes of logs that are to be read."""
        return sum(task.bytes for task in self.waiting)

    @property
    def topics(self) -> set[str]:
        """Wanted topics that the tier has, with new messages or without."""
        return {queue.topic for queue in self._planned.offsets}

    @property
    def before(self) -> int:
        """Number of the newest run of the export when this one was planned; 0: none."""
        return 0 if self._seen is None else self._seen.number

    @property
    def after(self) -> int:
        """Number of the newest run after `run`."""
        return self.before if self._adds_nothing else self._planned.number

    @property
    def _adds_nothing(self) -> bool:
        return not self._tasks and self._planned.number > 1

    def locked(self) -> AbstractContextManager[None]:
        """Keep other writers out of the directory during a block; raises as `Ledger.locked`."""
        return self.ledger.locked()

    @property
    def queues(self) -> Mapping[QueueId, tuple[int, int]]:
        """Queue offsets `[from, to)` of the run, by queue."""
        return self._planned.offsets

    def run(self, engine: Engine, progress: Callable[[int], None] = lambda _: None) -> ExportReport:
        """Write the files of the waiting tasks.

        If the run ends at any moment, the next one continues from there. `progress` receives the
        bytes of logs read since the last call.

        Raises:
            InUse: another process writes this export.
            Corrupt: a message is damaged, and damage is not passed over.
            Unavailable, Denied: the storage does not answer or refuses.
            OSError: the directory cannot be written.
        """
        before = len(self._done)
        if self._adds_nothing:
            return ExportReport(self._planned.number, 0, 0, ())
        ledger = self.ledger
        with ledger.locked():
            last = ledger.last_run()
            if last != self._seen:
                raise met(self._name)
            ledger.begin(self._about)
            if last != self._planned:
                ledger.plan(self._planned)
            waiting = self.waiting

            missing = engine.map_group(
                waiting,
                export_pieces,
                as_they_are,
                progress=lambda index: progress(waiting[index].bytes),
            )
            self._done = ledger.done(self._planned.number)
        done = [
            (task.queue, self._done[task.number])
            for task in self._tasks
            if task.number in self._done
        ]
        reasons = [piece.payload.decode() for piece in missing]
        return report_of(self._planned.number, len(self._tasks), done, before, reasons)

    def join(self, top: Path, *, files_min: int) -> Joined:
        """Join small files of all runs, if none of them is unfinished. Of a directory.

        `top` and `files_min` as in `joined`.

        Raises:
            InUse: another process writes this export.
            and as `joined`.
        """
        with self.ledger.locked():
            last = self.ledger.last_run()
            if last is None or len(self.ledger.done(last.number)) < len(last.tasks):
                return Joined(0, 0)
            return joined(Path(self._name), top=top, files_min=files_min)


def report_of(
    run: int,
    tasks: int,
    done: Sequence[tuple[QueueId, DoneTask]],
    before: int = 0,
    missing: Sequence[str] = (),
) -> ExportReport:
    """The report of a run of `tasks` tasks, of which these are done."""
    gone = gone_of(TaskRead(queue, one.gone, one.read) for queue, one in done)
    of: dict[str, list[DoneTask]] = {}
    for queue, one in done:
        of.setdefault(queue.topic, []).append(one)
    topics = [
        TopicReport(
            topic,
            sum(one.rows for one in some),
            sum(len(one.files) for one in some),
            sum(one.bytes for one in some),
            sum(one.damaged for one in some),
            sum(one.end - one.start for one in gone if one.queue.topic == topic),
            sum(one.null_times for one in some),
        )
        for topic, some in sorted(of.items())
    ]
    return ExportReport(run, tasks, before, topics, gone, missing)


def planned_export(
    config: Config,
    directory: Location,
    options: ExportOptions,
    *,
    split_bytes: int = SPLIT_BYTES,
    skips: Skips = NO_SKIPS,
    java_metadata: Path | None = None,
    naming: str,
    is_alone: bool = True,
    ledger: Ledger | None = None,
) -> Export:
    """Plan an export into a directory. Reads the metadata; writes nothing.

    A directory without an export gets a new one. An interrupted export continues its own plan,
    whatever was tiered since: finished tasks stay, and messages that left the tier are counted. A
    complete export gets the messages that came since, in files of their own. Missing options are
    those of the first run. A queue whose topic was created again gets no further messages, because
    its offsets mean other messages now. Unless it `is_alone`, another broker may have a topic.
    The `ledger` of an earlier plan may be locked.

    Raises:
        ConfigError: the options or the tier differ from those of the first run; or the directory
            holds other files.
        NotFound: there is no tier, or a new export names a missing topic.
        and as `planning.plan`.
    """
    place, target = ExportPlace.of(directory, config), Target("directory", str(directory))
    ledger = ledger or Ledger(directory_at(place), str(directory))
    about = ledger.about()
    if about is not None:
        options = ExportOptions.kept(about).given_again(options, target)
    columns = columns_of(options)
    last = ledger.last_run()
    reached: Mapping[QueueId, Reached] = {} if last is None else last.reached
    with OpenTier(lambda: config, java_metadata and str(java_metadata), naming=naming) as tier:
        source = ExportSource.of(tier.state())
        if about is not None:
            ExportSource.kept(about).refuse_other(source, target)
        refuse_older(tier, NOT_KNOWN if last is None else last.seen, target)
        wanted = replace(options.wanted, starts={str(one): reached[one].end for one in reached})
        done = ledger.done(last.number) if last is not None else {}
        goes_on = last is not None and len(done) < len(last.tasks)

        def planned_tier() -> tuple[ExportQueues, TierPlan]:
            queues = queues_of_export(tier, wanted, reached, is_new=about is None and is_alone)
            selection = (options.wanted if goes_on else wanted).selection(queues.there)
            return queues, tier.plan(selection, split_bytes)

        queues, found = tier.by_newest(planned_tier)
    planned = last
    if planned is None or not goes_on:
        planned, done = _next_run(found, wanted, last), {}
    whole = ExportTask(
        place, planned.number, 0, QueueId("", 0), 0, (0, 0), None, columns, options.tags or (),
        skips, (), about is not None and PARTITIONS not in about, options.periods_per_day,
    )  # fmt: skip
    before = files_by_task(ledger.directory) if goes_on else {}
    tasks = _tasks(whole, planned, found, options, done=done, before=before)
    return Export(
        ledger,
        str(directory),
        about or {**source.as_kept(), "options": asdict(options), PARTITIONS: "hive"},
        tasks,
        planned=planned,
        seen=last,
        done=done,
        gone=[] if goes_on else gone(queues.there.values(), reached),
        refused=[other_history_text(one, reached[one], target) for one in queues.others],
    )


class ExportQueues(NamedTuple):
    """Queues of an export in the tier."""

    there: Mapping[QueueId, Queue]
    """Queues that it takes messages of."""
    others: Sequence[QueueId]
    """Queues whose topic was created again since."""


def queues_of_export(
    tier: OpenTier, wanted: WantedMessages, reached: Mapping[QueueId, Reached], *, is_new: bool
) -> ExportQueues:
    """The queues of an export that has reached these offsets.

    Raises:
        NotFound: a new export names a missing topic.
    """
    queues = tier.queues(wanted) if is_new else tier.queues_there(wanted)
    others = other_history(queues, reached)
    there = {name: queue for name, queue in queues.items() if name not in others}
    return ExportQueues(there, sorted(others))


def _next_run(found: TierPlan, wanted: WantedMessages, last: PlannedRun | None) -> PlannedRun:
    """A run over what the tier has and the runs before did not have."""
    reached: dict[QueueId, Reached] = {} if last is None else dict(last.reached)
    offsets = {queue: (one.end, one.end) for queue, one in reached.items()}
    for queue in found.segments:
        record = found.state.queues[queue]
        first = max(wanted.starts.get(str(queue), 0), record.min_offset)
        offsets[queue] = (first, max(first, record.next_offset))
        reached[queue] = Reached(offsets[queue][1], record.generation)
    extents = {queue: _extents(found, queue) for queue in found.segments}
    tasks = [
        PlannedTask(
            split.queue, split.start, split.end, split.anchor, split.limit,
            *offsets_between(extents[split.queue], split.start, split.end),
        )
        for split in found.splits
    ]  # fmt: skip
    number = 1 if last is None else last.number + 1
    return PlannedRun(number, offsets, tasks, reached, found.seen)


def _tasks(
    like: ExportTask,
    run: PlannedRun,
    found: TierPlan,
    options: ExportOptions,
    *,
    done: Mapping[int, DoneTask],
    before: Mapping[str, Sequence[str]],
) -> list[ExportTask]:
    """The tasks of a run; `before`: as `files_by_task`."""
    made: list[ExportTask] = []
    for number in range(len(run.tasks)):
        one = _task(like, number, run, found, options, is_done=number in done)
        topic, _ = partition_of(one.queue.topic, 0, as_older=like.as_older).split("/")
        made.append(replace(one, before=tuple(before.get(f"{topic}/{one.name}", ()))))
    return made


def _task(
    like: ExportTask,
    number: int,
    run: PlannedRun,
    found: TierPlan,
    options: ExportOptions,
    *,
    is_done: bool,
) -> ExportTask:
    """Return a task of a run at the present place of its bytes; `like` has the common fields."""
    task = run.tasks[number]
    split = _split_again(task, run, found, options)
    return replace(
        like,
        number=number,
        queue=task.queue,
        start=task.start,
        offsets=_offsets_of(task, run),
        split=split,
        gone=() if is_done else _gone_of(task, split, run, found),
    )


def _split_again(
    task: PlannedTask, run: PlannedRun, found: TierPlan, options: ExportOptions
) -> Split | None:
    """The split of a task by where its bytes lie now; None if all of them left the tier."""
    first = task.start if task.anchor is None else task.anchor
    record = found.state.queues.get(task.queue)
    extents = _extents(found, task.queue)
    pieces = pieces_between([extent.piece for extent in extents], first, task.limit)
    if record is None or not pieces or pieces[0].position >= task.end:
        return None
    start, anchor = task.start, task.anchor
    if pieces[0].position > first:  # the first extent that is left begins with a record
        start, anchor = max(start, pieces[0].position), pieces[0].position
    of_java = any(extent.times_ms is None for extent in extents)
    return Split(
        task.queue, start, task.end, anchor, task.limit, pieces,
        run.offsets[task.queue], options.wanted.times_ms, found.place,
        None if of_java else record.generation, found.seen,
    )  # fmt: skip


def _offsets_of(task: PlannedTask, run: PlannedRun) -> tuple[int, int]:
    """Queue offsets `[from, to)` of a task's messages, at most; of an older plan, the run's."""
    first, end = run.offsets[task.queue]
    if task.next_offset is None:
        return first, end
    return max(first, task.first_offset), min(end, task.next_offset)


def _gone_of(
    task: PlannedTask, split: Split | None, run: PlannedRun, found: TierPlan
) -> tuple[tuple[int, int, str], ...]:
    """Queue offsets of a task's messages that are not in the tier any more, and why."""
    first, end = _offsets_of(task, run)
    record = found.state.queues.get(task.queue)
    if task.queue not in found.segments or record is None:
        why = DELETED if record is None else REPLACED
    elif split is not None and split.start == task.start:
        return ()
    else:
        why = EXPIRED
        end = end if split is None else min(end, record.min_offset)
    return ((first, end, why),) if first < end else ()


def _extents(found: TierPlan, queue: QueueId) -> list[LogExtent]:
    record = found.state.queues.get(queue)
    return [] if record is None else extents_of(record, found.segments.get(queue, ()))
