"""Files that an owner made and never published: found once, deleted late, and nothing else is."""

import asyncio
from dataclasses import replace

import pytest

from container.metadata.operations import AddTombstones
from container.metadata.records import Tombstone
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.names.tier_objects import KeptName
from container.options import TierOptions, UpkeepOptions
from container.record.unit import UNIT_BYTES
from container.upkeep.garbage import sort_files
from provider.object_store import Append, ObjectEntry
from provider.ranges import QueueOffset
from provider.testing.faulty import Fault
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, planned, put

LOG = SegmentType.COMMIT_LOG
TIER = TierOptions(
    commit_log_bytes_max=4_000,
    consume_queue_bytes_max=400,
    extent_bytes_max=1_000,
)
UPKEEP = UpkeepOptions(
    snapshot_entries_max=3, interval_s=1.0, grace_s=60.0, orphan_queues_per_step_max=4
)


class World(OwnedWorld):
    """Owners whose segments are files."""

    def __init__(self) -> None:
        super().__init__(TIER, UPKEEP)

    async def left_unpublished(self, count: int = 60) -> set[str]:
        """An owner publishes a little, and writes more, which it cannot publish; new files."""
        async with self.owned() as tier:
            await put(tier, 3)
            before = await self.names()
            plan = planned(tier, count)
            parts = [Append(one.segment, one.position, one.buffers) for one in plan.slices]
            await self.stores[-1].append(parts)
            return await self.names() - before


async def test_files_that_a_fenced_owner_left_are_found_and_then_deleted() -> None:
    world = World()
    left = await world.left_unpublished()
    assert len(left) > 4
    async with world.owned(UpkeepOptions(grace_s=UPKEEP.grace_s, interval_s=1.0)) as tier:
        # The first one lives, so this one begins its segments elsewhere.
        for _ in range(10):
            await put(tier, 7)
        found = await world.findings(tier)
        assert len(found) == len(left)
        assert all("orphan" in one for one in found)
        await world.clock.advance(UPKEEP.snapshot_age_s_max + 3)
        assert tier.upkeep.statistics().figures["orphans"] == len(left)
        assert left <= await world.names(), "nothing is deleted without a tombstone that is due"
        assert left <= tier.state.tombstones.keys()
        assert await world.findings(tier) == []
        await world.clock.advance(UPKEEP.grace_s + 3)
        assert not left & await world.names()
        assert tier.state.tombstones == {}
        assert await world.findings(tier) == []
        assert tier.upkeep.statistics().figures["objects_deleted"] == len(left)


async def test_a_queue_that_is_cut_while_it_is_searched_is_searched_again() -> None:
    world = World()
    left = await world.left_unpublished()
    async with world.owned(UpkeepOptions(grace_s=UPKEEP.grace_s, interval_s=1.0)) as tier:
        for _ in range(10):
            await put(tier, 7)
        store = world.stores[-1]
        list_names, tombstones = store.list, [0]

        async def cut_after_listing(prefix: str, *, after: str = "") -> list[ObjectEntry]:
            listed = await list_names(prefix, after=after)
            if prefix == f"{QUEUE}/":
                tombstones.append(tier.upkeep.statistics().figures["orphans"])
                if len(tombstones) == 2:
                    await tier.cut_queue(QUEUE, QueueOffset(66), "test")
                    await put(tier, 7)
            return listed

        store.list = cut_after_listing  # type: ignore[method-assign]
        await world.clock.advance(UPKEEP.snapshot_age_s_max + 5)
        assert tombstones == [0, 0, 0], "listed twice, and nothing was found by the first listing"
        assert tier.upkeep.statistics().figures["orphans"] == len(left)
        assert await world.findings(tier) == []


async def test_files_above_the_published_end_wait_until_it_has_passed_them() -> None:
    world = World()
    left = await world.left_unpublished()
    async with world.owned() as tier:
        await put(tier, 1)
        await put(tier, 1)
        await world.clock.advance(3 * UPKEEP.grace_s)
        figures = tier.upkeep.statistics().figures
        assert figures["snapshots"] > 0
        assert figures["orphans"] < len(left)
        await put(tier, 100)
        await world.clock.advance(3)
        assert tier.upkeep.statistics().figures["orphans"] == len(left)
        await world.clock.advance(UPKEEP.grace_s + 3)
        assert not left & await world.names()
        assert await world.findings(tier) == []


