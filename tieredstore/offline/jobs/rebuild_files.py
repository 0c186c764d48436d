"""Rebuild of published files that are lost or damaged, in a directory or an object store.

The rebuilt objects are published by one transaction, or not at all.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from container.metadata.coverage import merged
from container.metadata.objects import is_away
from container.metadata.operations import (
    AddTombstones,
    DropIndexFile,
    Operation,
    PutIndexFile,
    Release,
    RepackedRun,
    RepackSegments,
    TrimQueue,
)
from container.metadata.records import (
    Extent,
    ManifestRef,
    Queue,
    QueueBasis,
    Segment,
    Tombstone,
)
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import index_name, segment_name
from container.names.tier_objects import INDEX_PREFIX, IndexBase
from container.queue.manifest import ManifestReader, name_manifest, write_manifest
from container.record.unit import UNIT_BYTES
from container.tier import Tier
from container.tier_view import TierReader
from provider.clock import SystemClock
from provider.posix.locks import OwnerLock
from provider.posix.staged_files import StagedFiles
from provider.sequential import ByteSource, ObjectRange
from provider.stores.in_place_segments import LOCK_NAME
from provider.stores.packed_segments import NONCE_BYTES
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.offline.jobs.derived import IndexPart
from tieredstore.offline.jobs.engine import BytesProgress, Engine
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

REMADE = "made again elsewhere"
"""The reason in tombstones of damaged objects."""


class LostRun(NamedTuple):
    """Lost extents of one ConsumeQueue segment, side by side: they become one new object."""

    queue: QueueId
    segment: Segment
    extents: tuple[Extent, ...]
    manifest: str
    """The manifest that lists the segment; "" where the snapshot does."""

    @property
    def position(self) -> int:
        """First byte, counted from the segment's base."""
        return self.extents[0].position

    @property
    def place(self) -> tuple[SegmentType, int, tuple[Extent, ...]]:
        """Place in the snapshot: type and base of the segment, and the extents."""
        return self.segment.type, self.segment.base, self.extents

    @property
    def name(self) -> str:
        """Name in reports: that of the segment that would begin at its first byte."""
        return segment_name(self.queue, self.segment.type, self.segment.base + self.position)

    @property
    def units(self) -> UnitRun:
        """Its queue offsets."""
        first = (self.segment.base + self.position) // UNIT_BYTES
        count = (self.extents[-1].end - self.position) // UNIT_BYTES
        return UnitRun(first, first + count, count)

    def placed(self, made: str) -> tuple[Extent, ...]:
        """The extents as they are once the bytes lie in the object `made`."""
        return tuple(
            one._replace(object_name=made, object_offset=one.position - self.position)
            for one in self.extents
        )


PlacedRun = tuple[LostRun, tuple[Extent, ...]]
"""With its extents as they will be."""


@dataclass(slots=True)
class WantedObjects(RepairTarget):
    """Objects to rebuild of a tier in an object store."""

    runs: dict[str, LostRun] = field(default_factory=dict[str, LostRun])
    """By name, as `units`."""


