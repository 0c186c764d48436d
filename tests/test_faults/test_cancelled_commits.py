"""Dispatching that is cancelled while the journal waits for its storage, and then goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from container.check.tier import check_tier
from container.names.queue_id import QueueId
from container.tier import Tier, TierIdentity
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.ports import QueueState
from provider.stores.in_place_segments import InPlaceDriver
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.memory_tier import InlineExecutor
from tests.support.store_harness import (
    DISPATCH_OPTIONS,
    JOURNAL_OPTIONS,
    TIER_OPTIONS,
    UPKEEP_OPTIONS,
    StoreHotLog,
)

QUEUE = QueueId("T", 0)
STALLED_ENTRY = Fault("stalled", verb="create", prefix="@journal/")


async def pass_time(clock: ManualClock, seconds: float) -> None:
    for _ in range(round(seconds / 0.1)):
        await clock.advance(0.1)
        await settle(60)


@asynccontextmanager
async def cut_off_after(seconds: float, dispatcher: TieredDispatcher, clock: ManualClock):
    async with asyncio.TaskGroup() as group:
        running = group.create_task(dispatcher.run())
        await pass_time(clock, seconds)
        yield
        running.cancel()


@asynccontextmanager
async def owned(store: FaultyObjectStore, clock: ManualClock) -> AsyncIterator[Tier]:
    tier = await Tier.own(
        store,
        TierIdentity("c", "b", "owner"),
        segments=InPlaceDriver(store, clock=clock, takeover_wait_s_max=0),
        clock=clock,
        rng=Random(1),
        options=TIER_OPTIONS,
        journal_options=JOURNAL_OPTIONS,
        upkeep_options=UPKEEP_OPTIONS,
    )
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(tier.run())
        try:
            yield tier
        finally:
            worker.cancel()


@pytest.mark.parametrize("before", [0, 2], ids=["new-queue", "known-queue"])
async def test_a_commit_that_was_cancelled_in_the_journal_is_waited_for(before: int) -> None:
    clock = ManualClock()
    store, hot = FaultyObjectStore(MemoryStore(), clock=clock), StoreHotLog(clock)
    async with owned(store, clock) as tier:
        dispatcher = TieredDispatcher(
            hot, tier, options=DISPATCH_OPTIONS, clock=clock, executor=InlineExecutor()
        )
        hot.append(QUEUE, *[b"x"] * before)
        async with cut_off_after(1.0, dispatcher, clock):
            store.faults = [STALLED_ENTRY]
            hot.append(QUEUE, *[b"y"] * 3)
            await pass_time(clock, 1.0)
            assert tier.journal.statistics().waiting == 1
        async with cut_off_after(1.0, dispatcher, clock):
            store.faults = []
            store.released.set()
            hot.append(QUEUE, b"z")
            await pass_time(clock, 2.0)
            (queue,) = dispatcher.statistics().queues
            assert (queue.state, queue.commit_offset) == (QueueState.READY, before + 4)
        assert [finding async for finding in check_tier(tier)] == []
