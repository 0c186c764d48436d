"""Requests that are promised are counted on a real S3 server, too."""

import asyncio
from random import Random

from container.journal.journal import Journal
from container.tier_view import TierReader
from provider.clock import SystemClock
from provider.object.store import open_object_store
from tests.support.clean_tier import (
    OPENING_REQUESTS_MAX,
    QUEUES,
    SEGMENTS_OF_A_QUEUE,
    segments_of,
    write_clean_tier,
)
from tieredstore.config.effective import Config


def test_opening_a_tier_of_a_hundred_thousand_segments_costs_ten_requests(s3_url: str) -> None:
    config = Config.load(defines=[f"tieredStoreFilePath={s3_url}"])

    async def run() -> None:
        clock = SystemClock()
        writing = open_object_store(s3_url, options=config.objects, clock=clock)
        sequence = await write_clean_tier(writing, clock, config)
        await writing.close()
        reading = open_object_store(s3_url, options=config.objects, clock=clock)
        reader = await TierReader.open(reading)
        await reading.close()
        assert reader.state.sequence == sequence
        assert segments_of(reader.state) == QUEUES * SEGMENTS_OF_A_QUEUE
        assert reading.meter.total <= OPENING_REQUESTS_MAX, reading.meter

    asyncio.run(run())


def test_an_idle_owner_learns_by_one_listing_that_it_is_the_owner(s3_url: str) -> None:
    """It asks once a minute; `test_object_store_costs.py` counts an hour of simulated time."""
    config = Config.load(defines=[f"tieredStoreFilePath={s3_url}"])

    async def run() -> None:
        clock = SystemClock()
        store = open_object_store(s3_url, options=config.objects, clock=clock)
        journal = await Journal.take_ownership(
            store, clock=clock, rng=Random(1), owner="test", cluster="C", broker="b"
        )
        before = store.meter.requests.copy()
        for _ in range(60):
            await journal.verify_owner()
        assert store.meter.requests - before == {"LIST": 60}
        await journal.close()
        await store.close()

    asyncio.run(run())
