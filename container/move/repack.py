"""Repack step: runs of many queues are copied into one new object each (decision 0031)."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from container.errors import BytesMissing
from container.metadata.operations import Release, RepackedRun, RepackSegments
from container.metadata.records import Extent, Queue
from container.metadata.state import StateChange
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import segment_name
from container.options import UpkeepOptions
from container.queue.repack_plan import (
    RepackRules,
    Run,
    is_crowded,
    merged_extents,
    runs_to_compact,
    runs_to_merge,
)
from container.record.checksum import crc32c
from container.steps import OwnedTier, Step, side_by_side
from provider.disk_cache.use import cache_use
from provider.errors import Corrupt, OutOfRange, StoreError
from provider.file_segments import FileSegments, Placement, SegmentSlice
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset, together

UNPUBLISHED_S_MAX = 10.0
"""Seconds after which copies are published before another job begins. Until then they have the
signs of garbage of a dead owner."""
AT_ONCE = 200
"""Queues that are planned, and runs that are joined, before other tasks get a turn: some ms."""
READ_BYTES_MAX = 8 << 20
READ_GAP_BYTES_MAX = 256 << 10
"""Unneeded bytes that are read along because one more request costs more."""


class _Wanted(NamedTuple):
    """Extent whose bytes a job needs, in reading order."""

    object_name: str
    start: int
    end: int
    run: int
    """Index of its run in the job."""
    extent: Extent


class _Copied(NamedTuple):
    """Run with its bytes, one buffer for each future extent."""

    run: Run
    buffers: tuple[Buffer, ...]
    extents: tuple[Extent, ...]
    """Future extents, except for their place."""


@dataclass(slots=True)
class _Made:
    """Copies that no transaction has published yet, without their bytes, and their places."""

    copied: list[_Copied] = field(default_factory=list[_Copied])
    placed: list[Placement] = field(default_factory=list[Placement])
    since_s: float = 0.0
    """Time of the first of them, monotonic seconds."""


class Repacker:
    """Executes repacking jobs of one owner. Several calls may run concurrently.

    Cost of a job: one request for each part that it reads from, more if the needed bytes lie far
    apart or exceed 8 MiB, and one create. For all jobs: a transaction for each `repack_runs_max`
    runs, some 200 bytes per run. Memory: twice the bytes of one job, and one read (or `reads_max`)
    of 8 MiB.
    """

    def __init__(self, tier: OwnedTier, segments: FileSegments, *, extent_bytes_max: int) -> None:
        self.tier = tier
        self._segments = segments
        self._extent_bytes_max = extent_bytes_max
        self.passed_over: set[QueueId] = set()
        """Queues with damaged bytes. The next owner retries them."""
        self.jobs = 0
        """Number of objects created."""
        self.bytes = 0
        """Bytes that were rewritten and published."""
        self.extents_saved = 0
        """Number of extents saved."""

    def __repr__(self) -> str:
        return f"<Repacker: {self.jobs} jobs, {self.bytes} bytes>"

    async def do_all(
        self, jobs: Iterable[Sequence[Run]], damaged: list[StoreError], *, reads_max: int = 1
    ) -> None:
        """Execute jobs one after the other, and publish the new places in batches.

        Errors of skipped queues are added to `damaged`. `reads_max` requests run concurrently.

        Raises:
            Unavailable, Denied: earlier copies are published.
            Fenced: a newer owner has the tier.
        """
        made = _Made()
        try:
            for job in jobs:
                if self._is_due(made, len(job)):
                    await self._publish(made)
                await self._do(job, made, damaged, reads_max)
        except StoreError:
            await self._publish(made)  # finished copies are kept
            raise
        except BaseException:
            self._segments.abandon(made.placed)
            raise
        await self._publish(made)

    def _is_due(self, made: _Made, more: int) -> bool:
        """Whether finished copies are published before `more` runs are copied."""
        if not made.copied:
            return False
        waited_s = self.tier.clock.monotonic_s() - made.since_s
        is_full = len(made.copied) + more > self.tier.options.repack_runs_max
        return is_full or waited_s >= UNPUBLISHED_S_MAX

    async def _publish(self, made: _Made) -> None:
        copied, placed = list(made.copied), list(made.placed)
        made.copied.clear()
        made.placed.clear()
        operations = self._operations(copied, placed)  # no await between here and `publish`
        if not operations:
            self._segments.abandon(placed)
            return
        named = {
            extent.object_name
            for operation in operations
            for run in operation.runs
            for extent in run.extents
        }
        self._segments.abandon([one for one in placed if one.object_name not in named])
        await self.tier.journal.publish(operations)
        self.bytes += sum(one.run.bytes for one in copied)
        self.extents_saved += sum(len(one.run.extents) - len(one.extents) for one in copied)

    async def _do(
        self, job: Sequence[Run], made: _Made, damaged: list[StoreError], reads_max: int
    ) -> None:
        """Copy the runs of a job into one object."""
        bodies = await self._read(job, damaged, reads_max=reads_max)
        copied: list[_Copied] = []
        for number, run in enumerate(job):
            if number % AT_ONCE == AT_ONCE - 1:
                await self.tier.clock.sleep(0)
            if run.queue not in self.passed_over and len(bodies[number]) == len(run.extents):
                copied.append(_joined(run, bodies[number], self._extent_bytes_max))
        if not copied:
            return
        slices = [
            SegmentSlice(
                segment_name(one.run.queue, one.run.type, one.run.base),
                one.run.extents[0].position,
                one.buffers,
            )
            for one in copied
        ]
        alone = len(copied) == 1 and copied[0].run.sealed_ms > 0
        placed = await self._segments.write(slices, alone=alone)
        if not made.copied:
            made.since_s = self.tier.clock.monotonic_s()
        made.placed.extend(placed)
        made.copied.extend(one._replace(buffers=()) for one in copied)
        self.jobs += 1

    async def _read(
        self, job: Sequence[Run], damaged: list[StoreError], *, reads_max: int = 1
    ) -> list[dict[int, Buffer]]:
        """Read the bytes of each run's extents by position, and verify their checksums.

        Extents that are gone because their queue was truncated are left out without an error.
        """
        bodies: list[dict[int, Buffer]] = [{} for _ in job]
        groups = [some async for some in self._groups(job)]

        async def take(some: Sequence[_Wanted]) -> None:
            await self._read_group(job, some, bodies, damaged)

        await side_by_side(groups, take, at_once=reads_max)
        return bodies

    async def _read_group(
        self,
        job: Sequence[Run],
        some: Sequence[_Wanted],
        bodies: list[dict[int, Buffer]],
        damaged: list[StoreError],
    ) -> None:
        """Read near extents by one request."""
        place = ByteRange(some[0].start, max(one.end for one in some))
        try:
            with cache_use(past=True):
                raw = memoryview(await self.tier.store.read(some[0].object_name, place))
        except OutOfRange as error:
            for one in some:
                self._pass_over(job[one.run], BytesMissing.of(error), damaged)
            return
        for one in some:
            body = bytes(raw[one.start - place.start : one.end - place.start])
            if one.extent.crc32c is not None and crc32c(body) != one.extent.crc32c:
                reason = f"CRC-32C of {len(body)} bytes is not that of its extent"
                error = Corrupt(reason, one.object_name, one.start)
                self._pass_over(job[one.run], error, damaged)
                continue
            bodies[one.run][one.extent.position] = body

    async def _groups(self, job: Sequence[Run]) -> AsyncIterator[list[_Wanted]]:
        """Groups of extents for one request each.

        Sorted per part: 65,000 extents would block the loop.
        """
        wanted: dict[str, list[_Wanted]] = {}
        for number, run in enumerate(job):
            if number % AT_ONCE == AT_ONCE - 1:
                await self.tier.clock.sleep(0)
            for one in run.extents:
                start, name = one.object_offset, one.object_name
                wanted.setdefault(name, []).append(
                    _Wanted(name, start, start + one.length, number, one)
                )
        for name in sorted(wanted):
            ranges = [(name, ByteRange(one.start, one.end)) for one in wanted[name]]
            for some in together(
                ranges, gap_bytes_max=READ_GAP_BYTES_MAX, bytes_max=READ_BYTES_MAX
            ):
                yield [wanted[name][number] for number in some.members]

    def _pass_over(self, run: Run, error: StoreError, damaged: list[StoreError]) -> None:
        """Skip a queue with damaged bytes, unless the bytes no longer belong to it."""
        if _still_there(self.tier.state.queues.get(run.queue), run):
            self.passed_over.add(run.queue)
            damaged.append(error)

    def _operations(
        self, copied: Sequence[_Copied], placed: Sequence[Placement]
    ) -> list[RepackSegments]:
        """Operations that publish the copies, for queues that still have the copied extents."""
        queues = self.tier.journal.planned.queues
        runs: dict[tuple[int, QueueId], list[RepackedRun]] = {}
        for one, place in zip(copied, placed, strict=True):
            run = one.run
            if not _still_there(queues.get(run.queue), run):
                continue
            shift = place.object_offset - run.extents[0].position
            extents = tuple(_placed(extent, place, shift) for extent in one.extents)
            position, count = run.extents[0].position, len(run.extents)
            done = RepackedRun(run.type, run.base, position, count, extents)
            runs.setdefault((-run.level, run.queue), []).append(done)
        release, earlier = Release(self.tier.due_ms()), Counter[QueueId]()
        operations: list[RepackSegments] = []
        for (level, queue_id), done in sorted(runs.items()):  # a part has its highest run's level
            queue, before = queues[queue_id], earlier[queue_id]
            earlier[queue_id] += 1
            operations.append(
                RepackSegments(
                    queue_id, queue.generation, queue.repacks + before, -level, tuple(done), release
                )
            )
        return operations


def _joined(run: Run, bodies: Mapping[int, Buffer], extent_bytes_max: int) -> _Copied:
    """Join a run's bytes to its future extents. CPU: a checksum of the bytes."""
    buffers: list[Buffer] = []
    extents: list[Extent] = []
    for group in merged_extents(run, extent_bytes_max):
        body = b"".join(bodies[one.position] for one in group)
        buffers.append(body)
        extents.append(
            Extent(
                group[0].position,
                len(body),
                crc32c(body),
                QueueOffset(group[0].first_offset),
                min(one.min_timestamp for one in group),
                max(one.max_timestamp for one in group),
            )
        )
    return _Copied(run, tuple(buffers), tuple(extents))


