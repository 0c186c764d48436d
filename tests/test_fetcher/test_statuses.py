"""Statuses, next offsets and limits, as RocketMQ's fetcher has them; gaps as ours has them."""

from collections.abc import AsyncIterator

import pytest

from container.names.queue_id import QueueId
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from fetcher.result import FetchResult, FetchStatus, offset_status
from provider.errors import Closed
from provider.ranges import QueueOffset
from tests.support.read_tier import QUEUE, MemoryQueue, MemoryTier, filled


@pytest.fixture
def queue() -> MemoryQueue:
    made = MemoryQueue(first=100)
    made.fill(100, tags=("A", "B", ""))
    return made


@pytest.fixture
def tier(queue: MemoryQueue) -> MemoryTier:
    return MemoryTier(queue)


@pytest.fixture(params=[True, False], ids=["cached", "uncached"])
async def fetcher(
    tier: MemoryTier, request: pytest.FixtureRequest
) -> AsyncIterator[TieredMessageFetcher]:
    async with TieredMessageFetcher(
        tier, options=FetcherOptions(cache_enabled=request.param)
    ) as opened:
        yield opened


def outline(result: FetchResult) -> tuple[str, int, int, int, int]:
    numbers = result.next_offset, result.min_offset, result.max_offset
    return (result.status.name, *numbers, len(result.messages))


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (-1, ("OFFSET_TOO_SMALL", 100, 100, 200, 0)),
        (99, ("OFFSET_TOO_SMALL", 100, 100, 200, 0)),
        (100, ("FOUND", 132, 100, 200, 32)),
        (199, ("FOUND", 200, 100, 200, 1)),
        (200, ("OFFSET_OVERFLOW_ONE", 200, 100, 200, 0)),
        (201, ("OFFSET_OVERFLOW_BADLY", 200, 100, 200, 0)),
    ],
)
async def test_the_status_follows_from_the_offset(
    fetcher: TieredMessageFetcher, offset: int, expected: tuple[object, ...]
) -> None:
    assert outline(await fetcher.get_message("g", "T", 0, offset, messages_max=32)) == expected


async def test_an_unknown_queue_has_no_bounds(fetcher: TieredMessageFetcher) -> None:
    found = await fetcher.get_message("g", "T", 7, 55, messages_max=32)
    assert outline(found) == ("NO_MATCHED_LOGIC_QUEUE", 0, 0, 0, 0)


def test_a_queue_without_a_message_is_told_by_its_end_alone() -> None:
    nothing, hundred = QueueOffset(0), QueueOffset(100)
    assert offset_status(QueueOffset(5), nothing, nothing)[0] is FetchStatus.NO_MESSAGE_IN_QUEUE
    assert offset_status(hundred, hundred, hundred)[0] is FetchStatus.OFFSET_OVERFLOW_ONE


async def test_records_come_whole_and_in_order(
    fetcher: TieredMessageFetcher, queue: MemoryQueue
) -> None:
    found = (await fetcher.get_message("g", "T", 0, 150, messages_max=20)).messages
    assert [bytes(one) for one in found] == [queue.record(offset) for offset in range(150, 170)]
    assert found.offsets.tolist() == list(range(150, 170))
    assert bytes(found[3]) == bytes(found[-17]) == queue.record(153)
    assert found.bytes == int(found.sizes.sum()) == sum(map(len, found))
    assert found[0].readonly
    assert int.from_bytes(found[0][28:36], "big") == queue.commit_log.index(found[0])


@pytest.mark.parametrize("bytes_max", [1, 500, 1000, 5000])
async def test_the_message_that_reaches_the_byte_limit_is_the_last(
    fetcher: TieredMessageFetcher, queue: MemoryQueue, bytes_max: int
) -> None:
    for _ in range(2):  # read, then cached
        found = await fetcher.get_message("g", "T", 0, 100, messages_max=90, bytes_max=bytes_max)
        sizes = [len(queue.record(offset)) for offset in range(100, int(found.next_offset))]
        assert sum(sizes[:-1]) < bytes_max <= sum(sizes)


