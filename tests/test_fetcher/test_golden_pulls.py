"""What real brokers answered to pulls, asked of the fetcher over the same tier."""

from typing import Any

import pytest

from container.names.queue_id import QueueId
from container.record.unit import UNIT_BYTES
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from fetcher.result import FetchResult, FetchStatus
from provider.ranges import QueueOffset
from tests.support.golden import GOLDEN_SETS, VARIANTS_520, GoldenSet, expected, unpacked
from tests.support.read_tier import MemoryQueue, MemoryTier

PULLED = {
    FetchStatus.FOUND: "FOUND",
    FetchStatus.NO_MATCHED_MESSAGE: "NO_MATCHED_MSG",
    FetchStatus.MESSAGE_WAS_REMOVING: "NO_MATCHED_MSG",
    FetchStatus.OFFSET_FOUND_NULL: "NO_NEW_MSG",
    FetchStatus.OFFSET_OVERFLOW_ONE: "NO_NEW_MSG",
    FetchStatus.OFFSET_TOO_SMALL: "OFFSET_ILLEGAL",
    FetchStatus.OFFSET_OVERFLOW_BADLY: "OFFSET_ILLEGAL",
    FetchStatus.OFFSET_RESET: "OFFSET_ILLEGAL",
}
"""What RocketMQ's client calls a status; of a queue without messages it depends on the offset."""


def pulled(status: FetchStatus, offset: int) -> str:
    if status in (FetchStatus.NO_MATCHED_LOGIC_QUEUE, FetchStatus.NO_MESSAGE_IN_QUEUE):
        return "OFFSET_ILLEGAL" if offset else "NO_NEW_MSG"
    return PULLED[status]


def golden_tier(golden: GoldenSet) -> MemoryTier:
    """The tier that the Java store wrote, every queue from its first segment to its last."""
    tree = unpacked(golden)
    queues: list[MemoryQueue] = []
    for name in tree.queues():
        first_base = tree.segments(name, "CONSUME_QUEUE")[0][0]
        queue = MemoryQueue(name, first=first_base // UNIT_BYTES)
        queue.consume_queue += tree.flat_bytes(name, "CONSUME_QUEUE")
        queue.commit_log += tree.flat_bytes(name, "COMMIT_LOG")
        queue.next_offset = QueueOffset(queue.base + len(queue.consume_queue) // UNIT_BYTES)
        queues.append(queue)
    return MemoryTier(*queues)


async def pull(fetcher: TieredMessageFetcher, row: dict[str, Any]) -> FetchResult:
    return await fetcher.get_message(
        "g",
        row["topic"],
        row["queue_id"],
        row["offset"],
        messages_max=row["max"],
        subscription=row.get("subscription"),
    )


@pytest.mark.parametrize("cache_enabled", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=str)
async def test_pulls_are_answered_as_the_broker_answered_them(
    golden: GoldenSet, *, cache_enabled: bool
) -> None:
    rows = expected(golden, "pulls")
    assert len(rows) > 300
    options = FetcherOptions(cache_enabled=cache_enabled)
    async with TieredMessageFetcher(golden_tier(golden), options=options) as fetcher:
        for row in rows:
            found = await pull(fetcher, row)
            statuses = {found.status.name, pulled(found.status, row["offset"])}
            assert row["status"] in statuses, row
            assert (found.min_offset, found.max_offset) == (row["min_offset"], row["max_offset"])
            offsets = found.messages.offsets.tolist()
            assert found.messages.joined() == b"".join(found.messages)
            if golden is VARIANTS_520 and len(offsets) > len(row["offsets"]):
                # 5.2.0 ends where its cache does; we do not. The next pull would tell the rest.
                assert offsets[: len(row["offsets"])] == row["offsets"]
                assert found.next_offset > row["next"]
            else:
                assert (offsets, found.next_offset) == (row["offsets"], row["next"]), row


@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=str)
async def test_every_message_is_read_with_its_place_and_store_time(golden: GoldenSet) -> None:
    messages = expected(golden, "messages")
    tier = golden_tier(golden)
    async with TieredMessageFetcher(tier) as fetcher:
        for message in messages:
            queue = QueueId(message["topic"], message["queue_id"])
            offset = message["queue_offset"]
            found = await fetcher.get_message("g", *queue, offset, messages_max=1)
            record = found.messages.joined()
            cached = fetcher.cached_messages("g", queue, offset, 1, None)
            assert cached is not None
            assert cached.messages.joined() == record == found.messages[0]
            assert len(record) == message["store_size"]
            assert int.from_bytes(record[28:36], "big") == message["tier_physical_offset"]
            stamp = await fetcher.message_timestamp(queue, offset)
            assert stamp == message["store_timestamp"]
