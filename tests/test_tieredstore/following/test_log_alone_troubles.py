"""Troubles of a store that is followed from its CommitLog alone."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import tieredstore
from container.names.queue_id import QueueId
from container.record.header import INNER_BATCH
from dispatcher.ports import DeletedQueue, HotQueue, HotQueueState, Wanted, records_of_queue
from provider.errors import Closed
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, follow, poll_later
from tests.support.log_alone import A0, B0, broker, clock, ends, logs, resumed, rocks, state
from tieredstore.following.hot_log import RocketMqHotLog

BATCH = {"INNER_NUM": "2", "INNER_BASE": "0"}

__all__ = ["broker", "clock", "logs", "rocks"]
assert tieredstore.Follower  # its imports read files, so they are not left to a running loop


async def test_another_log_is_read_from_its_beginning(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], tmp_path: Path
) -> None:
    """After a power failure, or for a store that was restored: the offsets may be given again."""
    for _ in range(20):
        rocks.put("A", 0, b"body")
    log = await follow(rocks, clock, logs)
    await log.poll()
    await log.release(A0, QueueOffset(20))
    said = await log.remembered()
    lost = rocks.unit("A", 0, 15)
    rocks.crash(rocks.position - lost.position)
    again = await resumed(rocks, clock, logs, said)
    assert ends(again, A0) == (0, 15)
    assert any("is not as it was" in finding for finding in again.statistics.findings)


def make_again(broker: FakeBroker, count: int) -> None:
    """The topic A was deleted and made again, and has `count` messages by now."""
    broker.next_offsets.pop(A0, None)
    for _ in range(count):
        broker.put("A", 0, b"again")
        broker.put("B", 0)


async def test_a_queue_that_was_made_again_goes_on_above_the_old_ones_end(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    """As with files: the tier has other messages at the offsets below. What waits comes first."""
    for _ in range(10):
        rocks.put("A", 0)
    log = await follow(rocks, clock, logs)
    await log.poll()
    make_again(rocks, 3)
    await log.poll()
    assert (ends(log, A0), state(log, A0)) == ((0, 10), HotQueueState.READY)
    assert await bodies(log, A0, 0, 10) == 10
    said = await log.remembered()
    assert said is not None
    assert said.position == 0
    await log.release(A0, QueueOffset(10))
    (seen,) = [seen for seen in await poll_again(log, clock) if seen.id == A0]
    assert (seen.min_offset, seen.max_offset) == (10, 10)
    assert seen.deleted == DeletedQueue(QueueOffset(0), QueueOffset(10), is_made_again=True)
    make_again(rocks, 0)
    rocks.next_offsets[A0] = 3
    for _ in range(9):
        rocks.put("A", 0, b"above")
    await poll_again(log, clock)
    assert ends(log, A0) == (10, 12)
    assert await bodies(log, A0, 10, 12) == 2
    await log.release(A0, QueueOffset(12))
    await log.release(B0, QueueOffset(3))
    said = await log.remembered()
    assert said is not None
    assert said.position == rocks.position


async def poll_again(log: RocketMqHotLog, clock: ManualClock) -> Sequence[HotQueue]:
    await clock.advance(1.0)
    return await log.poll()


async def test_a_queue_may_be_made_again_twice_before_the_first_is_tiered(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    """Each of them is tiered above the one before, as far as it goes beyond it."""
    for _ in range(4):
        rocks.put("A", 0)
    log = await follow(rocks, clock, logs)
    await log.poll()
    for count in (7, 9):
        make_again(rocks, count)
        await log.poll()
    for end, before, after in ((4, 0, 7), (7, 4, 9)):
        await log.release(A0, QueueOffset(end))
        (seen,) = [seen for seen in await poll_again(log, clock) if seen.id == A0]
        assert seen.deleted == DeletedQueue(QueueOffset(before), QueueOffset(end), True)  # noqa: FBT003
        assert ends(log, A0) == (end, after)
        assert await bodies(log, A0, end, after) == after - end
    assert len([one for one in log.statistics.findings if "made again" in one]) == 2


async def test_the_tier_says_a_gap_where_a_queue_was_made_again(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    (broker.directory / "consumequeue" / "CURRENT").write_text("MANIFEST-000004\n")
    for _ in range(5):
        broker.put("A", 0)
    root = tmp_path / "tier"
    quick = {"tieredStoreScanInterval": 0}
    opening = partial(
        tieredstore.follow, broker.directory, root, cluster="C", broker="b", settings=quick
    )
    async with opening() as follower:
        await follower.drain()
        make_again(broker, 9)
        await follower.drain()
        await follower.drain()
        (loss,) = follower.losses()
        assert "made it again" in loss.gap.reason
        assert {queue.state.value for queue in follower.statistics().queues} == {"ready"}
    for _ in range(4):
        broker.put("A", 0, b"after the restart")
    async with opening() as follower:
        assert (await follower.drain()).messages == 4
        assert follower.losses() == []
    async with tieredstore.open(root) as opened:
        assert [finding async for finding in opened.check()] == []


async def test_offsets_that_are_given_again_stop_the_queue_until_a_start(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    """The broker lost messages: what follows may contradict the tier."""
    for _ in range(10):
        rocks.put("A", 0)
        rocks.put("B", 0)
    log = await follow(rocks, clock, logs)
    await log.poll()
    rocks.next_offsets[A0] = 5
    for _ in range(3):
        rocks.put("A", 0, b"again")
        rocks.put("B", 0)
    await log.poll()
    seen = log.queue(A0)
    assert seen is not None
    assert (seen.max_offset, seen.state) == (10, HotQueueState.DAMAGED)
    assert "lost messages" in seen.detail
    assert await bodies(log, A0, 0, 10) == 10
    assert (ends(log, B0), state(log, B0)) == ((0, 13), HotQueueState.READY)
    await log.release(A0, QueueOffset(10))
    await log.release(B0, QueueOffset(13))
    for said in (await log.remembered(), None):
        again = await resumed(rocks, clock, logs, said)
        assert (ends(again, A0), state(again, A0)) == ((5, 8), HotQueueState.READY)


async def test_a_hole_in_the_offsets_is_damage_until_the_broker_deletes_it(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(60):
        rocks.put("A", 0, bytes(100))
    bad = rocks.unit("A", 0, 5)
    rocks.damage(bad.position + 84, b"\x7f\xff\xff\xff")  # the length of its body
    log = await follow(rocks, clock, logs)
    await log.poll()
    seen = log.queue(A0)
    assert seen is not None
    assert (seen.max_offset, seen.state) == (5, HotQueueState.DAMAGED)
    assert "none of the offsets from 5 on" in seen.detail
    await log.release(A0, QueueOffset(5))
    again = await resumed(rocks, clock, logs, await log.remembered())
    for one in (log, again):
        assert (ends(one, A0)[1], state(one, A0)) == (5, HotQueueState.DAMAGED)
    rocks.log_path(0).unlink()
    for one in (log, again):
        await poll_later(one, clock)
        assert state(one, A0) is HotQueueState.READY
        assert ends(one, A0)[0] > 5
        assert ends(one, A0)[1] == 60


async def test_queues_of_batches_are_refused(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    rocks.create_topic("Compacted", {"cleanup.policy": "COMPACTION"})
    rocks.put("Batch", 0, sys_flag=INNER_BATCH, properties=BATCH)
    rocks.put("Compacted", 0)
    rocks.put("@strange", 0)
    rocks.put("A", 0)
    log = await follow(rocks, clock, logs)
    await poll_later(log, clock)
    await poll_later(log, clock)
    assert state(log, A0) is HotQueueState.READY
    for topic, word in (("Batch", "BatchCQ"), ("Compacted", "compaction"), ("@strange", "path")):
        seen = log.queue(QueueId(topic, 0))
        assert seen is not None
        assert seen.state is HotQueueState.REFUSED
        assert word in seen.detail


async def test_a_queue_is_refused_at_its_first_batch(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    rocks.put("A", 0)
    log = await follow(rocks, clock, logs)
    await log.poll()
    rocks.put("A", 0, sys_flag=INNER_BATCH, properties=BATCH)
    rocks.put("A", 0)
    await log.poll()
    assert (ends(log, A0), state(log, A0)) == ((0, 1), HotQueueState.REFUSED)


async def test_a_log_that_lost_its_tail_ends_following(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(5):
        rocks.put("A", 0)
    log = await follow(rocks, clock, logs)
    await log.poll()
    rocks.crash(rocks.unit("A", 0, 4).size)
    await clock.advance(10.0)
    with pytest.raises(Closed, match="lost its tail"):
        await log.poll()


async def test_a_record_that_is_damaged_later_is_told_and_mended(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for _ in range(5):
        rocks.put("A", 0, b"body")
    log = await follow(rocks, clock, logs)
    await log.poll()
    await log.release(A0, QueueOffset(0))
    unit = rocks.unit("A", 0, 2)
    raw = rocks.log_path(0).read_bytes()[unit.position : unit.position + unit.size]
    rocks.damage(unit.position + 12, b"\0\0\0\x09")  # the queue's number
    units = await log.references(A0, QueueOffset(2), messages_max=3)
    with pytest.raises(Exception, match="queue"):
        await records_of_queue(log, Wanted(A0, QueueOffset(2), units))
    await log.poll()
    assert state(log, A0) is HotQueueState.DAMAGED
    rocks.damage(unit.position, raw)
    await poll_later(log, clock)
    await poll_later(log, clock)
    assert state(log, A0) is HotQueueState.READY
    assert await bodies(log, A0, 0, 5) == 5
