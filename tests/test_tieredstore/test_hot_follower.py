"""What a follower sees while a broker writes, deletes, crashes and damages its files."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from container.consume_queue_unit import ConsumeQueueUnit
from container.record_layout import TRANSACTION_PREPARED
from container.tier_records import QueueId
from dispatcher.source import HotQueueState
from provider.clock import ManualClock
from provider.errors import Closed, Corrupt, OutOfRange
from provider.ranges import QueueOffset
from tests.support.fake_broker import FakeBroker
from tieredstore.hot.follower import RocketMqHotLog
from tieredstore.hot.options import HotLogOptions

A0, A1 = QueueId("A", 0), QueueId("A", 1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path / "store", commit_log_bytes=4096, consume_queue_bytes=400)


@pytest.fixture
async def logs() -> AsyncIterator[list[RocketMqHotLog]]:
    opened: list[RocketMqHotLog] = []
    yield opened
    for log in opened:
        await log.close()


async def follow(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], **changes: object
) -> RocketMqHotLog:
    log = await RocketMqHotLog.open(
        broker.directory,
        options=HotLogOptions(**changes),  # pyright: ignore[reportArgumentType] - as given
        clock=clock,
        cluster="TestCluster",
        broker="broker-a",
    )
    logs.append(log)
    return log


async def poll_later(log: RocketMqHotLog, clock: ManualClock) -> dict[QueueId, tuple[int, int]]:
    """A second later, so that directories are due, too."""
    await clock.advance(1.0)
    return {seen.id: (seen.min_offset, seen.max_offset) for seen in await log.poll()}


async def bodies(log: RocketMqHotLog, queue: QueueId, start: int, end: int) -> int:
    """Read `[start, end)`; returns how many messages were read before the end or an error."""
    at = start
    while at < end:
        units = await log.references(queue, QueueOffset(at), messages_max=7)
        at = (await log.records(queue, QueueOffset(at), units)).next_offset
    return at - start


async def test_messages_written_while_it_is_open_are_found(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put("A", 0)
    log = await follow(broker, clock, logs)
    assert [(q.id, q.max_offset) for q in await log.poll()] == [(A0, 1)]
    assert list(await log.poll()) == []
    broker.put("A", 0, tags="TagA")
    assert [(q.id, q.max_offset) for q in await log.poll()] == [(A0, 2)]
    broker.put("A", 1)
    assert await poll_later(log, clock) == {A1: (0, 1)}
    broker.put("B", 0)
    assert await poll_later(log, clock) == {QueueId("B", 0): (0, 1)}


async def test_files_roll_and_batches_cross_their_borders(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    log = await follow(broker, clock, logs)
    await log.poll()
    broker.put("A", 0)
    await poll_later(log, clock)
    for count in range(1, 200):
        broker.put("A", 0, bytes(count))
        await log.poll()
        seen = log.queue(A0)
        assert seen is not None
        assert seen.max_offset == count + 1
    assert broker.position > 5 * 4096
    units = await log.references(A0, QueueOffset(0), messages_max=1000)
    assert len(units) == 200
    batch = await log.records(A0, QueueOffset(0), units)
    assert len(batch) == 200
    assert batch.sizes.tolist() == units["size"].tolist()


async def test_a_batch_ends_at_its_bound_but_has_a_message(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [bytes(100)] * 9)
    log = await follow(broker, clock, logs, batch_bytes_max=400)
    await log.poll()
    units = await log.references(A0, QueueOffset(0), messages_max=9)
    assert len(await log.records(A0, QueueOffset(0), units)) == 2
    broker.put("A", 0, bytes(1000))
    await log.poll()
    units = await log.references(A0, QueueOffset(9), messages_max=9)
    assert len(await log.records(A0, QueueOffset(9), units)) == 1


async def test_a_unit_that_comes_later_than_its_record_is_not_missed(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put("A", 0)
    log = await follow(broker, clock, logs)
    await log.poll()
    position = broker.position
    broker.put("A", 0, b"late", with_unit=False)
    assert list(await log.poll()) == []
    await clock.advance(30.0)
    assert list(await log.poll()) == []
    size = broker.position - position
    broker.put_unit(A0, 1, ConsumeQueueUnit(position, size, 0))
    assert await poll_later(log, clock) == {A0: (0, 2)}


async def test_looking_at_an_idle_log_leaves_the_queues_alone(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for queue_id in range(50):
        broker.put("A", queue_id)
    log = await follow(broker, clock, logs)
    await log.poll()
    await clock.advance(2.5)  # settled
    await log.poll()
    looks = log.statistics.queue_looks
    for _ in range(9):
        await clock.advance(0.1)
        await log.poll()
    assert log.statistics.queue_looks == looks


async def test_wait_ends_when_the_log_grows_and_no_later_than_asked(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put("A", 0)
    log = await follow(broker, clock, logs, poll_s_max=0.0, settle_s_max=0.0)
    await log.poll()
    broker.put("A", 0)
    await log.wait(3600.0)  # the clock stands still: it returns because of the message alone
    await log.poll()
    await log.wait(0.0)


async def test_messages_that_the_broker_deleted_are_out_of_range(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(100):
        broker.put("A", 0, bytes(80))
    log = await follow(broker, clock, logs)
    await log.poll()
    early = await log.references(A0, QueueOffset(0), messages_max=3)
    assert len(await log.records(A0, QueueOffset(0), early)) == 3
    broker.delete_oldest_file()
    assert len(await log.records(A0, QueueOffset(0), early)) == 3  # mapped: not gone yet
    changed = await poll_later(log, clock)
    low, high = changed[A0]
    assert high == 100
    assert broker.unit("A", 0, low).position >= broker.min_position
    assert low >= 20  # a whole ConsumeQueue file went, too
    with pytest.raises(OutOfRange):
        await log.references(A0, QueueOffset(low - 1), messages_max=1)
    with pytest.raises(OutOfRange):
        await log.records(A0, QueueOffset(0), early)
    assert await bodies(log, A0, low, 100) == 100 - low


async def test_a_queue_that_begins_in_mid_file_begins_behind_its_fillers(
    tmp_path: Path, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker = FakeBroker(
        tmp_path / "store", commit_log_bytes=4096, consume_queue_bytes=400, start=8192
    )
    broker.begin_queue("A", 0, 47)
    log = await follow(broker, clock, logs)
    assert [(q.min_offset, q.max_offset) for q in await log.poll()] == [(47, 47)]
    broker.put("A", 0)
    await log.poll()
    seen = log.queue(A0)
    assert seen is not None
    assert (seen.min_offset, seen.max_offset) == (47, 48)
    assert await bodies(log, A0, 47, 48) == 1


@pytest.mark.parametrize("cut_bytes", [1, 50, 100, 101, 500, 3000, 5000])
async def test_units_without_records_after_a_crash_do_not_count(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], cut_bytes: int
) -> None:
    for _ in range(60):
        broker.put("A", 0, b"9")
    broker.crash(cut_bytes)
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
    units = await log.references(A0, QueueOffset(0), messages_max=10)
    assert len(await log.records(A0, QueueOffset(0), units)) == 4
    with pytest.raises(Corrupt) as caught:
        await log.records(A0, QueueOffset(4), units[4:])
    assert caught.value.path == str(broker.log_path(bad.position))
    assert caught.value.position == bad.position % 4096
    (seen,) = await log.poll()
    assert (seen.id, seen.state) == (A0, HotQueueState.DAMAGED)
    assert str(broker.log_path(bad.position)) in seen.detail
    assert await bodies(log, A1, 0, 10) == 10


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
        await log.records(A0, QueueOffset(2), alone)


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
    await log.records(A0, QueueOffset(0), units)  # mapped now
    os.truncate(broker.log_path(0), 1000)
    batch = await log.records(A0, QueueOffset(0), units)
    whole = int(np.searchsorted(np.cumsum(units["size"]), 1000, side="right"))
    assert len(batch) == whole
    with pytest.raises(Corrupt) as caught:
        await log.records(A0, QueueOffset(whole), units[whole:])
    assert caught.value.path == str(broker.log_path(0))
    assert log.queue(A0) is not None
    os.truncate(broker.log_path(0), 0)
    with pytest.raises(Corrupt):
        await log.records(A0, QueueOffset(0), units)


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


async def test_only_what_the_replicas_confirmed_counts(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(3):
        broker.put("A", 0)
    log = await follow(broker, clock, logs, replicated=True)
    assert [seen.max_offset for seen in await log.poll()] == [0]
    last = broker.unit("A", 0, 2)
    broker.confirm(last.position + last.size - 1)
    assert [seen.max_offset for seen in await log.poll()] == [2]
    broker.confirm(last.position + last.size)
    assert [seen.max_offset for seen in await log.poll()] == [3]


async def test_system_topics_are_left_out_and_prepared_messages_have_no_unit(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put("SELF_TEST_TOPIC", 0)
    broker.put("TestCluster", 0)
    broker.put("%LMQ%light", 0)
    broker.put("A", 0, sys_flag=TRANSACTION_PREPARED, with_unit=False)
    broker.put("A", 0)
    log = await follow(broker, clock, logs)
    assert [seen.id for seen in await log.poll()] == [A0]
    assert log.statistics.excluded_topics == 3


async def test_queues_of_other_kinds_are_refused_with_a_sentence(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.create_topic("Batch", {"+queue.type": "BatchCQ"})
    broker.create_topic("Compacted", {"cleanup.policy": "COMPACTION"})
    broker.create_topic("Rocks")
    (broker.directory / "batchconsumequeue" / "OldBatch" / "3").mkdir(parents=True)
    (broker.directory / "consumequeue_rocksdb").mkdir()
    (broker.directory / "consumequeue_rocksdb" / "CURRENT").write_text("x")
    (broker.directory / "consumequeue" / "@strange" / "0").mkdir(parents=True)
    broker.put("Compacted", 2)
    broker.put("A", 0)
    log = await follow(broker, clock, logs)
    seen = {queue.id: queue for queue in await log.poll()}
    assert seen.pop(A0).state is HotQueueState.READY
    assert {queue.state for queue in seen.values()} == {HotQueueState.REFUSED}
    for queue, word in (
        (QueueId("Batch", 0), "BatchCQ"),
        (QueueId("OldBatch", 3), "BatchCQ"),
        (QueueId("Compacted", 2), "compaction"),
        (QueueId("Rocks", 0), "RocksDB"),
        (QueueId("@strange", 0), "component"),
    ):
        assert word in seen.pop(queue).detail
    assert seen == {}


async def test_few_files_stay_mapped_whatever_is_read(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(300):
        broker.put("A", 0, bytes(80))
    log = await follow(broker, clock, logs, files_mapped_max=2, resident_bytes_max=1 << 16)
    await log.poll()
    assert await bodies(log, A0, 0, 300) == 300
    assert "2 of 2 mapped" in repr(log)


async def test_a_closed_log_says_so(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    log = await follow(broker, clock, logs)
    await log.close()
    await log.close()
    with pytest.raises(Closed):
        await log.poll()
