"""Queues that are opened together end as they do one by one, and agreeing ones share requests."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueueState, QueueState
from provider.errors import NotFound, Unavailable
from tests.support.dispatch_world import World
from tests.support.fake_hot_log import fake_record

QUEUES = [QueueId("Orders", number) for number in range(12)]
MESSAGES = 40

Trouble = Callable[[World, QueueId], None]


def is_restored(world: World, queue: QueueId) -> None:
    """All but the newest messages are others."""
    records = world.hot.queues[queue].records
    records[5:-3] = [fake_record(n, b"other") for n in range(5, len(records) - 3)]


def has_another_newest(world: World, queue: QueueId) -> None:
    records = world.hot.queues[queue].records
    last = len(records) - 1
    records[last] = fake_record(last, b"x", salt=7)


def lost_its_tail(world: World, queue: QueueId) -> None:
    world.hot.lose_tail(queue, 4)


def lost_what_was_to_come(world: World, queue: QueueId) -> None:
    world.hot.append(queue, b"lost", b"lost", b"kept")
    world.hot.delete_below(queue, MESSAGES + 2)


def cannot_be_read(world: World, queue: QueueId) -> None:
    world.hot.queues[queue].error = Unavailable("injected", str(queue))


def is_damaged(world: World, queue: QueueId) -> None:
    world.hot.queues[queue].damaged_offset = MESSAGES - 2


def says_that_it_is_damaged(world: World, queue: QueueId) -> None:
    world.hot.queues[queue].state = HotQueueState.DAMAGED
    world.hot.queues[queue].detail = "a bad unit"


def was_deleted(world: World, queue: QueueId) -> None:
    world.hot.append(queue, b"lost")
    world.hot.delete_queue(queue)


def was_made_again(world: World, queue: QueueId) -> None:
    world.hot.delete_queue(queue)
    world.hot.make_again(queue, MESSAGES + 9)


def rotted_in_the_tier(world: World, queue: QueueId) -> None:
    record = bytearray(world.tier.queues[queue].records[MESSAGES - 1])
    record[-20] ^= 1
    world.tier.queues[queue].records[MESSAGES - 1] = bytes(record)


def lost_bytes_in_the_tier(world: World, queue: QueueId) -> None:
    world.tier.refusals[queue] = NotFound("no such object", str(queue), 0)


def is_new(world: World, queue: QueueId) -> None:
    del world.tier.queues[queue]


TROUBLES: list[Trouble] = [
    is_restored, has_another_newest, lost_its_tail, lost_what_was_to_come, cannot_be_read,
    is_damaged, says_that_it_is_damaged, was_deleted, was_made_again, rotted_in_the_tier,
    lost_bytes_in_the_tier, is_new,
]  # fmt: skip


async def tiered_world(**options: Any) -> World:
    world = World(**options)
    for queue in QUEUES:
        world.hot.append(queue, *[b"%d" % n for n in range(MESSAGES)])
    await world.finish(world.dispatcher.drain())
    world.restart()
    world.tier.calls.clear()
    return world


async def ends(troubles: dict[QueueId, Trouble], **options: Any) -> dict[QueueId, object]:
    """How each queue stands some seconds after a start that found these troubles."""
    world = await tiered_world(**options)
    for queue, trouble in troubles.items():
        trouble(world, queue)
    for queue in QUEUES:
        if queue not in troubles:
            world.hot.append(queue, b"new")
    async with world.running():
        await world.pass_time(3.0)
    for queue in set(QUEUES) - set(troubles):
        assert world.state(queue).state is QueueState.READY
        assert world.is_tiered(queue)
    found: dict[QueueId, object] = {}
    for queue in QUEUES:
        shown, tiered = world.state(queue), world.tier.queues[queue]
        gaps = [(gap.start, gap.end, gap.reason) for gap in tiered.gaps]
        bodies = {n: record[:28] + record[36:] for n, record in tiered.records.items()}
        found[queue] = (shown.state, shown.reason, shown.behind, gaps, bodies)
    return found


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_one_queue_in_trouble_ends_as_if_it_were_alone_and_stops_no_other(
    trouble: Trouble,
) -> None:
    troubles = {QUEUES[5]: trouble}
    assert await ends(troubles) == await ends(troubles, opened_together_max=1)


@pytest.mark.parametrize("seed", range(4))
async def test_many_troubles_at_once_end_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    troubles = dict(zip(rng.sample(QUEUES, 9), rng.sample(TROUBLES, 9), strict=True))
    batches = rng.randrange(2, 12)
    assert await ends(troubles, opened_together_max=batches) == await ends(
        troubles, opened_together_max=1
    )


async def test_queues_that_agree_share_one_call_to_each_side() -> None:
    world = await tiered_world()
    await world.finish(world.dispatcher.drain())
    assert world.tier.calls == {"messages_of_queues": 1}
    assert world.hot.calls["records_of_round"] == 1


async def test_only_those_that_differ_are_compared_alone() -> None:
    world = await tiered_world()
    for queue in QUEUES[:2]:
        has_another_newest(world, queue)
    statistics = await world.finish(world.dispatcher.drain())
    assert [queue.queue for queue in statistics.halted] == QUEUES[:2]
    assert world.tier.calls == {"messages_of_queues": 1, "messages_at": 2 * 4}, (
        "compared, compared past caches, and ends sought"
    )


async def test_a_queue_that_the_tier_changed_since_it_was_compared_is_compared_again() -> None:
    world = await tiered_world()
    reading = world.tier.messages_of_queues

    async def changed_meanwhile(offsets, *, bytes_max):
        async for found in reading(offsets, bytes_max=bytes_max):
            yield found
            world.tier.queues[QUEUES[3]].next_offset = MESSAGES - 1

    world.tier.messages_of_queues = changed_meanwhile
    async with world.running():
        await world.pass_time(1.0)
    assert world.tier.calls["messages_at"] == 1


async def test_an_outage_of_the_tier_opens_nothing_and_ends_well() -> None:
    world = await tiered_world()
    world.tier.error = Unavailable("away", "tier")
    async with world.running():
        await world.pass_time(5.0)
        assert {queue.state for queue in world.dispatcher.statistics().queues} == {
            QueueState.UNSETTLED
        }
        world.tier.error = None
        await world.wait_for(
            lambda: all(world.state(queue).state is QueueState.READY for queue in QUEUES),
            seconds=31.0,
        )


async def test_records_of_one_call_have_a_bound() -> None:
    world = World()
    body = bytes(100_000)
    for queue in QUEUES:
        world.hot.append(queue, *[body] * 6)
    await world.finish(world.dispatcher.drain())
    world.restart()
    world.tier.calls.clear()
    await world.finish(world.dispatcher.drain())
    assert world.tier.calls == {"messages_of_queues": 1}
    assert world.hot.calls["records_of_round"] == len(QUEUES) / 2, "500 kB each, and at most 1 MiB"
