"""The dispatcher in trouble: failing tiers, rivals, closing, gaps and damage."""

import asyncio

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueueState, QueueState
from provider.errors import Closed, Corrupt, Denied, Fenced, Unavailable
from tests.support.dispatch_world import World
from tests.support.memory_tier import records_of

A, B, C = QueueId("Orders", 0), QueueId("Orders", 1), QueueId("Orders", 2)


async def test_a_failing_queue_does_not_fail_its_neighbours() -> None:
    world = World()
    queues = [QueueId("Q", number) for number in range(50)]
    world.tier.bad_queues = {queues[17]}
    async with world.running():
        for queue in queues:
            world.hot.append(queue, b"x")
        await world.pass_time(5.0)
        good = [queue for queue in queues if queue != queues[17]]
        assert all(world.is_tiered(queue) for queue in good)
        assert world.state(queues[17]).failures > 2
        world.hot.append(good[0], b"y")
        await world.wait_for(lambda: world.is_tiered(good[0]), seconds=1.0)
        world.tier.bad_queues = set()
        await world.wait_for(lambda: world.is_tiered(queues[17]), seconds=31.0)


@pytest.mark.slow
async def test_an_outage_costs_few_requests_and_memory_and_ends_for_all_at_once() -> None:
    world = World(batch_messages_max=100, batch_bytes_max=10_000, bytes_in_flight_max=100_000)
    queues = [QueueId("Q", number) for number in range(100)]
    async with world.running():
        world.tier.error = Unavailable("down", "tier")
        for _ in range(60):
            for queue in queues:
                world.hot.append(queue, b"x")
            await world.pass_time(5.0, step_s=1.0)
        asked = world.tier.calls["commit"]
        assert asked < 100
        statistics = world.dispatcher.statistics()
        assert statistics.outage
        assert statistics.last_error == "down (tier)"
        assert statistics.bytes_in_flight == 0
        assert statistics.oldest_age_s > 290
        world.tier.error = None
        await world.wait_for(lambda: all(map(world.is_tiered, queues)), seconds=32.0, step_s=0.5)
        assert world.tier.calls["commit"] - asked < 30


async def test_a_lost_reply_is_settled_and_nothing_is_written_twice() -> None:
    world = World()
    world.tier.lost_reply = 1.0
    world.hot.append(A, b"x", b"y")
    report = await world.finish(world.dispatcher.drain())
    assert world.is_tiered(A)
    assert (report.rounds, report.rounds_failed, world.tier.calls["commit"]) == (1, 0, 1)


async def test_the_same_range_is_tried_again_before_anything_later() -> None:
    world = World()
    async with world.running():
        world.tier.bad_queues = {A}
        world.hot.append(A, b"1", b"2")
        await world.pass_time(2.0)
        world.hot.append(A, b"3")
        await world.pass_time(2.0)
        world.tier.bad_queues = set()
        await world.wait_for(lambda: world.is_tiered(A), seconds=31.0)
    assert [len(records_of(plan)) for plan in world.tier.plans] == [2, 1]


async def test_a_newer_owner_ends_everything() -> None:
    world = World()
    world.tier.error = Fenced("epoch 8 owns this tier", "@journal/42")
    world.hot.append(A, b"x")
    with pytest.raises(Fenced, match="epoch 8"):
        await world.finish(world.dispatcher.run())
    with pytest.raises(Fenced):
        await world.dispatcher.drain()
    await world.dispatcher.close()


async def test_draining_a_tier_that_stays_away_gives_up_after_its_patience() -> None:
    world = World()
    world.tier.error = Unavailable("no route", "tier")
    world.hot.append(A, b"x")
    with pytest.raises(Unavailable, match=r"nothing landed for 20 s \(no route"):
        await world.finish(world.dispatcher.drain(patience_s=20.0))
    assert 20 <= world.clock.monotonic_s() < 21


async def test_draining_beside_run_flushes_at_once() -> None:
    world = World(batch_age_s_max=100.0)
    async with world.running():
        world.hot.append(A, b"x")
        await world.finish(world.dispatcher.drain(), seconds=1.0)
        assert world.is_tiered(A)


async def test_draining_goes_on_when_run_is_cancelled_meanwhile() -> None:
    world = World()
    world.tier.commit_s = 5.0
    world.hot.append(A, b"x")
    async with world.running():
        drain = asyncio.get_running_loop().create_task(world.dispatcher.drain())
        await world.pass_time(1.0)
    await world.finish(asyncio.wait([drain]))
    assert world.is_tiered(A)


