"""What a follower says of units and records that cannot be trusted."""

import os

import numpy as np
import pytest

from container.names.queue_id import QueueId
from container.record.unit import ConsumeQueueUnit
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from dispatcher.ports import HotQueueState, QueueState, Wanted, records_of_queue
from provider.errors import Corrupt
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, broker, clock, follow, logs, poll_later
from tests.support.memory_tier import InlineExecutor, MemoryTier
from tieredstore.following.hot_log import RocketMqHotLog

__all__ = ["broker", "clock", "logs"]  # fixtures

A0, A1 = QueueId("A", 0), QueueId("A", 1)


@pytest.mark.parametrize("lost_bytes", [1, 50, 100, 101, 500, 3000, 5000])
async def test_units_without_records_after_a_crash_do_not_count(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], lost_bytes: int
) -> None:
    for _ in range(60):
        broker.put("A", 0, b"9")
    broker.crash(lost_bytes)
    whole = sum(
        unit.position + unit.size - 2 <= broker.position  # a record's last two bytes are zero
        for unit in (broker.unit("A", 0, offset) for offset in range(60))
    )
    log = await follow(broker, clock, logs)
    (seen,) = await log.poll()
    assert (seen.max_offset, seen.state) == (whole, HotQueueState.READY)
    assert await bodies(log, A0, 0, whole) == whole
    assert list(await log.poll()) == []


