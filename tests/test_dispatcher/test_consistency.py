"""Whether two logs agree, and where the last offset is up to which they do."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.unit import Units
from dispatcher.consistency import compare_sampled, find_common_end, same_message
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import COMPARED_BYTES_MAX, DispatchOptions
from dispatcher.ports import QueueState, Wanted
from provider.errors import Corrupt, StoreError
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.dispatch_world import World
from tests.support.fake_hot_log import FakeHotLog, fake_record
from tests.support.memory_tier import InlineExecutor, MemoryTier

A, B = QueueId("Orders", 0), QueueId("Orders", 1)
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


class MeasuredHotLog(FakeHotLog):
    """Notes what is read, and has messages that cannot be."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.unreadable: set[int] = set()
        self.bytes_read = 0
        self.bytes_read_peak = 0

    def records(self, queue: QueueId, start: QueueOffset, references: Units) -> MessageBatch:
        if start in self.unreadable:
            raise Corrupt("the record is not one", str(queue), start)
        bad = [offset - start for offset in self.unreadable if offset > start]
        batch = super().records(queue, start, references[: min(bad, default=None)])
        self.bytes_read += batch.bytes
        return batch

    async def records_of_round(
        self, wanted: Sequence[Wanted]
    ) -> Sequence[MessageBatch | StoreError]:
        before = self.bytes_read
        answers = await super().records_of_round(wanted)
        self.bytes_read_peak = max(self.bytes_read_peak, self.bytes_read - before)
        return answers


class MeasuredTier(MemoryTier):
    """Notes how much is read at once."""

    bytes_read_peak = 0

    async def messages_at(
        self,
        queue: QueueId,
        offsets: Sequence[QueueOffset],
        *,
        bytes_max: int,
        history: bool = False,
        verified: bool = False,
    ) -> list[bytes | None]:
        found = await super().messages_at(
            queue, offsets, bytes_max=bytes_max, history=history, verified=verified
        )
        size = sum(len(record) for record in found if record is not None)
        self.bytes_read_peak = max(self.bytes_read_peak, size)
        return found


async def tiered_world(count: int, body: bytes = b"x") -> tuple[MeasuredHotLog, MeasuredTier]:
    clock = ManualClock()
    hot, tier = MeasuredHotLog(clock), MeasuredTier(clock)
    hot.append(A, *[body] * count)
    return await tiered_again(hot, tier), tier


async def tiered_again(hot: MeasuredHotLog, tier: MeasuredTier) -> MeasuredHotLog:
    """Tier what there is, and return the same hot log as another process finds it."""
    await TieredDispatcher(
        hot, tier, options=DispatchOptions(), clock=hot.clock, executor=InlineExecutor()
    ).drain()
    again = MeasuredHotLog(hot.clock)
    again.queues, again._salt = hot.queues, hot._salt + 1_000_000
    await again.poll()
    return again


def restore_backup(hot: FakeHotLog, end: int, *, coinciding: int, body: bytes = b"y") -> None:
    """The messages from `end` on are others now, but for the newest `coinciding` ones."""
    records = hot.queues[A].records
    old = records[:]
    hot.lose_tail(A, len(old) - end)
    hot.append(A, *[body] * (len(old) - end))
    records[len(old) - coinciding :] = old[len(old) - coinciding :]


async def sampled(hot: FakeHotLog, tier: MemoryTier) -> QueueOffset | None:
    """What opening the queue finds out."""
    seen = hot.queue(A)
    assert seen is not None
    return await compare_sampled(hot, tier, seen, newest=3)


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
    assert tier.calls == {"messages_at": 1}
    assert await find_common_end(hot, tier, B) is None


