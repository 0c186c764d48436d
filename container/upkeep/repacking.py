"""Repacking: small parts are merged, and the bytes of closed segments gathered (decision 0031).

What is worth its requests is decided here; `repack_job.py` does it.
"""

from collections.abc import Iterator, Mapping, Sequence

from container.metadata.records import Queue
from container.metadata.state import StateChange
from container.names.queue_id import FLAT_FILES, QueueId
from container.queue.repack_plan import (
    RepackRules,
    Run,
    is_crowded,
    runs_to_gather,
    runs_to_merge,
)
from container.upkeep.options import UpkeepOptions
from container.upkeep.repack_job import AT_ONCE, Repacker
from container.upkeep.step import OwnedTier, Step
from provider.errors import StoreError
from provider.file_segments import FileSegments


class RepackStep(Step):
    """Merges parts of open segments, and gathers those of closed ones.

    Jobs of at most `repack_bytes_max`, one after the other; `Repacker` says what they cost.
    """

    name = "repacking"

    def __init__(self, tier: OwnedTier, segments: FileSegments, *, extent_bytes_max: int) -> None:
        super().__init__(tier)
        options = tier.options
        self.rules = RepackRules(
            options.extents_max, options.merge_fan, extent_bytes_max, options.repack_bytes_max
        )
        """Limits of planning."""
        self.repacker = Repacker(tier, segments, extent_bytes_max=extent_bytes_max)
        """Does the jobs; a compaction shares it."""
        self._changed: dict[QueueId, None] = dict.fromkeys(tier.state.queues)
        """Queues to look at, in order."""
        self._crowded = False

    def published(self, changes: Sequence[StateChange]) -> None:
        """Look at the queues of these changes next time."""
        for change in changes:
            for queue_id, queue in change.queues.changed.items():
                self._changed[queue_id] = None
                self._crowded = self._crowded or self._is_crowded(queue)

    def _is_crowded(self, queue: Queue | None) -> bool:
        if queue is None or queue.id in self.repacker.passed_over:
            return False
        live = (queue.segments(kind)[-1:] for kind in FLAT_FILES)
        return any(is_crowded(segment, self.rules) for one in live for segment in one)

    @property
    def urgent(self) -> bool:
        """Whether an open segment has so many small extents that they are merged at once."""
        return self._crowded

    async def step(self) -> None:
        """Do the jobs that are worth their requests. No request where none is.

        Raises:
            Unavailable: the next run plans anew.
            Corrupt: bytes of a queue are damaged or gone; that queue is passed over.
            Fenced: a newer owner has the tier.
        """
        options, crowded = self.tier.options, self._crowded
        self._crowded = False
        merges, gathered = await self._planned()
        damaged: list[StoreError] = []
        extents = sum(len(run.extents) for run in merges)
        if merges and (crowded or extents >= options.merge_extents_min):
            await self._do_all(merges, damaged)
        large = [run for run in gathered if run.segment_bytes >= options.seal_bytes_min]
        for run in large:
            await self._do_all([run], damaged)
        small = [run for run in gathered if run.segment_bytes < options.seal_bytes_min]
        if self._is_worth_it(small):
            await self._do_all(small, damaged)
        if damaged:
            raise damaged[0]

    async def finish(self) -> None:
        """Nothing: a clean end is no time to copy."""

    def _is_worth_it(self, small: Sequence[Run]) -> bool:
        """Whether small closed segments are gathered now: they fill an object, or waited long."""
        options, now_ms = self.tier.options, self.tier.clock.now_ms()
        oldest_ms = min((run.sealed_ms for run in small), default=now_ms)
        waited_long = now_ms - oldest_ms >= 1000 * options.seal_wait_s_max
        return bool(small) and (
            waited_long or sum(run.bytes for run in small) >= options.seal_bytes_min
        )

    async def _planned(self) -> tuple[list[Run], list[Run]]:
        """What should be merged and gathered; queues without work are not looked at again."""
        merges: list[Run] = []
        gathered: list[Run] = []
        for number, queue_id in enumerate(list(self._changed)):
            if number % AT_ONCE == AT_ONCE - 1:
                await self.tier.clock.sleep(0)
            queue = self.tier.state.queues.get(queue_id)
            if queue is None or queue_id in self.repacker.passed_over:
                del self._changed[queue_id]
                continue
            found = runs_to_merge(queue, self._level_of, self.rules)
            closed = runs_to_gather(queue, self._level_of, self.rules)
            if not found and not closed:
                del self._changed[queue_id]
            merges += found
            gathered += closed
        self._changed = dict(self._changed)  # one that was large keeps its memory when it is empty
        return merges, gathered

    def _level_of(self, name: str) -> int:
        part = self.tier.state.parts.get(name)
        return 0 if part is None else part.level

    async def _do_all(self, runs: Sequence[Run], damaged: list[StoreError]) -> None:
        await self.repacker.do_all(_jobs(runs, self.tier.options), damaged)

    @property
    def figures(self) -> Mapping[str, int]:
        """Jobs done, bytes that were rewritten, and by how many extents there are fewer."""
        return {
            "repack_jobs": self.repacker.jobs,
            "repacked_bytes": self.repacker.bytes,
            "extents_saved": self.repacker.extents_saved,
        }


def _jobs(runs: Sequence[Run], options: UpkeepOptions) -> Iterator[list[Run]]:
    """Runs in jobs within the limits; those of the same parts together. Pure."""
    job: list[Run] = []
    job_bytes = 0
    for run in sorted(runs, key=lambda one: one.extents[0].object_name):
        full = job_bytes + run.bytes > options.repack_bytes_max
        if job and (full or len(job) >= options.repack_runs_max):
            yield job
            job, job_bytes = [], 0
        job.append(run)
        job_bytes += run.bytes
    if job:
        yield job
