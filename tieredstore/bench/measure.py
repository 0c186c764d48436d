"""Measures tiering and cold reading on a synthetic store, beside the raw disk, in one run."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from container.tier import Tier, TierIdentity
from container.tier_reader import TierReader
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from fetcher.result import FetchStatus
from provider.clock import SystemClock
from provider.posix import PosixStore
from tieredstore.bench.raw_limits import stopwatch
from tieredstore.bench.synthetic_store import SyntheticStore
from tieredstore.hot.follower import RocketMqHotLog
from tieredstore.hot.options import HotLogOptions
from tieredstore.lifetime import running

CLUSTER = "BenchCluster"
BROKER = "bench-a"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement of one round."""

    metric: str
    messages_s: float
    bytes_s: float
    """Bytes of records (and units, where they are written too) a second."""


@asynccontextmanager
async def _owned_tier(directory: Path) -> AsyncGenerator[Tier]:
    store = PosixStore(directory)
    clock = SystemClock()
    identity = TierIdentity(CLUSTER, BROKER, "bench")
    tier = await Tier.own(store, identity, clock=clock, rng=Random())  # noqa: S311 - no secret
    try:
        async with running([tier.run]):
            yield tier
            await tier.close()
    finally:
        await store.close()


async def measure_tiering(store_dir: Path, tier_dir: Path, made: SyntheticStore) -> Figure:
    """From opening the hot log until everything in it is committed, everything at defaults."""
    clock = SystemClock()
    async with _owned_tier(tier_dir) as tier:
        hot = await RocketMqHotLog.open(
            store_dir, options=HotLogOptions(), clock=clock, cluster=CLUSTER, broker=BROKER
        )
        try:
            dispatcher = TieredDispatcher(hot, tier, options=DispatchOptions(), clock=clock)
            with stopwatch() as seconds:
                await dispatcher.drain()
            await dispatcher.close()
        finally:
            await hot.close()
        done = sum(queue.next_offset for queue in tier.state.queues.values())
        size = sum(s.size for q in tier.state.queues.values() for s in q.commit_log)
    assert done == made.messages, f"{done} of {made.messages} messages were tiered"
    return Figure("tier", done / seconds[0], (size + 20 * done) / seconds[0])


async def measure_reading(
    tier_dir: Path, made: SyntheticStore, *, messages_max: int, readers: int
) -> Figure:
    """Every queue from its start, one call at a time in each reader; records are not decoded."""
    store = PosixStore(tier_dir)
    try:
        tier = await TierReader.open(store)
        counts: list[tuple[int, int]] = []
        clock = SystemClock()
        async with TieredMessageFetcher(tier, options=FetcherOptions(), clock=clock) as fetcher:
            with stopwatch() as seconds:
                async with asyncio.TaskGroup() as group:
                    for number in range(readers):
                        group.create_task(
                            _read_all(fetcher, f"bench-{number}", made, messages_max, counts)
                        )
    finally:
        await store.close()
    messages = sum(count for count, _ in counts)
    assert messages == made.messages * readers, f"{messages} messages were read"
    metric = f"read_{messages_max}_by_{readers}"
    return Figure(metric, messages / seconds[0], sum(size for _, size in counts) / seconds[0])


async def _read_all(
    fetcher: TieredMessageFetcher,
    group: str,
    made: SyntheticStore,
    messages_max: int,
    counts: list[tuple[int, int]],
) -> None:
    count = size = 0
    bytes_max = None if messages_max > 32 else 256 << 10  # noqa: PLR2004 - a client's batch
    for queue_id in range(made.queues):
        offset = 0
        while True:
            result = await fetcher.get_message(
                group,
                made.topic,
                queue_id,
                offset,
                messages_max=messages_max,
                bytes_max=bytes_max,
            )
            if result.status is not FetchStatus.FOUND:
                break
            count += len(result.messages)
            size += result.messages.bytes
            offset = result.next_offset
    counts.append((count, size))


def read_shapes() -> Iterator[tuple[int, int]]:
    """Messages a call and readers at once that are measured."""
    yield from ((32, 1), (1_024, 1), (32, 4))
