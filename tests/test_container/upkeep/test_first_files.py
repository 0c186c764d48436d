"""Files of queues that were never published: announced, found by the next owner, and deleted."""

import asyncio

import pytest

from container.check.tier import UNKNOWN_QUEUE, check_tier
from container.metadata.objects import names_of_queue
from container.metadata.operations import AddTombstones, PutAttempt
from container.metadata.records import Tombstone
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.options import TierOptions, UpkeepOptions
from container.tier import Tier
from container.upkeep.garbage import DROPPED, KIND, announcements, taken_up
from provider.errors import Unavailable
from provider.testing.faulty import Fault
from provider.testing.manual_clock import settle
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, planned, put

NEVER = QueueId(TOPIC, 7)
"""A queue that no owner publishes at first."""
LOG = SegmentType.COMMIT_LOG
TIER = TierOptions()
UPKEEP = UpkeepOptions(
    interval_s=1.0, snapshot_entries_max=3, snapshot_age_s_max=10.0, grace_s=60.0
)


class World(OwnedWorld):
    """Owners whose segments are files."""

    def __init__(self) -> None:
        super().__init__(TIER, UPKEEP)

    async def left_by_a_dead_owner(self) -> set[str]:
        """It dies between writing the first files of `NEVER` and publishing them."""
        async with self.owned() as tier:
            await put(tier, 3)
            await self._begin(tier)
        self.kill_all()
        return await self.names(f"{NEVER}/")

    async def _begin(self, tier: Tier) -> None:
        store = self.stores[-1]
        store.faults = [Fault("stalled", "create", "@journal/", calls=(2,))]
        writing = asyncio.ensure_future(put(tier, 5, NEVER))
        await settle(100)
        assert store.struck["stalled"] == 1
        assert await self.names(f"{NEVER}/")
        writing.cancel()
        await settle(10)


async def told(world: World, tier: Tier) -> set[str]:
    """What `check` finds, by kind, also behind the published ends."""
    return {one.finding async for one in check_tier(tier, clock=world.clock)}


async def test_d11_files_of_a_queue_that_was_never_published_go() -> None:
    world = World()
    left = await world.left_by_a_dead_owner()
    assert left == {segment_name(NEVER, kind, 0) for kind in (LOG, SegmentType.CONSUME_QUEUE)}
    async with world.owned() as tier:
        assert UNKNOWN_QUEUE in await told(world, tier)
        await world.pass_time(40)
        assert left == tier.state.tombstones.keys(), "given tombstones, and left for the grace time"
        assert tier.state.attempts == {}
        assert tier.upkeep.statistics().figures["first_files"] == len(left)
        assert await told(world, tier) == set()
        await world.pass_time(80)
        assert await world.names(f"{NEVER}/") == set()
        assert tier.state.tombstones == {}
        await put(tier, 2, NEVER)
        assert await world.reads_back(NEVER) == 2


async def test_d11_a_queue_that_comes_back_takes_its_files_over() -> None:
    world = World()
    left = await world.left_by_a_dead_owner()
    async with world.owned() as tier:
        await world.pass_time(40)
        assert left == tier.state.tombstones.keys()
        await put(tier, 4, NEVER)
        assert tier.state.tombstones == {}
        assert tier.state.attempts == {}
        await world.pass_time(200)
        assert await world.reads_back(NEVER) == 4


async def test_d11_a_queue_that_is_begun_without_messages_keeps_none_of_their_tombstones() -> None:
    world = World()
    await world.left_by_a_dead_owner()
    async with world.owned() as tier:
        await world.pass_time(40)
        await tier.begin_queue(NEVER, planned(tier, 1, NEVER).expected_offset)
        await world.pass_time(200)
        await put(tier, 4, NEVER)
        assert await world.reads_back(NEVER) == 4


