"""Topics that are deleted and made again, and deleted again, while messages of the first wait."""

import json
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import DeletedQueue
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import broker, clock, logs, poll_later
from tests.support.pinned import follow_pinned, pinned, read
from tieredstore.following.hot_log import RocketMqHotLog

A0, B0 = QueueId("A", 0), QueueId("B", 0)
Logs = list[RocketMqHotLog]

__all__ = ["broker", "clock", "logs"]  # fixtures


def put_life(broker: FakeBroker, number: int, messages: int) -> None:
    broker.put_many("A", 0, [b"life %d " % number + bytes(60)] * messages)


def bodies_of(number: int, start: int, end: int) -> list[tuple[int, bytes]]:
    return [(offset, b"life %d " % number + bytes(60)) for offset in range(start, end)]


async def bodies(log: RocketMqHotLog, start: int) -> list[tuple[int, bytes]]:
    """Offset and body of every message of A/0 that is shown, from `start` on."""
    return [(offset, body) for offset, body, _ in await read(log, A0, start)]


async def look_twice(log: RocketMqHotLog, clock: ManualClock) -> None:
    for _ in range(2):
        await poll_later(log, clock)


async def three_lives(
    broker: FakeBroker,
    clock: ManualClock,
    logs: Logs,
    *,
    second: int = 20,
    third: int = 35,
    is_third_deleted: bool = True,
) -> RocketMqHotLog:
    """Nothing is tiered while a topic with 10 messages is deleted twice, or three times."""
    broker.put("B", 0)
    put_life(broker, 1, 10)
    log = await follow_pinned(broker, clock, logs)
    await poll_later(log, clock)
    broker.delete_topics("A")
    await poll_later(log, clock)
    for number, messages in ((2, second), (3, third)):
        put_life(broker, number, messages)
        await look_twice(log, clock)
        if number == 2 or is_third_deleted:
            broker.delete_topics("A")
            await look_twice(log, clock)
    return log


async def read_lives(log: RocketMqHotLog, clock: ManualClock, *lives: tuple[int, int, int]) -> None:
    """Each life shows alone: number, first offset and end; and is released as the tier does it."""
    before = 0
    for number, start, end in lives:
        told = log.queue(A0)
        assert told is not None
        assert (told.min_offset, told.max_offset) == (start, end), number
        assert (told.deleted is None) == (number == 1), number
        if told.deleted is not None:
            assert (told.deleted.end, told.deleted.is_made_again) == (before, True)
        assert await bodies(log, start) == bodies_of(number, start, end)
        await log.release(A0, QueueOffset(start + 1))
        await poll_later(log, clock)
        assert await bodies(log, start + 1) == bodies_of(number, start + 1, end)
        await log.release(A0, QueueOffset(end))
        before = end
        await look_twice(log, clock)


@pytest.mark.parametrize("is_third_deleted", [False, True])
@pytest.mark.parametrize("is_cut", [False, True])
async def test_each_life_of_a_name_is_read_in_its_turn(
    broker: FakeBroker, clock: ManualClock, logs: Logs, *, is_cut: bool, is_third_deleted: bool
) -> None:
    log = await three_lives(broker, clock, logs, is_third_deleted=is_third_deleted)
    while is_cut and broker.position > broker.min_position + 2 * broker.commit_log_bytes:
        broker.delete_oldest_file()
    await poll_later(log, clock)
    await read_lives(log, clock, (1, 0, 10), (2, 10, 20), (3, 20, 35))
    if is_third_deleted:
        told = log.queue(A0)
        assert told is not None
        assert told.deleted == DeletedQueue(QueueOffset(20), QueueOffset(35))
        await log.release(B0, QueueOffset(1))
        await look_twice(log, clock)
        assert len(pinned(broker)) <= 2
        assert not (broker.directory.parent / "pins/deleted_queues.json").exists()
    assert any("deleted again on the broker" in one for one in log.statistics.findings)


