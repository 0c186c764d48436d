"""Sealed segments move to manifests, so that snapshots do not grow with history."""

from collections.abc import Mapping, Sequence

from container.errors import Refused
from container.metadata.operations import AddTombstones, MoveToManifest
from container.metadata.records import Queue, Segment
from container.metadata.state import StateChange
from container.names.queue_id import QueueId
from container.queue.manifest import (
    ManifestPlan,
    ManifestReader,
    name_manifest,
    plan_manifest,
    write_manifest,
)
from container.upkeep.deletion import NEVER_PUBLISHED
from container.upkeep.step import OwnedTier, Step
from provider.errors import Corrupt


class ManifestStep(Step):
    """Moves segments to manifests, and manifests to larger ones, in queues that have changed."""

    name = "manifests"

    def __init__(self, tier: OwnedTier) -> None:
        super().__init__(tier)
        self._reader = ManifestReader(tier.store, extents_max=0)  # each is merged once
        self._changed: dict[QueueId, None] = dict.fromkeys(tier.state.queues)
        """Queues to look at, in order; a set without an order would not replay from a seed."""
        self._tried: dict[str, QueueId] = {}
        """Names that manifests of ours may have in the store without being published."""
        self._entries = 0
        self._written = 0

    def published(self, changes: Sequence[StateChange]) -> None:
        """Look at the queues of these changes next time."""
        self._entries += 1
        for change in changes:
            self._changed.update(dict.fromkeys(change.queues.changed))

    @property
    def urgent(self) -> bool:
        """Whether a snapshot is due soon, which should not hold what can move to manifests."""
        return self._entries >= self.tier.options.snapshot_entries_max

    async def step(self) -> None:
        """Write the manifests that changed queues need. Four requests each, and one per merged one.

        A queue with a damaged manifest is passed over until its next commit.
        """
        self._entries = 0
        await self._bury_tried()
        first: Corrupt | None = None
        for queue_id in list(self._changed):
            self._changed.pop(queue_id)
            try:
                await self._shorten(queue_id)
            except Corrupt as damage:
                first = first or damage
            except BaseException:
                self._changed[queue_id] = None
                raise
        if first is not None:
            raise first

    async def _shorten(self, queue_id: QueueId) -> None:
        options = self.tier.options
        while (queue := self.tier.state.queues.get(queue_id)) is not None:
            plan = plan_manifest(
                queue,
                sealed_segments_max=options.sealed_segments_max,
                manifests_per_level_max=options.manifests_per_level_max,
            )
            if plan is None:
                return
            await self._move(queue, plan)

    async def _bury_tried(self) -> None:
        """Give tombstones to what earlier runs have perhaps written and did not publish."""
        if not self._tried:
            return
        for queue_id in dict.fromkeys(self._tried.values()):
            await self.tier.journal.settle(queue_id)  # a publication may still be on its way
        state = self.tier.state
        used = {ref.object_name for queue in state.queues.values() for ref in queue.manifests}
        left = [name for name in self._tried if name not in used and name not in state.tombstones]
        await self._bury(left)
        self._tried.clear()

    async def _bury(self, names: Sequence[str]) -> None:
        if names:
            unused = tuple(self.tier.tombstone(name, NEVER_PUBLISHED) for name in names)
            await self.tier.journal.publish([AddTombstones(unused)])

    async def _move(self, queue: Queue, plan: ManifestPlan) -> None:
        tier = self.tier
        segments: list[Segment] = list(plan.segments)
        for ref in plan.merged:
            segments += await self._reader.segments(ref)
        epoch = tier.journal.epoch
        name = name_manifest(queue.id, plan, segments[0].base, epoch=epoch, rng=tier.rng)
        self._tried[str(name)] = queue.id
        ref = await write_manifest(tier.store, name, segments, sequence=tier.state.sequence)
        replaced = tuple(old.object_name for old in plan.merged)
        bases = tuple(segment.base for segment in plan.segments)
        tombstones = tuple(tier.tombstone(name, "merged") for name in replaced)
        move = MoveToManifest(queue.id, ref, bases, replaced, tombstones, queue.generation)
        try:
            await tier.journal.publish([move])
        except Refused:  # the queue was trimmed or cut meanwhile
            await self._bury([str(name)])
        else:
            self._written += 1
        del self._tried[str(name)]

    @property
    def figures(self) -> Mapping[str, int]:
        """Manifests written and published."""
        return {"manifests": self._written}
