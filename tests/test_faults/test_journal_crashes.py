"""A process that dies before or after any request of the journal: nothing acknowledged is lost.

One life is: take the ownership, publish through two snapshots and a cut, with manifests and
deletions. It is killed at its n-th request for every n, then another owner goes on.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from container.journal.journal import Journal
from container.journal.reader import JournalFollower
from container.metadata.operations import AddTombstones, Operation
from container.metadata.records import Tombstone
from container.options import UpkeepOptions
from container.upkeep.upkeep import Upkeep
from provider.clock import SystemClock
from provider.errors import Unavailable
from provider.object_store import AppendingStore, ObjectStore
from provider.posix.store import PosixStore
from provider.testing.faulty import Crashed, Fault, FaultyObjectStore
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.level import by_level
from tests.support.tier_values import Q0, begin_queue, commit

UPKEEP = UpkeepOptions(
    snapshot_entries_max=4,
    grace_s=0.0,
    interval_s=1.0,
    sealed_segments_max=2,
    manifests_per_level_max=2,
)
COMMITS = 8
STRIDE = by_level(quick=4, full=4, nightly=1)
"""What lies on the storage after a request lies there before the next one: with either kind of
death every second request is enough. By day, every fourth one is struck."""


class Life:
    """One owner's life, and what it was told."""

    def __init__(self, store: ObjectStore, clock: ManualClock, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.seed = seed
        self.acknowledged: list[str] = []
        self.offset = 0
        self.journal: Journal | None = None

    async def live(self) -> None:
        self.journal = journal = await Journal.take_ownership(
            self.store,
            clock=self.clock,
            rng=Random(self.seed),
            owner=f"life {self.seed}",
            cluster="c",
            broker="b",
        )
        upkeep = Upkeep.of(
            journal, self.store, clock=self.clock, rng=Random(-self.seed), options=UPKEEP
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(journal.run())
            kept = group.create_task(upkeep.run())
            if Q0 not in journal.state.queues:
                await journal.publish(begin_queue())
            for number in range(COMMITS):
                name = f"mark-{self.seed}-{number}"
                marks: list[Operation] = [AddTombstones((Tombstone(name, 2**60, "mark"),))]
                queue = journal.state.queues[Q0]
                await journal.publish([commit(queue, 2, seal=True, epoch=journal.epoch), *marks])
                self.acknowledged.append(name)
                self.offset = journal.state.queues[Q0].next_offset
                await self.clock.advance(1.5)
            await journal.close()
            kept.cancel()


async def dies(life: Life) -> bool:
    """Live; whether it was killed. Anything else that went wrong is raised."""
    try:
        await life.live()
    except Crashed:
        return True
    except BaseExceptionGroup as errors:
        if errors.split(Crashed)[1] is not None:
            raise
        return True
    return False


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.leaves_findings("object-missing", "unreadable", why="its entries name no files")
@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
async def test_death_at_any_request_loses_nothing_acknowledged(kind) -> None:
    call = 1
    while True:
        memory, clock = MemoryStore(), ManualClock()
        first = Life(memory, clock, 1)
        assert not await dies(first)
        fatal = Fault(kind, calls=(call,))
        second = Life(FaultyObjectStore(memory.another_client(), faults=[fatal]), clock, 2)
        died = await dies(second)
        third = Life(memory.another_client(), clock, 3)
        assert not await dies(third)
        assert third.journal is not None
        state = third.journal.state
        state.check()
        wanted = {*first.acknowledged, *second.acknowledged, *third.acknowledged}
        assert wanted <= set(state.tombstones)
        assert state.queues[Q0].next_offset >= second.offset + 2 * COMMITS
        follower = await JournalFollower.open(memory.another_client())
        assert follower.state == state
        if not died:
            break
        call += STRIDE
    assert call > 50, "the life is too short to be a test"


@pytest.mark.scales
@pytest.mark.leaves_findings("object-missing", "unreadable", why="its entries name no files")
async def test_a_lost_reply_to_any_request_changes_nothing() -> None:
    call = 0
    struck = True
    while struck:
        call += by_level(quick=2, full=1, nightly=1)
        memory, clock = MemoryStore(), ManualClock()
        faulty = FaultyObjectStore(memory, faults=[Fault("lost_reply", calls=(call,))])
        life = Life(faulty, clock, 1)
        async with asyncio.TaskGroup() as group:
            lived = group.create_task(retried(life.live))
            while not lived.done():
                await settle()
                await clock.advance(0.5)
        assert life.acknowledged == [f"mark-1-{n}" for n in range(COMMITS)]
        follower = await JournalFollower.open(memory.another_client())
        assert life.journal is not None
        assert follower.state == life.journal.state
        assert follower.state.queues[Q0].next_offset == 2 * COMMITS
        struck = bool(faulty.struck)
    assert call > 50


async def retried(live: Callable) -> None:
    """Start again where the start itself could not read."""
    while True:
        try:
            return await live()
        except Unavailable:
            continue


@pytest.fixture(params=["memory", "posix"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], AppendingStore]:
    memory = MemoryStore()
    if request.param == "memory":
        return memory.another_client
    return lambda: PosixStore(tmp_path)


@pytest.mark.leaves_findings("object-missing", "unreadable", why="its entries name no files")
async def test_the_journal_lives_on_the_stores_that_we_ship(make_store) -> None:
    states = []
    for seed in (1, 2):
        store = make_store()
        journal = await Journal.take_ownership(
            store,
            clock=SystemClock(),
            rng=Random(seed),
            owner="me",
            cluster="c",
            broker="b",
        )
        clock = SystemClock()
        upkeep = Upkeep.of(journal, store, clock=clock, rng=Random(-seed), options=UPKEEP)
        async with asyncio.TaskGroup() as group:
            group.create_task(journal.run())
            kept = group.create_task(upkeep.run())
            if seed == 1:
                await journal.publish(begin_queue())
            for _ in range(COMMITS):
                await journal.publish([commit(journal.state.queues[Q0], 2, epoch=journal.epoch)])
            await journal.verify_owner()
            await journal.close()
            kept.cancel()
        states.append(journal.state)
        await store.close()
    store = make_store()
    follower = await JournalFollower.open(store)
    assert follower.state == states[1]
    assert follower.state.queues[Q0].next_offset == 4 * COMMITS
    await store.close()
