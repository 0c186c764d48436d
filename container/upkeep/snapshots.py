"""Snapshots and manifests: the steps that keep the journal and the state of a tier short."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from container.errors import Refused
from container.journal.reader import write_snapshot
from container.journal.truncation import (
    DurableBoundary,
    VerifiedSnapshot,
    plan_boundary,
    plan_old_boundaries,
    truncate_journal,
)
from container.metadata.objects import references
from container.metadata.operations import MoveToManifest
from container.metadata.records import Queue, Segment
from container.metadata.state import StateChange
from container.names.queue_id import QueueId
from container.names.tier_objects import SnapshotName
from container.queue.manifest import ManifestPlan, ManifestReader, plan_manifest
from container.steps import QUEUES_PER_TURN, ManifestWriter, OwnedTier, Step
from provider.errors import Corrupt


class SnapshotStep(Step):
    """Writes a snapshot after enough entries, or when the oldest entry is old enough.

    S1  `verified` ascends strictly by sequence;
    S2  the entries counted are those after the newest verified snapshot.
    """

    name = "snapshot"
    finishes_again = True

    def __init__(self, tier: OwnedTier) -> None:
        super().__init__(tier)
        loaded = tier.journal.loaded
        now_s = tier.clock.monotonic_s()
        self.verified = [VerifiedSnapshot(loaded.snapshot, now_s)] if loaded.snapshot else []
        """Snapshots that this process read as a whole, oldest first. Truncation removes deleted
        ones."""
        self.written = 0
        """Snapshots written since the ownership was taken."""
        self._damaged = len(loaded.damaged)
        self._entries = tier.state.sequence - (loaded.snapshot.sequence if loaded.snapshot else 0)
        self._first_entry_s = now_s

    def published(self, changes: Sequence[StateChange]) -> None:  # noqa: ARG002
        """Count the entry."""
        if self._entries == 0:
            self._first_entry_s = self.tier.clock.monotonic_s()
        self._entries += 1

    @property
    def urgent(self) -> bool:
        """Whether there are enough entries for a snapshot."""
        return self._entries >= self.tier.options.snapshot_entries_max

    async def step(self) -> None:
        """Write a snapshot if one is due. Two requests."""
        await self._write_after(self.tier.options.snapshot_entries_max)

    async def finish(self) -> None:
        """Write a snapshot unless the next start would replay few entries. Two requests."""
        options = self.tier.options
        await self._write_after(min(options.snapshot_entries_max, options.finish_entries_max))

    async def _write_after(self, entries: int) -> None:
        tier, now_s = self.tier, self.tier.clock.monotonic_s()
        aged = now_s - self._first_entry_s >= tier.options.snapshot_age_s_max
        if self._entries == 0 or not (aged or self._entries >= entries):
            return
        covered = self._entries
        name = await write_snapshot(
            tier.store, tier.state, epoch=tier.journal.epoch, rng=tier.rng, clock=tier.clock
        )
        self._entries -= covered
        self._first_entry_s = now_s
        self.verified.append(VerifiedSnapshot(name, tier.clock.monotonic_s()))
        self.written += 1

    @property
    def figures(self) -> Mapping[str, int]:
        """Snapshots written, and those that were damaged when the ownership was taken."""
        return {"snapshots": self.written, "damaged_snapshots": self._damaged}

    def check(self) -> None:
        """Assert S1 and S2."""
        sequences = [one.name.sequence for one in self.verified]
        assert all(low < high for low, high in pairwise(sequences)), f"S1: {sequences}"
        newest = sequences[-1] if sequences else 0
        assert self._entries == self.tier.state.sequence - newest, f"S2: {self._entries}"


class TruncationStep(Step):
    """Deletes entries, snapshots and boundaries that a newer snapshot has replaced.

    T1  the boundary lies at or below the second newest verified snapshot;
    T2  the boundaries made ascend strictly.
    """

    name = "truncation"

    def __init__(self, tier: OwnedTier, snapshots: SnapshotStep) -> None:
        super().__init__(tier)
        self._snapshots = snapshots
        self._boundary = 0
        self._boundaries: list[DurableBoundary] = []
        self._deleted = 0

    def _next_boundary(self) -> SnapshotName | None:
        now_s = self.tier.clock.monotonic_s()
        upto = plan_boundary(self._snapshots.verified, now_s, self.tier.options.grace_s)
        return upto if upto is not None and upto.sequence > self._boundary else None

    @property
    def urgent(self) -> bool:
        """Whether the boundary can be raised."""
        return self._next_boundary() is not None

    async def step(self) -> None:
        """Raise the boundary if it can be raised. Five requests, and one per 1,000 objects."""
        upto = self._next_boundary()
        if upto is None:
            return
        tier = self.tier
        replaced = plan_old_boundaries(
            self._boundaries, tier.clock.monotonic_s(), tier.journal.options.listing_s_max
        )
        self._deleted += await truncate_journal(
            tier.store, upto, replaced=replaced, epoch=tier.journal.epoch, rng=tier.rng
        )
        self._boundary = upto.sequence
        self._boundaries = [one for one in self._boundaries if one.sequence >= replaced]
        self._boundaries.append(DurableBoundary(upto.sequence, tier.clock.monotonic_s()))
        verified = self._snapshots.verified
        verified[:] = [one for one in verified if one.name.sequence >= upto.sequence]

    @property
    def figures(self) -> Mapping[str, int]:
        """Boundary (entries up to it may be deleted), and number of deleted objects."""
        return {"boundary": self._boundary, "journal_objects_deleted": self._deleted}

    def check(self) -> None:
        """Assert T1 and T2."""
        verified = [one.name.sequence for one in self._snapshots.verified]
        assert self._boundary == 0 or self._boundary <= verified[-2], f"T1: {verified}"
        made = [one.sequence for one in self._boundaries]
        assert all(low < high for low, high in pairwise(made)), f"T2: {made}"


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
