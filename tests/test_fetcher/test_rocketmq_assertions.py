"""The assertions of MessageStoreFetcherImplTest: a queue with offsets 100 to 199, stored at 11."""

import pytest

from container.index.options import IndexOptions
from container.lookup.find import find_messages
from container.lookup.query import KeyQuery
from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from container.queue.positions import Boundary, TimeRules
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from fetcher.result import FetchResult
from tests.support.messages import batch_of, make_record
from tests.support.owned_tier import OwnedWorld
from tests.support.read_tier import QUEUE, MemoryQueue, MemoryTier

STORED_MS = 11


def queue_with(tags: list[str], first: int = 100, times: list[int] | None = None) -> MemoryQueue:
    queue = MemoryQueue(first=first)
    for number, tag in enumerate(tags):
        record = make_record(
            *queue.id,
            queue.next_offset,
            bytes(20),
            store_timestamp=times[number] if times else STORED_MS,
            properties={"TAGS": tag} if tag else {},
            physical_offset=len(queue.commit_log),
        )
        queue.append([record], [tag])
    return queue


async def fetched(
    queue: MemoryQueue,
    offset: int,
    messages: int,
    tags: str = "*",
    *,
    cached: bool = True,
    bytes_max: int = 1 << 18,
) -> FetchResult:
    options = FetcherOptions(cache_enabled=cached)
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        return await fetcher.get_message(
            "g", *queue.id, offset, messages_max=messages, bytes_max=bytes_max, subscription=tags
        )


def said(result: FetchResult) -> tuple[str, int, int, int, int]:
    numbers = result.next_offset, result.min_offset, result.max_offset
    return result.status.name, len(result.messages), *numbers


PLAIN = [""] * 100


async def test_1_an_unknown_queue() -> None:
    async with TieredMessageFetcher(MemoryTier(queue_with(PLAIN))) as fetcher:
        found = await fetcher.get_message("g", "T", 9, 0, messages_max=32)
    assert found.status.name == "NO_MATCHED_LOGIC_QUEUE"


@pytest.mark.parametrize("cached", [True, False])
async def test_2_offsets_outside(*, cached: bool) -> None:
    queue = queue_with(PLAIN)
    wanted = {
        0: ("OFFSET_TOO_SMALL", 0, 100, 100, 200),
        200: ("OFFSET_OVERFLOW_ONE", 0, 200, 100, 200),
        300: ("OFFSET_OVERFLOW_BADLY", 0, 200, 100, 200),
    }
    for offset, answer in wanted.items():
        assert said(await fetched(queue, offset, 32, cached=cached)) == answer


@pytest.mark.parametrize("cached", [True, False])
async def test_3_so_many_or_all_that_are_left(*, cached: bool) -> None:
    queue = queue_with(PLAIN)
    assert said(await fetched(queue, 100, 32, cached=cached)) == ("FOUND", 32, 132, 100, 200)
    assert said(await fetched(queue, 180, 32, cached=cached)) == ("FOUND", 20, 200, 100, 200)


@pytest.mark.parametrize("cached", [True, False])
async def test_4_limits_of_bytes_and_count(*, cached: bool) -> None:
    queue = queue_with(PLAIN)
    size = len(queue.record(100))
    found = await fetched(queue, 180, 32, cached=cached, bytes_max=8 * size - 10)
    assert said(found)[:3] == ("FOUND", 8, 188)
    found = await fetched(queue, 180, 8, cached=cached, bytes_max=9 * size)
    assert said(found)[:3] == ("FOUND", 8, 188)


async def test_5_all_of_them_by_four() -> None:
    async with TieredMessageFetcher(MemoryTier(queue_with(PLAIN))) as fetcher:
        offset, calls, seen = 100, 0, list[int]()
        while offset < 200:
            found = await fetcher.get_message("g", *QUEUE, offset, messages_max=4)
            seen += found.messages.offsets.tolist()
            offset, calls = found.next_offset, calls + 1
    assert (calls, seen) == (25, list(range(100, 200)))


async def test_6_tags_alternate() -> None:
    queue = queue_with(["0", "1"] * 50)
    assert said(await fetched(queue, 100, 32, "1 || 2"))[:3] == ("FOUND", 32, 164)
    assert said(await fetched(queue, 164, 32, "1 || 2"))[:3] == ("FOUND", 18, 200)
    assert said(await fetched(queue, 200, 32, "1 || 2"))[1:3] == (0, 200)
    assert said(await fetched(queue, 100, 32, "0"))[:3] == ("FOUND", 32, 163)


async def test_7_two_of_a_hundred_tags() -> None:
    queue = queue_with([str(number) for number in range(100)])
    assert said(await fetched(queue, 100, 2, "10 || 20"))[:3] == ("FOUND", 2, 121)


async def test_8_times_of_messages() -> None:
    async with TieredMessageFetcher(MemoryTier(queue_with(PLAIN))) as fetcher:
        assert await fetcher.earliest_message_time(QueueId("T", 9)) is None
        assert await fetcher.earliest_message_time(QUEUE) == STORED_MS
        assert await fetcher.message_timestamp(QueueId("T", 9), 100) is None
        assert await fetcher.message_timestamp(QUEUE, 100) == STORED_MS
        assert await fetcher.message_timestamp(QUEUE, 120) == STORED_MS


async def moments(queue: MemoryQueue, moment_ms: int) -> list[int | None]:
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        return [
            await fetcher.offset_by_time(QUEUE, moment_ms, boundary, TimeRules.TIERED)
            for boundary in (Boundary.LOWER, Boundary.UPPER)
        ]


async def test_9_offsets_of_a_moment() -> None:
    queue = queue_with(PLAIN)
    assert await moments(queue, 10) == [100, 100]
    assert await moments(queue, 11) == [100, 199]
    assert await moments(queue, 12) == [200, 200]


@pytest.mark.parametrize(
    ("moment_ms", "lower", "upper"),
    [
        (0, 50, 50),
        (999, 50, 50),
        (1000, 50, 50),
        (1001, 51, 51),
        (1100, 51, 53),
        (1101, 54, 54),
        (1200, 54, 54),
        (1201, 55, 55),
    ],
)
async def test_flat_message_file_5_the_table_of_moments(
    moment_ms: int, lower: int, upper: int
) -> None:
    queue = queue_with([""] * 5, first=50, times=[1000, 1100, 1100, 1100, 1200])
    assert await moments(queue, moment_ms) == [lower, upper]


async def test_10_all_messages_have_one_key() -> None:
    world = OwnedWorld(TierOptions(), UpkeepOptions(), index=IndexOptions())
    async with world.owned() as tier:
        raws = [
            make_record(*QUEUE, offset, b"body", properties={"UNIQ_KEY": "uk"})
            for offset in range(100, 200)
        ]
        await tier.commit([tier.plan_commit(QUEUE, batch_of(raws))])
        for most, found in ((32, 32), (120, 100)):
            answer = await find_messages(tier, KeyQuery("T", "uk", most), unsealed=tier.unsealed)
            assert len(answer.messages) == found
