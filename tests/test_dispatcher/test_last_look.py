"""A gap is recorded only for what is still missing when the hot log was asked with nothing kept."""

from typing import Any
from unittest.mock import patch

from container.errors import BytesMissing
from container.names.queue_id import QueueId
from dispatcher.ports import DELETED_REASON, QueueState
from provider.errors import Unavailable
from tests.support.dispatch_world import World

QUEUES = [QueueId("Orders", number) for number in range(100)]
A = QUEUES[0]


def gaps_of(world: World, queue: QueueId) -> list[tuple[int, int, str]]:
    return [(gap.start, gap.end, gap.reason) for gap in world.tier.queues[queue].gaps]


async def test_what_only_seems_lost_is_tiered_without_a_gap() -> None:
    world = World()
    world.hot.append(A, *[b"x"] * 10)
    async with world.running():
        await world.wait_for(lambda: world.is_tiered(A), seconds=5)
        world.hot.append(A, *[b"y"] * 10)
        world.hot.queues[A].stale_min = 15
        await world.wait_for(lambda: world.is_tiered(A), seconds=5)
    assert gaps_of(world, A) == []
    assert world.hot.calls["poll_again"] == 1


async def test_of_what_seems_lost_only_what_is_gone_is_a_gap() -> None:
    world = World()
    world.hot.append(A, *[b"x"] * 10)
    async with world.running():
        await world.wait_for(lambda: world.is_tiered(A), seconds=5)
        world.hot.append(A, *[b"y"] * 10)
        world.hot.delete_below(A, 13)
        world.hot.queues[A].stale_min = 18
        await world.wait_for(lambda: world.state(A).commit_offset == 20, seconds=5)
    assert gaps_of(world, A) == [(10, 13, DELETED_REASON)]
    assert sorted(world.tier.bodies(A)) == [*range(10), *range(13, 20)]


async def test_many_queues_that_lost_messages_are_asked_about_together() -> None:
    """They lie in one log; a look anew costs as much for all of them as for one."""
    world = World()
    for queue in QUEUES:
        world.hot.append(queue, *[b"x"] * 3)
    async with world.running():
        await world.wait_for(lambda: all(map(world.is_tiered, QUEUES)), seconds=5)
        for queue in QUEUES:
            world.hot.append(queue, *[b"y"] * 3)
            world.hot.delete_below(queue, 5)
        await world.wait_for(lambda: all(gaps_of(world, queue) for queue in QUEUES), seconds=5)
    assert {tuple(gaps_of(world, queue)) for queue in QUEUES} == {((3, 5, DELETED_REASON),)}
    assert world.hot.calls["poll_again"] <= 2


async def test_no_gap_is_recorded_while_the_hot_log_cannot_be_asked() -> None:
    world = World()
    world.hot.append(A, *[b"x"] * 10)
    async with world.running():
        await world.wait_for(lambda: world.is_tiered(A), seconds=5)
        world.hot.append(A, *[b"y"] * 10)
        world.hot.delete_below(A, 15)
        world.hot.look_error = Unavailable("away", "store")
        await world.pass_time(20.0)
        assert gaps_of(world, A) == []
        assert world.hot.calls["poll_again"] > 2
        world.hot.look_error = None
        await world.wait_for(lambda: gaps_of(world, A) != [], seconds=40)
    assert gaps_of(world, A) == [(10, 15, DELETED_REASON)]


async def test_what_was_lost_since_the_poll_does_not_wait_for_the_next_one() -> None:
    """The messages that would be compared are gone, too. A stop must not end amid failures."""
    world = World()
    world.hot.append(A, *[b"x"] * 10)
    async with world.running():
        await world.wait_for(lambda: world.is_tiered(A), seconds=5)
        world.hot.append(A, *[b"y"] * 10)
        await world.wait_for(lambda: world.state(A).behind == 10, seconds=5)
        world.hot.delete_below(A, 18)
        world.hot.poll_error = Unavailable("busy", "store")
        await world.wait_for(lambda: world.state(A).commit_offset == 20, seconds=5)
    assert gaps_of(world, A) == [(10, 18, DELETED_REASON)]
    assert world.state(A).failures == 0


async def test_missing_bytes_of_the_tier_halt_a_queue_that_grows_meanwhile() -> None:
    """No poll of the hot log cures them."""
    world = World()
    world.hot.append(A, *[b"x"] * 10)
    async with world.running():
        await world.wait_for(lambda: world.is_tiered(A), seconds=5)
    world.restart()
    world.tier.refusals[A] = BytesMissing("no such object", f"{A}/COMMIT_LOG/0", 9)
    compared = world.tier.messages_at

    async def while_it_grows(queue: QueueId, *asked: Any, **options: Any) -> Any:
        world.hot.append(queue, b"new")
        return await compared(queue, *asked, **options)

    with patch.object(world.tier, "messages_at", while_it_grows):
        async with world.running():
            await world.wait_for(lambda: world.state(A).state is QueueState.STOPPED, seconds=10)
    assert "bring the file back" in world.state(A).reason
    assert world.hot.calls["poll_again"] == 0
