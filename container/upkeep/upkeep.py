"""Upkeep: runs the steps of an owner concurrently, each at its own interval."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Self

from container.check.scrub import Scrubber, read_mark, write_mark
from container.errors import Finding
from container.journal.journal import Journal
from container.lookup.collector import KeyCollector
from container.metadata.state import StateChange
from container.move.repack import RepackStep
from container.options import TierOptions, UpkeepOptions
from container.steps import OwnedTier, PendingDeletions, Step
from container.tier_view import TierView
from container.upkeep.compaction import Compaction, CompactionLimits, OnProgress
from container.upkeep.garbage import (
    FirstFilesStep,
    OffloadedParts,
    OffloadedPartsStep,
    OrphanStep,
    PartsStep,
)
from container.upkeep.index_files import IndexBuilding, IndexExpiryStep, IndexStep
from container.upkeep.index_merge import IndexMergeStep
from container.upkeep.offload import OffloadStep
from container.upkeep.retention import RetentionStep
from container.upkeep.snapshots import ManifestStep, SnapshotStep, TruncationStep
from container.upkeep.tombstones import TombstoneStep
from provider.clock import Clock, RandomSource, backoff_s, wait_at_most
from provider.disk_cache.use import cache_use
from provider.errors import AlreadyExists, Closed, Corrupt, Fenced, StoreError, Unavailable
from provider.file_segments import FileSegments
from provider.object_store import ObjectStore

JUMP_MS_MIN = 300_000
"""Smallest jump in ms. A smaller step, as of a time server, is followed at once. So is a smaller
difference between the machine and the storage."""
HOLD_S = 86_400.0
"""Seconds that a jump must last before upkeep follows it."""


class SteadyClock:
    """Clock whose wall time continues at the pace of the monotonic one through a jump.

    W1  `now_ms` is the machine's wall time, unless that jumped by `JUMP_MS_MIN` less than `HOLD_S`
        ago; then it is what the wall time would be without the jump.
    W2  While the wall time differs by `JUMP_MS_MIN` from that of a storage whose time differed
        at the start, `now_ms` is not later than either.
    """

    def __init__(self, clock: Clock, *, storage_shift_ms: float | None = None) -> None:
        """`storage_shift_ms`: the storage's time minus the monotonic one. None: unknown."""
        self._clock = clock
        self._storage_ms = storage_shift_ms
        """`storage_shift_ms` while the machine's clock contradicts it, else None."""
        self._base_ms = self._shift_ms()
        """Trusted wall time minus monotonic time."""
        self._other_ms = self._base_ms
        """The same after a jump that is not trusted yet, ..."""
        self._since_s: float | None = None
        """... and its start in monotonic seconds. None without such a jump."""

    def __repr__(self) -> str:
        return f"<SteadyClock: {self.jump_s:+.0f} s held back>"

    def now_ms(self) -> int:
        """Trusted wall time in Unix milliseconds."""
        self._compare()
        shift_ms = self._base_ms
        if self._storage_ms is not None:
            shift_ms = min(shift_ms, self._storage_ms)
        return int(shift_ms + 1000 * self._clock.monotonic_s())

    def monotonic_s(self) -> float:
        """Monotonic seconds of the machine's clock."""
        return self._clock.monotonic_s()

    async def sleep(self, seconds: float) -> None:
        """Sleep by the machine's clock."""
        await self._clock.sleep(seconds)

    @property
    def jump_s(self) -> float:
        """Seconds by which the machine's wall clock is ahead of the trusted one, else 0."""
        self._compare()
        return 0.0 if self._since_s is None else (self._other_ms - self._base_ms) / 1000

    @property
    def skew_s(self) -> float:
        """Seconds by which the machine's clock is ahead of the storage's. 0 if they agree."""
        self._compare()
        return 0.0 if self._storage_ms is None else (self._shift_ms() - self._storage_ms) / 1000

    def _shift_ms(self) -> float:
        return self._clock.now_ms() - 1000 * self._clock.monotonic_s()

    def _compare(self) -> None:
        """Detect a jump, its end, or its expiry, and whether the storage confirms the wall time."""
        now_ms, now_s = self._shift_ms(), self._clock.monotonic_s()
        if self._storage_ms is not None and abs(now_ms - self._storage_ms) < JUMP_MS_MIN:
            self._base_ms, self._since_s, self._storage_ms = now_ms, None, None
        elif abs(now_ms - self._base_ms) < JUMP_MS_MIN:
            self._base_ms, self._since_s = now_ms, None
        elif self._since_s is None or abs(now_ms - self._other_ms) >= JUMP_MS_MIN:
            self._other_ms, self._since_s = now_ms, now_s
        elif now_s - self._since_s >= HOLD_S:
            self._base_ms, self._since_s = now_ms, None
        else:
            self._other_ms = now_ms