@pytest.mark.leaves_findings("orphan", why="files of others stay")
async def test_what_somebody_else_put_there_stays_and_is_reported() -> None:
    world = World()
    await world.left_unpublished(1)
    base = segment_name(QUEUE, LOG, 17)
    strangers = {
        f"{QUEUE}/notes",
        f"{base}.bak",
        f"{QUEUE}/COMMIT_LOG/copy/{base.rpartition('/')[2]}",
        f"{QUEUE}/COMMIT_LOG/00000000{17:020d}",
        f"{TOPIC}/00/COMMIT_LOG/{base.rpartition('/')[2]}",
        segment_name(QUEUE, SegmentType.CONSUME_QUEUE, 20).replace("CONSUME_QUEUE", "INDEX"),
    }
    for name in strangers:
        await world.memory.create(name, [b"mine"])
    foreign = segment_name(QueueId("Elsewhere", 0), LOG, 17)
    await world.memory.create(foreign, [b"mine"])
    async with world.owned() as tier:
        for _ in range(10):
            await put(tier, 7)
        await world.clock.advance(3 * UPKEEP.grace_s)
        assert tier.upkeep.statistics().figures["snapshots"] > 0
        assert strangers <= await world.names()
        assert (await world.memory.read(foreign)) == b"mine"
        found = " ".join(await world.findings(tier))
        assert all(name in found for name in strangers)


async def test_orphans_among_segments_that_moved_to_manifests_are_found() -> None:
    world = World()
    options = UpkeepOptions(
        snapshot_entries_max=3, interval_s=1.0, grace_s=0.0, sealed_segments_max=1
    )
    left = await world.left_unpublished()
    async with world.owned(UpkeepOptions(snapshot_entries_max=10**6)) as tier:
        for _ in range(20):
            await put(tier, 7)  # it never searches
    world.kill_all()
    async with world.owned(options) as tier:
        await put(tier, 1)
        await world.clock.advance(20)
        queue = tier.queue(QUEUE)
        assert queue is not None
        assert len(queue.manifests) > 0
        assert not left & await world.names()
        assert await world.findings(tier) == []


async def test_an_orphan_in_the_place_of_an_offloaded_file_is_not_counted_as_that() -> None:
    world = World()
    options = UpkeepOptions(snapshot_entries_max=3, interval_s=1.0, sealed_segments_max=1)
    async with world.owned(options) as tier:
        for _ in range(20):
            await put(tier, 7)
        await world.clock.advance(20)
        queue = tier.queue(QUEUE)
        assert queue is not None
        ref = queue.manifests[0]
        orphan = segment_name(QUEUE, ref.type, ref.base + UNIT_BYTES)
        assert sort_files(tier.state, QUEUE, [orphan]).doubtful == ()
        state = tier.state.copy()
        state.queues[QUEUE] = replace(queue, repacks=1)
        assert sort_files(state, QUEUE, [orphan]).doubtful == ((ref, (orphan,)),)


async def test_whole_manifests_are_not_read_and_each_queue_is_listed_once() -> None:
    world = World()
    queues = [QueueId(TOPIC, number) for number in range(10)]
    options = UpkeepOptions(
        snapshot_entries_max=3,
        interval_s=1.0,
        grace_s=0.0,
        sealed_segments_max=1,
        orphan_queues_per_step_max=4,
    )
    async with world.owned(options) as tier:
        for _ in range(10):
            for queue in queues:
                await put(tier, 15, queue)
        await world.clock.advance(20)
        assert all(record.manifests for record in tier.state.queues.values())
        assert not any(prefix.startswith(TOPIC) for prefix in world.stores[0].listed)
    async with world.owned() as tier:
        store = world.stores[1]
        at_start = store.calls.copy()
        await world.clock.advance(UPKEEP.snapshot_age_s_max - 5)
        assert store.calls == at_start, "nothing is looked for before the first snapshot"
        await world.clock.advance(60)
        assert tier.upkeep.statistics().figures["snapshots"] == 1
        spent = store.calls - at_start
        # One listing for each queue, for manifests, for copies, and for the boundary.
        assert {prefix: n for prefix, n in store.listed.items() if prefix.startswith(TOPIC)} == {
            f"{queue}/": 1 for queue in queues
        }
        assert store.listed["@manifest/"] == store.listed["@cut/"] == 1
        assert spent["read"] <= 1, "the snapshot is read back, and no manifest is"
        await world.pass_time(3_600)
        before = store.calls.copy()
        await world.pass_time(3_600)
        assert store.calls == before, "an idle store asks for nothing"


