"""What an owner's start costs that finds queues which its tier has: in requests, and in calls.

The broker's store is one in a directory, and the tier one of parts, as in an object store. The
requests are those that a service bills: `FsspecStore` counts them where they are sent.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import fsspec
import pytest

from container.record.batch import MessageBatch
from container.record.unit import Units
from container.tier import Tier, TierIdentity
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from dispatcher.ports import QueueState, Wanted, WantedUnits
from provider.clock import SystemClock
from provider.errors import StoreError
from provider.object.store import FsspecStore, open_object_store
from provider.options import ObjectOptions, RangeOptions
from provider.stores.packed_segments import PARTS_PREFIX, PackedDriver
from provider.stores.range_reads import RangeReads
from tests.support.fake_broker import FakeBroker
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.options import HotLogOptions

URL = "memory://openings/tier"
ROUNDS = 6
GETS = ROUNDS + ROUNDS - 1
"""Units of all six messages, which are one range of the queue; and records of all but the second:
the newest three, those four and six from the end. Each is in a part of its own."""
TOPIC = "Orders"


@pytest.fixture(autouse=True)
def nothing_stays():
    fsspec.filesystem("memory").store.clear()
    yield
    fsspec.filesystem("memory").store.clear()


class CountedHotLog(RocketMqHotLog):
    """Counts the calls that cost a hop into another thread."""

    calls: Counter[str]

    async def references(self, *args, **named) -> Units:
        self.calls["references"] += 1
        return await super().references(*args, **named)

    async def references_of_queues(
        self, wanted: Sequence[WantedUnits]
    ) -> Sequence[Units | StoreError]:
        self.calls["references_of_queues"] += 1
        return await super().references_of_queues(wanted)

    async def records_of_round(
        self, wanted: Sequence[Wanted]
    ) -> Sequence[MessageBatch | StoreError]:
        self.calls["records_of_round"] += 1
        return await super().records_of_round(wanted)


@asynccontextmanager
async def started(
    store_dir: Path, options: DispatchOptions
) -> AsyncIterator[tuple[TieredDispatcher, FsspecStore, CountedHotLog]]:
    """An owner that has taken the tier and has not looked at a queue; counts begin there."""
    clock = SystemClock()
    store = open_object_store(URL, options=ObjectOptions(), clock=clock)
    ranged = RangeReads(store, clock=clock, options=RangeOptions())
    rng = Random()
    tier = await Tier.own(
        ranged,
        TierIdentity("C", "b", "a test"),
        segments=PackedDriver(ranged, rng=rng),
        clock=clock,
        rng=rng,
    )
    hot = await CountedHotLog.open(
        store_dir, options=HotLogOptions(), clock=clock, cluster="C", broker="b"
    )
    hot.calls = Counter()
    store.meter.requests.clear()
    running = asyncio.get_running_loop().create_task(tier.journal.run())
    try:
        yield TieredDispatcher(hot, tier, options=options, clock=clock), store, hot
    finally:
        running.cancel()
        await asyncio.wait([running])
        await tier.journal.close()
        await hot.close()
        await store.close()


async def tiered_in_rounds(directory: Path, queues: int) -> FakeBroker:
    """Each queue's messages lie in `ROUNDS` parts, each of which has one of every queue."""
    broker = FakeBroker(directory / "store")
    for _ in range(ROUNDS):
        for number in range(queues):
            broker.put(TOPIC, number, bytes(100))
        async with started(broker.directory, DispatchOptions()) as (dispatcher, _, _):
            await dispatcher.drain()
    parts = [name for name in fsspec.filesystem("memory").store if PARTS_PREFIX in name]
    assert len(parts) == ROUNDS
    return broker


@pytest.mark.parametrize("queues", [20, 40])
async def test_queues_that_agree_cost_two_gets_of_each_part_however_many_they_are(
    queues: int, tmp_path: Path
) -> None:
    broker = await tiered_in_rounds(tmp_path, queues)
    async with started(broker.directory, DispatchOptions()) as (dispatcher, store, hot):
        statistics = await dispatcher.drain()
        made = store.meter.requests
        assert all(queue.state is QueueState.READY for queue in statistics.queues)
        assert len(statistics.queues) == queues
        assert made["GET"] == made.total() == GETS
        assert made["GET"] / queues <= 0.6, "11 for each queue that is opened alone"
        assert hot.calls == {"references_of_queues": 1, "records_of_round": 1}


async def test_opened_one_by_one_each_queue_asks_for_itself(tmp_path: Path) -> None:
    broker = await tiered_in_rounds(tmp_path, 20)
    alone = DispatchOptions(opened_together_max=1)
    async with started(broker.directory, alone) as (dispatcher, store, hot):
        await dispatcher.drain()
        assert store.meter.requests["GET"] == 20 * GETS
        assert hot.calls == {"references": 20, "records_of_round": 20}