HOUR_S = 3600


class ClockStep(Step):
    """Fails while the wall clock has jumped against the monotonic one.

    Fails also while it disagrees with the storage's clock.
    """

    name = "clock"

    def __init__(self, tier: OwnedTier, clock: SteadyClock) -> None:
        super().__init__(tier)
        self._clock = clock

    async def step(self) -> None:
        """Compare the clocks. No request.

        Raises:
            Unavailable: the wall clock has jumped, and the jump has not lasted yet; or the
                storage's clock differed at the start.
        """
        skew_s = self._clock.skew_s
        if skew_s:
            raise Unavailable(
                f"the machine's clock is {skew_s:+.0f} s from the storage's: retention and "
                "deletions go by the earlier of the two until they agree; set the wrong one right, "
                "and restart the owner if that is the storage's",
                "",
            )
        jump_s = self._clock.jump_s
        if jump_s:
            raise Unavailable(
                f"the machine's clock jumped by {jump_s:+.0f} s: retention and deletions go by the "
                f"time before the jump until it has lasted for {HOLD_S / HOUR_S:.0f} h; set the "
                "clock right, or restart the owner if it is right now",
                "",
            )


SETTLE_S = 2.0
"""Seconds that a commit under way has for its publication before its files are reported."""


class ScrubStep(Step):
    """Verifies the next part of the tier every `scrub_interval_s`, and raises its findings.

    Cost of a run: `scrub_operations_max` requests, the rest of the last unit of work, and five
    requests for the mark. A unit reads up to 16 MiB. Memory: as `Scrubber`.
    """

    name = "scrub"

    def __init__(self, tier: OwnedTier) -> None:
        super().__init__(tier)
        self.interval_s = tier.options.scrub_interval_s
        self._view = TierView(tier.store, tier.journal)
        self._operations = self._bytes = self._findings = self._rounds = 0

    async def step(self) -> None:
        """Verify the next part.

        Raises:
            Corrupt: there are findings. It names the first, and their number.
            Unavailable: the storage does not answer. The next run continues there.
        """
        with cache_use(past=True):
            found = await self._scrub()
        if found:
            first, count = found[0], len(found)
            others = f", and {count - 1} more" if count > 1 else ""
            reason = f"{first.finding}: {first.detail}{others}; `tieredstore check` tells all"
            raise Corrupt(reason, first.path, first.position)

    async def finish(self) -> None:
        """Do nothing: a clean end does not wait for reads of the tier."""

    async def _scrub(self) -> list[Finding]:
        """Run once. The mark is written even if the storage ends the run."""
        store, options = self.tier.store, self.tier.options
        scrubber = Scrubber(
            self._view,
            await read_mark(store),
            operations_max=options.scrub_operations_max,
            clock=self.tier.clock,
            settle_s=SETTLE_S,
        )
        try:
            found = [finding async for finding in scrubber.run()]
        except StoreError:
            with suppress(StoreError):  # the first one is raised
                await write_mark(store, scrubber.mark)
            raise
        finally:
            self._operations += scrubber.operations
            self._bytes += scrubber.bytes_read
        self._findings += len(found)
        self._rounds += scrubber.is_round_over
        with suppress(AlreadyExists):  # another process scrubs concurrently; either mark is valid
            await write_mark(store, scrubber.mark)
        return found

    @property
    def figures(self) -> Mapping[str, int]:
        """Requests, verified bytes, findings, and completed rounds."""
        return {
            "scrub_operations": self._operations,
            "scrubbed_bytes": self._bytes,
            "scrub_findings": self._findings,
            "scrub_rounds": self._rounds,
        }


