"""What a follower sees while a broker writes, rolls and deletes its files."""

from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.record.header import TRANSACTION_PREPARED
from container.record.unit import ConsumeQueueUnit
from dispatcher.ports import HotQueue, HotQueueState, Wanted, records_of_queue
from provider.errors import Closed, OutOfRange
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, broker, clock, follow, logs, poll_later
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.log.followed_log import PASSED_MAX

__all__ = ["broker", "clock", "logs"]  # fixtures

A0, A1 = QueueId("A", 0), QueueId("A", 1)


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
    batch = await records_of_queue(log, Wanted(A0, QueueOffset(0), units))
    assert len(batch) == 200
    assert batch.sizes.tolist() == units["size"].tolist()


async def test_a_batch_ends_at_its_bound_but_has_a_message(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [bytes(100)] * 9)
    log = await follow(broker, clock, logs, round_bytes_max=400)
    await log.poll()
    units = await log.references(A0, QueueOffset(0), messages_max=9)
    assert len(await records_of_queue(log, Wanted(A0, QueueOffset(0), units))) == 2
    broker.put("A", 0, bytes(1000))
    await log.poll()
    units = await log.references(A0, QueueOffset(9), messages_max=9)
    assert len(await records_of_queue(log, Wanted(A0, QueueOffset(9), units))) == 1


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


async def test_growth_costs_a_look_at_the_queues_that_grew(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for queue_id in range(50):
        broker.put("A", queue_id)
    log = await follow(broker, clock, logs, scan_s_min=60.0, scan_s_max=60.0)
    await log.poll()
    await clock.advance(2.5)  # settled
    await log.poll()
    looks = log.statistics.queue_looks
    broker.put("A", 7)
    broker.put("A", 9)
    seen = await log.poll()
    assert {(queue.id.queue_id, queue.max_offset) for queue in seen} == {(7, 2), (9, 2)}
    assert log.statistics.queue_looks == looks + 2
    await clock.advance(1.0)
    assert list(await log.poll()) == []
    assert log.statistics.queue_looks == looks + 4, "a unit may be late"
    await clock.advance(2.0)
    await log.poll()
    assert log.statistics.queue_looks == looks + 4


async def test_growth_by_more_records_than_are_named_costs_a_look_at_all(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for queue_id in range(50):
        broker.put("A", queue_id)
    log = await follow(broker, clock, logs, scan_s_min=60.0, scan_s_max=60.0)
    await log.poll()
    await clock.advance(2.5)
    await log.poll()
    for number in range(PASSED_MAX + 1):
        broker.put("A", number % 50)
    assert sum(queue.max_offset for queue in await log.poll()) == PASSED_MAX + 51


async def test_a_new_queue_is_looked_for_as_soon_as_its_record_is_seen(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put("A", 0)
    log = await follow(broker, clock, logs, scan_s_min=1.0, scan_s_max=600.0)
    await log.poll()
    await clock.advance(2.5)
    await log.poll()
    broker.put("A", 1)
    assert await poll_later(log, clock) == {A1: (0, 1)}


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


async def test_a_deleted_topic_is_out_of_range_and_other_topics_go_on(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(100):
        broker.put("A", 0, bytes(80))
        broker.put("B", 0, bytes(80))
    log = await follow(broker, clock, logs, files_mapped_max=1)
    await log.poll()
    for file in broker.queue_files(A0):
        file.unlink()
    broker.delete_oldest_file()
    broker.put("B", 0)
    changed = await poll_later(log, clock)
    assert changed[QueueId("B", 0)][1] == 101
    with pytest.raises(OutOfRange):
        await log.references(A0, QueueOffset(50), messages_max=1)


async def test_messages_that_the_broker_deleted_are_out_of_range(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(100):
        broker.put("A", 0, bytes(80))
    log = await follow(broker, clock, logs)
    await log.poll()
    early = await log.references(A0, QueueOffset(0), messages_max=3)
    assert len(await records_of_queue(log, Wanted(A0, QueueOffset(0), early))) == 3
    broker.delete_oldest_file()
    batch = await records_of_queue(log, Wanted(A0, QueueOffset(0), early))
    assert len(batch) == 3  # mapped: not gone yet
    changed = await poll_later(log, clock)
    low, high = changed[A0]
    assert high == 100
    assert broker.unit("A", 0, low).position >= broker.min_position
    assert low >= 20  # a whole ConsumeQueue file went, too
    with pytest.raises(OutOfRange):
        await log.references(A0, QueueOffset(low - 1), messages_max=1)
    with pytest.raises(OutOfRange):
        await records_of_queue(log, Wanted(A0, QueueOffset(0), early))
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
    (broker.directory / "batchconsumequeue" / "OldBatch" / "3").mkdir(parents=True)
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
        (QueueId("@strange", 0), "component"),
    ):
        assert word in seen.pop(queue).detail
    assert seen == {}


async def test_a_topic_whose_kind_is_known_late_is_refused_once_with_what_was_tiered(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    """A slave gets `config/topics.json` half a minute after the first messages."""
    for _ in range(60):
        broker.put("Late", 0)
    late = QueueId("Late", 0)
    log = await follow(broker, clock, logs)
    assert [seen.state for seen in await log.poll()] == [HotQueueState.READY]
    await log.release(late, QueueOffset(60))
    broker.create_topic("Late", {"+cleanup.policy": "COMPACTION"})
    refusals: list[HotQueue] = []
    for _ in range(5):
        await clock.advance(2.0)
        broker.put("Late", 0)
        refusals += await log.poll()
    (refused,) = refusals
    assert (refused.state, refused.max_offset) == (HotQueueState.REFUSED, 60)
    assert "below offset 60 were tiered" in refused.detail


async def test_few_files_stay_mapped_whatever_is_read(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(300):
        broker.put("A", 0, bytes(80))
    log = await follow(broker, clock, logs, files_mapped_max=2, resident_bytes_max=1 << 16)
    await log.poll()
    assert await bodies(log, A0, 0, 300) == 300
    assert "2 of 2 mapped" in repr(log)


async def test_pages_that_several_queues_touch_count_once(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(50):
        for queue_id in range(20):
            broker.put("A", queue_id, bytes(200))
    log = await follow(broker, clock, logs, resident_bytes_max=8 << 20)
    await log.poll()
    for queue_id in range(20):
        assert await bodies(log, QueueId("A", queue_id), 0, 50) == 50
    assert "0 drops" in repr(log)


async def test_a_closed_log_says_so(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    log = await follow(broker, clock, logs)
    await log.close()
    await log.close()
    with pytest.raises(Closed):
        await log.poll()
