"""Making files again that are published and lost or damaged: ConsumeQueues and index files.

This is for a tier in a directory; `restore_objects` is the same for one in an object store. The
metadata say what their bytes were (checksums, lengths, what an index file covers), so a file is
put at its place only if the messages give exactly those bytes. Nothing is published, and the store
may be in use meanwhile.
"""

import asyncio
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from anyio.from_thread import start_blocking_portal

from container.check.finding import Finding
from container.metadata.moves import is_away
from container.metadata.records import Queue, Segment
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.record.unit import UNIT_BYTES
from container.tier_reader import TierReader
from provider.posix.locks import OwnerLock
from provider.posix.staged_files import StagedFiles
from provider.sequential import ByteSource
from provider.stores.in_place_segments import LOCK_NAME
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.offline.cutting import SPLIT_BYTES, Selection, extents_of, splits_of_queue
from tieredstore.offline.engine import Engine
from tieredstore.offline.flat_bytes import Sum
from tieredstore.offline.index_parts import IndexPart
from tieredstore.offline.lost import (
    Progress,
    Wanted,
    is_lost,
    lost_index_files,
    make,
    settled,
    sum_of,
)
from tieredstore.offline.rebuild_job import (
    KnownUnits,
    RebuildReducer,
    RebuildTask,
    UnitRun,
)
from tieredstore.offline.report import MadeFile, RebuildReport
from tieredstore.offline.restore_objects import restore_objects
from tieredstore.offline.sources import place_of, source_of
from tieredstore.offline.split import TierPlace
from tieredstore.opening import AS_OPTIONS, existing_tier, open_reader
from tieredstore.places import directory_of

OWNED_FAULT = "its owner lives and continues it: end that process first"


@dataclass(slots=True)
class WantedFiles(Wanted):
    """What is to be made again of a tier in a directory."""

    growing: set[str] = field(default_factory=set[str])
    """Names of files that an owner may continue."""


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
        ConfigError: a setting is wrong.
        Unavailable: another rebuild is under way, or workers died again and again.
        Corrupt, NewerVersion, Denied: as `planning.splits`.
        Owned, Fenced: of a tier in an object store, as `restore_objects`.
    """
    found = existing_tier(config, naming)
    root = directory_of(found)
    if isinstance(root, TierUrl):
        return restore_objects(
            found, engine, split_bytes=split_bytes, dry_run=dry_run, progress=progress
        )
    place = place_of(found)

    async def wanted() -> tuple[TierState, WantedFiles]:
        async with open_reader(found) as reader:
            todo = await settled(reader, lambda: _wanted(reader, place, split_bytes))
            return reader.state.copy(), todo

    with start_blocking_portal() as portal:
        state, todo = portal.call(wanted)
    lock = OwnerLock(str(root / LOCK_NAME))
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


def _leave_out_growing(todo: WantedFiles) -> None:
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
    todo: WantedFiles, engine: Engine, staged: StagedFiles | None, progress: Progress | None
) -> tuple[list[MadeFile], int, list[Finding]]:
    """Make the files, and put them at their places once all are made."""
    reducer = RebuildReducer(staged.directory if staged else "", units=todo.units, index=todo.index)
    made = make(todo, engine, reducer, progress)
    files = made.files(todo)
    if staged is not None:
        for target, file in zip(todo.targets, files, strict=True):
            if not file.fault:
                staged.install(file.path, target, grows=file.path in todo.growing)
    listed = sorted([*files, *todo.faults], key=lambda file: file.path)
    return listed, made.messages, made.findings


async def _wanted(reader: TierReader, place: TierPlace, split_bytes: int) -> WantedFiles:
    """Which files are lost or damaged, and which messages they are made of."""
    todo = WantedFiles()
    state = reader.state
    with closing(await asyncio.to_thread(source_of, place)) as source:
        parts = await asyncio.to_thread(lost_index_files, state, source, todo)
        for queue in (state.queues[name] for name in sorted(state.queues)):
            await _wanted_of_queue(reader, queue, place, split_bytes, source, parts, todo)
    return todo


async def _wanted_of_queue(  # noqa: PLR0917 - one caller
    reader: TierReader,
    queue: Queue,
    place: TierPlace,
    split_bytes: int,
    source: ByteSource,
    parts: Mapping[QueueId, list[IndexPart]],
    todo: WantedFiles,
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
        if is_away(segment):
            why = "it lies in the second store, where nothing is made again: restore its object"
            todo.faults.append(MadeFile(name, segment.size, why))
            continue
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
    return any(is_lost(source, one) for one in _sums(queue, segment))


def _sums(queue: QueueId, segment: Segment) -> tuple[Sum, ...]:
    return tuple(sum_of(queue, segment, extent) for extent in segment.extents)
