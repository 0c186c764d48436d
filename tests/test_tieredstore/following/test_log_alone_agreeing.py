"""Damaged records that agree with one another, where the log is all: what later ones refute."""

import pytest

from container.names.queue_id import QueueId
from container.record.header import INNER_BATCH
from dispatcher.ports import HotQueueState
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, follow, poll_later
from tests.support.log_alone import A0, A1, broker, clock, ends, logs, resumed, rocks, state
from tieredstore.following.hot_log import RocketMqHotLog

__all__ = ["broker", "clock", "logs", "rocks"]
QUEUE_ID_AT, SYS_FLAG_AT = 12, 36
Logs = list[RocketMqHotLog]


def put_damaged(broker: FakeBroker, offset: int, count: int) -> None:
    """Messages of A/1 from `offset` on, whose records say that they are of A/0."""
    broker.next_offsets[A1] = offset
    for number in range(offset, offset + count):
        broker.put("A", 1, b"lost")
        broker.damage(broker.unit("A", 1, number).position + QUEUE_ID_AT, bytes(4))


@pytest.mark.parametrize(
    ("offset", "count", "is_followed"),
    [(3, 2, True), (7, 2, True), (4, 3, True), (12, 2, True), (40, 3, True), (12, 3, False)],
)
async def test_two_damaged_records_that_agree_hold_no_queue_that_goes_on_without_them(
    rocks: FakeBroker, clock: ManualClock, logs: Logs, offset: int, count: int, *, is_followed: bool
) -> None:
    """Those of A/1 come where A/0 has come to 10, and seem to be behind a hole or given again."""
    for number in range(10):
        rocks.put("A", 0, b"a%d" % number)
    log = await follow(rocks, clock, logs)
    if is_followed:
        await log.poll()
    put_damaged(rocks, offset, count)
    await poll_later(log, clock)
    for number in range(10, 16):
        rocks.put("A", 0, b"a%d" % number)
        if is_followed:
            await poll_later(log, clock)
    for _ in range(2):
        await poll_later(log, clock)
    assert (ends(log, A0), state(log, A0)) == ((0, 16), HotQueueState.READY)
    assert await bodies(log, A0, 0, 16) == 16
    (finding,) = [one for one in log.statistics.findings if "are damaged" in one]
    assert f"that say offsets {offset} to {offset + count - 1}" in finding
    assert "the queue went on at 10" in finding
    await log.release(A0, QueueOffset(12))
    again = await resumed(rocks, clock, logs, await log.remembered())
    assert (ends(again, A0)[1], state(again, A0)) == (16, HotQueueState.READY)


async def test_offsets_that_are_given_again_up_to_the_end_stop_their_queue(
    rocks: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    """A broker that lost messages: a start has to compare."""
    for _ in range(10):
        rocks.put("A", 0)
    log = await follow(rocks, clock, logs)
    await log.poll()
    rocks.next_offsets[A0] = 6
    for _ in range(8):
        rocks.put("A", 0)
        await poll_later(log, clock)
    assert (ends(log, A0), state(log, A0)) == ((0, 10), HotQueueState.DAMAGED)


@pytest.mark.parametrize("offset", [1, 5, 1 << 40])
async def test_one_damaged_record_begins_no_queue(
    rocks: FakeBroker, clock: ManualClock, logs: Logs, offset: int
) -> None:
    """The log is there from its beginning: a queue begins at 0 there."""
    for _ in range(3):
        rocks.put("A", 0)
    rocks.next_offsets[A1] = offset
    rocks.put("A", 1)
    for _ in range(3):
        rocks.put("A", 0)
    log = await follow(rocks, clock, logs)
    for _ in range(2):
        await poll_later(log, clock)
    assert log.queue(A1) is None
    (finding,) = log.statistics.findings
    assert f"the message of A/1 at offset {offset}, though" in finding
    rocks.put("A", 1)
    await poll_later(log, clock)
    assert (ends(log, A1), state(log, A1)) == ((offset, offset + 2), HotQueueState.READY)
    assert await bodies(log, A1, offset, offset + 2) == 2


async def test_a_queues_first_message_counts_where_the_logs_front_was_deleted(
    rocks: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    rocks.put("A", 1)
    while rocks.position < 2 * rocks.commit_log_bytes:
        rocks.put("A", 0, bytes(300))
    rocks.put("A", 1)
    rocks.put("A", 0)
    rocks.delete_oldest_file()
    log = await follow(rocks, clock, logs)
    await log.poll()
    assert (ends(log, A1), state(log, A1)) == ((1, 2), HotQueueState.READY)


@pytest.mark.parametrize("is_followed", [False, True])
async def test_a_batch_bit_that_rotted_refuses_no_queue(
    rocks: FakeBroker, clock: ManualClock, logs: Logs, *, is_followed: bool
) -> None:
    """A batch has properties that say so, too."""
    log = await follow(rocks, clock, logs)
    rocks.put("A", 0)
    if is_followed:
        await log.poll()
    for number in range(1, 5):
        rocks.put("A", 0, b"%d" % number)
    place = rocks.unit("A", 0, 2).position + SYS_FLAG_AT
    rocks.damage(place, INNER_BATCH.to_bytes(4, "big"))
    await poll_later(log, clock)
    assert (ends(log, A0), state(log, A0)) == ((0, 5), HotQueueState.READY)
    assert await bodies(log, A0, 0, 5) == 5


async def test_a_batch_whose_flag_and_properties_agree_refuses_its_queue(
    rocks: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    rocks.put("B", 0, sys_flag=INNER_BATCH, properties={"INNER_NUM": "3", "INNER_BASE": "0"})
    log = await follow(rocks, clock, logs)
    await log.poll()
    assert state(log, QueueId("B", 0)) is HotQueueState.REFUSED
