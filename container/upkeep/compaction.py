"""Compaction: all due and possible merges, planned and run at once."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from container.index.options import IndexOptions
from container.metadata.objects import is_away, references, references_of
from container.metadata.records import Extent, IndexFile, Part, Queue, Segment
from container.metadata.state import TierState
from container.move.repack import RepackStep
from container.names.queue_id import FLAT_FILES, QueueId
from container.options import UpkeepOptions
from container.queue.repack_plan import (
    LevelOf,
    RepackRules,
    Run,
    fitting,
    is_compacted,
    merged_extents,
    run_of,
    runs_to_compact,
)
from container.steps import OwnedTier, plan_deletions, side_by_side
from container.upkeep.index_merge import IndexMergeStep, merge_rules, plan_all_merges
from container.upkeep.tombstones import TombstoneStep
from provider.errors import Closed, Fenced, StoreError

OPEN_JOBS_MAX = 8
"""Limit of open jobs in planning. Each run is compared with all of them."""


class CompactRules(NamedTuple):
    """Limits of a plan."""

    repacking: RepackRules
    own_bytes_min: int
    """Size in bytes from which a sealed segment gets objects of its own."""
    runs_max: int
    """Runs in one job."""


class Burden(NamedTuple):
    """Metadata that a compaction reduces, the most important first."""

    scattered: int
    """Sealed segments with bytes in many objects, of the queues that are rewritten."""
    extents: int
    """Extents in the snapshot that name a part."""
    parts: int


class PartsPlan(NamedTuple):
    """Jobs that create one object each, and their effect."""

    jobs: tuple[tuple[Run, ...], ...]
    before: Burden
    after: Burden
    """Result without other changes and without damaged bytes."""

    @property
    def bytes(self) -> int:
        """Bytes to rewrite."""
        return sum(run.bytes for job in self.jobs for run in job)


def plan_parts(
    queues: Iterable[Queue],
    parts: Mapping[str, Part],
    rules: CompactRules,
    *,
    only: Collection[QueueId] | None = None,
) -> PartsPlan:
    """Plan the jobs of a tier. Empty if they would reduce nothing. O(extents).

    Segments in manifests stay unchanged: most were compacted before they were moved there.

    Args:
        queues: all of the tier, which must not change during the call.
        parts: all of the tier. A part that is not counted is not emptied on purpose.
        rules: the limits.
        only: rewrite only these queues. None: all.
    """
    ordered = sorted(queues, key=lambda queue: queue.id)
    wanted = [queue for queue in ordered if only is None or queue.id in only]
    before = _burden(ordered, wanted, parts, rules.repacking.run_bytes_max)
    for going in (_parts_to_empty(wanted, parts, rules.repacking.run_bytes_max), frozenset[str]()):
        runs = [run for queue in wanted for run in _runs(queue, parts, going, rules.repacking)]
        jobs = _jobs(runs, rules)
        after = _after(before, jobs, parts, rules.repacking.extent_bytes_max)
        if after < before:
            return PartsPlan(jobs, before, after)
    return PartsPlan((), before, before)


def _burden(
    ordered: Sequence[Queue],
    wanted: Sequence[Queue],
    parts: Mapping[str, Part],
    run_bytes_max: int,
) -> Burden:
    closed = (one for queue in wanted for one in _live(queue) if one.sealed_ms is not None)
    scattered = sum(not is_compacted(segment, run_bytes_max) for segment in closed)
    counts = Counter[str]()
    for queue in ordered:
        counts.update(references_of(queue))
    return Burden(scattered, counts.total(), len(parts.keys() | counts.keys()))


def _live(queue: Queue) -> Iterable[Segment]:
    """Segments whose bytes may be moved. Those in the second store stay there."""
    return (
        one
        for kind in FLAT_FILES
        for one in queue.segments(kind)
        if one.is_readable and not is_away(one)
    )


def _parts_to_empty(
    wanted: Sequence[Queue], parts: Mapping[str, Part], run_bytes_max: int
) -> AbstractSet[str]:
    """Parts less than half full whose bytes can all be moved. Empty if there is only one."""
    counts, sizes = Counter[str](), Counter[str]()
    for queue in wanted:
        for segment in _live(queue):
            counts.update(references([segment]))
            for extent in segment.extents:
                sizes[extent.object_name] += extent.length
    going = {
        name
        for name, count in counts.items()
        if 2 * sizes[name] < run_bytes_max and name in parts and parts[name].references == count
    }
    return going if len(going) > 1 else frozenset()


def _runs(
    queue: Queue, parts: Mapping[str, Part], going: AbstractSet[str], rules: RepackRules
) -> list[Run]:
    """Runs to move of a queue. Runs of one segment are consecutive."""

    def level_of(name: str) -> int:
        return parts[name].level if name in parts else 0

    found = runs_to_compact(queue, level_of, rules)
    compacted = {(run.type, run.base) for run in found}
    for segment in _live(queue):
        if (segment.type, segment.base) not in compacted:
            found += _runs_within(queue, segment, going, level_of, rules)
    return found


def _runs_within(
    queue: Queue, segment: Segment, going: AbstractSet[str], level_of: LevelOf, rules: RepackRules
) -> list[Run]:
    """Runs that reduce the extents, or empty the parts to remove."""
    found: list[Run] = []
    for stretch in _stretches(segment.extents, going, rules):
        rest: Sequence[Extent] = stretch
        while rest:
            some = fitting(rest, rules) or (rest[0],)
            rest = rest[len(some) :]
            run = run_of(queue, segment, some, level_of)
            is_fewer = len(merged_extents(run, rules.extent_bytes_max)) < len(some)
            if is_fewer or any(one.object_name in going for one in some):
                found.append(run)
    return found


def _stretches(
    extents: Sequence[Extent], going: AbstractSet[str], rules: RepackRules
) -> list[list[Extent]]:
    """Adjacent extents that are small, or lie in parts to remove."""
    found: list[list[Extent]] = [[]]
    for extent in extents:
        if rules.is_small(extent) or extent.object_name in going:
            found[-1].append(extent)
        elif found[-1]:
            found.append([])
    return [one for one in found if one]


def _jobs(runs: Sequence[Run], rules: CompactRules) -> tuple[tuple[Run, ...], ...]:
    """Pack runs into jobs: each into the first with room. Runs of the same parts are adjacent."""
    bytes_max = rules.repacking.run_bytes_max
    done: list[tuple[Run, ...]] = []
    filled: list[list[Run]] = []
    sizes: list[int] = []
    for run in sorted(runs, key=lambda one: one.extents[0].object_name):
        is_large = run.sealed_ms > 0 and run.segment_bytes >= rules.own_bytes_min
        if is_large and 2 * run.bytes > bytes_max:
            done.append((run,))
            continue
        for number, job in enumerate(filled):
            if sizes[number] + run.bytes <= bytes_max and len(job) < rules.runs_max:
                job.append(run)
                sizes[number] += run.bytes
                break
        else:
            if len(filled) == OPEN_JOBS_MAX:
                fullest = sizes.index(max(sizes))
                done.append(tuple(filled.pop(fullest)))
                sizes.pop(fullest)
            filled.append([run])
            sizes.append(run.bytes)
    return (*done, *map(tuple, filled))


def _after(
    before: Burden, jobs: Sequence[Sequence[Run]], parts: Mapping[str, Part], extent_bytes_max: int
) -> Burden:
    """Burden after the jobs. They compact every scattered segment."""
    saved = 0
    moved = Counter[str]()
    for job in jobs:
        for run in job:
            saved += len(run.extents) - len(merged_extents(run, extent_bytes_max))
            moved.update(extent.object_name for extent in run.extents)
    gone = sum(name in parts and parts[name].references == count for name, count in moved.items())
    return Burden(
        0 if jobs else before.scattered, before.extents - saved, before.parts - gone + len(jobs)
    )


COMPACT_GROWTH = 1.0
"""Growth for merges of index files: they continue as long as two files fit into one."""
READS_MAX = 4
"""Concurrent reads of one job. Compaction does not share the store with commits."""
NO_PARTS = PartsPlan((), Burden(0, 0, 0), Burden(0, 0, 0))

OnProgress = Callable[[int], None]
"""Callback for the bytes rewritten since the last call."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Effect of a compaction on a tier in its present state."""

    parts: PartsPlan
    merges: Sequence[Sequence[IndexFile]]
    """Index files to merge into one each, one merge after the other."""
    due: int
    """Objects whose deletion is due."""

    @property
    def bytes(self) -> int:
        """Bytes to rewrite."""
        return self.parts.bytes + sum(one.size for group in self.merges for one in group)

    @property
    def index_files_saved(self) -> int:
        """Number of index files saved."""
        return sum(len(group) - 1 for group in self.merges)

    @property
    def is_empty(self) -> bool:
        """Whether there is no work."""
        return not (self.parts.jobs or self.merges or self.due)


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """Scope and portions of a compaction."""

    upkeep: UpkeepOptions
    """Limits of the jobs (`repack_bytes_max` and others)."""
    extent_bytes_max: int
    has_parts: bool
    """Whether messages lie in parts, as in an object store. Otherwise only index files are merged.
    """
    index: IndexOptions | None
    """None: index files stay unchanged."""
    queues: Collection[QueueId] | None = None
    """Queues whose messages are rewritten. None: all."""

    @property
    def rules(self) -> CompactRules:
        """Limits of planning parts."""
        one = self.upkeep
        repacking = RepackRules(
            one.extents_max, one.merge_fan, self.extent_bytes_max, one.repack_bytes_max
        )
        return CompactRules(repacking, one.seal_bytes_min, one.repack_runs_max)


