"""Reads that need not ask the units where the records lie: one round of requests."""

import asyncio

import pytest

from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from provider.testing.manual_clock import settle
from tests.support.read_tier import MemoryQueue, MemoryTier, filled

LARGE_BYTES = 16 << 10


async def read_on(fetcher: TieredMessageFetcher, queue: MemoryQueue, messages_max: int) -> None:
    """Read all of the queue from its start, letting each read ahead come to its end."""
    at = 0
    while at < queue.next_offset:
        found = await fetcher.get_message(
            "g", "T", 0, at, messages_max=messages_max, bytes_max=None
        )
        for offset, record in zip(found.messages.offsets.tolist(), found.messages, strict=True):
            assert record == queue.record(offset)
        assert found.next_offset == at + len(found.messages)
        at = found.next_offset
        await settle()
    fetcher.check()


async def test_a_read_from_an_object_to_its_end_is_one_round() -> None:
    queue = filled(500)
    queue.object_messages = 100
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        found = await fetcher.get_message("g", "T", 0, 100, messages_max=200)
    assert found.messages.offsets.tolist() == list(range(100, 300))
    assert queue.spans == [(100, 300)]
    assert len(queue.unit_reads) == len(queue.log_reads) == 1


@pytest.mark.parametrize(("start", "count"), [(101, 99), (100, 99)])
async def test_a_read_that_begins_or_ends_inside_asks_units_first(start: int, count: int) -> None:
    queue = filled(500)
    queue.object_messages = 100
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        found = await fetcher.get_message("g", "T", 0, start, messages_max=count)
    assert len(found.messages) == count
    assert not queue.spans


async def test_a_read_behind_a_cached_run_begins_anywhere() -> None:
    queue = filled(500)
    queue.object_messages = 100
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        await fetcher.get_message("g", "T", 0, 0, messages_max=40)
        found = await fetcher.get_message("g", "T", 0, 40, messages_max=160)
    assert found.messages.offsets.tolist() == list(range(40, 200))
    assert queue.spans == [(40, 200)]


async def test_a_read_ahead_ends_with_an_object_so_that_the_next_one_begins_with_one() -> None:
    queue = filled(20_000)
    queue.object_messages = 1500
    options = FetcherOptions(run_messages_max=4096)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        await read_on(fetcher, queue, 1000)
    assert queue.spans[0][1] % 1500 == 0
    assert all(start % 1500 == 0 for start, _ in queue.spans[1:])
    assert sum(end - start for start, end in queue.spans) > 15_000


async def test_a_call_over_the_end_of_a_large_object_makes_two_reads_side_by_side() -> None:
    queue = filled(200, body_bytes=LARGE_BYTES)
    queue.object_messages = 100
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        queue.open_gate.clear()
        call = asyncio.create_task(
            fetcher.get_message("g", "T", 0, 0, messages_max=150, bytes_max=None)
        )
        await settle()
        assert queue.waiting == 2
        assert queue.unit_reads == [(0, 100), (100, 150)]
        queue.open_gate.set()
        assert (await call).messages.offsets.tolist() == list(range(150))
        await read_on(fetcher, queue, 150)
    assert queue.spans == [(0, 100), (150, 200)]
    assert queue.requests["log"] == 3