class Publishing:
    """Publishes the places of all rebuilt objects in one transaction."""

    def __init__(self, tier: Tier, todo: WantedObjects, made: Made, grace_ms: int) -> None:
        self._tier = tier
        self._todo = todo
        self._made = made
        self._due_ms = SystemClock().now_ms() + grace_ms
        self._manifests = ManifestReader(tier.store)
        self._operations: list[Operation] = []
        self._changed: set[str] = set()

    async def publish(self) -> set[str]:
        """Publish; the names of what was changed meanwhile, and so left out.

        Raises:
            Fenced: a newer owner has the tier.
            Refused: it is too much for one transaction.
        """
        runs: dict[QueueId, list[PlacedRun]] = {}
        for name, run in self._todo.runs.items():
            made = self._object_of(f"{UNITS}{name}")
            if made:
                runs.setdefault(run.queue, []).append((run, run.placed(made)))
        for queue, placed in runs.items():
            await self._swap(queue, placed)
        self._swap_index_files()
        if self._operations:
            await self._tier.journal.publish(self._operations)
        return self._changed

    def _object_of(self, target: str) -> str:
        return str(self._made.said.get(target, {}).get("object", ""))

    async def _swap(self, queue_id: QueueId, placed: Sequence[PlacedRun]) -> None:
        queue = self._tier.state.queues.get(queue_id)
        live: list[RepackedRun] = []
        listed: dict[str, list[PlacedRun]] = {}
        refs = {} if queue is None else {ref.object_name: ref for ref in queue.manifests}
        for run, extents in placed:
            if run.manifest in refs:
                listed.setdefault(run.manifest, []).append((run, extents))
            elif not run.manifest and queue is not None and queue.has_extents(*run.place):
                kind, base, _ = run.place
                live.append(RepackedRun(kind, base, run.position, len(extents), extents))
            else:
                self._changed.add(run.name)
        if queue is not None and listed:
            await self._replace_manifests(queue, refs, listed)
        if queue is not None and live:
            level = max(
                (self._level_of(one.object_name) for run, _ in placed for one in run.extents),
                default=0,
            )
            self._operations.append(
                RepackSegments(
                    queue_id,
                    queue.generation,
                    queue.repacks,
                    level,
                    tuple(live),
                    Release(self._due_ms),
                )
            )

    def _level_of(self, part: str) -> int:
        known = self._tier.state.parts.get(part)
        return 0 if known is None else known.level

    async def _replace_manifests(
        self,
        queue: Queue,
        refs: Mapping[str, ManifestRef],
        listed: Mapping[str, Sequence[PlacedRun]],
    ) -> None:
        """Write manifests that name the new objects; a trim that trims nothing refers to them."""
        after, lost = dict(refs), Counter[str]()
        for name, placed in listed.items():
            segments = list(await self._manifests.segments(refs[name]))
            for run, extents in placed:
                at = next(n for n, one in enumerate(segments) if one.base == run.segment.base)
                first = segments[at].extents.index(run.extents[0])
                last = first + len(extents)
                whole = segments[at].extents
                segments[at] = replace(
                    segments[at], extents=(*whole[:first], *extents, *whole[last:])
                )
                lost.update(one.object_name for one in run.extents)
                lost.subtract(one.object_name for one in extents)
            tier = self._tier
            named = name_manifest(
                queue.id,
                segments,
                refs[name].level,
                epoch=tier.journal.epoch,
                rng=SystemRandom(),
            )
            after[name] = await write_manifest(
                tier.store, named, segments, sequence=tier.state.sequence
            )
        self._operations.append(
            TrimQueue(
                queue.id,
                queue.min_offset,
                queue.min_offset,
                queue.flat_begin(SegmentType.COMMIT_LOG),
                queue.flat_begin(SegmentType.CONSUME_QUEUE),
                tuple(after.values()),
                tuple(Tombstone(name, self._due_ms, REMADE) for name in listed),
                QueueBasis.of(queue),
                Release(self._due_ms, tuple(sorted(lost.items()))),
            )
        )

    def _swap_index_files(self) -> None:
        dead: list[Tombstone] = []
        for name in self._todo.index:
            made = self._object_of(f"{INDEX}{name}")
            known = self._tier.state.index_files.get(name)
            if not made:
                continue
            if known is None or known.cuts:
                self._changed.add(name)
                continue
            base = IndexBase.parse(made)
            assert base is not None, "an index file's name"
            self._operations += [
                DropIndexFile(name),
                PutIndexFile(replace(known, object_name=made, base=base.number)),
            ]
            dead.append(Tombstone(name, self._due_ms, REMADE))
        if dead:
            self._operations.append(AddTombstones(tuple(dead)))