EXTENT_BYTES_MAX = TierOptions().extent_bytes_max


def steps_of(
    tier: OwnedTier,
    segments: FileSegments | None = None,
    *,
    cut_grace_ms: int = 0,
    keys: KeyCollector | None = None,
    extent_bytes_max: int = EXTENT_BYTES_MAX,
) -> list[Step]:
    """Create all steps of upkeep, in the order in which due steps are begun."""
    snapshots = SnapshotStep(tier)
    shared: list[Step] = []
    own_files = segments is None or segments.has_segment_names
    if segments is not None and not own_files:
        shared.append(PartsStep(tier, snapshots, segments, grace_ms=cut_grace_ms))
        shared.append(RepackStep(tier, segments, extent_bytes_max=extent_bytes_max))
    if tier.options.offloads:
        parts = OffloadedParts(tier)
        shared.append(OffloadedPartsStep(tier, snapshots, parts, grace_ms=0))
        shared.append(OffloadStep(tier, parts))
    index: list[Step] = []
    if keys is not None:
        building = IndexBuilding()
        merging = IndexMergeStep(tier, keys.options, building)
        index += (IndexStep(tier, keys, building), merging)
    return [
        *index,
        IndexExpiryStep(tier),
        ManifestStep(tier, waits_for_repacking=not own_files),
        snapshots,
        OrphanStep(tier, snapshots, own_files=own_files),
        FirstFilesStep(tier, snapshots, segments),
        *shared,
        TruncationStep(tier, snapshots),
        *([RetentionStep(tier)] if tier.options.expires else []),
        *([ScrubStep(tier)] if tier.options.scrubs else []),
        TombstoneStep(tier),
        *([ClockStep(tier, tier.clock)] if isinstance(tier.clock, SteadyClock) else []),
    ]


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """Results of one step's runs since the ownership was taken."""

    runs: int
    """Completed runs, most of them without work."""
    failures: int
    """Failed runs among them."""
    last_error: StoreError | None
    """Error of the last run. None if it succeeded."""


@dataclass(frozen=True, slots=True)
class UpkeepStatistics:
    """Results and errors of upkeep since the ownership was taken."""

    steps: Mapping[str, StepStatistics]
    """Statistics by the step's name."""
    figures: Mapping[str, int]
    """Counters of the steps by name: `snapshots`, `objects_deleted` and so on."""

    @property
    def errors(self) -> Mapping[str, StoreError]:
        """Error of the last run, by name of each step whose last run failed."""
        return {name: one.last_error for name, one in self.steps.items() if one.last_error}

    @property
    def last_error(self) -> str:
        """`errors` as one sentence. Empty if there is none."""
        return "; ".join(f"{name}: {error}" for name, error in self.errors.items())


