"""How far behind tiering is: the age of messages, and how many there are of stopped queues."""

from container.names.queue_id import QueueId
from dispatcher.ports import QueueState
from provider.errors import Unavailable
from provider.testing.manual_clock import settle
from tests.support.dispatch_world import World

A = QueueId("A", 0)
B = QueueId("B", 0)


async def test_a_restart_does_not_make_waiting_messages_younger() -> None:
    world = World(batch_age_s_max=3600.0)
    world.hot.append(A, b"old")
    await world.clock.advance(172_800.0)
    for _ in range(3):  # a crash loop
        world.restart()
        async with world.running():
            await world.pass_time(2.0)
            assert world.dispatcher.statistics().oldest_age_s >= 172_800
    world.hot.append(A, b"young")
    world.restart()
    await world.finish(world.dispatcher.drain(force=True))
    assert world.dispatcher.statistics().oldest_age_s == 0


async def test_messages_that_wait_at_a_start_have_their_age_once_it_is_over() -> None:
    world = World(batch_age_s_max=3600.0)
    world.hot.append(A, b"old")
    await world.clock.advance(172_800.0)
    async with world.running():
        while not world.dispatcher.statistics().started:
            await settle(1)
        assert world.dispatcher.statistics().oldest_age_s >= 172_800
        world.hot.append(B, b"young")
        await world.pass_time(0.5)
        assert world.hot.calls["records"] == 1, "a young message is not read for its age"


async def test_the_age_is_that_of_the_oldest_message_which_is_not_durable() -> None:
    world = World(batch_messages_max=1, batches_per_commit_max=1, batch_age_s_max=3600.0)
    async with world.running():
        world.tier.error = Unavailable("no answer", "")
        for age_s in (1000.0, 100.0, 10.0):
            world.hot.append(A, b"x")
            await world.clock.advance(age_s)
        await world.pass_time(3.0)
        assert 1110 <= world.dispatcher.statistics().oldest_age_s < 1120
        world.tier.error = None
        await world.wait_for(lambda: world.is_tiered(A), seconds=100.0)
        assert world.dispatcher.statistics().oldest_age_s == 0


async def test_messages_that_are_tiered_at_once_are_not_read_for_their_age() -> None:
    world = World()
    async with world.running():
        for _ in range(20):
            world.hot.append(A, b"x")
            await world.pass_time(1.0)
    assert world.hot.calls["records"] == 20


async def test_a_stopped_queue_is_behind_by_all_that_differs_and_as_old_as_that() -> None:
    world = World()
    world.hot.append(A, *[b"%d" % n for n in range(50)])
    await world.finish(world.dispatcher.drain())
    world.hot.lose_tail(A, 10)
    await world.clock.advance(100.0)
    world.hot.append(A, *[b"other"] * 4)
    await world.clock.advance(5000.0)
    world.restart()
    async with world.running():
        await world.pass_time(3.0)
        state = world.state(A)
    assert (state.state, state.commit_offset, state.behind) == (QueueState.STOPPED, 50, 4)
    assert 5000 <= state.oldest_age_s < 5010


async def test_a_deleted_queue_of_which_all_is_tiered_is_gone() -> None:
    world = World()
    world.hot.append(A, b"one")
    world.hot.append(B, b"two")
    await world.finish(world.dispatcher.drain())
    world.hot.delete_queue(A)
    async with world.running():
        await world.pass_time(1.0)
        assert (world.state(A).is_gone, world.state(B).is_gone) == (True, False)
        world.hot.make_again(A, 3)
        await world.pass_time(1.0)
        assert not world.state(A).is_gone