@pytest.mark.parametrize("restarts_after", [0, 1, 2])
async def test_a_restart_goes_on_with_every_life(
    broker: FakeBroker, clock: ManualClock, logs: Logs, restarts_after: int
) -> None:
    log = await three_lives(broker, clock, logs)
    lives = [(1, 0, 10), (2, 10, 20), (3, 20, 35)]
    await read_lives(log, clock, *lives[:restarts_after])
    await log.close()
    again = await follow_pinned(broker, clock, logs)
    if restarts_after:
        await again.release(A0, QueueOffset(lives[restarts_after - 1][2]))
    await poll_later(again, clock)
    for number, start, end in lives[restarts_after:]:
        told = again.queue(A0)
        assert told is not None
        assert (told.min_offset, told.max_offset) == (start, end)
        assert (told.deleted is None) == (number == 1)
        assert await bodies(again, start) == bodies_of(number, start, end)
        await again.release(A0, QueueOffset(end))
        await look_twice(again, clock)


async def test_a_life_that_ends_while_nobody_looks_is_found_by_the_next_start(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    log = await three_lives(broker, clock, logs, is_third_deleted=False)
    await log.close()
    put_life(broker, 3, 5)
    broker.delete_topics("A")
    put_life(broker, 4, 60)
    again = await follow_pinned(broker, clock, logs)
    await look_twice(again, clock)
    await read_lives(again, clock, (1, 0, 10), (2, 10, 20), (3, 20, 40), (4, 40, 60))


async def test_a_life_that_ends_below_an_earlier_ones_end_is_passed_over(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    """Its offsets are taken in the tier."""
    log = await three_lives(broker, clock, logs, second=10, third=15)
    told = log.queue(A0)
    assert told is not None
    assert await bodies(log, 0) == bodies_of(1, 0, 10)
    await log.release(A0, QueueOffset(10))
    await poll_later(log, clock)
    assert await bodies(log, 10) == bodies_of(3, 10, 15)


async def test_two_lives_that_no_look_saw_apart_are_told_apart_by_their_records(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    put_life(broker, 1, 10)
    log = await follow_pinned(broker, clock, logs)
    await poll_later(log, clock)
    broker.delete_topics("A")
    await poll_later(log, clock)
    put_life(broker, 2, 3)
    await look_twice(log, clock)
    put_life(broker, 2, 10)
    broker.delete_topics("A")
    put_life(broker, 3, 20)
    broker.delete_topics("A")
    put_life(broker, 4, 30)
    await look_twice(log, clock)
    await read_lives(log, clock, (1, 0, 10), (2, 10, 13), (3, 13, 20), (4, 20, 30))


async def test_a_life_that_goes_between_the_last_message_of_another_and_the_next_look_is_read(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    log = await three_lives(broker, clock, logs, is_third_deleted=False)
    await read_lives(log, clock, (1, 0, 10))
    assert await bodies(log, 10) == bodies_of(2, 10, 20)
    await log.release(A0, QueueOffset(20))
    broker.delete_topics("A")
    put_life(broker, 4, 50)
    await look_twice(log, clock)
    assert await bodies(log, 20) == bodies_of(3, 20, 35)
    await log.release(A0, QueueOffset(35))
    await look_twice(log, clock)
    assert await bodies(log, 35) == bodies_of(4, 35, 50)


async def test_a_note_of_an_earlier_version_is_read(
    broker: FakeBroker, clock: ManualClock, logs: Logs, tmp_path: Path
) -> None:
    put_life(broker, 1, 10)
    unit = broker.unit("A", 0, 9)
    broker.put("B", 0)
    broker.delete_topics("A")
    note = tmp_path / "pins/deleted_queues.json"
    note.parent.mkdir()
    store = str(broker.directory / "consumequeue")
    rows = [["A", 0, 4, 10, 0, unit.position + unit.size]]
    note.write_text(json.dumps({"store": store, "queues": rows}))
    log = await follow_pinned(broker, clock, logs)
    told = log.queue(A0)
    assert told is not None
    assert (told.min_offset, told.max_offset, told.deleted) == (4, 10, None)
    assert await bodies(log, 4) == bodies_of(1, 4, 10)
