"""What stops a queue and may pass: it goes on by itself, and nobody waits for it meanwhile."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from container.errors import NewerVersion, Refused
from container.names.queue_id import QueueId
from dispatcher.ports import HotQueueState, QueueState
from provider.errors import AlreadyExists, Corrupt, NotFound, OutOfRange, StoreError
from tests.support.dispatch_world import World

A, B = QueueId("Orders", 0), QueueId("Orders", 1)
MISSING = NotFound("no such object", "Orders/0/COMMIT_LOG/0", 0)
BURIED = Refused("begins a queue whose files await their deletion", "Orders/0")
PASSING = [
    MISSING,
    OutOfRange("published bytes are missing", "Orders/0/COMMIT_LOG/0", 7),
    AlreadyExists("the name is taken", "Orders/0/COMMIT_LOG/0"),
    BURIED,
]


def is_stopped(world: World, queue: QueueId) -> Callable[[], bool]:
    return lambda: world.state(queue).state is QueueState.STOPPED


@pytest.mark.parametrize("error", PASSING)
async def test_a_queue_that_the_tier_refuses_for_a_while_is_tiered_once_it_does_not(
    error: StoreError,
) -> None:
    world = World()
    world.hot.append(A, b"x")
    async with world.running():
        await world.wait_for(lambda: world.is_tiered(A), seconds=1.0)
        world.tier.refusals[A] = error
        world.hot.append(A, b"y")
        await world.wait_for(is_stopped(world, A), seconds=2.0)
        await world.pass_time(200.0, step_s=1.0)
        stopped = world.state(A)
        assert stopped.state is QueueState.STOPPED
        assert str(error) in stopped.reason
        assert stopped.behind == 1
        world.tier.refusals.clear()
        await world.wait_for(lambda: world.is_tiered(A), seconds=31.0)
        assert (world.state(A).state, world.state(A).failures) == (QueueState.READY, 0)


async def test_a_refused_queue_costs_few_requests_and_its_neighbours_nothing() -> None:
    world = World()
    world.hot.append(A, b"x")
    world.hot.append(B, b"x")
    async with world.running():
        world.tier.refusals[A] = BURIED
        for _ in range(100):
            world.hot.append(A, b"y")
            world.hot.append(B, b"y")
            await world.pass_time(3.0, step_s=0.5)
        assert sum(A in names for names in world.tier.rounds) < 25
        assert not world.dispatcher.statistics().outage
        assert world.state(B).behind <= 1
        assert world.state(B).failures == 0


async def test_a_refusal_that_passes_at_once_stops_nothing() -> None:
    world = World()
    world.hot.append(A, b"x")
    world.tier.refusals[A] = AlreadyExists("the name is taken", "Orders/0/COMMIT_LOG/0")
    async with world.running():
        await world.wait_for(lambda: world.state(A).failures == 1, seconds=1.0)
        assert world.state(A).state is not QueueState.STOPPED
        world.tier.refusals.clear()
        await world.finish(world.dispatcher.drain(), seconds=1.0)
        assert world.is_tiered(A)


@pytest.mark.parametrize("error", [MISSING, BURIED])
async def test_draining_ends_beside_a_refused_queue_and_reports_it(error: StoreError) -> None:
    world = World()
    world.hot.append(A, b"x")
    await world.finish(world.dispatcher.drain())
    world.restart()
    world.hot.append(A, b"y")
    world.hot.append(B, b"x")
    world.tier.refusals[A] = error
    report = await world.finish(world.dispatcher.drain(), seconds=3.0)
    assert [(halted.queue, halted.state) for halted in report.halted] == [(A, QueueState.STOPPED)]
    assert world.is_tiered(B)
    async with world.running():
        world.hot.append(B, b"y")
        report = await world.finish(world.dispatcher.drain(), seconds=3.0)
        assert [halted.queue for halted in report.halted] == [A]
        assert world.is_tiered(B)
        world.tier.refusals.clear()
        await world.wait_for(lambda: world.is_tiered(A), seconds=31.0)


async def test_missing_bytes_of_one_queue_hold_up_none_of_many_that_share_its_rounds() -> None:
    world = World()
    queues = [QueueId("Orders", number) for number in range(100)]
    for queue in queues:
        world.hot.append(queue, b"x")
    async with world.running():
        await world.wait_for(lambda: all(map(world.is_tiered, queues)), seconds=2.0)
        world.tier.refusals[queues[10]] = NotFound("no such object", "Orders/10/COMMIT_LOG/0", 9)
        for queue in queues:
            world.hot.append(queue, b"y")
        others = [*queues[:10], *queues[11:]]
        await world.wait_for(lambda: all(map(world.is_tiered, others)), seconds=1.5)
        await world.wait_for(is_stopped(world, queues[10]), seconds=2.0)
        assert not world.dispatcher.statistics().outage
        world.tier.refusals.clear()
        await world.wait_for(lambda: world.is_tiered(queues[10]), seconds=31.0)


async def test_a_queue_whose_beginning_is_refused_for_a_while_begins_later() -> None:
    world = World(backfill=timedelta(hours=1))
    world.hot.append(A, b"x")
    world.tier.refusals[A] = BURIED
    async with world.running():
        await world.wait_for(is_stopped(world, A), seconds=2.0)
        assert "await their deletion" in world.state(A).reason
        world.tier.refusals.clear()
        await world.wait_for(lambda: world.is_tiered(A), seconds=31.0)


async def test_a_gap_that_is_refused_for_a_while_is_recorded_later() -> None:
    world = World()
    world.hot.append(A, b"x")
    await world.finish(world.dispatcher.drain())
    world.hot.append(A, b"lost", b"y")
    world.hot.delete_below(A, 2)
    world.tier.refusals[A] = BURIED
    async with world.running():
        await world.wait_for(is_stopped(world, A), seconds=2.0)
        assert world.state(A).commit_offset == 1
        world.tier.refusals.clear()
        await world.wait_for(lambda: sorted(world.tier.bodies(A)) == [0, 2], seconds=31.0)
    (gap,) = world.tier.queues[A].gaps
    assert (gap.start, gap.end) == (1, 2)
    assert "deleted" in gap.reason


async def test_a_beginning_that_cannot_be_read_is_tried_at_intervals_and_reported() -> None:
    world = World(backfill=timedelta(hours=1))
    world.hot.append(A, b"deleted", b"x")
    world.hot.delete_below(A, 1)
    world.hot.queues[A].error = Corrupt("torn", "commitlog/0", 7)
    report = await world.finish(world.dispatcher.drain(), seconds=5.0)
    assert [one.queue for one in report.halted] == [A]
    assert "torn" in report.halted[0].reason
    async with world.running():
        await world.pass_time(100.0, step_s=1.0)
        assert world.hot.calls["records_of_round"] < 20
        world.hot.queues[A].error = None
        await world.wait_for(lambda: list(world.tier.bodies(A)) == [1], seconds=31.0)


async def test_a_gap_that_a_damaged_tier_refuses_is_tried_at_intervals_and_reported() -> None:
    world = World()
    world.hot.append(A, b"x")
    await world.finish(world.dispatcher.drain())
    world.hot.append(A, b"lost", b"y")
    world.hot.delete_below(A, 2)
    world.tier.refusals[A] = Corrupt("torn", "@manifest/7")
    report = await world.finish(world.dispatcher.drain(), seconds=5.0)
    assert [one.queue for one in report.halted] == [A]
    async with world.running():
        world.tier.refusals.clear()
        await world.wait_for(lambda: sorted(world.tier.bodies(A)) == [0, 2], seconds=31.0)


@pytest.mark.parametrize("error", [Corrupt("torn", "@manifest/7"), NewerVersion("9", "@manifest")])
async def test_what_does_not_pass_is_not_tried_again(error: StoreError) -> None:
    world = World()
    world.tier.refusals[A] = error
    world.hot.append(A, b"x")
    async with world.running():
        await world.wait_for(is_stopped(world, A), seconds=1.0)
        world.tier.refusals.clear()
        await world.pass_time(100.0, step_s=1.0)
        assert world.state(A).state is QueueState.STOPPED
    assert world.tier.calls["commit"] == 1


async def test_other_messages_at_tiered_offsets_never_heal() -> None:
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    await world.finish(world.dispatcher.drain())
    before = world.tier.bodies(A)
    world.hot.lose_tail(A, 3)
    world.hot.append(A, *[b"other"] * 5)
    world.restart()
    async with world.running():
        await world.wait_for(is_stopped(world, A), seconds=1.0)
        calls = world.tier.calls.copy()
        world.hot.append(A, b"more")
        await world.pass_time(100.0, step_s=1.0)
        assert world.state(A).state is QueueState.STOPPED
        assert world.tier.calls == calls
    assert world.tier.bodies(A) == before


async def contradicted(more: int) -> World:
    """A world whose hot log has other messages at the tier's end, 10, and some more behind."""
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    await world.finish(world.dispatcher.drain())
    world.hot.lose_tail(A, 3)
    world.hot.append(A, *[b"other"] * (3 + more))
    world.restart()
    return world


