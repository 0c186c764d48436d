"""Topics that the broker deletes, and perhaps makes again: what becomes of what waits."""

from datetime import timedelta

import pytest

from container.metadata.records import MADE_AGAIN_REASON, TOPIC_DELETED_REASON, Gap, Queue
from container.names.queue_id import QueueId
from dispatcher.options import Backfill
from dispatcher.ports import DELETED_REASON, DeletedQueue, HotQueue, QueueState
from dispatcher.start import (
    BeginAt,
    OverlapSample,
    RecordGapFirst,
    ResumeAt,
    TierIsAhead,
    decide_step,
)
from provider.errors import OutOfRange
from provider.ranges import QueueOffset
from tests.support.dispatch_world import World
from tests.support.fake_hot_log import FakeQueue, fake_record

A, B = QueueId("Orders", 0), QueueId("Orders", 1)
Ranges = list[tuple[int, int, str]]


def gaps_of(world: World, queue: QueueId = A) -> Ranges:
    return [(gap.start, gap.end, gap.reason) for gap in world.tier.queues[queue].gaps]


def queue_of(end: int, *gaps: tuple[int, int, str], start: int = 0) -> Queue:
    """What the tier has."""
    recorded = tuple(Gap(QueueOffset(low), QueueOffset(high), why, 0) for low, high, why in gaps)
    return Queue(A, QueueOffset(start), QueueOffset(end), gaps=recorded)


def hot_of(low: int, high: int, deleted: tuple[int, int, bool] | None = None) -> HotQueue:
    former = None
    if deleted is not None:
        start, end, is_made_again = deleted
        former = DeletedQueue(QueueOffset(start), QueueOffset(end), is_made_again)
    return HotQueue(A, QueueOffset(low), QueueOffset(high), deleted=former)


