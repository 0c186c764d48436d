"""What is said of many queues costs what changed, and is said of the moment it is asked in."""

import pytest

from container.names.queue_id import QueueId
from dispatcher import queue_table
from dispatcher.ports import QueueState
from dispatcher.queue_progress import QueueProgress
from dispatcher.statistics import QueueStatistics
from provider.ranges import QueueOffset
from tests.support.dispatch_world import World

QUEUES = [QueueId("Orders", number) for number in range(5)]


async def resting_world() -> World:
    """A world whose queues have a message each, all tiered."""
    world = World(batch_age_s_max=100.0)
    for queue in QUEUES:
        world.hot.append(queue, b"0")
    await world.finish(world.dispatcher.drain())
    return world


async def test_queues_at_rest_are_not_described_again() -> None:
    world = await resting_world()
    before = world.dispatcher.statistics()
    assert [one.queue for one in before.queues] == QUEUES
    assert not before.restless
    await world.clock.advance(60.0)
    assert world.dispatcher.statistics().queues is before.queues
    world.hot.append(QUEUES[2], b"1", b"2")
    async with world.running():
        await world.pass_time(1.0)
    after = world.dispatcher.statistics()
    again = [
        new.queue
        for old, new in zip(before.queues, after.queues, strict=True)
        if new is not old and new != old
    ]
    assert again == [QUEUES[2]]
    assert after.behind == 2


async def test_what_waits_grows_older_though_nothing_changes() -> None:
    world = await resting_world()
    assert world.dispatcher.statistics().next_commit_s == 0
    world.hot.append(QUEUES[0], b"1")
    async with world.running():
        await world.pass_time(1.0)
    before = world.dispatcher.statistics()
    assert 98.0 <= before.next_commit_s <= 100.0
    await world.clock.advance(7.0)
    after = world.dispatcher.statistics()
    assert after.oldest_age_s == before.oldest_age_s + 7.0
    assert after.next_commit_s == before.next_commit_s - 7.0


async def test_the_restless_are_those_that_are_behind_or_failing_or_halted() -> None:
    world = await resting_world()
    table = world.dispatcher._work.table
    table[QUEUES[1]].contradict(
        QueueState.STOPPED, "injected", tier_next=QueueOffset(1), heals_at=None
    )
    world.hot.append(QUEUES[3], b"1")
    async with world.running():
        await world.pass_time(1.0)
    found = world.dispatcher.statistics()
    assert {one.queue for one in found.restless} == {QUEUES[1], QUEUES[3]}
    assert [one.queue for one in found.halted] == [QUEUES[1]]
    assert set(found.restless) <= set(found.queues)
    await world.finish(world.dispatcher.drain())
    assert [one.queue for one in world.dispatcher.statistics().restless] == [QUEUES[1]]


async def test_a_change_while_another_thread_describes_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await resting_world()
    described = queue_table.describe

    def changed_meanwhile(queue: QueueProgress, now_s: float) -> QueueStatistics:
        found = described(queue, now_s)
        if queue.id == QUEUES[4] and queue.state is QueueState.READY:
            queue.contradict(
                QueueState.STOPPED, "injected", tier_next=QueueOffset(1), heals_at=None
            )
        return found

    monkeypatch.setattr(queue_table, "describe", changed_meanwhile)
    world.dispatcher._work.table[QUEUES[4]].retry_now(0.0)  # a change, so that it is described
    assert not world.dispatcher.statistics().halted
    assert [one.queue for one in world.dispatcher.statistics().halted] == [QUEUES[4]]
    world.dispatcher.check()
