"""Offload up to a position of a queue: which segments go, and what a second call adds."""

import asyncio

from container.metadata.objects import is_away
from container.metadata.records import Segment
from container.move.offload_plan import Until
from container.names.queue_id import SegmentType
from tests.support.offloaded import (
    ALL,
    BY_AGE,
    BY_HAND,
    HOUR_S,
    away,
    by_hand,
    in_second,
    segments,
    world,
)
from tests.support.owned_tier import QUEUE, OwnedWorld, put_each_minute


async def logs(it: OwnedWorld) -> list[Segment]:
    return [one for one in await segments(it) if one.type is SegmentType.COMMIT_LOG]


async def test_a_segment_goes_once_the_position_is_behind_its_last_message() -> None:
    it = world()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 40)
        found = await logs(it)
        firsts = [one.extents[0].first_offset for one in found]
        assert len(firsts) > 4
        for number, end in enumerate(firsts[1:], 1):
            await by_hand(tier, Until(offset=end - 1))
            assert sum(map(is_away, await logs(it))) == number - 1
            await by_hand(tier, Until(offset=end))
            assert [is_away(one) for one in await logs(it)] == [
                at < number for at in range(len(found))
            ]
            assert await it.reads_back() == 40


async def test_the_same_position_twice_moves_nothing_the_second_time() -> None:
    it = world()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 40)
        for until in (Until(offset=20), Until(ms=it.clock.now_ms() - 10 * 60_000), ALL):
            assert await by_hand(tier, until)
            before = in_second(it), tier.journal.statistics().entries
            assert await by_hand(tier, until) == []
            assert (in_second(it), tier.journal.statistics().entries) == before


async def test_a_position_in_the_open_segment_leaves_it_and_one_behind_the_end_is_all() -> None:
    it = world()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 40)
        assert await by_hand(tier, Until(offset=0)) == []
        await by_hand(tier, Until(offset=39))
        *closed, last = await logs(it)
        assert all(map(is_away, closed))
        assert (last.sealed_ms, is_away(last)) == (None, False)
        await by_hand(tier, Until(offset=1_000_000))
        assert await away(it) == len(await segments(it))
        assert await it.reads_back() == 40
        assert QUEUE in tier.state.queues


async def test_by_hand_during_the_background_waits_for_it_and_moves_nothing_twice() -> None:
    it = world(BY_AGE)
    async with it.owned(BY_HAND) as tier:
        await put_each_minute(tier, it.clock, 90)
    it.kill_all()
    async with it.owned() as tier:
        step = tier.upkeep.offload
        assert step is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(step.step())
            hands = [group.create_task(by_hand(tier)) for _ in range(3)]
        moved = [done for hand in hands for done in hand.result()]
        assert len(moved) == 1, "those that follow find nothing left"
        names = [one.object_name for segment in await segments(it) for one in segment.extents]
        assert await away(it) == len(await segments(it)) > moved[0].segments > 0
        assert in_second(it) == set(names)
        await it.pass_time(3 * HOUR_S)
        assert await it.reads_back() == 90
