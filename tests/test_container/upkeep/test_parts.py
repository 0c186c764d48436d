"""A tier over a store of immutable objects: its parts, and which of them may go."""

import asyncio
import random
from dataclasses import replace

import pytest

from container.check.tier import check_tier
from container.names.queue_id import QueueId, SegmentType
from container.options import HOUR_MS, JournalOptions, TierOptions, UpkeepOptions
from container.tier import Tier
from provider.errors import Unavailable
from provider.ranges import QueueOffset
from provider.stores.packed_segments import PackedSegments, PartName
from provider.testing.faulty import Fault
from provider.testing.manual_clock import settle
from tests.support.messages import TOPIC, make_batch
from tests.support.owned_tier import OwnedWorld, planned
from tests.support.owned_tier import put as put_any

QUEUES = [QueueId(TOPIC, number) for number in range(3)]
TIER = TierOptions(
    commit_log_bytes_max=2_000,
    consume_queue_bytes_max=200,
    extent_bytes_max=1_000,
    cut_grace_hours=1,
)
UPKEEP = UpkeepOptions(
    interval_s=1.0,
    snapshot_entries_max=3,
    grace_s=10.0,
    sealed_segments_max=1,
    manifests_per_level_max=2,
)


class World(OwnedWorld):
    """Owners over immutable objects; nobody may append."""

    def __init__(self) -> None:
        super().__init__(TIER, UPKEEP, packed=True)

    async def parts(self) -> set[str]:
        return await self.names("@parts/")


async def put(tier: Tier, count: int, *queues: QueueId) -> None:
    await put_any(tier, count, *queues, body_bytes=60)


async def test_a_round_of_many_queues_is_one_part_and_one_entry() -> None:
    world = World()
    async with world.owned() as tier:
        await put(tier, 5, *QUEUES)
        await put(tier, 5, *QUEUES)
        assert len(await world.parts()) == 2
        assert {one.name[0] for one in await world.memory.list("")} == {"@"}
        for queue in QUEUES:
            assert await world.reads_back(queue) == 10


async def test_gaps_cuts_and_owners_beside_each_other_leave_a_sound_tier() -> None:
    world = World()
    async with world.owned() as first:
        await put(first, 30, *QUEUES)
        await first.record_gap(QUEUES[0], QueueOffset(30), QueueOffset(40), "deleted")
        await put(first, 9, *QUEUES)
        before = await world.parts()
        await first.cut_queue(QUEUES[1], QueueOffset(17), "the hot log was rewritten")
        assert not {name for name in first.state.tombstones if PartName.parse(name)}  # shared
        assert await world.parts() == before
        async with world.owned() as second:
            await put(second, 4, *QUEUES)
            record = second.queue(QUEUES[0])
            assert record is not None
            assert {one.epoch for one in record.commit_log} <= {1, 2}
            assert not any(
                one.object_name.startswith(TOPIC) for one in record.commit_log[-1].extents
            )
            await second.cut_queue(QUEUES[2], QueueOffset(0), "all of it")
            await put(second, 2, QUEUES[2])
    assert [await world.reads_back(queue) for queue in QUEUES] == [43, 21, 2]


async def test_more_parts_go_than_one_transaction_could_name() -> None:
    world = World()
    async with world.owned() as first:
        await put(first, 5, *QUEUES)
    lost = {str(PartName(1, f"{number:032x}")) for number in range(1_300)}
    for name in lost:
        await world.memory.create(name, [b"x"])
    async with world.owned(journal=JournalOptions(transaction_bytes_max=150_000)) as second:
        await settle(3)
        await second.close()
        assert second.upkeep.statistics().last_error == ""
        assert second.state.tombstones.keys() >= lost
    assert [await world.reads_back(queue) for queue in QUEUES] == [5, 5, 5]


async def left_unpublished(world: World) -> set[str]:
    """An owner publishes a little, and makes a part that it does not publish."""
    async with world.owned() as tier:
        await put(tier, 3, *QUEUES)
        published = await world.parts()
        batch = make_batch(3, 2, 60, random.Random(1), topic=TOPIC, queue_id=0)
        await tier._segments.write(tier.plan_commit(QUEUES[0], batch).slices)
        return await world.parts() - published


async def test_a_part_that_a_dead_owner_never_published_goes_after_the_grace_of_cuts() -> None:
    world = World()
    left = await left_unpublished(world)
    assert len(left) == 1
    async with world.owned() as tier:
        for _ in range(4):
            await put(tier, 1, *QUEUES)
        await world.pass_time(20.0)
        assert tier.upkeep.statistics().figures["parts_unreferenced"] == 1
        assert left == {name for name in tier.state.tombstones if PartName.parse(name)}
        assert left < await world.parts()
        await world.pass_time(HOUR_MS / 1000 + 60)
        assert not left & await world.parts()
        assert tier.upkeep.statistics().last_error == ""
    assert [await world.reads_back(queue) for queue in QUEUES] == [7, 7, 7]


