"""Making files again that are published and lost or damaged: ConsumeQueues and index files.

The metadata say what their bytes were (checksums, lengths, what an index file covers), so a file is
put at its place only if the messages give exactly those bytes. Nothing is published, and the store
may be in use meanwhile.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson
from anyio.from_thread import start_blocking_portal

from container.check.finding import Finding
from container.metadata.object_names import object_name
from container.metadata.records import IndexFile, Queue, Segment
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.record.unit import UNIT_BYTES
from container.tier_reader import TierReader
from provider.posix_lock import OwnerLock
from provider.sequential import ByteSource
from provider.staged_files import StagedFiles
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.offline.cutting import SPLIT_BYTES, Selection, extents_of, splits_of_queue
from tieredstore.offline.engine import Engine
from tieredstore.offline.flat_bytes import Sum, check_sum
from tieredstore.offline.rebuild_job import (
    INDEX,
    LOG,
    UNITS,
    IndexPart,
    KnownIndex,
    KnownUnits,
    RebuildReducer,
    RebuildTask,
    UnitRun,
    rebuild_item,
)
from tieredstore.offline.report import MadeFile, RebuildReport
from tieredstore.offline.sources import place_of, source_of
from tieredstore.offline.split import TierPlace
from tieredstore.opening import AS_OPTIONS, existing_tier, open_reader
from tieredstore.places import directory_of, owner_lock_path

Progress = Callable[[int, int], None]
"""Is told bytes done, and all bytes."""
OWNED_FAULT = "its owner lives and continues it: end that process first"


@dataclass(slots=True)
class Wanted:
    """What is to be made again."""

    tasks: list[RebuildTask] = field(default_factory=list[RebuildTask])
    units: dict[str, KnownUnits] = field(default_factory=dict[str, KnownUnits])
    index: dict[str, KnownIndex] = field(default_factory=dict[str, KnownIndex])
    growing: set[str] = field(default_factory=set[str])
    """Names of files that an owner may continue."""
    faults: list[MadeFile] = field(default_factory=list[MadeFile])
    """What cannot be made again at all."""


def local_root(config: Config) -> Path:
    """The broker's directory.

    Raises:
        ConfigError: the tier is in an object store.
    """
    where = directory_of(config)
    if isinstance(where, TierUrl):
        raise ConfigError(
            f"the tier at {where} lies in parts that many queues share, of which only the journal "
            f"knows what they hold: `rebuild` works on directories"
        )
    return where


def restore(
    config: Config,
    engine: Engine,
    *,
    split_bytes: int = SPLIT_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
    naming: str = AS_OPTIONS,
) -> RebuildReport:
    """Make lost and damaged ConsumeQueue and index files again, byte for byte.

    Reads all units and index files for their checksums, and the messages whose units or keys are to
    be made. All files are made beside the tier, synced, and then put at their places; a run that is
    killed before leaves nothing that a reader sees, and the next one removes it.

    Raises:
        NotFound: there is no tier, or it has no journal.
        ConfigError: the tier is in an object store, or a setting is wrong.
        Unavailable: another rebuild is under way, or workers died again and again.
        Corrupt, NewerVersion, Denied: as `planning.splits`.
    """
    found = existing_tier(config, naming)
    root = local_root(found)
    place = place_of(found)

    async def wanted() -> tuple[TierState, Wanted]:
        async with open_reader(found) as reader:
            return reader.state.copy(), await _wanted(reader, place, split_bytes)

    with start_blocking_portal() as portal:
        state, todo = portal.call(wanted)
    lock = OwnerLock(str(owner_lock_path(found, root)))
    with closing(lock):
        if todo.growing and not _holds(lock, state):
            _leave_out_growing(todo)
        staged = None if dry_run or not todo.tasks else StagedFiles.begin(root)
        try:
            files, messages, findings = _run(todo, engine, staged, progress)
        finally:
            if staged is not None:
                staged.close()
    broker = state.broker
    return RebuildReport(
        broker.cluster,
        broker.name,
        files,
        messages,
        findings,
        makes_metadata=False,
        is_dry=dry_run,
    )


def _holds(lock: OwnerLock, state: TierState) -> bool:
    """Whether no owner can begin meanwhile: the lock of the newest epoch is ours, too."""
    if lock.is_held(state.broker.epoch):
        return False
    lock.hold(state.broker.epoch)
    return True


def _leave_out_growing(todo: Wanted) -> None:
    for name in sorted(todo.growing):
        todo.units.pop(name, None)
        todo.faults.append(MadeFile(name, 0, OWNED_FAULT))
    todo.tasks = [
        replace(task, runs=runs)
        for task in todo.tasks
        for runs in [tuple(run for run in task.runs if _name(task, run) in todo.units)]
        if runs or task.index
    ]


def _name(task: RebuildTask, run: UnitRun) -> str:
    return segment_name(task.split.queue, SegmentType.CONSUME_QUEUE, UNIT_BYTES * run.first)


def _run(
    todo: Wanted, engine: Engine, staged: StagedFiles | None, progress: Progress | None
) -> tuple[list[MadeFile], int, list[Finding]]:
    """Make the files, and put them at their places once all are made."""
    total = sum(task.split.end - task.split.start for task in todo.tasks)
    done = 0

    def told(index: int) -> None:
        nonlocal done
        done += todo.tasks[index].split.end - todo.tasks[index].split.start
        if progress is not None:
            progress(done, total)

    reducer = RebuildReducer(staged.directory if staged else "", todo.units, todo.index)
    pieces = engine.map_group(todo.tasks, rebuild_item, reducer, progress=told)
    made: dict[str, MadeFile] = {}
    messages, findings = 0, list[Finding]()
    for piece in pieces:
        said = orjson.loads(piece.payload)
        if piece.target.startswith(LOG):
            messages += sum(one["records"] for one in said)
            findings += gaps_told(piece.target.removeprefix(LOG), said)
        else:
            made[piece.target] = MadeFile(
                piece.target.split("/", 1)[1], said.get("bytes", 0), said.get("fault", "")
            )
    names = [f"{UNITS}{name}" for name in todo.units] + [f"{INDEX}{name}" for name in todo.index]
    nothing = "no sound record of its messages is in the log"
    files = [made.get(name) or MadeFile(name.split("/", 1)[1], 0, nothing) for name in names]
    if staged is not None:
        for name, file in zip(names, files, strict=True):
            if not file.fault:
                staged.install(file.path, name, grows=file.path in todo.growing)
    return sorted([*files, *todo.faults], key=lambda file: file.path), messages, findings


def gaps_told(queue: str, said: Sequence[Mapping[str, object]]) -> Iterator[Finding]:
    """The gaps that the splits of a queue have met, as findings."""
    for one in said:
        gaps: list[dict[str, object]] = one["gaps"]  # pyright: ignore[reportAssignmentType] - JSON of `LogGap`
        for gap in gaps:
            shift = f"; whole records lie {gap['shift']} bytes off" if gap["shift"] else ""
            detail = f"{gap['length']} bytes hold no sound record: {gap['reason']}{shift}"
            position = int(str(gap["position"]))
            yield Finding("log-gap", f"{queue}/COMMIT_LOG", position, detail)


async def _wanted(reader: TierReader, place: TierPlace, split_bytes: int) -> Wanted:
    """Which files are lost or damaged, and which messages they are made of."""
    todo = Wanted()
    state = reader.state
    with closing(source_of(place)) as source:
        lost_index = await asyncio.to_thread(
            lambda: [one for one in state.index_files.values() if _is_lost(source, _sum_of(one))]
        )
        for file in lost_index:
            if file.coverage and file.crc32c is not None:
                todo.index[file.object_name] = KnownIndex(
                    file.size, file.crc32c, file.begin_timestamp
                )
            else:
                fault = "it is RocketMQ's own, which does not say what it covers"
                todo.faults.append(MadeFile(file.object_name, 0, fault))
        parts = _index_parts(lost_index)
        for queue in (state.queues[name] for name in sorted(state.queues)):
            await _wanted_of_queue(reader, queue, place, split_bytes, source, parts, todo)
    return todo


def _sum_of(file: IndexFile) -> Sum:
    return Sum(file.object_name, 0, file.size, -1 if file.crc32c is None else file.crc32c)


def _is_lost(source: ByteSource, one: Sum) -> bool:
    """Whether some bytes are not what was published; of those without a checksum, not there."""
    fault = check_sum(source, one)
    return fault is not None and (one.crc32c >= 0 or fault.bytes < one.length)


def _index_parts(files: Sequence[IndexFile]) -> dict[QueueId, list[IndexPart]]:
    found: dict[QueueId, list[IndexPart]] = {}
    for file in files:
        for queue, start, behind in file.coverage:
            found.setdefault(queue, []).append(IndexPart(file.object_name, start, behind))
    return found


async def _wanted_of_queue(  # noqa: PLR0917 - one caller
    reader: TierReader,
    queue: Queue,
    place: TierPlace,
    split_bytes: int,
    source: ByteSource,
    parts: Mapping[QueueId, list[IndexPart]],
    todo: Wanted,
) -> None:
    container = reader.container(queue.id)
    assert container is not None, "the state was not refreshed"
    container = container.as_of(queue)
    rows = await container.segments(SegmentType.CONSUME_QUEUE)
    lost = await asyncio.to_thread(
        lambda: [one for one in rows if one.is_readable and _segment_is_lost(source, queue.id, one)]
    )
    runs: list[UnitRun] = []
    for segment in lost:
        name = segment_name(queue.id, segment.type, segment.base)
        if any(extent.object_name for extent in segment.extents):
            todo.faults.append(MadeFile(name, segment.size, "it lies in a part that queues share"))
            continue
        first, behind = segment.base // UNIT_BYTES, segment.end // UNIT_BYTES
        runs.append(UnitRun(first, behind, behind - first))
        todo.units[name] = KnownUnits(first, behind, _sums(queue.id, segment))
        if segment.sealed_ms is None:
            todo.growing.add(name)
    index = parts.get(queue.id, [])
    spans = [(run.first, run.behind) for run in runs] + [(p.start, p.behind) for p in index]
    if not spans:
        return
    offsets = (min(a for a, _ in spans), max(b for _, b in spans))
    extents = extents_of(queue, await container.segments(SegmentType.COMMIT_LOG))
    splits = splits_of_queue(
        queue, extents, split_bytes, wanted=Selection(offsets=offsets), place=place
    )
    topic_id = reader.state.topics[queue.id.topic].topic_id
    todo.tasks += [RebuildTask(split, topic_id, tuple(runs), tuple(index)) for split in splits]


def _segment_is_lost(source: ByteSource, queue: QueueId, segment: Segment) -> bool:
    return any(_is_lost(source, one) for one in _sums(queue, segment))


def _sums(queue: QueueId, segment: Segment) -> tuple[Sum, ...]:
    return tuple(
        Sum(
            object_name(queue, segment, extent),
            extent.object_offset,
            extent.length,
            -1 if extent.crc32c is None else extent.crc32c,
        )
        for extent in segment.extents
    )