@dataclass(slots=True)
class _Scheduled:
    """Step with its schedule and the results of its runs."""

    step: Step
    due: asyncio.Event = field(default_factory=asyncio.Event)
    next_s: float = 0.0
    """Monotonic time at which it is due at the latest. Infinite while it is due or runs."""
    runs: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    last_error: StoreError | None = None
    running: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it runs, and while a compaction does its work."""

    def interval_s(self, backoff_s_max: float) -> float:
        """Interval in seconds, doubled by each consecutive failure but the first, up to a limit."""
        s_min = self.step.interval_s
        return backoff_s(
            max(1, self.failures_in_a_row), s_min=s_min, s_max=max(backoff_s_max, s_min)
        )

    def ran(self, error: StoreError | None) -> None:
        """Record the result of a run."""
        self.runs += 1
        self.failures += error is not None
        self.failures_in_a_row = self.failures_in_a_row + 1 if error is not None else 0
        self.last_error = error


class Upkeep:
    """Runs steps concurrently until cancelled, fenced, or finished.

    A failed step is reported and retried with back-off. The other steps keep their own intervals,
    however long a step fails or takes.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        *,
        clock: Clock,
        options: UpkeepOptions,
        deletions: PendingDeletions | None = None,
        topic_hours: dict[str, int] | None = None,
    ) -> None:
        self.topic_hours = {} if topic_hours is None else topic_hours
        """Retention in hours of topics, for those with a newer value than in their records."""
        self.deletions = deletions or PendingDeletions()
        """Files with a deletion in flight. A commit that begins one of them again waits."""
        self.options = options
        """Triggers of each step."""
        self.clock = clock if isinstance(clock, SteadyClock) else SteadyClock(clock)
        """Wall time for deletions. A jump of the machine's clock is held back."""
        self._clock = clock
        self._scheduled = [_Scheduled(step) for step in steps]
        assert len({step.name for step in steps}) == len(steps), "the name of a step is unique"
        self._running = False
        self._is_expected = False
        self._finishing = False
        self._ended = asyncio.Event()

    @classmethod
    def of(
        cls,
        journal: Journal,
        store: ObjectStore,
        *,
        clock: Clock,
        rng: RandomSource,
        options: UpkeepOptions | None = None,
        segments: FileSegments | None = None,
        cut_grace_ms: int = 0,
        keys: KeyCollector | None = None,
        extent_bytes_max: int = EXTENT_BYTES_MAX,
        storage_shift_ms: float | None = None,
    ) -> Self:
        """Create the upkeep of the tier in `store`, whose ownership was just taken with `journal`.

        `segments`: the store of segments, with its objects of earlier owners. None for a journal
        alone. Objects freed by a truncation stay for `cut_grace_ms`. `keys`: the index of messages
        by key, if there is one. `extent_bytes_max`: as in `TierOptions`. `storage_shift_ms`: as in
        `SteadyClock`.
        """
        options = options or UpkeepOptions()
        clock = SteadyClock(clock, storage_shift_ms=storage_shift_ms)
        tier = OwnedTier(journal, store, clock, rng, options)
        steps = steps_of(
            tier, segments, cut_grace_ms=cut_grace_ms, keys=keys, extent_bytes_max=extent_bytes_max
        )
        upkeep = cls(
            steps,
            clock=clock,
            options=options,
            deletions=tier.deletions,
            topic_hours=tier.topic_hours,
        )
        journal.subscribe(upkeep.published)
        return upkeep

    def __repr__(self) -> str:
        failing = [one.step.name for one in self._scheduled if one.last_error]
        mood = f"failing in {', '.join(failing)}" if failing else "in order"
        runs = sum(one.runs for one in self._scheduled)
        failures = sum(one.failures for one in self._scheduled)
        return f"<Upkeep {mood}: {runs} runs, {failures} failures>"

    @property
    def offload(self) -> OffloadStep | None:
        """Offload step, for an offload on demand. None without a second store."""
        steps = (one.step for one in self._scheduled)
        return next((step for step in steps if isinstance(step, OffloadStep)), None)

    @property
    def undeleted(self) -> StoreError | None:
        """Error of the last deletion attempt. None: it succeeded."""
        steps = (one.step for one in self._scheduled)
        return next((step.failure for step in steps if isinstance(step, TombstoneStep)), None)

    def statistics(self) -> UpkeepStatistics:
        """Return the counters since the ownership was taken. O(tombstones)."""
        steps = {
            one.step.name: StepStatistics(one.runs, one.failures, one.last_error)
            for one in self._scheduled
        }
        figures: dict[str, int] = {}
        for one in self._scheduled:
            figures.update(one.step.figures)
        figures["clock_jump_s"] = int(self.clock.jump_s)
        figures["clock_skew_s"] = int(self.clock.skew_s)
        return UpkeepStatistics(steps, figures)

    def published(self, changes: Sequence[StateChange]) -> None:
        """Pass the changes of a published entry to the steps."""
        for one in self._scheduled:
            one.step.published(changes)
        self.wake_urgent()

    def wake_urgent(self) -> None:
        """Make urgent steps due. A failing one keeps its back-off."""
        for one in self._scheduled:
            if not one.failures_in_a_row and one.step.urgent:
                one.due.set()

    async def run(self) -> None:
        """Run the steps until cancelled, fenced, or finished.

        Only one call may run at a time. After a cancellation it may be called again.
        """
        assert not self._running, "one task runs upkeep"
        self._running, self._is_expected = True, False
        self._ended.clear()
        now_s = self._clock.monotonic_s()
        for one in self._scheduled:
            one.next_s = now_s + one.interval_s(self.options.backoff_s_max)
        try:
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._tick())
                async with asyncio.TaskGroup() as steps:
                    for one in self._scheduled:
                        steps.create_task(self._repeat(one))
                for one in self._scheduled:
                    if self._finishing and one.step.finishes_again:
                        await self._run_once(one, last=True)
                ticking.cancel()
        finally:
            self._running = False
            self._ended.set()  # `finish` does not wait for steps that do not run

    def expect_run(self) -> None:
        """Make `finish` wait for a `run` whose task was created but has not begun."""
        self._is_expected = not self._running
        self._ended.clear()

    async def run_now(self, name: str) -> StoreError | None:
        """Run the step of this name once, after a run of it in progress. Return its error."""
        (one,) = (one for one in self._scheduled if one.step.name == name)
        await self._run_once(one, last=False)
        return one.last_error

    async def _tick(self) -> None:
        """Make each step due at its interval, counted from the end of its last run."""
        pause_s_max = min(one.step.interval_s for one in self._scheduled)
        while True:
            now_s = self._clock.monotonic_s()
            for one in self._scheduled:
                if now_s >= one.next_s:
                    one.due.set()
                    one.next_s = inf
            next_s = min(one.next_s for one in self._scheduled)
            await self._clock.sleep(min(pause_s_max, next_s - now_s))

    async def _repeat(self, one: _Scheduled) -> None:
        """Run one step whenever it is due, until fenced or finished."""
        goes_on = True
        while goes_on:
            await one.due.wait()
            one.due.clear()
            last = self._finishing
            goes_on = await self._run_once(one, last=last) and not last

    async def _run_once(self, one: _Scheduled, *, last: bool) -> bool:
        """Run one step and record the result. False if it must not run again."""
        try:
            async with one.running:
                await (one.step.finish() if last else one.step.step())
        except (Fenced, Closed):
            return False
        except StoreError as error:
            one.ran(error)
        else:
            one.ran(None)
            self.wake_urgent()
        one.next_s = self._clock.monotonic_s() + one.interval_s(self.options.backoff_s_max)
        return True

    async def compact(
        self, limits: CompactionLimits, *, jobs_max: int, on_progress: OnProgress
    ) -> Sequence[StoreError]:
        """Do all possible merges now, in place of the steps that would do them over time.

        The journal must be running. `on_progress` is called with the rewritten bytes, job by job.
        `jobs_max` jobs run concurrently.

        Returns:
            Errors of reads and deletions. All other work was done.

        Raises:
            Unavailable, Denied: finished work is kept. Another compaction continues.
            Fenced: a newer owner has the tier.
        """
        alike = (RepackStep, IndexMergeStep, ManifestStep, TombstoneStep)
        held = [one for one in self._scheduled if isinstance(one.step, alike)]
        async with AsyncExitStack() as stack:
            for one in held:
                await stack.enter_async_context(one.running)
            steps = {type(one.step): one.step for one in held}
            tombstones = steps[TombstoneStep]
            repacking, merging = steps.get(RepackStep), steps.get(IndexMergeStep)
            assert isinstance(tombstones, TombstoneStep)
            assert isinstance(repacking, RepackStep | None)
            assert isinstance(merging, IndexMergeStep | None)
            compaction = Compaction(
                tombstones.tier, repacking, merging, tombstones, limits, jobs_max, on_progress
            )
            await compaction.run()
        return compaction.failures

    async def finish(self) -> None:
        """Run every step once more, so that the next start is short and `check` finds no orphan.

        Waits at most `finish_s_max` seconds, and ignores store errors: nothing depends on it. Does
        nothing unless `run` runs. Idempotent.
        """
        if not (self._running or self._is_expected):
            return
        self._finishing = True
        for one in self._scheduled:
            one.due.set()
        await wait_at_most(self._clock, self.options.finish_s_max, self._ended.wait())

    def check(self) -> None:
        """Assert every step's invariants. For tests, between any two awaits."""
        for one in self._scheduled:
            one.step.check()
            assert bool(one.last_error) == bool(one.failures_in_a_row), f"{one}"
            assert one.failures_in_a_row <= one.failures <= one.runs, f"{one}"
