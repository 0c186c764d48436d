"""What the dispatcher sees of our own log, and that it tiers it byte for byte."""

import asyncio
from pathlib import Path

from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from dispatcher.ports import HotLog as HotLogPort
from provider.clock import SystemClock
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import SMALL, new_message
from tests.support.owned_tier import OwnedWorld
from tests.support.store_reader import PHYSICAL_OFFSET, contents
from tieredstore.hot.hot_log import open_hot_log
from tieredstore.hot.hot_log_source import open_feed

QUEUE = QueueId("Orders", 0)


async def test_what_is_written_is_tiered_byte_for_byte(tmp_path: Path) -> None:
    world = OwnedWorld(TierOptions(), UpkeepOptions())
    clock = SystemClock()
    async with (
        open_hot_log(tmp_path, options=SMALL, clock=clock) as log,
        open_feed(log, clock=clock, cluster="TestCluster", broker="broker-a") as feed,
        world.owned() as tier,
    ):
        port: HotLogPort = feed
        await log.append_many([new_message(n, queue_id=n % 3) for n in range(100)])
        await log.append(new_message(100, topic="TestCluster"))
        await log.flush()
        dispatcher = TieredDispatcher(port, tier, options=DispatchOptions(), clock=clock)
        await dispatcher.drain()
        await log.append_many([new_message(n, queue_id=n % 3) for n in range(100, 120)])
        await log.flush()
        await dispatcher.drain()
        await dispatcher.close()
        found = await contents(tier)
        assert sorted(found) == [QueueId("Orders", n) for n in range(3)]
        for queue, seen in found.items():
            hot = []
            while len(hot) < 40:
                hot += await log.get(queue, len(hot))
            assert seen.offsets == list(range(40))
            for number, message in enumerate(hot):
                record, expected = seen.record_at(number), bytearray(message.encode())
                expected[PHYSICAL_OFFSET] = record[PHYSICAL_OFFSET]
                assert record == expected
            assert feed.holds_back(queue) == 40
        assert feed.holds_back(QueueId("TestCluster", 0)) is None
        assert feed.holds_back(QueueId("Other", 0)) == 0


async def test_only_what_is_durable_is_told_and_it_wakes_who_waits(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        open_hot_log(tmp_path, options=SMALL, clock=clock) as log,
        open_feed(log, clock=clock, cluster="TestCluster", broker="broker-a") as feed,
    ):
        await log.append(new_message(0))
        await log.flush()
        (told,) = await feed.poll()
        assert (told.id, told.min_offset, told.max_offset) == (QUEUE, 0, 1)
        await log.append(new_message(1))
        log.news.clear()
        assert await feed.poll() == []
        assert feed.queue(QUEUE) == told
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(feed.wait(3600))
            await asyncio.sleep(0)
            assert not waiting.done()
            await log.flush()
        (told,) = await feed.poll()
        assert told.max_offset == 2
        assert await feed.poll() == []