async def test_a_search_that_fails_goes_on_in_the_next_round() -> None:
    world = World()
    left = await world.left_unpublished()
    async with world.owned() as tier:
        store = world.stores[-1]
        store.faults = (Fault("refused", verb="list", prefix=f"{TOPIC}/"),)
        for _ in range(10):
            await put(tier, 7)
        await world.clock.advance(5)
        assert tier.upkeep.statistics().figures["orphans"] == 0
        assert tier.upkeep.statistics().last_error
        store.faults = ()
        await world.clock.advance(5)
        assert tier.upkeep.statistics().figures["orphans"] == len(left)


@pytest.mark.leaves_findings("unknown-object", why="strangers lie below `@`")
async def test_copies_of_a_cut_that_was_never_published_are_deleted() -> None:
    world = World()
    orphan = str(KeptName(1, 7, segment_name(QUEUE, LOG, 0)))
    strangers = ["@cut/notes", "@cut/0000000001-00000000000000000007/notes"]
    async with world.owned() as tier:
        await put(tier, 40)
        await tier.cut_queue(QUEUE, QueueOffset(0), "the hot log was rewritten")
        kept = {entry.name for entry in await world.memory.list("@cut/")}
        assert kept
    world.kill_all()
    await world.memory.append([Append(name, 0, (b"x",)) for name in (orphan, *strangers)])
    async with world.owned() as tier:
        for _ in range(4):
            await put(tier, 1)
        await world.clock.advance(UPKEEP.grace_s + 5)
        left = {entry.name for entry in await world.memory.list("@cut/")}
        assert left == {*kept, *strangers}


async def test_the_first_owner_and_names_in_tombstones_are_not_looked_at_again() -> None:
    world = World()
    async with world.owned() as tier:
        for _ in range(10):
            await put(tier, 7)
        await world.clock.advance(10)
        assert tier.upkeep.statistics().figures["snapshots"] > 0
        assert not any(prefix.startswith(TOPIC) for prefix in world.stores[0].listed)
        name = segment_name(QUEUE, LOG, 1)
        files = sort_files(tier.state, QUEUE, [name])
        assert (files.orphans, files.above, files.doubtful) == ((name,), (), ())
        tier.state.apply([AddTombstones((Tombstone(name, 0, "test"),))])
        assert sort_files(tier.state, QUEUE, [name]).orphans == ()


@pytest.mark.parametrize("kind", [LOG, SegmentType.CONSUME_QUEUE])
async def test_files_of_live_segments_and_at_the_end_are_never_orphans(kind: SegmentType) -> None:
    world = World()
    async with world.owned() as tier:
        for _ in range(10):
            await put(tier, 7)
        queue = tier.queue(QUEUE)
        assert queue is not None
        live = [segment_name(QUEUE, kind, segment.base) for segment in queue.segments(kind)]
        end = segment_name(QUEUE, kind, queue.flat_end(kind))
        files = sort_files(tier.state, QUEUE, [*live, end])
        assert (files.orphans, files.above, files.doubtful) == ((), (end,), ())
        unknown = sort_files(tier.state, QueueId("Elsewhere", 0), [*live, end])
        assert (unknown.orphans, unknown.above) == ((), ())


async def test_after_a_clean_end_nothing_is_left_over() -> None:
    """However short an owner lived: the next commands are not told of orphans."""
    world = World()
    left = await world.left_unpublished()
    async with world.owned(UpkeepOptions(snapshot_entries_max=10**6, grace_s=1.0)) as tier:
        for _ in range(10):
            await put(tier, 7)
        assert len(await world.findings(tier)) == len(left)
        closing = asyncio.ensure_future(tier.close())
        await world.clock.advance(1)
        await closing
        assert left <= await world.names(), "nothing is deleted before its tombstone is due"
        assert await world.findings(tier) == []
    world.kill_all()
    async with world.owned() as tier:
        await put(tier, 100)
        await world.clock.advance(UPKEEP.snapshot_age_s_max + 3 * UPKEEP.grace_s)
        assert not left & await world.names()
        assert await world.findings(tier) == []