async def test_a_bad_record_with_good_ones_behind_it_stops_its_queue_alone(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(10):
        broker.put("A", 0)
        broker.put("A", 1)
    bad = broker.unit("A", 0, 4)
    broker.damage(bad.position + 4, b"\0\0\0\0")
    log = await follow(broker, clock, logs)
    await log.poll()
    await log.release(A0, QueueOffset(0))
    units = await log.references(A0, QueueOffset(0), messages_max=10)
    assert len(await records_of_queue(log, Wanted(A0, QueueOffset(0), units))) == 4
    with pytest.raises(Corrupt) as caught:
        await records_of_queue(log, Wanted(A0, QueueOffset(4), units[4:]))
    assert caught.value.path == str(broker.log_path(bad.position))
    assert caught.value.position == bad.position % 4096
    (seen,) = await log.poll()
    assert (seen.id, seen.state) == (A0, HotQueueState.DAMAGED)
    assert str(broker.log_path(bad.position)) in seen.detail
    assert await bodies(log, A1, 0, 10) == 10


async def test_a_bad_record_that_is_not_to_be_tiered_stops_nothing(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [b"x"] * 30)
    for offset in (3, 8):
        broker.damage(broker.unit("A", 0, offset).position + 4, b"\0\0\0\0")

    async def states_after_reading(offset: int) -> list[HotQueueState]:
        units = await log.references(A0, QueueOffset(offset), messages_max=1)
        with pytest.raises(Corrupt):
            await records_of_queue(log, Wanted(A0, QueueOffset(offset), units))
        return [seen.state for seen in await log.poll()]

    log = await follow(broker, clock, logs)
    await log.poll()
    assert await states_after_reading(3) == []  # nobody said yet what is to be tiered
    await log.release(A0, QueueOffset(5))
    assert await states_after_reading(3) == []
    assert await states_after_reading(8) == [HotQueueState.DAMAGED]


async def test_damage_that_is_mended_before_the_next_poll_is_said_once_and_then_that_it_is_mended(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [b"x"] * 10)
    bad = broker.unit("A", 0, 4).position
    log = await follow(broker, clock, logs)
    await log.poll()
    await log.release(A0, QueueOffset(4))
    units = await log.references(A0, QueueOffset(4), messages_max=6)
    for _ in range(2):
        magic = broker.log_path(bad).read_bytes()[bad % 4096 + 4 :][:4]
        broker.damage(bad + 4, bytes(4))
        with pytest.raises(Corrupt):
            await records_of_queue(log, Wanted(A0, QueueOffset(4), units))
        broker.damage(bad + 4, magic)
        ((told,), (mended,)) = await log.poll(), await log.poll()
        assert told.state is HotQueueState.DAMAGED
        assert str(broker.log_path(bad)) in told.detail
        assert (mended.state, mended.detail) == (HotQueueState.READY, "")
        assert (mended.min_offset, mended.max_offset) == (0, 10)
        assert list(await log.poll()) == []


async def test_a_queue_whose_damage_is_mended_before_the_next_poll_is_tiered_without_a_restart(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    tier = MemoryTier(clock)
    log = await follow(broker, clock, logs)
    dispatcher = TieredDispatcher(
        log, tier, options=DispatchOptions(), clock=clock, executor=InlineExecutor()
    )
    broker.put_many("A", 0, [b"x"] * 10)
    place = broker.unit("A", 0, 4).position + 4
    magic = broker.log_path(place).read_bytes()[place % 4096 :][:4]
    broker.damage(place, bytes(4))
    for _ in range(2):
        (halted,) = (await dispatcher.drain()).halted
        assert (halted.state, halted.commit_offset) == (QueueState.DAMAGED, 4)
        broker.damage(place, magic)
    assert (await dispatcher.drain()).halted == ()
    assert tier.queues[A0].next_offset == 10


async def test_a_truncated_file_of_units_that_is_mended_before_the_next_poll_is_said_to_be(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [b"x"] * 10)
    log = await follow(broker, clock, logs)
    await log.poll()
    await log.release(A0, QueueOffset(4))
    path = broker.queue_files(A0)[0]
    whole = path.read_bytes()
    os.truncate(path, 4 * 20)
    with pytest.raises(Corrupt):
        await log.references(A0, QueueOffset(4), messages_max=6)
    path.write_bytes(whole)
    states = [seen.state for _ in range(3) for seen in await log.poll()]
    assert states == [HotQueueState.DAMAGED, HotQueueState.READY]


async def test_a_record_that_is_damaged_after_it_was_tiered_is_not_shown_as_damage(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [b"x"] * 10)
    tier = MemoryTier(clock)
    for _ in range(2):
        dispatcher = TieredDispatcher(
            await follow(broker, clock, logs),
            tier,
            options=DispatchOptions(),
            clock=clock,
            executor=InlineExecutor(),
        )
        for _ in range(2):
            broker.put("A", 0)
            assert (await dispatcher.drain()).halted == ()
        broker.damage(broker.unit("A", 0, 4).position + 4, b"\0\0\0\0")
    assert tier.queues[A0].next_offset == 14


async def test_a_bad_last_record_that_gets_company_is_damage(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(3):
        broker.put("A", 0)
    broker.damage(broker.unit("A", 0, 2).position + 20, b"\7")
    log = await follow(broker, clock, logs)
    (seen,) = await log.poll()
    assert (seen.max_offset, seen.state) == (2, HotQueueState.READY)
    broker.put("A", 0)
    (seen,) = await log.poll()
    assert (seen.max_offset, seen.state) == (2, HotQueueState.DAMAGED)


async def test_an_empty_unit_with_good_ones_behind_it_is_damage(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(3):
        broker.put("A", 0)
    kept = broker.unit("A", 0, 1)
    broker.put_unit(A0, 1, ConsumeQueueUnit(0, 0, 0))
    log = await follow(broker, clock, logs)
    await log.poll()
    (seen,) = await log.poll()
    assert (seen.max_offset, seen.state) == (1, HotQueueState.DAMAGED)
    assert "consumequeue" in seen.detail
    broker.put_unit(A0, 1, kept)
    assert await poll_later(log, clock) == {A0: (0, 3)}


async def test_an_impossible_unit_comes_alone_and_its_record_is_corrupt(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(5):
        broker.put("A", 0)
    broker.put_unit(A0, 2, ConsumeQueueUnit(-5, 2**31 - 1, 0))
    log = await follow(broker, clock, logs)
    await log.poll()
    assert len(await log.references(A0, QueueOffset(0), messages_max=5)) == 2
    alone = await log.references(A0, QueueOffset(2), messages_max=5)
    assert len(alone) == 1
    with pytest.raises(Corrupt):
        await records_of_queue(log, Wanted(A0, QueueOffset(2), alone))


async def test_a_half_written_unit_does_not_count_before_it_is_whole(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put("A", 0, tags="TagA")
    whole = broker.unit("A", 0, 0)
    broker.put_unit(A0, 0, ConsumeQueueUnit(whole.position, whole.size, 0))
    log = await follow(broker, clock, logs)
    (seen,) = await log.poll()
    assert seen.max_offset == 0
    broker.put_unit(A0, 0, whole)
    (seen,) = await log.poll()
    assert seen.max_offset == 1
    units = await log.references(A0, QueueOffset(0), messages_max=1)
    assert int(units["tag_hash"][0]) == whole.tag_hash


async def test_a_tags_code_that_is_no_hash_counts_once_it_stays(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put("A", 0, tags="TagA")
    whole = broker.unit("A", 0, 0)
    broker.put_unit(A0, 0, ConsumeQueueUnit(whole.position, whole.size, -(2**40)))
    log = await follow(broker, clock, logs)
    assert [seen.max_offset for seen in await log.poll()] == [0]
    assert [seen.max_offset for seen in await log.poll()] == [1]


async def test_a_truncated_commit_log_file_is_corrupt_and_kills_nobody(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(60):
        broker.put("A", 0, bytes(80))
    log = await follow(broker, clock, logs)
    await log.poll()
    units = await log.references(A0, QueueOffset(0), messages_max=60)
    await records_of_queue(log, Wanted(A0, QueueOffset(0), units))  # mapped now
    os.truncate(broker.log_path(0), 1000)
    batch = await records_of_queue(log, Wanted(A0, QueueOffset(0), units))
    whole = int(np.searchsorted(np.cumsum(units["size"]), 1000, side="right"))
    assert len(batch) == whole
    with pytest.raises(Corrupt) as caught:
        await records_of_queue(log, Wanted(A0, QueueOffset(whole), units[whole:]))
    assert caught.value.path == str(broker.log_path(0))
    assert log.queue(A0) is not None
    os.truncate(broker.log_path(0), 0)
    with pytest.raises(Corrupt):
        await records_of_queue(log, Wanted(A0, QueueOffset(0), units))


async def test_a_truncated_consume_queue_file_stops_its_queue_alone(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(30):
        broker.put("A", 0)
        broker.put("A", 1)
    os.truncate(broker.queue_files(A0)[0], 100)
    log = await follow(broker, clock, logs)
    states = {seen.id: seen.state for seen in await log.poll()}
    assert states == {A0: HotQueueState.DAMAGED, A1: HotQueueState.READY}