@pytest.mark.parametrize("more", [0, 4])
async def test_a_queue_that_stops_while_it_is_opened_shows_how_far_it_is_behind(more: int) -> None:
    world = await contradicted(more)
    report = await world.finish(world.dispatcher.drain(), seconds=3.0)
    (halted,) = report.halted
    assert (halted.state, halted.commit_offset, halted.behind) == (QueueState.STOPPED, 10, 3 + more)
    assert report.behind == 3 + more


async def test_a_queue_that_the_tier_never_took_is_behind_by_what_the_hot_log_has() -> None:
    world = World(backfill=timedelta(hours=1))
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    world.hot.delete_below(A, 4)
    world.tier.refusals[A] = BURIED
    report = await world.finish(world.dispatcher.drain(), seconds=3.0)
    assert [(halted.state, halted.behind) for halted in report.halted] == [(QueueState.STOPPED, 6)]


async def test_damage_behind_the_end_does_not_hide_why_a_queue_is_stopped() -> None:
    world = await contradicted(0)
    here = world.hot.queues[A]
    here.state, here.detail = HotQueueState.DAMAGED, "the record of offset 10 is torn"
    report = await world.finish(world.dispatcher.drain(), seconds=3.0)
    (halted,) = report.halted
    assert halted.state is QueueState.STOPPED
    assert "--cut-to-hot" in halted.reason