@pytest.mark.parametrize("subscription", ["A", "A || B", "B||nothing"])
async def test_a_filter_goes_on_until_enough_is_found(
    fetcher: TieredMessageFetcher, subscription: str
) -> None:
    wanted = set(subscription.replace(" ", "").split("||"))
    matches = [offset for offset in range(103, 200) if ("A", "B", "")[offset % 3] in wanted]
    for _ in range(2):
        found = await fetcher.get_message(
            "g", "T", 0, 103, messages_max=7, subscription=subscription
        )
        assert found.messages.offsets.tolist() == matches[:7]
        assert found.next_offset == matches[6] + 1


async def test_a_filter_that_finds_nothing_tells_the_first_offset_not_looked_at(
    tier: MemoryTier,
) -> None:
    async with TieredMessageFetcher(tier, options=FetcherOptions(run_messages_max=40)) as fetcher:
        for offset, expected in ((100, 140), (140, 180), (180, 200)):
            found = await fetcher.get_message("g", "T", 0, offset, messages_max=1, subscription="C")
            assert outline(found) == ("NO_MATCHED_MESSAGE", expected, 100, 200, 0)


async def test_exact_tags_drop_what_only_shares_the_hash() -> None:
    queue = MemoryQueue()
    queue.fill(4, tags=("Aa", "BB"))  # Java's hash of both is 2112
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        for exact, offsets in ((False, [0, 1, 2, 3]), (True, [1, 3])):
            found = await fetcher.get_message(
                "g", "T", 0, 0, messages_max=9, subscription="BB", exact_tags=exact
            )
            assert found.messages.offsets.tolist() == offsets


async def test_a_gap_ends_a_walk_and_its_end_is_told_to_who_stands_in_it(
    fetcher: TieredMessageFetcher, queue: MemoryQueue
) -> None:
    queue.lose(50)
    queue.fill(10)
    assert outline(await fetcher.get_message("g", "T", 0, 190, messages_max=32)) == (
        "FOUND", 200, 100, 260, 10,
    )  # fmt: skip
    for offset in (200, 249):
        found = await fetcher.get_message("g", "T", 0, offset, messages_max=32)
        assert outline(found) == ("OFFSET_FOUND_NULL", 250, 100, 260, 0)
    found = await fetcher.get_message("g", "T", 0, 250, messages_max=32)
    assert outline(found) == ("FOUND", 260, 100, 260, 10)


async def test_a_filter_that_found_nothing_yet_goes_on_behind_a_gap(
    fetcher: TieredMessageFetcher, queue: MemoryQueue
) -> None:
    queue.lose(5000)
    queue.fill(10, tags=("C",))
    found = await fetcher.get_message("g", "T", 0, 190, messages_max=32, subscription="C")
    assert outline(found) == ("FOUND", 5210, 100, 5210, 10)


async def test_timestamps_are_told_cached_or_not(
    fetcher: TieredMessageFetcher, queue: MemoryQueue
) -> None:
    queue.lose(5)
    for _ in range(2):
        stamps = [await fetcher.message_timestamp(QUEUE, at) for at in (99, 100, 150, 202, 205)]
        assert stamps == [None, 1_700_000_000_100, 1_700_000_000_150, None, None]
        await fetcher.get_message("g", "T", 0, 100, messages_max=90)
    assert await fetcher.message_timestamp(QueueId("X", 0), 1) is None


async def test_impossible_requests_are_refused(fetcher: TieredMessageFetcher) -> None:
    with pytest.raises(ValueError, match="messages_max"):
        await fetcher.get_message("g", "T", 0, 100, messages_max=0)
    closed = TieredMessageFetcher(MemoryTier(filled(3)))
    with pytest.raises(Closed):
        await closed.get_message("g", "T", 0, 0, messages_max=1)