def _placed(extent: Extent, place: Placement, shift: int) -> Extent:
    return extent._replace(object_name=place.object_name, object_offset=extent.position + shift)


def _still_there(queue: Queue | None, run: Run) -> bool:
    """Whether a queue still has the extents of a run, adjacent and in the same segment."""
    return queue is not None and queue.has_extents(run.type, run.base, run.extents)


class RepackStep(Step):
    """Merges parts of open segments, and compacts those of sealed ones.

    Runs jobs of at most `repack_bytes_max`, one after the other. Costs as in `Repacker`.
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
        """Executor of the jobs. A compaction shares it."""
        self._changed: dict[QueueId, None] = dict.fromkeys(tier.state.queues)
        """Queues to check, in order."""
        self._crowded = False

    def published(self, changes: Sequence[StateChange]) -> None:
        """Add the queues of these changes to the next run."""
        for change in changes:
            for queue_id, queue in change.queues.changed.items():
                self._changed[queue_id] = None
                self._crowded = self._crowded or self._is_crowded(queue)
                if queue is None:  # its topic may come again, without the damage
                    self.repacker.passed_over.discard(queue_id)

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
        """Run the jobs that are worth their requests. No request if there are none.

        Raises:
            Unavailable: the next run plans again.
            Corrupt: bytes of a queue are damaged or lost. That queue is skipped.
            Fenced: a newer owner has the tier.
        """
        options, crowded = self.tier.options, self._crowded
        self._crowded = False
        merges, compacted = await self._planned()
        damaged: list[StoreError] = []
        extents = sum(len(run.extents) for run in merges)
        if merges and (crowded or extents >= options.merge_extents_min):
            await self._do_all(merges, damaged)
        large = [run for run in compacted if run.segment_bytes >= options.seal_bytes_min]
        for run in large:
            await self._do_all([run], damaged)
        small = [run for run in compacted if run.segment_bytes < options.seal_bytes_min]
        if self._is_worth_it(small):
            await self._do_all(small, damaged)
        if damaged:
            raise damaged[0]

    async def finish(self) -> None:
        """Do nothing: a clean end does not wait for copies."""

    def _is_worth_it(self, small: Sequence[Run]) -> bool:
        """Whether to compact small sealed segments now: they fill an object, or waited for long."""
        options, now_ms = self.tier.options, self.tier.clock.now_ms()
        oldest_ms = min((run.sealed_ms for run in small), default=now_ms)
        waited_long = now_ms - oldest_ms >= 1000 * options.seal_wait_s_max
        return bool(small) and (
            waited_long or sum(run.bytes for run in small) >= options.seal_bytes_min
        )

    async def _planned(self) -> tuple[list[Run], list[Run]]:
        """Plan merges and compaction. Queues without work are not checked again."""
        merges: list[Run] = []
        compacted: list[Run] = []
        for number, queue_id in enumerate(list(self._changed)):
            if number % AT_ONCE == AT_ONCE - 1:
                await self.tier.clock.sleep(0)
            queue = self.tier.state.queues.get(queue_id)
            if queue is None or queue_id in self.repacker.passed_over:
                del self._changed[queue_id]
                continue
            found = runs_to_merge(queue, self._level_of, self.rules)
            closed = runs_to_compact(queue, self._level_of, self.rules)
            if not found and not closed:
                del self._changed[queue_id]
            merges += found
            compacted += closed
        self._changed = dict(self._changed)  # an emptied dict keeps the memory of its largest size
        return merges, compacted

    def _level_of(self, name: str) -> int:
        part = self.tier.state.parts.get(name)
        return 0 if part is None else part.level

    async def _do_all(self, runs: Sequence[Run], damaged: list[StoreError]) -> None:
        await self.repacker.do_all(_jobs(runs, self.tier.options), damaged)

    @property
    def figures(self) -> Mapping[str, int]:
        """Jobs, rewritten bytes, and saved extents."""
        return {
            "repack_jobs": self.repacker.jobs,
            "repacked_bytes": self.repacker.bytes,
            "extents_saved": self.repacker.extents_saved,
        }


def _jobs(runs: Sequence[Run], options: UpkeepOptions) -> Iterator[list[Run]]:
    """Runs in jobs within the limits. Runs of the same parts are together. Pure."""
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