async def test_a_part_that_is_deleted_while_parts_are_listed_is_not_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The steps of a clean end run side by side."""
    world, listed = World(), PackedSegments.earlier_objects
    async with world.owned() as first:
        await put(first, 5, *QUEUES)
    async with world.owned() as second:
        await second.delete_topic(TOPIC)

        async def deleted_meanwhile(self: PackedSegments) -> list[str]:
            names = await listed(self)
            assert names
            (deletion,) = [
                one.step for one in second.upkeep._scheduled if one.step.name == "tombstones"
            ]
            await deletion.finish()
            return names

        monkeypatch.setattr(PackedSegments, "earlier_objects", deleted_meanwhile)
        await second.close()
        assert await world.parts() == set()
        assert second.state.tombstones == {}


async def test_a_part_that_only_another_queues_manifest_names_is_kept() -> None:
    world = World()
    async with world.owned() as first:
        for _ in range(20):
            await put(first, 6, *QUEUES)
        await world.pass_time(20.0)
        await first.cut_queue(QUEUES[0], QueueOffset(0), "all of it")
        await first.cut_queue(QUEUES[1], QueueOffset(0), "all of it")
        await first.close()
    async with world.owned() as second:
        record = second.queue(QUEUES[2])
        assert record is not None
        assert {ref.type for ref in record.manifests} == set(SegmentType) - {SegmentType.INDEX}
        for _ in range(4):
            await put(second, 1, QUEUES[2])
        await world.pass_time(20.0)
        await world.pass_time(2 * HOUR_MS / 1000)
        assert second.upkeep.statistics().last_error == ""
        assert second.upkeep.statistics().figures["parts_unreferenced"] == 0
    assert await world.reads_back(QUEUES[2]) == 124
    assert await world.reads_back(QUEUES[0]) == 0


async def test_a_part_goes_when_the_last_queue_lets_go_of_it() -> None:
    world = World()
    async with world.owned() as tier:
        for _ in range(3):
            await put(tier, 6, *QUEUES)
        for queue in QUEUES:
            assert not tier.state.tombstones
            await tier.cut_queue(queue, QueueOffset(6), "rewritten")
        dead = {name: one for name, one in tier.state.tombstones.items() if PartName.parse(name)}
        assert len(dead) == 2
        grace_ms = {one.not_before_ms - world.clock.now_ms() for one in dead.values()}
        assert grace_ms == {HOUR_MS}
        await put(tier, 4, *QUEUES)
        await world.pass_time(2 * HOUR_MS / 1000)
        assert tier.upkeep.statistics().last_error == ""
    assert len(await world.parts()) == 2
    assert [await world.reads_back(queue) for queue in QUEUES] == [10, 10, 10]


async def test_deleting_every_topic_frees_every_part() -> None:
    world = World()
    async with world.owned() as tier:
        for _ in range(20):  # much of it moves to manifests
            await put(tier, 6, *QUEUES)
        await world.pass_time(20.0)
        assert all(one.manifests for one in tier.state.queues.values())
        await tier.delete_topic(TOPIC)
        assert not tier.state.parts
        await world.pass_time(60.0)
        assert await world.parts() == set()
        assert not tier.state.tombstones


async def test_what_expires_frees_its_parts() -> None:
    world = World()
    expiring = replace(UPKEEP, expires=True, topic_bytes_max=4_000, expiry_interval_s=5.0)
    async with world.owned(expiring) as tier:
        for _ in range(40):
            await put(tier, 6, *QUEUES)
        await world.pass_time(300.0)
        assert min(one.min_offset for one in tier.state.queues.values()) > 0
        assert len(await world.parts()) == len(tier.state.parts) < 20
        assert tier.upkeep.statistics().last_error == ""


async def test_a_part_whose_entry_is_refused_goes_with_its_own_owner() -> None:
    world = World()
    async with world.owned() as tier:
        await put(tier, 3, *QUEUES)
        plan = planned(tier, 2, QUEUES[0])
        await put(tier, 1, QUEUES[0])
        with pytest.raises(Unavailable, match="plan again"):
            await tier.commit([plan])
        assert len(await world.parts()) == 3
        await world.pass_time(2 * HOUR_MS / 1000)
        assert len(await world.parts()) == 2


async def test_a_part_of_a_failed_write_goes_with_its_own_owner() -> None:
    world = World()
    async with world.owned() as tier:
        await put(tier, 3, *QUEUES)
        (store,) = world.stores
        store.faults = [
            Fault("lost_reply", "create", "@parts/", calls=(1,)),
            Fault("refused", "create", "@parts/", calls=(2,)),
        ]
        with pytest.raises(Unavailable):
            await put(tier, 1, QUEUES[0])
        await put(tier, 1, QUEUES[0])
        assert len(await world.parts()) == 3
        await world.pass_time(2 * HOUR_MS / 1000)
        assert len(await world.parts()) == 2 == len(tier.state.parts)


async def test_a_clean_end_leaves_nothing_for_check_to_find() -> None:
    world = World()
    left = await left_unpublished(world)
    async with world.owned() as tier:
        found = [one.path async for one in check_tier(tier) if one.finding == "orphan"]
        assert set(found) == left
        await tier.close()
    assert await world.reads_back(QUEUES[0]) == 3


async def test_a_part_whose_reply_is_slow_is_no_part_of_an_earlier_owner() -> None:
    """The search meets it in storage, and in no record yet: its own epoch keeps it."""
    world = World()
    async with world.owned() as tier:
        await put(tier, 5, QUEUES[0])
    world.kill_all()
    world.options = replace(TIER, cut_grace_hours=0)
    async with world.owned(replace(UPKEEP, grace_s=0.0)) as tier:
        world.stores[-1].faults = (
            Fault("slow_reply", "create", "@parts/", calls=(1,), delay_s=60.0),
        )
        async with asyncio.TaskGroup() as group:
            late = group.create_task(put(tier, 5, QUEUES[0]))
            await settle()
            for _ in range(UPKEEP.snapshot_entries_max):
                await put(tier, 5, QUEUES[1])
            await world.pass_time(40)
            assert world.stores[-1].listed["@parts/"] == 1
            assert not late.done()
            await world.pass_time(40)
        assert await world.reads_back(QUEUES[0]) == 10
