"""Keys of messages that are tiered as fast as this machine can."""

import asyncio
from pathlib import Path

import pytest

from container.index.options import IndexOptions
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from provider.clock import SystemClock
from tieredstore.bench.measure import BROKER, CLUSTER, owned_tier
from tieredstore.bench.synthetic_store import SyntheticStore, write_synthetic_store
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.options import HotLogOptions


async def read_again(store_dir: Path, tier_dir: Path, made: SyntheticStore) -> tuple[int, int]:
    """Messages whose keys were dropped and read again, and items in files and memory."""
    clock = SystemClock()
    async with owned_tier(tier_dir, IndexOptions()) as tier:
        hot = await RocketMqHotLog.open(
            store_dir, options=HotLogOptions(), clock=clock, cluster=CLUSTER, broker=BROKER
        )
        try:
            dispatcher = TieredDispatcher(hot, tier, options=DispatchOptions(), clock=clock)
            done = await dispatcher.drain()
            await tier.complete_index()
            await dispatcher.close()
        finally:
            await hot.close()
        assert done.messages == made.messages
        figures = tier.upkeep.statistics().figures
        sealed = sum(file.items for file in tier.state.index_files.values())
        items = sealed + figures["index_items_unsealed"]
    return figures["index_messages_read"], items


@pytest.mark.nightly
def test_no_key_is_dropped_at_full_speed(tmp_path: Path) -> None:
    """Three million messages, with two keys each: a dozen files of 500,000 keys."""
    made = SyntheticStore(messages=3_000_000, body_bytes=100, queues=8)
    write_synthetic_store(tmp_path / "store", made)
    found = asyncio.run(read_again(tmp_path / "store", tmp_path / "tier", made))
    assert found == (0, 2 * made.messages)