async def test_closing_commits_what_is_there_and_ends_run() -> None:
    world = World(batch_age_s_max=100.0)
    async with world.running() as run:
        world.hot.append(A, b"x")
        await world.finish(world.dispatcher.close(), seconds=1.0)
        assert world.is_tiered(A)
        await asyncio.wait([run])
        assert run.exception() is None
    await world.dispatcher.close()
    with pytest.raises(Closed):
        await world.dispatcher.run()


async def test_closing_gives_up_in_time_when_the_tier_stalls() -> None:
    world = World(close_s_max=3.0)
    world.tier.commit_s = 1000.0
    world.hot.append(A, b"x")
    async with world.running() as run:
        await world.finish(world.dispatcher.close(), seconds=3.5)
        await asyncio.wait([run])
    assert world.state(A).behind == 1


async def test_closing_without_run_commits_too() -> None:
    world = World()
    world.hot.append(A, b"x")
    await world.finish(world.dispatcher.close(), seconds=1.0)
    assert world.is_tiered(A)


async def test_messages_deleted_before_they_were_tiered_leave_a_gap_and_keep_the_rest() -> None:
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    await world.finish(world.dispatcher.drain())
    world.hot.append(A, *[b"%d" % n for n in range(10, 30)])
    world.hot.delete_below(A, 15)
    report = await world.finish(world.dispatcher.drain())
    kept = [*range(10), *range(15, 30)]
    assert sorted(world.tier.bodies(A)) == kept
    (gap,) = world.tier.queues[A].gaps
    assert (gap.start, gap.end) == (10, 15)
    assert report.gaps == 1


async def test_a_queue_deleted_while_it_is_read_leaves_a_gap() -> None:
    world = World(batch_messages_max=10, batches_per_commit_max=1)
    world.tier.commit_s = 1.0
    world.hot.append(A, *[b"x"] * 40)
    async with world.running():
        await world.pass_time(0.5)
        world.hot.delete_below(A, 25)
        await world.wait_for(lambda: 39 in world.tier.bodies(A), seconds=10)
    assert sorted(world.tier.bodies(A)) == [*range(10), *range(25, 40)]


async def test_a_tier_that_is_ahead_stops_its_queue_alone_and_heals_with_the_same_messages() -> (
    None
):
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    world.hot.append(B, b"x")
    await world.finish(world.dispatcher.drain())
    lost = world.hot.queues[A].records[7:]
    world.hot.lose_tail(A, 3)
    world.restart()
    async with world.running():
        world.hot.append(B, b"y")
        await world.pass_time(2.0)
        assert world.is_tiered(B)
        stopped = world.state(A)
        assert stopped.state is QueueState.STOPPED
        assert "tieredstore repair Orders 0 --cut-to-hot" in stopped.reason
        world.hot.queues[A].records += lost
        world.hot.append(A, b"new")
        await world.wait_for(lambda: world.is_tiered(A), seconds=2.0)


async def test_a_tier_that_is_ahead_stays_stopped_when_other_messages_take_the_offsets() -> None:
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    await world.finish(world.dispatcher.drain())
    before = world.tier.bodies(A)
    world.hot.lose_tail(A, 3)
    world.restart()
    report = await world.finish(world.dispatcher.drain())
    assert [queue.queue for queue in report.halted] == [A]
    world.hot.append(A, *[b"other"] * 5)
    report = await world.finish(world.dispatcher.drain())
    assert "different messages at offset 7" in report.halted[0].reason
    assert "tieredstore repair Orders 0 --cut-to-hot" in report.halted[0].reason
    assert world.tier.bodies(A) == before


async def test_a_damaged_message_stops_its_queue_behind_the_good_ones() -> None:
    world = World()
    world.hot.append(A, *[b"x"] * 10)
    world.hot.append(B, b"x")
    world.hot.queues[A].damaged_offset = 4
    report = await world.finish(world.dispatcher.drain())
    assert sorted(world.tier.bodies(A)) == [0, 1, 2, 3]
    assert world.is_tiered(B)
    assert [(q.queue, q.state) for q in report.halted] == [(A, QueueState.DAMAGED)]
    assert "the record is not one" in report.halted[0].reason


async def test_a_damaged_message_that_the_broker_deletes_becomes_a_gap() -> None:
    world = World()
    world.hot.append(A, *[b"x"] * 10)
    world.hot.queues[A].damaged_offset = 4
    await world.finish(world.dispatcher.drain())
    world.hot.queues[A].damaged_offset = None
    world.hot.delete_below(A, 6)
    await world.finish(world.dispatcher.drain())
    assert sorted(world.tier.bodies(A)) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert "the record is not one" in world.tier.queues[A].gaps[0].reason


