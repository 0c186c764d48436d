"""Queues that are made again under their names: whose files and whose records are looked at."""

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import DeletedQueue
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import broker, clock, follow, logs, poll_later
from tests.support.pinned import follow_pinned, read
from tieredstore.following.hot_log import RocketMqHotLog

A0 = QueueId("A", 0)
Logs = list[RocketMqHotLog]

__all__ = ["broker", "clock", "logs"]  # fixtures


async def bodies(log: RocketMqHotLog, start: int) -> list[tuple[int, bytes]]:
    """Offset and body of every message of A/0 from `start` on."""
    return [(offset, body) for offset, body, _ in await read(log, A0, start)]


@pytest.mark.parametrize("messages", [1, 5])
async def test_a_look_that_takes_the_new_queue_for_the_old_one_forgets_no_place(
    broker: FakeBroker, clock: ManualClock, logs: Logs, messages: int
) -> None:
    """As many messages as before are no news: where the old ones lie must outlast that look."""
    broker.put_many("A", 0, [b"old"] * messages)
    log = await follow_pinned(broker, clock, logs)
    for _ in range(2):
        await poll_later(log, clock)
    broker.delete_topics("A")
    broker.put_many("A", 0, [b"new"] * messages)
    for _ in range(2):
        await poll_later(log, clock)
    assert await bodies(log, 0) == [(n, b"old") for n in range(messages)]


async def test_a_queue_without_its_first_files_is_known_as_deleted_when_it_is_made_again(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    """The new queue has its first files, and none where the old one's end was."""
    broker.put_many("A", 0, [bytes(150)] * 50)
    log = await follow_pinned(broker, clock, logs)
    broker.delete_oldest_file()
    broker.delete_oldest_file()
    assert int(broker.queue_files(A0)[0].name) > 0
    broker.put("B", 0)
    for _ in range(3):
        await clock.advance(100.0)
        await log.poll()
    broker.delete_topics("A")
    broker.put_many("A", 0, [b"new"] * 5)
    for _ in range(2):
        await clock.advance(100.0)
        await log.poll()
    assert await bodies(log, 0) == [(n, bytes(150)) for n in range(50)]


@pytest.mark.parametrize("has_pins", [False, True])
@pytest.mark.parametrize("messages", [20, 21, 25])
async def test_a_mapped_file_of_a_deleted_queue_is_not_taken_for_the_new_ones(
    broker: FakeBroker, clock: ManualClock, logs: Logs, messages: int, *, has_pins: bool
) -> None:
    """The log was quiet, so that the look at the directories comes after that at the units."""
    broker.put_many("A", 0, [b"old"] * 20)  # a whole file of units
    log = await (follow_pinned if has_pins else follow)(broker, clock, logs)
    await log.poll()
    assert len(await bodies(log, 0)) == 20
    await clock.advance(100.0)
    await log.poll()
    broker.delete_topics("A")
    broker.put_many("A", 0, [b"new"] * messages)
    await clock.advance(100.0)
    for _ in range(3):
        await log.poll()
        await clock.advance(2.0)
    if has_pins:
        assert await bodies(log, 0) == [(n, b"old") for n in range(20)]
        await log.release(A0, QueueOffset(20))
        for _ in range(3):
            await poll_later(log, clock)
    told = log.queue(A0)
    assert told is not None
    assert told.deleted == DeletedQueue(QueueOffset(0), QueueOffset(20), is_made_again=True)
    assert await bodies(log, 20) == [(n, b"new") for n in range(20, messages)]


async def test_pins_of_a_new_queues_messages_outlast_what_waited_of_the_old_one(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    """Between the last old message and the first look at the new queue nothing else needs them."""
    broker.put_many("A", 0, [b"old"] * 10)
    log = await follow_pinned(broker, clock, logs)
    await poll_later(log, clock)
    broker.delete_topics("A")
    broker.put_many("A", 0, [bytes(150)] * 60)
    for _ in range(2):
        await poll_later(log, clock)
    for _ in range(3):
        broker.delete_oldest_file()
    await poll_later(log, clock)
    assert await bodies(log, 0) == [(n, b"old") for n in range(10)]
    await log.release(A0, QueueOffset(10))
    for _ in range(3):
        await poll_later(log, clock)
    assert await bodies(log, 10) == [(n, bytes(150)) for n in range(10, 60)]


async def test_messages_of_later_queues_below_the_old_end_are_counted(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    """Nothing is pinned: they are lost, whether the tier has the offsets or a gap there."""
    broker.put_many("A", 0, [b"old"] * 20)
    log = await follow(broker, clock, logs)
    hidden: list[int] = []
    for messages in (5, 7, 30):
        await poll_later(log, clock)
        broker.delete_topics("A")
        broker.put_many("A", 0, [b"new"] * messages)
        for _ in range(3):
            await poll_later(log, clock)
        told = log.queue(A0)
        assert told is not None
        hidden.append(told.hidden)
    assert hidden == [5, 5 + 7, 5 + 7 + 20]
    assert (told.min_offset, told.max_offset) == (20, 30)
