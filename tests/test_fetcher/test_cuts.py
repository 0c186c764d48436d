"""Readers in other processes while the owner cuts a queue and goes on with other messages."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from container.options import TierOptions, UpkeepOptions
from container.tier import Tier
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from fetcher.result import FetchResult
from provider.errors import Corrupt
from provider.ranges import QueueOffset
from provider.testing.manual_clock import settle
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, put
from tests.support.read_tier import MemoryQueue, MemoryTier

TIER = TierOptions(
    commit_log_bytes_max=100_000, consume_queue_bytes_max=2_000, extent_bytes_max=1_000
)
UPKEEP = UpkeepOptions(interval_s=1e6)


@pytest.fixture
def world() -> OwnedWorld:
    return OwnedWorld(TIER, UPKEEP)


@pytest.fixture
async def tier(world: OwnedWorld) -> AsyncIterator[Tier]:
    """The tier of an owner that has published 60 messages."""
    async with world.owned() as tier:
        await put(tier, 60)
        yield tier


async def published(tier: Tier, offset: int) -> bytes:
    (record,) = await tier.messages_at(
        QUEUE, [QueueOffset(offset)], bytes_max=1_000_000, history=True
    )
    assert record is not None
    return record


async def fetch(fetcher: TieredMessageFetcher, offset: int) -> FetchResult:
    return await fetcher.get_message("g", TOPIC, 0, offset, messages_max=1)


async def rewrite(tier: Tier, *, keep: int, body_bytes: int) -> None:
    """Other messages take the places of those from offset `keep` on, and more follow."""
    await tier.cut_queue(QUEUE, QueueOffset(keep), "rewritten")
    await put(tier, 120, body_bytes=body_bytes)


async def test_d4_runs_that_were_read_before_a_cut_are_not_served_after_it(
    world: OwnedWorld, tier: Tier
) -> None:
    reader = await TierReader.open(world.memory)
    async with TieredMessageFetcher(reader) as fetcher:
        for offset in range(60):
            await fetch(fetcher, offset)
        await rewrite(tier, keep=10, body_bytes=50)
        assert await reader.refresh()
        for offset in range(130):
            result = await fetch(fetcher, offset)
            assert [bytes(one) for one in result.messages] == [await published(tier, offset)]


async def test_d4_a_verifying_reader_looks_at_the_journal_before_it_tells_of_damage(
    world: OwnedWorld, tier: Tier
) -> None:
    reader = await TierReader.open(world.memory, verify=True)
    async with TieredMessageFetcher(reader) as fetcher:
        await rewrite(tier, keep=0, body_bytes=70)
        result = await fetch(fetcher, 15)
        assert [bytes(one) for one in result.messages] == [await published(tier, 15)]
        await rewrite(tier, keep=0, body_bytes=90)
        assert await fetcher.message_timestamp(QUEUE, 17) is not None


@pytest.mark.leaves_findings("checksum", "tag-hash", why="a bit is flipped")
async def test_damage_that_no_newer_metadata_explains_is_told(
    world: OwnedWorld, tier: Tier
) -> None:
    reader = await TierReader.open(world.memory, verify=True)
    (log, *_) = sorted(await world.names(f"{QUEUE}/COMMIT_LOG/"))
    world.memory._shared.objects[log][200] ^= 1
    async with TieredMessageFetcher(reader) as fetcher:
        with pytest.raises(Corrupt):
            await fetch(fetcher, 0)
        await put(tier, 1)
        with pytest.raises(Corrupt):
            await fetch(fetcher, 0)


async def test_what_was_read_while_the_queue_was_cut_is_read_again() -> None:
    """Units of before the cut and records of after it do not belong together."""
    queue, other = MemoryQueue(), MemoryQueue()
    queue.fill(20, tags=["A"])
    other.fill(20, tags=["B"])
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        queue.open_gate.clear()
        reading = asyncio.ensure_future(
            fetcher.get_message("g", "T", 0, 5, messages_max=3, subscription="A")
        )
        await settle()
        queue.open_gate.set()
        for _ in range(20):
            await asyncio.sleep(0)
            if queue.requests["log"]:
                break
        queue.commit_log, queue.consume_queue = other.commit_log, other.consume_queue
        queue.generation += 1
        assert len((await reading).messages) == 0