def damage(world: World, queue: QueueId) -> list[bytes]:
    """Let the hot log report damage from the queue's first file on; returns what cannot be seen."""
    here = world.hot.queues[queue]
    hidden, here.records = here.records, []
    here.state, here.detail = HotQueueState.DAMAGED, "the file was truncated (0 at 7)"
    return hidden


def mend(world: World, queue: QueueId, records: list[bytes]) -> None:
    here = world.hot.queues[queue]
    here.records, here.state, here.detail = records, HotQueueState.READY, ""


async def test_a_queue_that_is_damaged_at_its_first_look_is_told_as_that() -> None:
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    world.hot.append(B, b"x")
    await world.finish(world.dispatcher.drain())
    world.hot.append(A, b"new")
    records = damage(world, A)
    world.restart()
    world.hot.append(B, b"y")
    report = await world.finish(world.dispatcher.drain(), seconds=3.0)
    (halted,) = report.halted
    assert (halted.queue, halted.state) == (A, QueueState.DAMAGED)
    assert halted.reason == "the file was truncated (0 at 7)"
    assert halted.commit_offset == 10
    assert world.is_tiered(B)
    async with world.running():
        mend(world, A, records)
        await world.wait_for(lambda: world.is_tiered(A), seconds=2.0)
        assert world.state(A).state is QueueState.READY


async def test_a_damaged_queue_goes_on_where_so_much_of_it_is_mended_that_the_tier_can() -> None:
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    await world.finish(world.dispatcher.drain())
    world.hot.append(A, b"new")
    records = damage(world, A)
    world.restart()
    async with world.running():
        await world.wait_for(lambda: world.state(A).state is QueueState.DAMAGED, seconds=1.0)
        world.hot.queues[A].records = records[:9]
        await world.pass_time(2.0)
        assert world.state(A).commit_offset == 10
        world.hot.queues[A].records = records
        await world.wait_for(lambda: world.is_tiered(A), seconds=2.0)
        assert world.state(A).state is QueueState.DAMAGED  # of what may follow


async def test_a_mended_queue_that_lost_its_tail_is_told_as_that() -> None:
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    await world.finish(world.dispatcher.drain())
    records = damage(world, A)
    world.restart()
    async with world.running():
        await world.wait_for(lambda: world.state(A).state is QueueState.DAMAGED, seconds=1.0)
        mend(world, A, records[:9])
        await world.wait_for(is_stopped(world, A), seconds=2.0)
        assert "ends at offset 10 but the hot log at 9" in world.state(A).reason


async def test_where_a_queue_begins_is_not_decided_by_a_look_that_met_damage() -> None:
    world = World(backfill="none")
    world.hot.append(A, b"old", b"old")
    records = damage(world, A)
    async with world.running():
        await world.wait_for(lambda: world.state(A).state is QueueState.DAMAGED, seconds=1.0)
        assert world.tier.queues == {}
        mend(world, A, records)
        await world.wait_for(lambda: world.state(A).state is QueueState.READY, seconds=2.0)
        world.hot.append(A, b"new")
        await world.wait_for(lambda: world.state(A).commit_offset == 3, seconds=2.0)
    assert list(world.tier.bodies(A)) == [2]


async def test_damaged_messages_are_tiered_once_the_hot_log_says_that_they_are_mended() -> None:
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(10)])
    here = world.hot.queues[A]
    here.damaged_offset = 4
    async with world.running():
        await world.wait_for(lambda: world.state(A).state is QueueState.DAMAGED, seconds=1.0)
        calls = world.hot.calls["records_of_round"]
        here.state, here.detail = HotQueueState.DAMAGED, "the record of offset 4 is torn"
        world.hot.append(A, b"more")
        await world.pass_time(5.0)
        assert (world.state(A).state, world.state(A).commit_offset) == (QueueState.DAMAGED, 4)
        assert world.hot.calls["records_of_round"] == calls
        here.state, here.detail, here.damaged_offset = HotQueueState.READY, "", None
        await world.wait_for(lambda: world.is_tiered(A), seconds=2.0)
        assert (world.state(A).state, world.state(A).behind) == (QueueState.READY, 0)
