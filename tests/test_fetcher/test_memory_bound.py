"""The fetcher holds no more than its options say."""

import asyncio
import random
import tracemalloc

import pytest

from container.names.queue_id import QueueId
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from provider.testing.manual_clock import settle
from tests.support.read_tier import MemoryQueue, MemoryTier

OPTIONS = FetcherOptions(
    run_messages_max=256,
    run_bytes_max=128 << 10,
    cache_bytes_max=512 << 10,
    bytes_in_flight_max=256 << 10,
    demands_max=8,
    messages_in_flight_max=10 * 256,
    readers_max=16,
    window_step_messages=64,
)


def queues() -> list[MemoryQueue]:
    made = [MemoryQueue(QueueId("T", number)) for number in range(8)]
    for queue in made:
        queue.fill(1500, body_bytes=500)
    return made


@pytest.mark.slow
async def test_many_readers_stay_within_the_formula() -> None:
    rng = random.Random(5)
    made = queues()
    async with TieredMessageFetcher(MemoryTier(*made), options=OPTIONS) as fetcher:
        place = dict.fromkeys(range(40), 0)
        tracemalloc.start()
        held = fetcher.statistics()
        for turn in range(60):
            async with asyncio.TaskGroup() as group:
                calls = {
                    number: group.create_task(
                        fetcher.get_message(
                            f"g{number}", "T", number % 8, at % 1400, messages_max=32
                        )
                    )
                    for number, at in place.items()
                }
            for number, call in calls.items():
                place[number] = int(call.result().next_offset)
            if turn % 7 == 0:
                place[rng.randrange(40)] = rng.randrange(1400)
            calls.clear()
            held = fetcher.statistics()
            assert held.bytes_held <= OPTIONS.cache_bytes_max
            assert held.bytes_in_flight <= OPTIONS.bytes_in_flight_max
            assert held.readers <= OPTIONS.readers_max
            fetcher.check()
        await settle()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held.bytes_held > OPTIONS.cache_bytes_max // 2, "or the bound was never met"
        harness = 40 * OPTIONS.run_bytes_max  # results that the test itself held for one turn
        assert peak < OPTIONS.memory_bytes_max + harness


async def test_read_ahead_shrinks_when_the_cache_has_no_room() -> None:
    (queue, *_) = queues()
    roomy = FetcherOptions(window_step_messages=64, run_messages_max=256)
    tight = FetcherOptions(window_step_messages=64, run_messages_max=256, cache_bytes_max=64 << 10)
    windows: list[int] = []
    for options in (roomy, tight):
        async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
            at = 0
            for _ in range(40):
                at = (await fetcher.get_message("g", "T", 0, at, messages_max=32)).next_offset
            windows.append(fetcher.statistics().windows["T/0 g"])
    assert windows[0] == 256
    assert windows[1] < 128


async def test_messages_of_reads_under_way_keep_to_their_bound() -> None:
    (queue, *_) = queues()
    options = FetcherOptions(messages_in_flight_max=64)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        queue.open_gate.clear()
        async with asyncio.TaskGroup() as group:
            for at in range(0, 1500, 150):
                group.create_task(fetcher.get_message(f"g{at}", "T", 0, at, messages_max=32))
            await settle()
            assert queue.waiting == 2, "two reads of 32"
            fetcher.check()
            queue.open_gate.set()


async def test_a_reader_of_small_messages_soon_reads_many_at_once() -> None:
    queue = MemoryQueue()
    queue.fill(20_000)
    options = FetcherOptions(run_messages_max=16_384, prefetches_max=8)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        at = 0
        while at < queue.next_offset:
            found = await fetcher.get_message("g", "T", 0, at, messages_max=1024)
            at = found.next_offset
            await settle()
    assert queue.requests["units"] <= 8
    assert queue.requests["log"] <= 8


def test_the_formula_adds_up() -> None:
    columns = (8 + 2) * 256 * 60
    expected = (512 << 10) + 2 * (256 << 10) + (64 << 10) + columns + 16 * 1024
    assert OPTIONS.memory_bytes_max == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("run_bytes_max", 0), ("cache_bytes_max", -1), ("window_messages_min", 5000)],
)
def test_impossible_options_are_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        FetcherOptions(**{name: value})  # pyright: ignore[reportArgumentType] - whole numbers only
