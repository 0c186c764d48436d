"""Damaged units and records: named and never served, and what precedes them still is."""

from collections.abc import Sequence

import pytest

from container.record.header import Coda
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from provider.errors import Corrupt, StoreError
from provider.object_store import Buffer
from provider.ranges import ByteRange
from tests.support import read_tier
from tests.support.read_tier import QUEUE, MemoryQueue, MemoryTier, filled

RECORD = len(filled(1).commit_log)
BAD = 37


@pytest.fixture(autouse=True, params=[0, 10, 50], ids=lambda count: f"objects of {count}")
def _objects(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_tier, "OBJECT_MESSAGES", request.param)


def damage_record(queue: MemoryQueue, byte: int) -> None:
    queue.commit_log[BAD * RECORD + byte] ^= 0x40


def damage_unit(queue: MemoryQueue, byte: int) -> None:
    queue.consume_queue[BAD * 20 + byte] ^= 0x40


async def read_all(fetcher: TieredMessageFetcher, group: str, at: int = 0) -> list[int]:
    """Offsets until the end or an error."""
    offsets: list[int] = []
    while True:
        found = await fetcher.get_message(group, "T", 0, at, messages_max=10)
        if not len(found.messages):
            return offsets
        offsets += found.messages.offsets.tolist()
        at = found.next_offset


@pytest.mark.parametrize("byte", [0, 3, 4, 15, 27, 35], ids=lambda byte: f"record byte {byte}")
@pytest.mark.parametrize("cached", [True, False])
async def test_a_damaged_record_is_named_and_its_neighbours_are_served(
    byte: int, *, cached: bool
) -> None:
    queue = filled(100)
    damage_record(queue, byte)
    options = FetcherOptions(cache_enabled=cached, window_messages_min=100 if cached else 32)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        found = await fetcher.get_message("g", "T", 0, 30, messages_max=20)
        assert found.messages.offsets.tolist() == list(range(30, BAD))
        with pytest.raises(Corrupt) as caught:
            await fetcher.get_message("g", "T", 0, BAD, messages_max=20)
        assert (caught.value.path, caught.value.position) == ("T/0/COMMIT_LOG", BAD * RECORD)
        assert await read_all(fetcher, "g", BAD + 1) == list(range(BAD + 1, 100))


@pytest.mark.parametrize("byte", range(12), ids=lambda byte: f"unit byte {byte}")
async def test_a_damaged_unit_does_not_hide_what_precedes_it(byte: int) -> None:
    queue = filled(100)
    damage_unit(queue, byte)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        found = await fetcher.get_message("g", "T", 0, 0, messages_max=100)
        offsets = found.messages.offsets.tolist()
        assert offsets == list(range(len(offsets)))
        assert BAD - 1 <= len(offsets) <= BAD
        with pytest.raises(Corrupt, match="T/0"):
            await read_all(fetcher, "h", int(found.next_offset))


@pytest.mark.parametrize("byte", [4, 11])
async def test_the_last_unit_may_be_damaged_too(byte: int) -> None:
    queue = filled(BAD + 1)
    damage_unit(queue, byte)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        found = await fetcher.get_message("g", "T", 0, 0, messages_max=100)
        assert found.next_offset == BAD
        with pytest.raises(Corrupt):
            await fetcher.get_message("g", "T", 0, BAD, messages_max=100)


async def test_a_filtered_read_meets_damage_only_where_it_reads() -> None:
    queue = MemoryQueue()
    queue.fill(200, body_bytes=20_000, tags=("A", "B"))
    starts = [queue.commit_log.index(queue.record(offset)) for offset in (101, 102)]
    queue.commit_log[starts[0] + 4] ^= 1  # offset 101 has tag B
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        found = await fetcher.get_message(
            "g", "T", 0, 0, messages_max=200, subscription="A", bytes_max=None
        )
        assert found.messages.offsets.tolist() == list(range(0, 200, 2))
        found = await fetcher.get_message(
            "g", "T", 0, 0, messages_max=200, subscription="B", bytes_max=None
        )
        assert found.messages.offsets.tolist() == list(range(1, 101, 2))
        assert found.next_offset == 101
        with pytest.raises(Corrupt):
            await fetcher.get_message("g", "T", 0, 101, messages_max=9, subscription="B")


async def test_short_answers_of_storage_are_damage() -> None:
    class ShortQueue(MemoryQueue):
        async def log_many(self, wanted: Sequence[ByteRange]) -> list[Buffer]:
            return [bytes(answer)[:-1] for answer in await super().log_many(wanted)]

    queue = ShortQueue()
    queue.fill(3)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        with pytest.raises(Corrupt, match="short"):
            await fetcher.get_message("g", "T", 0, 0, messages_max=3)


async def test_a_unit_that_points_at_a_coda_means_the_record_behind_it() -> None:
    queue = filled(5)
    queue.commit_log += Coda(1).encode()
    queue.fill(5)
    record = queue.record(5)
    position = 5 * RECORD
    queue.consume_queue[5 * 20 : 5 * 20 + 8] = position.to_bytes(8, "big")
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        assert await fetcher.message_timestamp(QUEUE, 5) == 1_700_000_000_005
        found = await fetcher.get_message("g", "T", 0, 0, messages_max=20)
        assert bytes(found.messages[5]) == record
        assert found.messages.offsets.tolist() == list(range(10))


async def test_a_timestamp_of_a_damaged_message_is_refused() -> None:
    queue = filled(100)
    damage_record(queue, 5)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        with pytest.raises(StoreError, match="magic"):
            await fetcher.message_timestamp(QUEUE, BAD)
