"""Truncation of the journal: the boundary, then deleting the entries below it (decision 0008)."""

from collections.abc import Mapping
from itertools import pairwise

from container.journal.truncation import (
    DurableBoundary,
    plan_boundary,
    plan_old_boundaries,
    truncate_journal,
)
from container.names.tier_objects import SnapshotName
from container.upkeep.snapshots import SnapshotStep
from container.upkeep.step import OwnedTier, Step


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
        """The entry up to which entries may be gone, and how many objects were deleted."""
        return {"boundary": self._boundary, "journal_objects_deleted": self._deleted}

    def check(self) -> None:
        """Assert T1 and T2."""
        verified = [one.name.sequence for one in self._snapshots.verified]
        assert self._boundary == 0 or self._boundary <= verified[-2], f"T1: {verified}"
        made = [one.sequence for one in self._boundaries]
        assert all(low < high for low, high in pairwise(made)), f"T2: {made}"
