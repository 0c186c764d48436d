"""A golden store tiered through parts, as onto an object store."""

import asyncio
from random import Random

from container.index.options import IndexOptions
from container.options import TierOptions, UpkeepOptions
from container.tier import Tier, TierIdentity
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from provider.clock import SystemClock
from provider.object_store import ObjectStore
from provider.stores.packed_segments import PackedDriver
from tests.support.golden import GoldenTree
from tests.support.store_reader import findings
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.options import HotLogOptions


async def tier_packed(
    tree: GoldenTree,
    store: ObjectStore,
    *,
    options: TierOptions | None = None,
    upkeep_options: UpkeepOptions | None = None,
    index: IndexOptions | None = None,
    batch_messages_max: int = 16,
) -> list[str]:
    """Tier everything in small rounds into `store`; what `check` finds afterwards."""
    golden, clock, rng = tree.golden, SystemClock(), Random(7)
    tier = await Tier.own(
        store,
        TierIdentity(golden.cluster, golden.broker, "a test"),
        segments=PackedDriver(store, rng=rng),
        clock=clock,
        rng=rng,
        options=options
        or TierOptions(
            commit_log_bytes_max=golden.commit_log_segment_bytes,
            consume_queue_bytes_max=golden.consume_queue_segment_bytes,
        ),
        upkeep_options=upkeep_options,
        index=index,
    )
    hot = await RocketMqHotLog.open(
        tree.store,
        options=HotLogOptions(),
        clock=clock,
        cluster=golden.cluster,
        broker=golden.broker,
    )
    dispatcher = TieredDispatcher(
        hot, tier, options=DispatchOptions(batch_messages_max=batch_messages_max), clock=clock
    )
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(tier.run())
        await dispatcher.drain()
        await dispatcher.close()
        await tier.close()
        worker.cancel()
    await hot.close()
    return await findings(store)