async def test_refused_and_damaged_queues_of_the_hot_log_are_reported() -> None:
    world = World()
    world.hot.append(A, b"x")
    world.hot.queues[A].state, world.hot.queues[A].detail = HotQueueState.REFUSED, "a batch queue"
    world.hot.append(B, b"x")
    world.hot.queues[B].state, world.hot.queues[B].detail = HotQueueState.DAMAGED, "torn at 7"
    report = await world.finish(world.dispatcher.drain())
    halted = {(q.queue, q.state, q.reason) for q in report.halted}
    assert halted == {
        (A, QueueState.REFUSED, "a batch queue"),
        (B, QueueState.DAMAGED, "torn at 7"),
    }
    assert world.is_tiered(B)
    assert A not in world.tier.queues


async def test_a_hot_log_that_cannot_be_read_for_a_while_is_tried_again() -> None:
    world = World()
    world.hot.append(A, b"x")
    world.hot.append(B, b"x")
    world.hot.queues[A].error = Unavailable("busy", "store")
    world.hot.poll_error = Unavailable("busy", "store")
    async with world.running():
        await world.pass_time(1.0)
        assert world.tier.queues == {}
        world.hot.poll_error = None
        await world.wait_for(lambda: B in world.tier.queues, seconds=3.0)
        assert A not in world.tier.queues
        world.hot.queues[A].error = None
        await world.wait_for(lambda: world.is_tiered(A), seconds=5.0)


async def test_a_queue_that_the_tier_refuses_for_good_stops_alone() -> None:
    world = World()
    world.hot.append(A, b"x")
    world.tier.error = Corrupt("manifest is torn", "@manifest/7", 12)
    report = await world.finish(world.dispatcher.drain())
    assert report.halted[0].reason.startswith("the tier refuses its messages: manifest is torn")


async def test_a_log_that_may_not_be_read_for_a_while_is_waited_for() -> None:
    world = World()
    async with world.running() as task:
        world.hot.append(A, b"x")
        await world.wait_for(lambda: world.is_tiered(A), seconds=1.0)
        world.hot.poll_error = Denied("not allowed: Permission denied", "consumequeue/Orders")
        world.hot.append(A, b"y")
        await world.pass_time(5.0)
        assert not task.done()
        assert "not allowed" in world.dispatcher.statistics().hot_error
        world.hot.poll_error = None
        await world.wait_for(lambda: world.is_tiered(A), seconds=31.0)
        await world.pass_time(1.0)
        assert world.dispatcher.statistics().hot_error == ""


async def test_a_log_that_may_not_be_read_at_the_start_is_an_error() -> None:
    world = World()
    world.hot.poll_error = Denied("not allowed: Permission denied", "consumequeue/Orders")
    with pytest.raises(Denied):
        await world.finish(world.dispatcher.drain())


async def test_a_queue_that_cannot_be_looked_at_stops_alone_and_goes_on_by_itself() -> None:
    world = World()
    world.hot.append(A, b"x")
    world.hot.append(B, b"x")
    async with world.running():
        await world.wait_for(lambda: world.is_tiered(A), seconds=1.0)
        here = world.hot.queues[A]
        here.state, here.detail = HotQueueState.UNREADABLE, "cannot be read now"
        for queue in (A, B):
            world.hot.append(queue, b"y")
        await world.wait_for(lambda: world.is_tiered(B), seconds=1.0)
        await world.pass_time(2.0)
        stopped = world.state(A)
        assert (stopped.state, stopped.reason) == (QueueState.STOPPED, "cannot be read now")
        assert not world.is_tiered(A)
        here.state, here.detail = HotQueueState.READY, ""
        await world.wait_for(lambda: world.is_tiered(A), seconds=2.0)
        assert world.state(A).state is QueueState.READY


async def test_a_queue_that_could_never_be_looked_at_is_no_tier_that_is_ahead() -> None:
    world = World()
    world.hot.append(A, b"x", b"y")
    await world.finish(world.dispatcher.drain())
    world.restart()
    here = world.hot.queues[A]
    records, here.records = here.records, []
    here.state, here.detail = HotQueueState.UNREADABLE, "cannot be read now"
    report = await world.finish(world.dispatcher.drain())
    assert [queue.reason for queue in report.halted] == ["cannot be read now"]
    here.records, here.state, here.detail = records, HotQueueState.READY, ""
    world.hot.append(A, b"z")
    report = await world.finish(world.dispatcher.drain())
    assert report.halted == ()
    assert world.is_tiered(A)