def plan_compaction(state: TierState, limits: CompactionLimits, *, now_ms: int) -> CompactionPlan:
    """Plan a compaction. Pure. O(extents and index files)."""
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
    """Single compaction by an owner. The steps that it uses are paused."""

    tier: OwnedTier
    repacking: RepackStep | None
    merging: IndexMergeStep | None
    tombstones: TombstoneStep
    limits: CompactionLimits
    jobs_max: int
    """Concurrent jobs. Each needs the memory of `Repacker` with `READS_MAX` reads."""
    on_progress: OnProgress
    failures: list[StoreError] = field(default_factory=list[StoreError])
    """Errors of reads and deletions. All other work was done."""

    async def run(self) -> None:
        """Do all merges, then delete due objects.

        Raises:
            Unavailable: finished work is kept. The next compaction continues.
            Fenced: a newer owner has the tier.
        """
        if self.repacking is not None and self.limits.has_parts:
            await self._rewrite(self.repacking)
        if self.merging is not None and self.limits.index is not None:
            self.failures += await self.merging.merge_out(COMPACT_GROWTH, self.on_progress)
        await self._delete()

    async def _rewrite(self, repacking: RepackStep) -> None:
        """Plan and run jobs until a plan is empty, or the last plan reduced nothing."""
        last: Burden | None = None
        while True:
            plan = await self._planned(repacking)
            if not plan.jobs or (last is not None and plan.before >= last):
                return
            last = plan.before
            work = partial(self._job, repacking)
            await side_by_side(plan.jobs, work, at_once=min(self.jobs_max, len(plan.jobs)))

    async def _planned(self, repacking: RepackStep) -> PartsPlan:
        """Make the next plan, in a thread: a large tier takes seconds, and commits may continue."""
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
        self.on_progress(sum(run.bytes for run in job))

    async def _delete(self) -> None:
        """Delete due objects, in batches of one step."""
        left: int | None = None
        while self._due() and (left is None or self._due() < left):
            left = self._due()
            try:
                await self.tombstones.finish()
            except (Fenced, Closed):
                raise
            except StoreError as error:  # the next owner retries it
                self.failures.append(error)

    def _due(self) -> int:
        """Number of due tombstones."""
        now_ms = self.tier.clock.now_ms()
        return sum(one.not_before_ms <= now_ms for one in self.tier.state.tombstones.values())