@pytest.mark.parametrize("restored", [0, 1, 437, 870, 997, 999])
@pytest.mark.parametrize("coinciding", [0, 1, 3, 100])
@pytest.mark.parametrize("deleted", [0, 420])
async def test_the_common_end_of_a_restored_backup_is_where_it_ended(
    restored: int, coinciding: int, deleted: int
) -> None:
    hot, tier = await tiered_world(1000)
    restore_backup(hot, restored, coinciding=coinciding)
    hot.delete_below(A, deleted)
    await hot.poll()
    tier.calls.clear()
    expected = max(restored, deleted) if restored < 1000 - coinciding else None
    assert await find_common_end(hot, tier, A) == expected
    assert tier.calls["messages_at"] <= 8


async def test_the_search_looks_again_below_what_it_found_where_messages_coincide() -> None:
    hot, tier = await tiered_world(1000)
    old = hot.queues[A].records[:]
    restore_backup(hot, 300, coinciding=3)
    hot.queues[A].records[500:600] = old[500:600]  # the search meets them as if they were the same
    await hot.poll()
    assert await find_common_end(hot, tier, A) == 300


async def test_the_common_end_is_not_hidden_by_a_gap() -> None:
    hot, tier = await tiered_world(100)
    hot.append(A, *[b"lost"] * 900)
    hot.delete_below(A, 1000)
    hot = await tiered_again(hot, tier)
    hot.append(A, *[b"x"] * 200)
    hot = await tiered_again(hot, tier)
    restore_backup(hot, 60, coinciding=3)
    hot.queues[A].min_offset = 0
    await hot.poll()
    assert await find_common_end(hot, tier, A) == 60


@pytest.mark.parametrize(("hot_low", "hot_end"), [(0, 500), (0, 101), (300, 500), (0, 100)])
async def test_a_hot_log_that_ends_in_a_gap_has_the_tier_in_common_up_to_the_gap(
    hot_low: int, hot_end: int
) -> None:
    hot, tier = await tiered_world(100)
    hot.append(A, *[b"lost"] * 900)
    hot.delete_below(A, 1000)
    hot.append(A, *[b"x"] * 200)
    hot = await tiered_again(hot, tier)
    hot.lose_tail(A, 1200 - hot_end)
    hot.queues[A].min_offset = hot_low
    await hot.poll()
    assert await find_common_end(hot, tier, A) == 100


async def test_nothing_is_in_common_with_a_hot_log_below_the_first_tiered_message() -> None:
    hot, tier = await tiered_world(100)
    for offset in range(60):
        del tier.queues[A].records[offset]
    hot.lose_tail(A, 90)
    await hot.poll()
    assert await find_common_end(hot, tier, A) == 60


async def test_old_messages_are_searched_though_the_tier_must_read_its_history_for_them() -> None:
    hot, tier = await tiered_world(1000)
    restore_backup(hot, 437, coinciding=3)
    tier.near_offset = 990
    await hot.poll()
    assert await find_common_end(hot, tier, A) == 437


async def test_a_start_compares_without_the_history_of_the_tier() -> None:
    hot, tier = await tiered_world(1000)
    restore_backup(hot, 437, coinciding=100)
    assert await sampled(hot, tier) == 1000 - 512
    tier.near_offset = 900
    assert await sampled(hot, tier) is None
    tier.near_offset = 1000 - 256
    assert await sampled(hot, tier) == 1000 - 256


@pytest.mark.parametrize(
    ("count", "requests"), [(3, 2), (100, 2), (1_000, 2), (10_000, 3), (100_000, 7)]
)
async def test_opening_a_queue_costs_few_requests_however_many_messages_it_has(
    count: int, requests: int
) -> None:
    hot, tier = await tiered_world(count)
    hot.calls.clear()
    tier.calls.clear()
    assert await sampled(hot, tier) is None
    assert tier.calls == {"messages_at": 1}
    assert hot.calls["references"] + hot.calls["records_of_round"] == requests
    assert hot.bytes_read <= 4 << 10


async def test_large_messages_between_the_compared_ones_are_not_read() -> None:
    hot, tier = await tiered_world(1_000, body=bytes(20_000))
    hot.bytes_read = 0
    assert await sampled(hot, tier) is None
    assert hot.bytes_read <= 20 * 20_000


