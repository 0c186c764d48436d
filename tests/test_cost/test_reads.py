"""What reading costs in requests and bytes."""

import asyncio

import pytest

from container.record.unit import UNIT_BYTES
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from tests.support.read_tier import MemoryQueue, MemoryTier, filled


async def read_to_the_end(
    fetcher: TieredMessageFetcher,
    group: str,
    *,
    messages_max: int = 32,
    subscription: str | None = None,
) -> list[int]:
    offsets: list[int] = []
    at = 0
    while True:
        found = await fetcher.get_message(
            group, "T", 0, at, messages_max=messages_max, bytes_max=None, subscription=subscription
        )
        if found.next_offset == at:
            return offsets
        offsets += found.messages.offsets.tolist()
        at = found.next_offset


async def test_reading_twenty_thousand_messages_in_order_costs_two_dozen_requests() -> None:
    queue = filled(20_000)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        assert await read_to_the_end(fetcher, "g") == list(range(20_000))
        # Runs of 32, 544, 1056 ... 4096 messages: the window grows by 512 each time.
        assert queue.requests["units"] == queue.requests["log"] <= 12
        assert sum(part.length for part in queue.log_reads) == len(queue.commit_log)
        assert fetcher.statistics().prefetches_wasted == 0
        assert fetcher.statistics().hits > 600


async def test_a_hit_costs_nothing() -> None:
    queue = filled(5_000)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        await read_to_the_end(fetcher, "first")
        before = queue.requests.copy()
        for group in ("second", "third"):
            await read_to_the_end(fetcher, group, messages_max=100)
        assert queue.requests == before


async def test_groups_that_read_side_by_side_cost_as_much_as_one() -> None:
    alone, together = filled(10_000), filled(10_000)
    async with TieredMessageFetcher(MemoryTier(alone)) as fetcher:
        await read_to_the_end(fetcher, "g")
    async with (
        TieredMessageFetcher(MemoryTier(together)) as fetcher,
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task(read_to_the_end(fetcher, f"g{n}")) for n in range(4)]
        for task in tasks:
            assert await task == list(range(10_000))
    assert sum(part.length for part in together.log_reads) == len(together.commit_log)
    assert together.requests["log"] <= 2 * alone.requests["log"]


async def test_a_lone_random_read_fetches_32_messages() -> None:
    queue = filled(1_000)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        await fetcher.get_message("g", "T", 0, 500, messages_max=1)
    assert queue.requests == {"units": 1, "log": 1}
    assert queue.unit_reads == [(500, 532)]


@pytest.mark.parametrize("messages_max", [1, 32, 256])
async def test_a_cold_reader_of_one_window_costs_two_requests(messages_max: int) -> None:
    """Of an object store, whose first window has 256 messages: units and records, none ahead."""
    queue = filled(20_000)
    options = FetcherOptions(window_messages_min=256)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        at = 7_001
        while at < 7_001 + 256:
            found = await fetcher.get_message("g", "T", 0, at, messages_max=messages_max)
            at = found.next_offset
        assert queue.requests == {"units": 1, "log": 1}
        assert queue.unit_reads == [(7_001, 7_257)]
        await fetcher.get_message("g", "T", 0, at, messages_max=32)
        assert queue.requests["log"] <= 3, "then it reads in order, and ahead"


async def test_without_a_cache_exactly_what_is_returned_is_read() -> None:
    queue = filled(1_000)
    options = FetcherOptions(cache_enabled=False)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        found = await fetcher.get_message("g", "T", 0, 500, messages_max=7)
        assert sum(part.length for part in queue.log_reads) == found.messages.bytes
        assert fetcher.statistics().bytes_held == 0


async def test_a_filtered_read_fetches_the_wanted_ranges_only() -> None:
    queue = MemoryQueue()
    queue.fill(500, body_bytes=20_000, tags=("A", *["B"] * 99))
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        assert await read_to_the_end(fetcher, "g", subscription="A") == [0, 100, 200, 300, 400]
        assert queue.requests == {"units": 1, "log": 1}
        wanted = sum(len(queue.record(offset)) for offset in range(0, 500, 100))
        assert sum(part.length for part in queue.log_reads) == wanted


async def test_neighbouring_matches_are_fetched_in_one_range() -> None:
    queue = MemoryQueue()
    queue.fill(400, body_bytes=1_000, tags=[*["A"] * 10, *["B"] * 90])
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        await read_to_the_end(fetcher, "g", messages_max=100, subscription="A")
    assert len(queue.log_reads) == 4


async def test_a_filter_that_matches_nothing_reads_units_once_and_no_record() -> None:
    queue = filled(10_000, tags=("A",))
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        for group in ("g", "h"):
            assert await read_to_the_end(fetcher, group, subscription="B") == []
    assert queue.requests["log"] == 0
    assert sum(end - start for start, end in queue.unit_reads) * UNIT_BYTES == len(
        queue.consume_queue
    )


async def test_a_filter_that_matches_nearly_all_shares_its_bytes_with_everybody() -> None:
    queue = filled(1_000, body_bytes=100, tags=(*["A"] * 9, "B"))
    options = FetcherOptions(gap_bytes_max=0)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        await read_to_the_end(fetcher, "g", subscription="A")
        before = queue.requests.copy()
        assert await read_to_the_end(fetcher, "h") == list(range(1_000))
        assert queue.requests == before


async def test_jumping_about_halves_the_window_and_wastes_little() -> None:
    queue = filled(12_000)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        at = 0
        while fetcher.statistics().windows.get("T/0 g", 0) < 1_500:
            at = (await fetcher.get_message("g", "T", 0, at, messages_max=32)).next_offset
        before = fetcher.statistics().windows["T/0 g"]
        await fetcher.get_message("g", "T", 0, 10_000, messages_max=32)
        assert fetcher.statistics().windows["T/0 g"] == before // 2
        assert max(end for _, end in queue.unit_reads) == 10_032


async def test_reading_at_the_growing_end_reads_each_message_once() -> None:
    queue = filled(10)
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        at = 0
        for _ in range(50):
            found = await fetcher.get_message("g", "T", 0, at, messages_max=32)
            assert len(found.messages) == 10
            at = found.next_offset
            end = await fetcher.get_message("g", "T", 0, at, messages_max=32)
            assert end.status.name == "OFFSET_OVERFLOW_ONE"
            queue.fill(10)
    assert queue.requests == {"units": 50, "log": 50}
