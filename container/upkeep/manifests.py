"""Manifest step: sealed segments move to manifests, so that snapshots do not grow with history."""

from collections.abc import Mapping, Sequence

from container.errors import Refused
from container.metadata.operations import MoveToManifest
from container.metadata.part_counts import references
from container.metadata.records import Queue, Segment
from container.metadata.state import StateChange
from container.names.queue_id import QueueId
from container.queue.manifest import ManifestPlan, ManifestReader, plan_manifest
from container.steps.manifest_writer import ManifestWriter
from container.steps.step import QUEUES_PER_TURN, OwnedTier, Step
from provider.errors import Corrupt


class ManifestStep(Step):
    """Moves segments to manifests, and manifests to larger ones, in changed queues."""

    name = "manifests"

    def __init__(self, tier: OwnedTier, *, waits_for_repacking: bool = False) -> None:
        """`waits_for_repacking`: sealed segments stay until their bytes are compacted."""
        super().__init__(tier)
        self._compacted_bytes = tier.options.repack_bytes_max if waits_for_repacking else None
        self._reader = ManifestReader(tier.store, extents_max=0)  # each is merged once
        self._changed: dict[QueueId, None] = dict.fromkeys(tier.state.queues)
        """Queues to check, in order. An unordered set would not replay from a seed."""
        self._writer = ManifestWriter(tier)
        self._entries = 0
        self._written = 0

    def published(self, changes: Sequence[StateChange]) -> None:
        """Add the queues of these changes to the next run."""
        self._entries += 1
        for change in changes:
            self._changed.update(dict.fromkeys(change.queues.changed))

    @property
    def urgent(self) -> bool:
        """Whether a snapshot is due soon: segments should move to manifests before it."""
        return self._entries >= self.tier.options.snapshot_entries_max

    async def step(self) -> None:
        """Write the manifests that changed queues need. Four requests each, and one per merged one.

        A queue with a damaged manifest is skipped until its next commit.
        """
        self._entries = 0
        await self._writer.tombstone_tried()
        first: Corrupt | None = None
        for number, queue_id in enumerate(list(self._changed)):
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:  # of all queues, after a start
                await self.tier.clock.sleep(0)
            self._changed.pop(queue_id)
            try:
                await self._shorten(queue_id)
            except Corrupt as damage:
                first = first or damage
            except BaseException:
                self._changed[queue_id] = None
                raise
        self._changed = dict(self._changed)  # an emptied dict keeps the memory of its largest size
        if first is not None:
            raise first

    async def _shorten(self, queue_id: QueueId) -> None:
        options = self.tier.options
        while (queue := self.tier.state.queues.get(queue_id)) is not None:
            plan = plan_manifest(
                queue,
                sealed_segments_max=options.sealed_segments_max,
                manifests_per_level_max=options.manifests_per_level_max,
                compacted_bytes=self._compacted_bytes,
            )
            if plan is None:
                return
            await self._move(queue, plan)

    async def _move(self, queue: Queue, plan: ManifestPlan) -> None:
        tier = self.tier
        segments: list[Segment] = list(plan.segments)
        for ref in plan.merged:
            segments += await self._reader.segments(ref)
        ref = await self._writer.write(queue.id, segments, plan.level)
        replaced = tuple(old.object_name for old in plan.merged)
        bases = tuple(segment.base for segment in plan.segments)
        tombstones = tuple(tier.tombstone(name, "merged") for name in replaced)
        moves = bool(references(plan.segments)) or tier.options.offloads
        repacks = queue.repacks if moves else None
        move = MoveToManifest(queue.id, ref, bases, replaced, tombstones, queue.generation, repacks)
        try:
            await tier.journal.publish([move])
        except Refused:  # the queue was truncated since
            await self.tier.add_tombstones([ref.object_name])
        else:
            self._written += 1
        self._writer.settled([ref.object_name])

    @property
    def figures(self) -> Mapping[str, int]:
        """Manifests written and published."""
        return {"manifests": self._written}
