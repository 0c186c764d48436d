"""Whether two logs agree, and where the last offset is up to which they do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.tier_records import QueueId
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.divergence import (
    find_common_end,
    first_difference,
    queue_offset_of,
    same_message,
)
from dispatcher.options import DispatchOptions
from provider.clock import ManualClock
from provider.errors import Corrupt
from provider.ranges import QueueOffset
from tests.support.fake_hot_log import FakeHotLog, fake_record
from tests.support.memory_tier import InlineExecutor, MemoryTier

A = QueueId("Orders", 0)
record = fake_record(7, b"body" * 10, timestamp=1)
CRC = b"__CRC32#\x01%s\x02"


@given(st.integers(0, len(record) - 1))
def test_every_byte_counts_but_the_physical_offset(position: int) -> None:
    changed = bytearray(record)
    changed[position] ^= 1
    assert same_message(record, bytes(changed)) == (28 <= position < 36)


def test_the_checksum_over_the_whole_record_does_not_count() -> None:
    assert same_message(record + CRC % b"0123456789", record + CRC % b"9876543210")
    assert not same_message(record + CRC % b"0123456789", record + b"9" * 20)
    assert not same_message(record, record + b"x")


def test_only_offsets_that_both_have_are_compared() -> None:
    other = fake_record(7, b"BODY" * 10, timestamp=1)
    tiered = [(QueueOffset(6), other), (QueueOffset(7), other), (QueueOffset(8), record)]
    assert first_difference(tiered, [(QueueOffset(7), record), (QueueOffset(8), other)]) == 7
    assert first_difference(tiered, [(QueueOffset(9), record)]) is None


def test_a_tiered_record_that_is_too_short_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="Orders/0"):
        queue_offset_of(b"short", A)


async def tiered_world(count: int) -> tuple[FakeHotLog, MemoryTier]:
    clock = ManualClock()
    hot, tier = FakeHotLog(clock), MemoryTier(clock)
    hot.append(A, *[b"x"] * count)
    await TieredDispatcher(
        hot, tier, options=DispatchOptions(), clock=clock, executor=InlineExecutor()
    ).drain()
    return hot, tier


@pytest.mark.parametrize("lost", [1, 3, 16, 17, 100, 199])
@pytest.mark.parametrize("rewritten", [0, 1, 50, 400])
@pytest.mark.parametrize("deleted", [0, 60, 190])
async def test_the_common_end_is_where_the_logs_part(
    lost: int, rewritten: int, deleted: int
) -> None:
    hot, tier = await tiered_world(200)
    hot.lose_tail(A, lost)
    hot.append(A, *[b"y"] * rewritten)
    hot.delete_below(A, deleted)
    await hot.poll()
    here = hot.queues[A]
    end = min(200, len(here.records))
    agree = [n for n in range(here.min_offset, end) if n < 200 - lost]
    expected = (agree[-1] + 1) if agree else here.min_offset
    found = await find_common_end(hot, tier, A)
    assert found == expected


async def test_logs_that_agree_have_nothing_to_cut_and_cost_one_request() -> None:
    hot, tier = await tiered_world(200)
    hot.append(A, b"new")
    await hot.poll()
    tier.calls.clear()
    assert await find_common_end(hot, tier, A) is None
    assert tier.calls == {"last_messages": 1}
    assert await find_common_end(hot, tier, QueueId("Orders", 1)) is None
