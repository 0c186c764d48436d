"""Publication of rebuilt objects: one transaction, or nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import SystemRandom
from typing import NamedTuple

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
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.names.tier_objects import IndexBase
from container.queue.manifest import ManifestReader, name_manifest, write_manifest
from container.record.unit import UNIT_BYTES
from container.tier import Tier
from provider.clock import SystemClock
from tieredstore.offline.jobs.rebuild_job import INDEX, UNITS, UnitRun
from tieredstore.offline.jobs.repair_plan import Made, RepairTarget

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