TargetT = TypeVar("TargetT", bound=RepairTarget)
CHANGED_FAULT = "it was changed meanwhile: run `rebuild` again"


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
    progress: BytesProgress | None = None,
    naming: str = AS_OPTIONS,
) -> RebuildReport:
    """Rebuild lost and damaged ConsumeQueue and index files, byte for byte.

    Reads all units and index files for their checksums, and the messages whose units or keys are to
    be made.

    In a directory, all files are made beside the tier, synced, and then put at their places. A run
    that is killed before leaves nothing that a reader sees, and the next one removes it.

    In an object store, the tier is owned if something is lost: one object for each run of lost
    units and each index file, then one transaction. A run that is killed before it leaves objects
    that nothing refers to; the next owner gives them tombstones.

    Raises:
        NotFound: there is no tier, or it has no journal.
        ConfigError: a setting is wrong.
        Unavailable: another rebuild is under way, or workers died again and again.
        Corrupt, NewerVersion, Denied: as `planning.splits`.
        Owned: of a tier in an object store: the owner lives on this host; nothing was changed.
        Fenced: likewise: another process took the tier meanwhile; nothing was published.
        Refused: likewise: more is lost than one transaction can say; nothing was published.
    """
    found = existing_tier(config, naming)
    root, place = directory_of(found), place_of(found)

    async def wanted() -> tuple[TierState, WantedFiles | WantedObjects]:
        async with open_reader(found) as reader:
            look = _Look(reader, place, split_bytes)
            if isinstance(root, TierUrl):
                search = partial(look.objects, found.upkeep.repack_bytes_max)
                todo = await settled(reader, search)
            else:
                todo = await settled(reader, look.files)
            return reader.state.copy(), todo

    with start_blocking_portal() as portal:
        state, todo = portal.call(wanted)
        if isinstance(todo, WantedFiles):
            assert not isinstance(root, TierUrl), "files lie in a directory"
            made, files = _make_files(root, state, todo, engine, progress, is_dry=dry_run)
        elif dry_run or not todo.tasks:
            made = make(todo, engine, RebuildReducer(units=todo.units, index=todo.index), progress)
            files = made.files(todo)
        else:
            made, files = _make_and_publish(portal, found, todo, engine, progress)
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
    progress: BytesProgress | None,
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
    """A search for lost files or objects. Reads all units and index files."""

    def __init__(self, reader: TierReader, place: TierPlace, split_bytes: int) -> None:
        self._reader = reader
        self._place = place
        self._split_bytes = split_bytes
        self._manifests = ManifestReader(reader.store, extents_max=0)  # each is read once

    async def files(self) -> WantedFiles:
        """Return the lost files, and the messages that they are rebuilt from."""
        return await self._wanted(WantedFiles(), self._lost_files)

    async def objects(self, run_bytes_max: int) -> WantedObjects:
        """As `files`, of objects. Units of at most `run_bytes_max` go into one."""
        return await self._wanted(WantedObjects(), partial(self._lost_objects, run_bytes_max))

    async def _wanted(
        self,
        todo: TargetT,
        lost: Callable[[Queue, ByteSource, TargetT], Awaitable[Sequence[UnitRun]]],
    ) -> TargetT:
        """Enter what is lost into `todo`. `lost` does so with the units of a queue."""
        state = self._reader.state
        with closing(await asyncio.to_thread(source_of, self._place)) as source:
            parts = await asyncio.to_thread(lost_index_files, state, source, todo)
            for name in sorted(state.queues):
                units = await lost(state.queues[name], source, todo)
                todo.tasks += await self._tasks(state.queues[name], units, parts.get(name, []))
        return todo

    async def _tasks(
        self, queue: Queue, units: Sequence[UnitRun], index: Sequence[IndexPart]
    ) -> list[RebuildTask]:
        """Splits of the messages whose units or keys are lost. None if nothing is."""
        spans = [(run.first, run.behind) for run in units]
        spans += [(part.start, part.behind) for part in index]
        if not spans:
            return []
        container = self._reader.container(queue.id)
        assert container is not None, "the state was not refreshed"
        log = await container.as_of(queue).segments(SegmentType.COMMIT_LOG)
        extents = extents_of(queue, log)
        topic_id = self._reader.state.topics[queue.id.topic].topic_id
        return [
            RebuildTask(split, topic_id, tuple(units), tuple(index))
            for offsets in merged(spans)
            for split in splits_of_queue(
                queue, extents, self._split_bytes, wanted=Selection(offsets=offsets),
                place=self._place, seen=Seen.of(self._reader.state),
            )
        ]  # fmt: skip

    async def _lost_files(
        self, queue: Queue, source: ByteSource, todo: WantedFiles
    ) -> list[UnitRun]:
        container = self._reader.container(queue.id)
        assert container is not None, "the state was not refreshed"
        rows = await container.as_of(queue).segments(SegmentType.CONSUME_QUEUE)
        lost = await asyncio.to_thread(
            lambda: [one for one in rows if one.is_readable and _is_lost(source, queue.id, one)]
        )
        runs: list[UnitRun] = []
        for segment in lost:
            name = segment_name(queue.id, segment.type, segment.base)
            if is_away(segment):
                why = "it lies in the second store, where nothing is made again: restore its object"
                todo.faults.append(MadeFile(name, segment.size, why))
                continue
            if any(extent.object_name for extent in segment.extents):
                why = "it lies in a part that queues share"
                todo.faults.append(MadeFile(name, segment.size, why))
                continue
            first, behind = segment.base // UNIT_BYTES, segment.end // UNIT_BYTES
            runs.append(UnitRun(first, behind, behind - first))
            todo.units[name] = KnownUnits(first, behind, _sums(queue.id, segment))
            if segment.sealed_ms is None:
                todo.growing.add(name)
        return runs

    async def _lost_objects(
        self, run_bytes_max: int, queue: Queue, source: ByteSource, todo: WantedObjects
    ) -> list[UnitRun]:
        segments = [("", one) for one in queue.readable(SegmentType.CONSUME_QUEUE)]
        for ref in queue.manifests:
            if ref.type == SegmentType.CONSUME_QUEUE:
                listed = await self._manifests.segments(ref)
                segments += [(ref.object_name, one) for one in listed]
        runs = await asyncio.to_thread(_lost_runs, queue, source, segments, run_bytes_max)
        for run in runs:
            todo.runs[run.name] = run
            first, behind, _ = run.units
            todo.units[run.name] = KnownUnits(first, behind, _object_sums(run))
        return [run.units for run in runs]


