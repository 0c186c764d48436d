"""A tier of 100,000 segments in an object store, as the clean end of an owner leaves it."""

import asyncio
from random import Random

from container.journal.journal import Journal
from container.journal.reader import write_snapshot
from container.metadata.state import TierState
from container.names.tier_objects import EntryName
from provider.clock import Clock
from provider.object_store import ObjectStore
from provider.stores.packed_segments import PartName
from tests.bench.packed_scale import commits, made_state
from tieredstore.config.effective import Config

QUEUES, SEGMENTS_OF_A_QUEUE = 1_000, 100
OPENING_REQUESTS_MAX = 10


async def write_clean_tier(store: ObjectStore, clock: Clock, config: Config) -> int:
    """Write it, with as many entries behind the snapshot as there may be; the last one's number."""
    rng, state = Random(1), made_state(QUEUES, SEGMENTS_OF_A_QUEUE)
    await write_snapshot(store, state, epoch=1, rng=rng, clock=clock)
    await store.create(str(EntryName(state.sequence)), [b"in the snapshot"])
    broker = state.broker
    journal = await Journal.take_ownership(
        store, clock=clock, rng=rng, owner="test", cluster=broker.cluster, broker=broker.name
    )
    task = asyncio.create_task(journal.run())
    part = str(PartName(1, "f" * 32))
    for _ in range(config.upkeep.finish_entries_max - 2):  # and its fence
        await journal.publish(list(commits(journal.state, part)))
    await journal.close()
    await asyncio.wait([task])
    return state.sequence + config.upkeep.finish_entries_max - 1


def segments_of(state: TierState) -> int:
    """How many segments the records of all queues, and their manifests, have."""
    return sum(
        len(queue.commit_log) + len(queue.consume_queue)
        + sum(ref.segments for ref in queue.manifests)
        for queue in state.queues.values()
    )  # fmt: skip
