"""Steps side by side: one that fails, stalls or is cancelled stops no other, and recovers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from container.journal.journal import Journal
from container.metadata.operations import AddTombstones
from container.metadata.records import Tombstone
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.names.tier_objects import (
    MANIFEST_PREFIX,
    SNAPSHOT_PREFIX,
    ManifestName,
    SnapshotName,
    parse_name,
)
from container.options import UpkeepOptions
from container.steps import OwnedTier, Step
from container.upkeep.garbage import announcements
from container.upkeep.upkeep import Upkeep
from provider.errors import Denied, Unavailable
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.journal_run import own, own_with_upkeep, running
from tests.support.tier_values import Q0, begin_queue, commit

pytestmark = pytest.mark.leaves_findings(
    "manifest-damaged", "object-missing", "unreadable", why="its entries name no files"
)

OPTIONS = UpkeepOptions(
    interval_s=1.0,
    backoff_s_max=4.0,
    snapshot_entries_max=4,
    grace_s=0.0,
    sealed_segments_max=2,
    manifests_per_level_max=2,
)
ORPHAN = str(ManifestName(Q0, SegmentType.COMMIT_LOG, 0, 0, 0, "0" * 32))
"""Of an owner before the first: never published."""
NEVER = QueueId("Never", 0)
"""A queue whose first file was announced and made, and not published."""
ONCE = frozenset({"orphans", "first_files"})
"""Steps that come to rest."""


@dataclass(frozen=True)
class Blow:
    """What makes one step fail, and what follows from that."""

    verb: str
    prefix: str
    figure: str
    """Grows while the step works."""
    fail_too: frozenset[str] = frozenset()
    """Steps that make the same request."""
    wait: frozenset[str] = frozenset()
    """Steps that have no work until this one succeeds."""


BLOWS = {
    "manifests": Blow("create", "@manifest/", "manifests"),
    "snapshot": Blow(
        "create",
        "@snapshot/",
        "snapshots",
        wait=frozenset({"truncation", "orphans", "first_files"}),
    ),
    "orphans": Blow("list", "@manifest/", "orphans"),
    "first_files": Blow("list", f"{NEVER}/", "first_files"),
    "truncation": Blow("create", "@boundary/", "boundary"),
    "tombstones": Blow("list", "@journal/", "objects_deleted", fail_too=frozenset({"truncation"})),
}


class World:
    """The second owner of a tier, and work for every step in each round."""

    def __init__(
        self, store: FaultyObjectStore, clock: ManualClock, journal: Journal, upkeep: Upkeep
    ) -> None:
        self.store = store
        self.clock = clock
        self.journal = journal
        self.upkeep = upkeep
        self.rounds = 0

    async def work(self, rounds: int) -> None:
        for _ in range(rounds):
            self.rounds += 1
            name = f"@parts/{self.rounds}"
            await self.store.inner.create(name, [b"x"])
            dead = AddTombstones((Tombstone(name, 0, "test"),))
            queue = self.journal.state.queues[Q0]
            await self.journal.publish([commit(queue, 2, seal=True, epoch=2), dead])
            await self.clock.advance(1.0)
            await settle(100)
            self.upkeep.check()

    def figures(self) -> dict[str, int]:
        return {name: self.upkeep.statistics().figures[b.figure] for name, b in BLOWS.items()}

    def runs(self) -> dict[str, int]:
        return {name: one.runs for name, one in self.upkeep.statistics().steps.items()}


@asynccontextmanager
async def second_owner() -> AsyncIterator[World]:
    clock, memory = ManualClock(), MemoryStore()
    first = await own(memory, clock)
    async with running(first):
        await first.publish(begin_queue())
        await first.publish(announcements(first.state, [NEVER], epoch=1, now_ms=0))
        await first.close()
    await memory.create(ORPHAN, [b"x"])
    await memory.create(segment_name(NEVER, SegmentType.COMMIT_LOG, 0), [b"x"])
    store = FaultyObjectStore(memory.another_client(), clock=clock)
    journal, upkeep = await own_with_upkeep(store, clock, seed=1, upkeep=OPTIONS)
    async with running(journal):
        yield World(store, clock, journal, upkeep)
        await journal.close()


@pytest.mark.parametrize("kind", ["refused", "stalled"])
@pytest.mark.parametrize("struck", BLOWS)
async def test_a_step_that_fails_stops_no_other_and_recovers(struck: str, kind) -> None:
    blow = BLOWS[struck]
    async with second_owner() as world, running(world.upkeep):
        world.store.faults = [Fault(kind, verb=blow.verb, prefix=blow.prefix)]
        await world.work(16)
        statistics, before = world.upkeep.statistics(), world.figures()
        assert before[struck] == 0
        for name, one in statistics.steps.items():
            failing = name == struck or name in blow.fail_too
            assert bool(one.failures) == bool(one.last_error) == (failing and kind == "refused")
            if not failing:
                assert one.runs >= 16, f"{name} waits for {struck}"
                works = name in BLOWS  # others have nothing to do here
                assert not works or (before[name] > 0) == (name not in blow.wait), name
        if kind == "refused":
            assert 3 <= statistics.steps[struck].failures <= 8, "tried again, with a back-off"
            assert f"{struck}: refused" in statistics.last_error.replace("injected ", "")
            assert f"failing in {struck}" in repr(world.upkeep) or blow.fail_too
        world.store.faults = []
        world.store.released.set()
        await world.work(10)
        after = world.figures()
        assert all(after[name] > 0 for name in BLOWS), after
        assert world.upkeep.statistics().last_error == ""
        assert "in order" in repr(world.upkeep)


@pytest.mark.parametrize("struck", BLOWS)
async def test_upkeep_that_is_cancelled_in_any_step_goes_on(struck: str) -> None:
    blow = BLOWS[struck]
    async with second_owner() as world:
        for call in range(1, 4):
            world.store.released.clear()
            world.store.faults = [Fault("stalled", verb=blow.verb, prefix=blow.prefix)]
            async with running(world.upkeep):
                await world.work(6)
            world.upkeep.check()
            world.store.faults = []
            before = world.figures()
            async with running(world.upkeep):
                await world.work(6)
            after = world.figures()
            grown = {name for name in BLOWS if after[name] > before[name]}
            assert grown >= BLOWS.keys() - ONCE, f"round {call}: {before} {after}"
            assert {after[name] for name in ONCE} == {1}
        names = {entry.name for entry in await world.store.inner.list("@parts/")}
        assert len(names) <= 1, "the last one's tombstone may not be due yet"
        world.journal.state.check()


@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_upkeep_that_is_cancelled_at_any_turn_goes_on(turns: int) -> None:
    async with second_owner() as world:
        async with running(world.upkeep):
            await world.work(3)
            dead = AddTombstones((Tombstone("@parts/more", 0, "test"),))
            queue = world.journal.state.queues[Q0]
            await world.journal.publish([commit(queue, 2, seal=True, epoch=2), dead])
            await settle(turns)
        world.upkeep.check()
        async with running(world.upkeep):
            await world.work(8)
        assert all(world.figures().values()), world.figures()
        assert world.upkeep.statistics().last_error == ""


async def test_a_clean_end_runs_what_can_run_within_its_deadline() -> None:
    async with second_owner() as world, running(world.upkeep):
        await world.work(2)
        world.store.faults = [Fault("stalled", verb="create", prefix="@manifest/")]
        for _ in range(8):
            queue = world.journal.state.queues[Q0]
            await world.journal.publish([commit(queue, 2, seal=True, epoch=2)])
        before = world.runs()
        async with asyncio.TaskGroup() as group:
            finishing = group.create_task(world.upkeep.finish())
            await settle(300)
            assert not finishing.done()
            assert world.figures()["orphans"] == 1
            await world.clock.advance(OPTIONS.finish_s_max + 1)
            assert finishing.done()
        ended = {name for name, runs in world.runs().items() if runs > before[name]}
        assert ended >= BLOWS.keys() - {"manifests"}
        after = world.runs()
        await world.clock.advance(100)
        assert world.runs() == after, "nothing runs after the end"
        world.store.released.set()
        await world.upkeep.finish()
        await world.upkeep.finish()


async def test_a_clean_end_snapshots_what_it_publishes_itself() -> None:
    async with second_owner() as world:
        for _ in range(40):
            queue = world.journal.state.queues[Q0]
            await world.journal.publish([commit(queue, 2, seal=True, epoch=2)])
        async with running(world.upkeep):
            await settle(1)
            await world.upkeep.finish()
        assert world.figures()["manifests"] > 2 * OPTIONS.snapshot_entries_max
        world.upkeep.check()
        snapshots = await world.store.inner.list(SNAPSHOT_PREFIX)
        newest = parse_name(snapshots[-1].name)
        assert isinstance(newest, SnapshotName)
        entries = world.journal.state.sequence - newest.sequence
        assert entries < OPTIONS.snapshot_entries_max, "the next start replays them"


async def test_a_clean_end_does_not_repeat_a_listing_that_is_denied() -> None:
    async with second_owner() as world:
        listed, denials = world.store.list, 0

        async def denied(prefix: str, *, after: str = ""):
            nonlocal denials
            if prefix == MANIFEST_PREFIX:
                denials += 1
                raise Denied("not yours", prefix)
            return await listed(prefix, after=after)

        world.store.list = denied  # type: ignore[method-assign]
        async with running(world.upkeep):
            await settle(1)
            async with asyncio.TaskGroup() as group:
                finishing = group.create_task(world.upkeep.finish())
                await settle(300)
                ended = finishing.done()
                await world.clock.advance(OPTIONS.finish_s_max + 1)
        assert denials == 1
        assert ended
        assert "orphans: not yours" in world.upkeep.statistics().last_error


async def test_a_fence_ends_every_step() -> None:
    async with second_owner() as world:
        async with running(world.upkeep):
            await world.work(2)
            due_ms = world.clock.now_ms() + 3000
            dead = AddTombstones((Tombstone("@parts/late", due_ms, "test"),))
            await world.journal.publish([dead])
            third = await own(world.store.inner, world.clock, seed=2)
            await world.clock.advance(5)
            await settle(100)
            assert world.journal.is_over
            before = world.store.calls.copy()
            await world.clock.advance(100)
            assert world.store.calls == before
        await third.close()


class Flaky(Step):
    """Fails until it is told otherwise; notes when it ran."""

    name = "flaky"

    def __init__(self, tier: OwnedTier) -> None:
        super().__init__(tier)
        self.ran_s: list[float] = []
        self.fails = True

    @property
    def urgent(self) -> bool:
        return self.fails

    async def step(self) -> None:
        self.ran_s.append(self.tier.clock.monotonic_s())
        if self.fails:
            raise Unavailable("not now", "path")


async def test_a_failing_step_backs_off_and_returns_to_its_interval() -> None:
    clock, store = ManualClock(), MemoryStore()
    journal = await own(store, clock)
    step = Flaky(OwnedTier(journal, store, clock, None, OPTIONS))  # type: ignore[arg-type]
    upkeep = Upkeep([step], clock=clock, options=OPTIONS)
    journal.subscribe(upkeep.published)
    async with running(journal, upkeep):
        for _ in range(20):
            await journal.publish([AddTombstones((Tombstone("x", 2**60, "test"),))])
            await clock.advance(1.0)
        assert step.ran_s[0] == 0.0, "it is urgent"
        gaps = [late - early for early, late in zip(step.ran_s[1:], step.ran_s[2:], strict=False)]
        assert gaps == [2.0, 4.0, 4.0, 4.0, 4.0], "urgent or not"
        step.fails = False
        await clock.advance(4.0)
        ran = len(step.ran_s)
        await clock.advance(3.0)
        assert len(step.ran_s) == ran + 3
        statistics = upkeep.statistics().steps["flaky"]
        assert (statistics.runs, statistics.failures) == (len(step.ran_s), len(gaps) + 2)
        assert statistics.last_error is None
        await journal.close()
