"""Reading speed of the fetcher alone, over a tier in memory that copies what is read.

Not collected by default: `pytest tests/bench/bench_fetcher.py --benchmark-enable`.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from container.record.batch import decode_units
from container.record.unit import Units
from fetcher.fetcher import TieredMessageFetcher
from provider.object_store import Buffer
from provider.ranges import ByteRange
from tests.support.read_tier import MemoryQueue, MemoryTier

MESSAGES = 60_000


class CopyingQueue(MemoryQueue):
    """Like a file in the page cache: a read is one copy into new memory, after a turn of the loop.

    The memory is numpy's, as the POSIX provider's is: huge pages halve the price of touching it.
    """

    def freeze(self) -> None:
        self.frozen_log = memoryview(bytes(self.commit_log))
        self.frozen_units = bytes(self.consume_queue)

    def _units(self, start: int, end: int) -> Units:
        return decode_units(self.frozen_units[20 * start : 20 * end])

    async def log_many(self, wanted: Sequence[ByteRange]) -> list[Buffer]:
        await self._request("log")
        return [self._copied(part) for part in wanted]

    def _copied(self, part: ByteRange) -> memoryview:
        copy = np.empty(part.length, np.uint8).data
        copy[:] = self.frozen_log[part.start : part.end]
        return copy


@pytest.fixture(scope="module")
def tier() -> MemoryTier:
    queue = CopyingQueue()
    queue.fill(MESSAGES, body_bytes=1024, tags=("A", "B", "C", "D"))
    queue.freeze()
    return MemoryTier(queue)


async def read_all(
    fetcher: TieredMessageFetcher, group: str, messages_max: int, subscription: str | None = None
) -> int:
    at = count = 0
    while at < MESSAGES:
        found = await fetcher.get_message(
            group, "T", 0, at, messages_max=messages_max, subscription=subscription, bytes_max=None
        )
        count += len(found.messages)
        at = found.next_offset
    return count


@pytest.mark.parametrize("messages_max", [32, 1024])
def test_one_group_reads_to_the_end(
    benchmark: BenchmarkFixture, tier: MemoryTier, messages_max: int
) -> None:
    async def once() -> int:
        async with TieredMessageFetcher(tier) as fetcher:
            return await read_all(fetcher, "g", messages_max)

    assert benchmark(lambda: asyncio.run(once())) == MESSAGES
    _tell_rate(benchmark, MESSAGES)


def test_four_groups_read_to_the_end_at_once(benchmark: BenchmarkFixture, tier: MemoryTier) -> None:
    async def once() -> int:
        async with TieredMessageFetcher(tier) as fetcher, asyncio.TaskGroup() as group:
            tasks = [group.create_task(read_all(fetcher, f"g{n}", 32)) for n in range(4)]
            return sum([await task for task in tasks])

    assert benchmark(lambda: asyncio.run(once())) == 4 * MESSAGES
    _tell_rate(benchmark, 4 * MESSAGES)


def test_a_filter_takes_every_fourth_message(benchmark: BenchmarkFixture, tier: MemoryTier) -> None:
    async def once() -> int:
        async with TieredMessageFetcher(tier) as fetcher:
            return await read_all(fetcher, "g", 32, "A")

    assert benchmark(lambda: asyncio.run(once())) == MESSAGES // 4
    _tell_rate(benchmark, MESSAGES)


def test_a_call_of_32_cached_messages(benchmark: BenchmarkFixture, tier: MemoryTier) -> None:
    calls = 1000

    async def prepared(loop_calls: int) -> None:
        async with TieredMessageFetcher(tier) as fetcher:
            await fetcher.get_message("g", "T", 0, 0, messages_max=4096, bytes_max=None)
            for _ in range(loop_calls):
                await fetcher.get_message("g", "T", 0, 320, messages_max=32)

    benchmark(lambda: asyncio.run(prepared(calls)))
    _tell_rate(benchmark, calls)


def _tell_rate(benchmark: BenchmarkFixture, count: int) -> None:
    measured: Any = benchmark.stats  # None where benchmarks are disabled
    if measured is not None:
        benchmark.extra_info["per_second"] = round(count / measured.stats.median)