async def test_a_queue_begins_once_an_unclear_deletion_of_its_files_is_repeated() -> None:
    world = World()
    await world.left_by_a_dead_owner()
    async with world.owned() as tier:
        await world.pass_time(40)
        store = world.stores[-1]
        store.faults = [Fault("late", "delete", f"{NEVER}/")]
        await world.pass_time(80)
        assert store.struck["late"] > 0
        store.faults = []
        offset = planned(tier, 1, NEVER).expected_offset
        with pytest.raises(Unavailable, match="may still land"):
            await tier.begin_queue(NEVER, offset)
        await world.pass_time(600)
        await tier.begin_queue(NEVER, offset)
        await put(tier, 4, NEVER)
        assert await world.reads_back(NEVER) == 4


async def test_files_that_nobody_has_announced_stay_and_are_told() -> None:
    """An import may have left them out, or the entries that published them are lost."""
    world = World()
    foreign = segment_name(NEVER, LOG, 0)
    async with world.owned() as tier:
        await put(tier, 3)
    world.kill_all()
    await world.memory.create(foreign, [b"somebody's messages"])
    async with world.owned() as tier:
        await put(tier, 3)
        await world.pass_time(3 * UPKEEP.grace_s)
        assert foreign in await world.names()
        assert UNKNOWN_QUEUE in await told(world, tier)


async def test_what_an_owner_that_lives_has_announced_is_not_looked_for() -> None:
    world = World()
    async with world.owned() as former:
        await put(former, 3)
        sleeping = world.stores[-1]
        sleeping.faults = [Fault("stalled", "append", f"{NEVER}/")]
        writing = asyncio.ensure_future(put(former, 5, NEVER))
        await settle(100)
        assert sleeping.struck["stalled"] == 1
        async with world.owned() as newer:
            await world.pass_time(2 * UPKEEP.grace_s)
            assert [one.epoch for one in newer.state.attempts.values()] == [1]
            sleeping.released.set()
            sleeping.faults = []
            await asyncio.gather(writing, return_exceptions=True)
            assert await world.names(f"{NEVER}/")
        world.kill_all()
        async with world.owned() as last:
            await world.pass_time(3 * UPKEEP.grace_s)
            assert await world.names(f"{NEVER}/") == set()
            assert last.state.attempts == {}


async def test_a_file_that_a_commit_begins_is_not_deleted_however_long_that_takes() -> None:
    world = World()
    await world.left_by_a_dead_owner()
    async with world.owned() as tier:
        await world.pass_time(40)
        store = world.stores[-1]
        store.faults = [Fault("stalled", "append", f"{NEVER}/")]
        writing = asyncio.ensure_future(put(tier, 4, NEVER))
        await world.pass_time(2 * UPKEEP.grace_s)
        assert await world.names(f"{NEVER}/")
        assert not writing.done()
        store.released.set()
        await writing
        await world.pass_time(2 * UPKEEP.grace_s)
        assert await world.reads_back(NEVER) == 4


async def test_a_file_is_not_deleted_while_its_commit_waits_for_the_journal() -> None:
    world = World()
    await world.left_by_a_dead_owner()
    async with world.owned() as tier:
        await world.pass_time(40)
        await put(tier, 1)
        store = world.stores[-1]
        store.faults = [Fault("stalled", "create", "@journal/", calls=(2,))]
        writing = asyncio.ensure_future(put(tier, 4, NEVER))
        await settle(100)
        writing.cancel()  # it has been accepted, and will land
        await world.pass_time(2 * UPKEEP.grace_s)
        assert await world.names(f"{NEVER}/")
        store.released.set()
        await world.pass_time(2 * UPKEEP.grace_s)
        assert await world.reads_back(NEVER) == 4


async def test_a_paused_deletion_of_first_files_reaches_none_of_a_newer_owner() -> None:
    world = World()
    left = await world.left_by_a_dead_owner()
    async with world.owned() as former:
        store = world.stores[-1]
        store.faults = [Fault("stalled", "delete", f"{NEVER}/")]
        await world.pass_time(130)
        assert store.struck["stalled"] == 1
        async with world.owned() as newer:
            await world.pass_time(130)
            assert not left & await world.names(), "the newer one has deleted them, too"
            with pytest.raises(Unavailable, match="end that process"):
                await put(newer, 4, NEVER)
            store.released.set()
            await settle(100)
            world.clients[-2].kill()
            await put(newer, 4, NEVER)
            assert await world.reads_back(NEVER) == 4
    assert former.journal.is_over


