"""A compaction: what the steps of an owner would merge over time, merged at once.

It is planned purely from the metadata, by an owner or by anybody who reads them, and done in the
same jobs as ever: each makes its output first, and one transaction publishes it and lets go of what
it replaces. So a compaction may end anywhere, and the next one does what is left.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from container.index.options import IndexOptions
from container.metadata.records import IndexFile
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.queue.compact_plan import Burden, CompactRules, PartsPlan, plan_parts
from container.queue.repack_plan import RepackRules, Run
from container.upkeep.deletion import plan_deletions
from container.upkeep.index_merge import IndexMergeStep
from container.upkeep.merge_plan import merge_rules, plan_all_merges
from container.upkeep.options import UpkeepOptions
from container.upkeep.repacking import RepackStep
from container.upkeep.side_by_side import side_by_side
from container.upkeep.step import OwnedTier
from container.upkeep.tombstones import TombstoneStep
from provider.errors import Closed, Fenced, StoreError

COMPACT_GROWTH = 1.0
"""Index files are merged as long as two of them fit into one."""
READS_MAX = 4
"""Reads of one job side by side. Nothing else waits for the store, as it does beside commits."""
NO_PARTS = PartsPlan((), Burden(0, 0, 0), Burden(0, 0, 0))

Told = Callable[[int], None]
"""Takes the bytes that were rewritten since the last call."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a compaction does to a tier as it is."""

    parts: PartsPlan
    merges: Sequence[Sequence[IndexFile]]
    """Index files that become one each, one merge after the other."""
    due: int
    """Objects whose deletion is due."""

    @property
    def bytes(self) -> int:
        """How many bytes are rewritten."""
        return self.parts.bytes + sum(one.size for group in self.merges for one in group)

    @property
    def index_files_saved(self) -> int:
        """How many index files fewer there are afterwards."""
        return sum(len(group) - 1 for group in self.merges)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.parts.jobs or self.merges or self.due)


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """What is compacted, and in what portions."""

    upkeep: UpkeepOptions
    """`repack_bytes_max` and its neighbours are those of the jobs."""
    extent_bytes_max: int
    has_parts: bool
    """Whether messages lie in parts, as in an object store; else only index files are merged."""
    index: IndexOptions | None
    """None: index files stay as they are."""
    queues: Collection[QueueId] | None = None
    """Rewrite the messages of these only; None: of all."""

    @property
    def rules(self) -> CompactRules:
        """The limits of planning parts."""
        one = self.upkeep
        repacking = RepackRules(
            one.extents_max, one.merge_fan, self.extent_bytes_max, one.repack_bytes_max
        )
        return CompactRules(repacking, one.seal_bytes_min, one.repack_runs_max)


def plan_compaction(state: TierState, limits: CompactionLimits, *, now_ms: int) -> CompactionPlan:
    """What a compaction does, and what it leaves. Pure; O(extents and index files)."""
    parts, merges = NO_PARTS, list[tuple[IndexFile, ...]]()
    if limits.has_parts:
        parts = plan_parts(state.queues.values(), state.parts, limits.rules, only=limits.queues)
    if limits.index is not None:
        rules = merge_rules(limits.index, limits.upkeep, now_ms, growth=COMPACT_GROWTH)
        merges = plan_all_merges(state.index_files.values(), rules)
    due = plan_deletions(state, now_ms, limits.upkeep).delete
    return CompactionPlan(parts, merges, len(due))


@dataclass(slots=True)
class Compaction:
    """One compaction by an owner; the steps that it uses do not run meanwhile."""

    tier: OwnedTier
    repacking: RepackStep | None
    merging: IndexMergeStep | None
    tombstones: TombstoneStep
    limits: CompactionLimits
    jobs_max: int
    """Jobs side by side; the memory of each is what `Repacker` says, of `READS_MAX` reads."""
    told: Told
    failures: list[StoreError] = field(default_factory=list[StoreError])
    """What could not be read or deleted; all else was done."""

    async def run(self) -> None:
        """Do everything, then delete what is due.

        Raises:
            Unavailable: what was done stays done; the next compaction goes on.
            Fenced: a newer owner has the tier.
        """
        if self.repacking is not None and self.limits.has_parts:
            await self._rewrite(self.repacking)
        if self.merging is not None and self.limits.index is not None:
            self.failures += await self.merging.merge_out(COMPACT_GROWTH, self.told)
        await self._delete()

    async def _rewrite(self, repacking: RepackStep) -> None:
        """Plan and do jobs until a plan has none, or the last one did not lessen anything."""
        last: Burden | None = None
        while True:
            plan = await self._planned(repacking)
            if not plan.jobs or (last is not None and plan.before >= last):
                return
            last = plan.before
            work = partial(self._job, repacking)
            await side_by_side(plan.jobs, work, at_once=min(self.jobs_max, len(plan.jobs)))

    async def _planned(self, repacking: RepackStep) -> PartsPlan:
        """The next plan, made in a thread: a large tier takes seconds, and commits may go on."""
        state, damaged = self.tier.state, repacking.repacker.passed_over
        queues, only = state.queues.copy(), self.limits.queues
        wanted = [
            queue for queue in queues if queue not in damaged and (only is None or queue in only)
        ]
        planned = partial(plan_parts, only=frozenset(wanted))
        return await asyncio.to_thread(
            planned, queues.values(), state.parts.copy(), self.limits.rules
        )

    async def _job(self, repacking: RepackStep, job: Sequence[Run]) -> None:
        await repacking.repacker.do_all([job], self.failures, reads_max=READS_MAX)
        self.told(sum(run.bytes for run in job))

    async def _delete(self) -> None:
        """Delete what is due, as many as one step may at a time."""
        left: int | None = None
        while self._due() and (left is None or self._due() < left):
            left = self._due()
            try:
                await self.tombstones.finish()
            except (Fenced, Closed):
                raise
            except StoreError as error:  # it is tried again by the next owner
                self.failures.append(error)

    def _due(self) -> int:
        """Tombstones that are due."""
        now_ms = self.tier.clock.now_ms()
        return sum(one.not_before_ms <= now_ms for one in self.tier.state.tombstones.values())