def _lost_runs(
    queue: Queue,
    source: ByteSource,
    segments: Sequence[tuple[str, Segment]],
    run_bytes_max: int,
) -> list[LostRun]:
    """Return the lost extents of these segments; adjacent ones are merged.

    Extents of expired messages are left out: they have no readers. Reads all bytes. Blocks.
    """
    found: list[LostRun] = []
    for manifest, segment in segments:
        sums = _sums(queue.id, segment)
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
                and extent.end - last.position <= run_bytes_max
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


def _make_files(
    root: Path,
    state: TierState,
    todo: WantedFiles,
    engine: Engine,
    progress: BytesProgress | None,
    *,
    is_dry: bool,
) -> tuple[Made, list[MadeFile]]:
    """Make the files, and put them at their places once all are made."""
    lock = OwnerLock(str(root / LOCK_NAME))
    with closing(lock), ExitStack() as stack:
        if todo.growing and not _holds(lock, state):
            _leave_out_growing(todo)
        staged = None
        if todo.tasks and not is_dry:
            staged = StagedFiles.begin(root)
            stack.callback(staged.close)
        directory = staged.directory if staged else ""
        reducer = RebuildReducer(directory, units=todo.units, index=todo.index)
        made = make(todo, engine, reducer, progress)
        files = made.files(todo)
        if staged is not None:
            for target, file in zip(todo.targets, files, strict=True):
                if not file.fault:
                    staged.install(file.path, target, grows=file.path in todo.growing)
    return made, files


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


def _is_lost(source: ByteSource, queue: QueueId, segment: Segment) -> bool:
    return any(is_lost(source, one) for one in _sums(queue, segment))


def _sums(queue: QueueId, segment: Segment) -> tuple[Sum, ...]:
    return tuple(sum_of(queue, segment, extent) for extent in segment.extents)