async def test_what_comparing_holds_is_bounded_but_for_one_message() -> None:
    size = COMPARED_BYTES_MAX // 4
    hot, tier = await tiered_world(70, body=bytes(size))
    restore_backup(hot, 40, coinciding=3, body=bytes(size))
    await hot.poll()
    hot.bytes_read_peak = tier.bytes_read_peak = 0
    assert await find_common_end(hot, tier, A) == 40
    assert size < hot.bytes_read_peak <= COMPARED_BYTES_MAX
    assert size < tier.bytes_read_peak <= COMPARED_BYTES_MAX
    hot, tier = await tiered_world(20, body=bytes(2 * COMPARED_BYTES_MAX))
    assert await sampled(hot, tier) is None
    assert hot.bytes_read_peak < 3 * COMPARED_BYTES_MAX
    assert tier.bytes_read_peak < 3 * COMPARED_BYTES_MAX


async def test_old_messages_that_cannot_be_read_are_passed_over_and_new_ones_are_not() -> None:
    hot, tier = await tiered_world(1000)
    hot.unreadable = {1000 - 64, 1000 - 512}
    assert await sampled(hot, tier) is None
    restore_backup(hot, 700, coinciding=3)
    assert await sampled(hot, tier) == 1000 - 256
    hot.unreadable.add(998)
    with pytest.raises(Corrupt):
        await sampled(hot, tier)
    with pytest.raises(Corrupt):
        await find_common_end(hot, tier, A)


def rot(log: FakeHotLog | MemoryTier, offset: int, place: int) -> None:
    """Flip a bit of a record."""
    record = bytearray(log.queues[A].records[offset])
    record[place] ^= 1
    log.queues[A].records[offset] = bytes(record)


async def test_a_hot_record_that_rotted_is_no_other_message() -> None:
    hot, tier = await tiered_world(1000, body=b"body" * 20)
    for offset in (1000 - 64, 1000 - 512):
        rot(hot, offset, 120)
    assert await sampled(hot, tier) is None
    restore_backup(hot, 700, coinciding=3)
    assert await sampled(hot, tier) == 1000 - 256
    rot(hot, 998, 120)
    with pytest.raises(Corrupt, match="the hot log's record at offset 998 fails its checksum"):
        await sampled(hot, tier)
    with pytest.raises(Corrupt, match="the hot log's record at offset 488 fails"):
        await find_common_end(hot, tier, A)


async def test_a_tiered_record_that_rotted_is_no_other_message() -> None:
    hot, tier = await tiered_world(1000, body=b"body" * 20)
    rot(tier, 1000 - 64, 120)
    assert await sampled(hot, tier) is None
    rot(tier, 998, 120)
    with pytest.raises(Corrupt, match="the tier's record at offset 998 fails its checksum"):
        await sampled(hot, tier)
    assert await find_common_end(hot, tier, A) == 1000 - 64, "a cut lets it be tiered anew"


async def test_a_record_whose_head_says_something_else_is_another_message() -> None:
    hot, tier = await tiered_world(1000)
    rot(hot, 1000 - 64, 63)  # its store timestamp, which no checksum of this record covers
    assert await sampled(hot, tier) == 1000 - 64


async def test_a_restored_backup_whose_newest_messages_coincide_stops_its_queue() -> None:
    world = World()
    world.hot.append(A, *[b"x"] * 1000)
    await world.finish(world.dispatcher.drain())
    before = world.tier.bodies(A)
    world.restart()
    restore_backup(world.hot, 437, coinciding=3)
    world.hot.append(A, b"new")
    world.hot.append(B, b"x")
    report = await world.finish(world.dispatcher.drain())
    assert [(halted.queue, halted.state) for halted in report.halted] == [(A, QueueState.STOPPED)]
    reason = report.halted[0].reason
    assert "different messages at offset 488, and the same below offset 437" in reason
    assert "tieredstore repair Orders 0 --cut-to-hot" in reason
    assert world.tier.bodies(A) == before
    assert world.is_tiered(B)
