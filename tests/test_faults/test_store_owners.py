"""Rival stores on one tier: one history, never changed, and the newest wins.

Over files that grow, for long: `test_object_simulation.py` has many seeds of object stores.
"""

import asyncio
from collections import Counter

import pytest

from container.names.queue_id import QueueId
from provider.errors import Fenced
from provider.testing.faulty import Fault
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.level import LEVEL, by_level
from tests.support.store_harness import (
    StoreHotLog,
    StoreProcess,
    drained,
)
from tests.support.store_reader import findings
from tests.support.store_simulation import simulate_store

CHUNK = by_level(quick=8, full=40, nightly=125)
CHUNKS = by_level(quick=4, full=1, nightly=20)
EXPIRING = by_level(quick=8, full=10, nightly=1_000)
QUEUE = QueueId("T", 0)


@pytest.mark.scales
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(0, CHUNK * CHUNKS, CHUNK))
def test_the_hot_log_is_what_is_published_whoever_owned_the_tier(first: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        try:
            totals.update(simulate_store(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert totals["messages"] > 20 * CHUNK, totals
    if LEVEL == "quick":  # too few seeds for what happens seldom
        return
    assert totals["fenced"] > CHUNK / 2, f"hardly any owner was ever fenced: {totals}"
    assert totals["kills"] > CHUNK / 6, totals
    assert totals["caught up"] > CHUNK / 4, totals
    assert totals["pauses"] > CHUNK, totals
    assert totals["gaps"] > 0, totals


@pytest.mark.scales
@pytest.mark.timeout(1_200)
def test_the_same_while_messages_expire_and_topics_are_deleted() -> None:
    totals: Counter[str] = Counter()
    for seed in range(EXPIRING):
        try:
            totals.update(simulate_store(seed, expires=True))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert totals["fenced"] > EXPIRING / 2, totals
    assert totals["expired"] > EXPIRING, totals
    assert totals["deleted"] > EXPIRING / 4, totals
    assert totals["messages"] > 2 * EXPIRING, totals


class Rivals:
    """An old owner whose first data is written and whose entry is on its way; a newer one."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore()
        self.hot = StoreHotLog(self.clock)
        self.hot.append(QUEUE, b"one", b"two")
        self.old = self._process(1)
        self.new = self._process(2)

    def _process(self, number: int) -> StoreProcess:
        return StoreProcess(self.memory, self.hot.reopened(), self.clock, number)

    async def begin(self, group: asyncio.TaskGroup) -> None:
        self.old.start(group)
        await settle(300)  # it owns the tier; the messages are not due yet
        assert self.old.dispatcher is not None
        # The first one announces the queue.
        self.old.store.faults = [Fault("stalled", "create", "@journal/", calls=(2,))]
        await self.clock.advance(2.0)
        self.new.start(group)
        await self.clock.advance(2.0)

    def end(self) -> None:
        self.old.kill()
        self.new.kill()


async def test_an_owner_in_the_way_of_a_newer_one_is_waited_for_and_no_longer() -> None:
    rivals = Rivals()
    async with asyncio.TaskGroup() as group:
        await rivals.begin(group)
        assert rivals.new.dispatcher is not None
        assert rivals.new.tier is not None
        assert rivals.new.tier.queue(QUEUE) is None
        (queue,) = rivals.new.dispatcher.statistics().queues
        assert "end that process" in queue.reason
        rivals.old.kill()  # nobody restarts the new one
        await rivals.clock.advance(2.0)
        published = rivals.new.tier.queue(QUEUE)
        assert published is not None
        assert published.next_offset == 2
        rivals.end()
    assert await findings(rivals.memory) == []


async def test_an_owner_that_waits_for_an_older_one_learns_that_it_was_fenced_itself() -> None:
    rivals = Rivals()
    async with asyncio.TaskGroup() as group:
        await rivals.begin(group)
        newest = StoreProcess(rivals.memory, rivals.hot.reopened(), rivals.clock, 3)
        newest.start(group)
        await rivals.clock.advance(2.0)
        assert isinstance(rivals.new.error, Fenced)
        newest.kill()
        rivals.end()
    await drained(rivals.memory, rivals.hot, rivals.clock, 9)
    assert await findings(rivals.memory) == []


async def test_a_woken_owner_stops_at_its_entry_and_its_data_stays_unseen() -> None:
    rivals = Rivals()
    async with asyncio.TaskGroup() as group:
        await rivals.begin(group)
        rivals.old.store.faults = []
        rivals.old.store.released.set()
        await settle(300)
        assert isinstance(rivals.old.error, Fenced)
        assert rivals.new.tier is not None
        assert rivals.new.tier.queue(QUEUE) is None
        rivals.end()
    await drained(rivals.memory, rivals.hot, rivals.clock, 9)
    assert await findings(rivals.memory) == []
