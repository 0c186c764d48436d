"""Compaction of a tier without an owner, by command."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial

from container.index.options import IndexOptions
from container.metadata.objects import references_of
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.tier import Tier
from container.upkeep.compaction import CompactionLimits, CompactionPlan, plan_compaction
from provider.clock import Clock
from provider.errors import NotFound, StoreError
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.metrics.summary import absence_text
from tieredstore.session.owner import running_owner
from tieredstore.session.places import directory_of
from tieredstore.session.reader import open_reader
from tieredstore.session.takeover import refuse_living_owner

JOBS_MAX = 2
"""Default number of concurrent jobs."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Counts of a tier that a compaction reduces."""

    objects: int
    """Objects that hold messages and units; 0 if segments are files of their own."""
    extents: int
    """Pieces of segments in them, of which the metadata has a row each; without those in
    manifests."""
    index_files: int


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Result of a compaction, or of its dry run."""

    is_dry: bool
    before: Holdings
    after: Holdings
    """Of a dry run: estimated by the metadata."""
    bytes_rewritten: int
    objects_replaced: int
    """Objects that nothing refers to any more since; their names wait in the metadata."""
    deletable_ms: int
    """Time at which the last of them may be deleted, Unix ms; 0 if there are none, or after a dry
    run."""
    objects_deleted: int
    """Tombstones of earlier runs whose deletion was due."""
    failures: list[StoreError] = field(default_factory=list[StoreError])
    """Errors of objects that could not be read and stay as they are, or not be deleted yet."""

    @property
    def is_nothing(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.bytes_rewritten or self.objects_deleted or self.failures)


async def compact(
    config: Config,
    *,
    clock: Clock,
    topics: Collection[str] = (),
    merge_bytes_max: int | None = None,
    jobs_max: int = JOBS_MAX,
    dry_run: bool = False,
    take_over: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> CompactReport:
    """Merge small parts and index files into large ones, then give the tier up.

    Each job is published by one transaction; an interrupted compaction loses nothing, and the next
    one continues. Memory: for each concurrent job twice `merge_bytes_max` and 32 MiB, and 200 bytes
    an item of the largest index file.

    Args:
        config: of a broker whose tier is there (`existing_tier`).
        clock: the time.
        topics: rewrite messages of these only, and no index file, for those are of all; empty: all.
        merge_bytes_max: bytes of one job, and of the object that it makes; None: as configured.
        jobs_max: jobs side by side.
        dry_run: plan as a reader; own nothing, write nothing.
        take_over: take the tier from an owner that lives, too.
        progress: gets the bytes that were rewritten, and how many there will be at least.

    Raises:
        NotFound: there is no such tier or topic.
        Owned: a process that lives owns the tier; nothing was changed.
        Fenced: another process took the tier meanwhile.
        Corrupt, Denied, Unavailable: as `open_owner`; what was done stays done.
    """
    if merge_bytes_max is not None:
        config = replace(config, upkeep=replace(config.upkeep, repack_bytes_max=merge_bytes_max))
    if not (dry_run or take_over):
        await refuse_living_owner(config, clock=clock)
    async with open_reader(config) as reader:
        limits = limits_of(config, reader.state, topics)
        planned = partial(plan_compaction, reader.state, limits, now_ms=clock.now_ms())
        plan = await asyncio.to_thread(planned)
        if dry_run or plan.is_empty:
            return _forecast(reader.state, plan, is_dry=dry_run)
    async with running_owner(config, clock=clock, take_over=take_over) as tier:
        return await _compacted(tier, limits, plan, jobs_max=jobs_max, progress=progress)


def limits_of(config: Config, state: TierState, topics: Collection[str]) -> CompactionLimits:
    """Return the queues and limits of a compaction. Pure.

    Raises:
        NotFound: the tier has nothing of a topic.
    """
    for topic in topics:
        if not state.queues.names_of_topic(topic):
            raise NotFound(absence_text(topic, None, state.queues.keys()), topic)
    queues: set[QueueId] | None = None
    index: IndexOptions | None = config.index if config.keeps_index else None
    if topics:
        queues = {one for topic in topics for one in state.queues.names_of_topic(topic)}
        index = None
    has_parts = isinstance(directory_of(config), TierUrl)
    return CompactionLimits(config.upkeep, config.tier.extent_bytes_max, has_parts, index, queues)


async def _compacted(
    tier: Tier,
    limits: CompactionLimits,
    plan: CompactionPlan,
    *,
    jobs_max: int,
    progress: Callable[[int, int], None],
) -> CompactReport:
    done = 0

    def on_progress(count: int) -> None:
        nonlocal done
        done += count
        progress(done, max(done, plan.bytes))

    before = tier.state.copy()
    failures = await tier.upkeep.compact(limits, jobs_max=jobs_max, on_progress=on_progress)
    after = tier.state
    replaced = {*before.parts, *before.index_files} - {*after.parts, *after.index_files}
    waiting = (after.tombstones[name] for name in replaced if name in after.tombstones)
    return CompactReport(
        is_dry=False,
        before=_holdings(before),
        after=_holdings(after),
        bytes_rewritten=done,
        objects_replaced=len(replaced),
        deletable_ms=max((one.not_before_ms for one in waiting), default=0),
        objects_deleted=sum(name not in after.tombstones for name in before.tombstones),
        failures=list(failures),
    )


def _holdings(state: TierState) -> Holdings:
    named = Counter[str]()
    for queue in state.queues.values():
        named.update(references_of(queue))
    objects = len(named.keys() | state.parts.keys())
    return Holdings(objects, named.total(), len(state.index_files))


def _forecast(state: TierState, plan: CompactionPlan, *, is_dry: bool) -> CompactReport:
    before, parts = _holdings(state), plan.parts
    gone = parts.before.parts - parts.after.parts + len(parts.jobs)
    saved = parts.before.extents - parts.after.extents
    after = Holdings(
        before.objects - gone + len(parts.jobs),
        before.extents - saved,
        before.index_files - plan.index_files_saved,
    )
    merged = {one.object_name for group in plan.merges for one in group}
    replaced = gone + len(merged & state.index_files.keys())
    return CompactReport(is_dry, before, after, plan.bytes, replaced, 0, plan.due)