async def test_an_announcement_costs_one_entry_for_all_new_queues_of_a_round() -> None:
    world = World()
    queues = [QueueId(TOPIC, number) for number in range(5)]
    async with world.owned() as tier:
        for _ in range(2):
            await put(tier, 1, *queues)
        assert tier.state.sequence == 1 + 2 + 1
        assert tier.state.attempts == {}


async def test_parts_need_no_announcement() -> None:
    world = OwnedWorld(TIER, UPKEEP, packed=True)
    async with world.owned() as tier:
        await put(tier, 1)
        assert tier.state.sequence == 2


async def test_files_that_a_cancelled_commit_began_go_with_their_topic() -> None:
    world = World()
    world.options = TierOptions(commit_log_bytes_max=1000)
    async with world.owned() as tier:
        await put(tier, 3)
        await tier._segments.write(planned(tier, 20).slices)  # cancelled before it is published
        left = await world.names(f"{QUEUE}/")
        assert len(left) > len(set(names_of_queue(tier.state.queues[QUEUE])))
        await tier.delete_topic(TOPIC)
        assert left <= tier.state.tombstones.keys()
        await world.pass_time(80)
        assert await world.names(f"{QUEUE}/") == set()
        assert await told(world, tier) == set()


async def test_what_lands_after_its_topic_was_deleted_goes_with_the_next_owner() -> None:
    world = World()
    async with world.owned() as tier:
        late = planned(tier, 3)
        await put(tier, 3)
        await tier.delete_topic(TOPIC)
        await world.pass_time(80)
        assert await world.names(f"{QUEUE}/") == set()
        await tier._segments.write(late.slices)
        assert await told(world, tier) == {UNKNOWN_QUEUE}
    world.kill_all()
    async with world.owned() as tier:
        for _ in range(UPKEEP.snapshot_entries_max):
            await put(tier, 1, NEVER)
        await world.pass_time(120)
        assert await world.names(f"{QUEUE}/") == set()
        assert tier.state.attempts == {}
        assert await told(world, tier) == set()


async def test_a_queue_that_is_deleted_and_begun_again_is_announced_again() -> None:
    world = World()
    async with world.owned() as tier:
        await put(tier, 3)
        await tier.delete_topic(TOPIC)
        (dropped,) = tier.state.attempts.values()
        assert dropped.kind == DROPPED
        await world.pass_time(80)
        (put_attempt,) = announcements(tier.state, [QUEUE], epoch=dropped.epoch, now_ms=0)
        assert put_attempt.attempt.kind == KIND
        await put(tier, 2)
        assert tier.state.attempts == {}
        assert await world.reads_back(QUEUE) == 2


def test_names_of_unknown_queues_that_had_tombstones_may_have_been_used() -> None:
    state = TierState()
    state.apply([AddTombstones((Tombstone("@parts/x", 0, "test"),))])
    assert state.used_below_of_new_queues == (0, 0)
    state.apply([AddTombstones((Tombstone(segment_name(NEVER, LOG, 0), 0, "test"),))])
    assert state.used_below_of_new_queues is None


def test_an_announcement_of_an_earlier_owner_is_made_again() -> None:
    state = TierState()
    first = announcements(state, [QUEUE, NEVER], epoch=1, now_ms=5)
    assert [one.attempt.output_prefix for one in first] == [f"{QUEUE}/", f"{NEVER}/"]
    state.apply(first)
    assert announcements(state, [QUEUE, NEVER], epoch=1, now_ms=6) == []
    again = announcements(state, [NEVER], epoch=2, now_ms=7)
    assert [isinstance(one, PutAttempt) and one.attempt.epoch for one in again] == [2]
    state.apply(taken_up(state, [NEVER]))
    assert [one.output_prefix for one in state.attempts.values()] == [f"{QUEUE}/"]
