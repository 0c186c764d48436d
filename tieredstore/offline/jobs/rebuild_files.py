"""Rebuild of published files that are lost or damaged, in a directory or an object store."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from random import SystemRandom

from anyio.from_thread import BlockingPortal, start_blocking_portal

from container.check.finding import Finding
from container.lookup.coverage import merged
from container.metadata.moves import is_away
from container.metadata.records import (
    Queue,
    Segment,
)
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import index_name, segment_name
from container.names.tier_objects import INDEX_PREFIX, IndexBase
from container.queue.manifest import ManifestReader
from container.record.unit import UNIT_BYTES
from container.tier import Tier
from container.tier_reader import TierReader
from provider.clock import SystemClock
from provider.posix.locks import OwnerLock
from provider.posix.staged_files import StagedFiles
from provider.sequential import ByteSource, ObjectRange
from provider.stores.in_place_segments import LOCK_NAME
from provider.stores.packed_segments import NONCE_BYTES
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.offline.jobs.derived import IndexPart
from tieredstore.offline.jobs.engine import Engine
from tieredstore.offline.jobs.publish import LostRun, Publishing, WantedObjects
from tieredstore.offline.jobs.rebuild_job import (
    INDEX,
    UNITS,
    KnownUnits,
    ObjectSink,
    RebuildReducer,
    RebuildTask,
    UnitRun,
)
from tieredstore.offline.jobs.repair_plan import (
    Made,
    Progress,
    RepairTarget,
    is_lost,
    lost_index_files,
    make,
    settled,
    sum_of,
)
from tieredstore.offline.jobs.report import MadeFile, RebuildReport
from tieredstore.offline.scan.planning import SPLIT_BYTES, Selection, extents_of, splits_of_queue
from tieredstore.offline.scan.sources import Sum, place_of, source_of
from tieredstore.offline.scan.split import Seen, TierPlace
from tieredstore.session.owner import running_owner
from tieredstore.session.places import directory_of
from tieredstore.session.reader import AS_OPTIONS, existing_tier, open_reader

CHANGED_FAULT = "it was changed meanwhile: run `rebuild` again"


def restore_objects(
    config: Config,
    engine: Engine,
    *,
    split_bytes: int,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RebuildReport:
    """Make lost units and index files of a tier in an object store again, and publish them.

    Reads all units and index files, and the messages whose units or keys are to be made. If
    something is lost, the tier is owned while it is made: one object for each run of lost units and
    each index file, then one transaction. A run that is killed before it leaves objects that
    nothing refers to; the next owner gives them tombstones.

    Raises:
        Owned: the tier's owner lives on this host; nothing was changed.
        Fenced: another process took the tier meanwhile; nothing was published.
        Refused: more is lost than one transaction can say; nothing was published.
        NotFound, Corrupt, NewerVersion, Denied, Unavailable: as `restore`.
    """
    place = place_of(config)

    async def wanted() -> tuple[TierState, WantedObjects]:
        async with open_reader(config) as reader:
            looked = _Look(reader, place, split_bytes, config.upkeep.repack_bytes_max)
            found = await settled(reader, looked.wanted)
            return reader.state.copy(), found

    with start_blocking_portal() as portal:
        state, todo = portal.call(wanted)
        if dry_run or not todo.tasks:
            reducer = RebuildReducer(units=todo.units, index=todo.index)
            made = make(todo, engine, reducer, progress) if todo.tasks else Made()
            files = made.files(todo)
        else:
            made, files = _make_and_publish(portal, config, todo, engine, progress)
    return RebuildReport(
        state.broker.cluster,
        state.broker.name,
        sorted([*files, *todo.faults], key=lambda file: file.path),
        made.messages,
        made.findings,
        makes_metadata=False,
        is_dry=dry_run,
    )


def _make_and_publish(
    portal: BlockingPortal,
    config: Config,
    todo: WantedObjects,
    engine: Engine,
    progress: Progress | None,
) -> tuple[Made, list[MadeFile]]:
    """Own the tier, have the workers create the objects, and publish their places."""
    interrupted: BaseException | None = None
    made, changed = Made(), set[str]()
    owned = running_owner(config, clock=SystemClock(), has_upkeep=False)
    with portal.wrap_async_context_manager(owned) as tier:
        sink = ObjectSink(
            place_of(config),
            tier.journal.epoch,
            SystemRandom().randbytes(NONCE_BYTES).hex(),
            portal.call(_index_files, tier, list(todo.index)),
            _whole(todo.runs.values()),
        )
        reducer = RebuildReducer(objects=sink, units=todo.units, index=todo.index)
        try:
            made = make(todo, engine, reducer, progress)
            publishing = Publishing(tier, todo, made, int(1000 * config.upkeep.grace_s))
            changed = portal.call(publishing.publish)
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below: it would end the portal's loop
            interrupted = error
    if interrupted is not None:
        raise interrupted
    files = [
        replace(file, bytes=0, fault=CHANGED_FAULT) if file.path in changed else file
        for file in made.files(todo)
    ]
    return made, files


async def _index_files(tier: Tier, lost: Sequence[str]) -> Mapping[str, str]:
    """Return a name for each rebuilt index file, by target; one listing, if there are any.

    A name can be in use only in a tier that was rebuilt after the loss of its journal: objects of
    owners with higher epochs stay there until they are deleted.
    """
    if not lost:
        return {}
    names = [*(one.name for one in await tier.store.list(INDEX_PREFIX)), *tier.state.tombstones]
    bases = [base for name in names if (base := IndexBase.parse(name)) is not None]
    epoch = tier.journal.epoch
    free = 1 + max((one.number_of_owner for one in bases if one.epoch == epoch), default=0)
    return {
        f"{INDEX}{name}": index_name(IndexBase(epoch, number).number)
        for number, name in enumerate(lost, free)
    }


def _whole(runs: Iterable[LostRun]) -> Mapping[str, str]:
    """Of the runs that are all of a closed segment, the segment's name, by target."""
    return {
        f"{UNITS}{run.name}": run.name
        for run in runs
        if run.segment.sealed_ms is not None and run.extents == run.segment.extents
    }