STEPS = {
    "what waited is a gap": (
        hot_of(9, 9, (0, 9, False)),
        queue_of(6),
        RecordGapFirst(QueueOffset(6), QueueOffset(9), TOPIC_DELETED_REASON),
    ),
    "so is a queue of which nothing was tiered": (
        hot_of(9, 9, (2, 9, False)),
        None,
        RecordGapFirst(QueueOffset(2), QueueOffset(9), TOPIC_DELETED_REASON),
    ),
    "nothing waited": (hot_of(9, 9, (0, 9, False)), queue_of(9), ResumeAt(QueueOffset(9))),
    "there never was anything": (hot_of(0, 0, (0, 0, False)), None, BeginAt(QueueOffset(0))),
    "what is gone contradicts nothing": (
        hot_of(6, 6, (0, 6, False)),
        queue_of(9),
        ResumeAt(QueueOffset(9)),
    ),
    "made again, where nothing waited": (
        hot_of(9, 9, (0, 9, True)),
        queue_of(9),
        RecordGapFirst(QueueOffset(9), QueueOffset(10), MADE_AGAIN_REASON),
    ),
    "made again, where something waited": (
        hot_of(9, 30, (0, 9, True)),
        queue_of(6),
        RecordGapFirst(QueueOffset(6), QueueOffset(9), MADE_AGAIN_REASON),
    ),
    "made again, where one message waited": (
        hot_of(9, 30, (0, 9, True)),
        queue_of(8),
        RecordGapFirst(QueueOffset(8), QueueOffset(9), TOPIC_DELETED_REASON),
    ),
    "made again after the gap was recorded": (
        hot_of(9, 30, (0, 9, True)),
        queue_of(9, (6, 9, TOPIC_DELETED_REASON)),
        ResumeAt(QueueOffset(9)),
    ),
    "made again, and tiered on since": (
        hot_of(9, 30, (0, 9, True)),
        queue_of(20, (9, 10, MADE_AGAIN_REASON)),
        ResumeAt(QueueOffset(20)),
    ),
    "made again, and followed from a restart on, with fewer messages": (
        hot_of(0, 3),
        queue_of(10, (9, 10, MADE_AGAIN_REASON)),
        ResumeAt(QueueOffset(10)),
    ),
    "made again, and its tail lost": (hot_of(0, 3), queue_of(12, (9, 10, MADE_AGAIN_REASON)), None),
    "an empty queue made again": (hot_of(0, 3, (0, 0, True)), None, BeginAt(QueueOffset(0))),
    "the gap between two queues stays one": (
        hot_of(20, 30),
        queue_of(10, (9, 10, MADE_AGAIN_REASON)),
        RecordGapFirst(QueueOffset(10), QueueOffset(20), MADE_AGAIN_REASON),
    ),
    "a later gap is of the new queue": (
        hot_of(20, 30),
        queue_of(15, (9, 10, MADE_AGAIN_REASON)),
        RecordGapFirst(QueueOffset(15), QueueOffset(20), DELETED_REASON),
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_where_a_queue_goes_on_that_was_deleted(case: str) -> None:
    hot, tier, wanted = STEPS[case]
    step = decide_step(hot, tier, backfill="all", now_ms=0)
    if wanted is None:
        assert isinstance(step, TierIsAhead)
    else:
        assert step == wanted


@pytest.mark.parametrize("backfill", ["none", timedelta(hours=1)])
def test_messages_that_were_not_to_be_tiered_are_not_lost(backfill: Backfill) -> None:
    step = decide_step(hot_of(9, 9, (0, 9, False)), None, backfill=backfill, now_ms=0)
    assert step == BeginAt(QueueOffset(9))


def test_nothing_before_the_gap_is_compared() -> None:
    tier = queue_of(20, (9, 10, MADE_AGAIN_REASON))
    assert OverlapSample.of(hot_of(0, 15), tier).low == 10
    tier = queue_of(20, (3, 4, MADE_AGAIN_REASON), (9, 10, DELETED_REASON))
    assert OverlapSample.of(hot_of(0, 15), tier).low == 4


async def test_messages_of_a_deleted_topic_that_waited_are_a_gap_and_nothing_waits_for_them() -> (
    None
):
    world = World()
    world.hot.append(A, *[b"x"] * 6)
    await world.finish(world.dispatcher.drain())
    world.hot.append(A, *[b"y"] * 3)
    world.hot.delete_queue(A)
    report = await world.finish(world.dispatcher.drain(), seconds=1.0)
    assert gaps_of(world) == [(6, 9, TOPIC_DELETED_REASON)]
    assert (report.gaps, report.behind, list(report.halted)) == (1, 0, [])
    async with world.running():
        await world.pass_time(5.0)
        calls = world.hot.calls["references"], world.tier.calls.copy()
        await world.pass_time(100.0, step_s=1.0)
        assert (world.hot.calls["references"], world.tier.calls) == calls


async def test_a_topic_that_is_deleted_before_anything_of_it_was_tiered_is_a_gap() -> None:
    world = World()
    world.hot.append(A, *[b"x"] * 6)
    world.hot.delete_queue(A)
    await world.finish(world.dispatcher.drain(), seconds=1.0)
    assert gaps_of(world) == [(0, 6, TOPIC_DELETED_REASON)]


async def test_a_topic_that_is_deleted_while_it_is_read_is_settled_as_soon_as_that_is_known() -> (
    None
):
    world = World()
    world.hot.append(A, *[b"x"] * 6)
    world.hot.append(B, b"x")
    world.hot.queues[A].error = OutOfRange("deleted meanwhile", str(A), 0)
    async with world.running():
        await world.pass_time(20.0, step_s=0.5)
        assert world.state(A).failures > 3, "pauses are long by now"
        world.hot.queues[A].error = None
        world.hot.delete_queue(A)
        await world.wait_for(lambda: A in world.tier.queues, seconds=0.5)
        assert gaps_of(world) == [(0, 6, TOPIC_DELETED_REASON)]
        assert world.is_tiered(B)


async def test_what_is_in_flight_when_a_topic_is_deleted_lands_and_the_rest_is_a_gap() -> None:
    world = World(batch_messages_max=10, batches_per_commit_max=1)
    world.tier.commit_s = 1.0
    world.hot.append(A, *[b"x"] * 40)
    async with world.running():
        await world.pass_time(0.5)
        world.hot.delete_queue(A)
        await world.wait_for(lambda: bool(world.tier.queue(A)), seconds=3.0)
        await world.wait_for(lambda: bool(world.tier.queues[A].gaps), seconds=3.0)
    assert sorted(world.tier.bodies(A)) == [*range(10)]
    assert gaps_of(world) == [(10, 40, TOPIC_DELETED_REASON)]


@pytest.mark.parametrize("is_in_flight", [False, True])
async def test_a_topic_that_is_made_again_goes_on_above_a_gap(*, is_in_flight: bool) -> None:
    world = World()
    world.tier.commit_s = 1.0 if is_in_flight else 0.0
    world.hot.append(A, *[b"x"] * 6)
    async with world.running():
        if is_in_flight:
            await world.wait_for(lambda: world.state(A).state is QueueState.IN_FLIGHT, seconds=2.0)
        else:
            await world.wait_for(lambda: world.is_tiered(A), seconds=2.0)
        world.hot.delete_queue(A)
        world.hot.make_again(A, 4)
        await world.pass_time(5.0)
        assert gaps_of(world) == [(6, 7, MADE_AGAIN_REASON)]
        world.hot.make_again(A, 20)
        await world.wait_for(lambda: 19 in world.tier.bodies(A), seconds=3.0)
        await world.pass_time(5.0)
    assert sorted(world.tier.bodies(A)) == [*range(6), *range(7, 20)]
    assert gaps_of(world) == [(6, 7, MADE_AGAIN_REASON)]


async def test_a_topic_that_is_deleted_and_made_again_twice_has_two_gaps() -> None:
    world = World()
    world.hot.append(A, *[b"x"] * 6)
    async with world.running():
        for end in (20, 40):
            await world.pass_time(3.0)
            world.hot.delete_queue(A)
            await world.pass_time(3.0)
            world.hot.make_again(A, end)
        await world.pass_time(3.0)
    assert gaps_of(world) == [(6, 7, MADE_AGAIN_REASON), (20, 21, MADE_AGAIN_REASON)]
    assert sorted(world.tier.bodies(A)) == [*range(6), *range(7, 20), *range(21, 40)]


@pytest.mark.parametrize("messages", [4, 20])
async def test_a_queue_that_was_made_again_is_not_stopped_by_a_restart(messages: int) -> None:
    world = World()
    world.hot.append(A, *[b"old"] * 6)
    async with world.running():
        await world.wait_for(lambda: world.is_tiered(A), seconds=2.0)
        world.hot.delete_queue(A)
        world.hot.make_again(A, messages)
        await world.pass_time(3.0)
    others = [fake_record(number, b"new", salt=-number - 1) for number in range(messages)]
    others[7:] = world.hot.queues[A].records[7:]  # the log counts them from 0 on by now
    world.hot.queues[A] = FakeQueue(others)
    world.restart()
    report = await world.finish(world.dispatcher.drain(), seconds=1.0)
    assert list(report.halted) == []
    world.hot.append(A, *[b"newer"] * 6)
    await world.finish(world.dispatcher.drain(), seconds=1.0)
    end = messages + 6
    assert sorted(world.tier.bodies(A)) == [*range(6), *range(7, end)]
    assert gaps_of(world) == [(6, 7, MADE_AGAIN_REASON)]