class _Look:
    """A search for lost objects."""

    def __init__(
        self, reader: TierReader, place: TierPlace, split_bytes: int, run_bytes_max: int
    ) -> None:
        self._reader = reader
        self._place = place
        self._split_bytes = split_bytes
        self._run_bytes_max = run_bytes_max
        self._manifests = ManifestReader(reader.store, extents_max=0)  # each is read once

    async def wanted(self) -> WantedObjects:
        """Return the lost objects, and the messages that they are rebuilt from."""
        todo, state = WantedObjects(), self._reader.state
        with closing(await asyncio.to_thread(source_of, self._place)) as source:
            parts = await asyncio.to_thread(lost_index_files, state, source, todo)
            for name in sorted(state.queues):
                await self._look_at(state.queues[name], source, parts.get(name, []), todo)
        return todo

    async def _look_at(
        self, queue: Queue, source: ByteSource, index: list[IndexPart], todo: WantedObjects
    ) -> None:
        segments = [("", one) for one in queue.readable(SegmentType.CONSUME_QUEUE)]
        for ref in queue.manifests:
            if ref.type == SegmentType.CONSUME_QUEUE:
                listed = await self._manifests.segments(ref)
                segments += [(ref.object_name, one) for one in listed]
        runs = await asyncio.to_thread(self._lost_runs, queue, source, segments)
        for run in runs:
            todo.runs[run.name] = run
            first, behind, _ = run.units
            todo.units[run.name] = KnownUnits(first, behind, _object_sums(run))
        spans = [(run.units.first, run.units.behind) for run in runs]
        spans += [(part.start, part.behind) for part in index]
        if not spans:
            return
        container = self._reader.container(queue.id)
        assert container is not None, "the state was not refreshed"
        log = await container.as_of(queue).segments(SegmentType.COMMIT_LOG)
        extents = extents_of(queue, log)
        topic_id = self._reader.state.topics[queue.id.topic].topic_id
        units = tuple(run.units for run in runs)
        for offsets in merged(spans):
            wanted = Selection(offsets=offsets)
            splits = splits_of_queue(
                queue, extents, self._split_bytes, wanted=wanted, place=self._place,
                seen=Seen.of(self._reader.state),
            )  # fmt: skip
            todo.tasks += [RebuildTask(split, topic_id, units, tuple(index)) for split in splits]

    def _lost_runs(
        self, queue: Queue, source: ByteSource, segments: Sequence[tuple[str, Segment]]
    ) -> list[LostRun]:
        """Return the lost extents of these segments; adjacent ones are merged.

        Extents of expired messages are left out: they have no readers. Reads all bytes. Blocks.
        """
        found: list[LostRun] = []
        for manifest, segment in segments:
            sums = [sum_of(queue.id, segment, one) for one in segment.extents]
            source.expect([ObjectRange(one.object_name, one.start, one.length) for one in sums])
            for extent, one in zip(segment.extents, sums, strict=True):
                expired = segment.base + extent.end <= UNIT_BYTES * queue.min_offset
                if expired or not is_lost(source, one):
                    continue
                last = found[-1] if found else None
                if (
                    last is not None
                    and last.segment is segment
                    and last.extents[-1].end == extent.position
                    and extent.end - last.position <= self._run_bytes_max
                ):
                    found[-1] = last._replace(extents=(*last.extents, extent))
                else:
                    found.append(LostRun(queue.id, segment, (extent,), manifest))
        return found


def _object_sums(run: LostRun) -> tuple[Sum, ...]:
    """Return the expected checksums of a run; positions count from its first byte."""
    return tuple(
        sum_of(run.queue, run.segment, one)._replace(start=one.position - run.position)
        for one in run.extents
    )


OWNED_FAULT = "its owner lives and continues it: end that process first"


@dataclass(slots=True)
class WantedFiles(RepairTarget):
    """Files to rebuild of a tier in a directory."""

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
    """Return the lost and damaged files, and the messages that they are rebuilt from."""
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
        queue, extents, split_bytes, wanted=Selection(offsets=offsets), place=place,
        seen=Seen.of(reader.state),
    )  # fmt: skip
    topic_id = reader.state.topics[queue.id.topic].topic_id
    todo.tasks += [RebuildTask(split, topic_id, tuple(runs), tuple(index)) for split in splits]


def _segment_is_lost(source: ByteSource, queue: QueueId, segment: Segment) -> bool:
    return any(is_lost(source, one) for one in _sums(queue, segment))


def _sums(queue: QueueId, segment: Segment) -> tuple[Sum, ...]:
    return tuple(sum_of(queue, segment, extent) for extent in segment.extents)
