"""Compaction: everything is merged at once, by plans that come to an end, and nothing is lost."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from container.index.options import IndexOptions
from container.lookup.find import find_messages
from container.lookup.query import KeyQuery, LookupLimits
from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from container.queue.repack_plan import is_compacted
from container.tier import Tier
from container.tier_view import TierReader
from container.upkeep.compaction import CompactionLimits, plan_compaction
from provider.errors import Fenced
from provider.testing.faulty import Crashed, Fault, Kind
from tests.support.messages import TOPIC
from tests.support.owned_tier import OwnedWorld, live_segments
from tests.support.owned_tier import put as put_any
from tests.support.store_reader import queue_contents

QUEUES = [QueueId(TOPIC, number) for number in range(4)]
OTHER = [QueueId("Other", number) for number in range(2)]
TIER = TierOptions(cut_grace_hours=0, commit_log_bytes_max=2_500, extent_bytes_max=4_000)
UPKEEP = UpkeepOptions(
    interval_s=1e6,
    backoff_s_max=1e6,
    snapshot_entries_max=10_000,
    grace_s=50.0,
    seal_bytes_min=5_000,
    seal_wait_s_max=1e6,
    repack_bytes_max=10_000,
)
INDEX = IndexOptions(items_max=10, finish_items_min=1, merged_items_max=400)


def world(index: IndexOptions | None = None, **tier: int) -> OwnedWorld:
    return OwnedWorld(replace(TIER, **tier), UPKEEP, packed=True, index=index)


def limits(w: OwnedWorld, queues: Sequence[QueueId] | None = None) -> CompactionLimits:
    return CompactionLimits(w.upkeep, w.options.extent_bytes_max, w.packed, w.index, queues)


async def put(tier: Tier, *queues: QueueId, count: int = 1, body_bytes: int = 60) -> None:
    await put_any(tier, count, *queues, body_bytes=body_bytes)


async def filled(w: OwnedWorld, rounds: int = 30, seed: int = 1) -> None:
    """Rounds of a few of all queues."""
    rng = random.Random(seed)
    async with w.owned() as tier:
        for _ in range(rounds):
            await put(tier, *rng.sample([*QUEUES, *OTHER], rng.randint(1, 6)))
            await w.clock.advance(1.0)


async def contents(w: OwnedWorld) -> dict[QueueId, int]:
    """How many messages each queue reads back, all checksums compared."""
    reader = await TierReader.open(w.memory, verify=True)
    assert await w.findings(reader) == []
    queues = sorted(reader.state.queues)
    return {queue: len((await queue_contents(reader, queue)).offsets) for queue in queues}


async def compacted(w: OwnedWorld, tier: Tier) -> int:
    """Compact, compare with what was planned; how many bytes were rewritten."""
    said: list[int] = []
    plan = plan_compaction(tier.state, limits(w), now_ms=w.clock.now_ms())
    failures = await tier.upkeep.compact(limits(w), jobs_max=3, on_progress=said.append)
    assert failures == []
    assert sum(said) >= plan.bytes
    return sum(said)


@pytest.mark.parametrize("seed", range(5))
async def test_few_objects_are_left_and_everything_reads_back(seed: int) -> None:
    w = world()
    await filled(w, rounds=40, seed=seed)
    before = await contents(w)
    async with w.owned() as tier:
        plan = plan_compaction(tier.state, limits(w), now_ms=w.clock.now_ms())
        assert plan.parts.before.parts == 40
        await compacted(w, tier)
        held = sum(segment.size for segment in live_segments(tier))
        assert len(tier.state.parts) <= 2 + 2 * held // UPKEEP.repack_bytes_max
        closed = [one for one in live_segments(tier) if one.sealed_ms is not None]
        assert closed
        assert all(is_compacted(one, UPKEEP.repack_bytes_max) for one in closed)
        again = plan_compaction(tier.state, limits(w), now_ms=w.clock.now_ms())
        assert again.is_empty, "a compaction goes on to its end"
        names = await w.names("@parts/")
        assert len(names) == len(tier.state.parts) + 40, "the old ones stay for the grace time"
        assert len(tier.state.tombstones) == 40
    assert await contents(w) == before


async def test_a_plan_says_what_is_left() -> None:
    w = world(commit_log_bytes_max=1_000_000)
    await filled(w)
    async with w.owned() as tier:
        plan = plan_compaction(tier.state, limits(w), now_ms=w.clock.now_ms())
        assert plan.parts.after.parts < plan.parts.before.parts
        assert await compacted(w, tier) == plan.bytes
        assert len(tier.state.parts) == plan.parts.after.parts
        extents = sum(len(segment.extents) for segment in live_segments(tier))
        assert extents == plan.parts.after.extents


async def test_only_queues_that_are_asked_for_are_rewritten() -> None:
    w = world()
    await filled(w)
    before = await contents(w)
    async with w.owned() as tier:
        untouched = [tier.queue(queue) for queue in OTHER]
        asked = limits(w, QUEUES)
        assert await tier.upkeep.compact(asked, jobs_max=1, on_progress=lambda _: None) == []
        assert [tier.queue(queue) for queue in OTHER] == untouched
        for queue in QUEUES:
            record = tier.queue(queue)
            assert record is not None
            assert all(len(one.extents) <= 3 for one in record.consume_queue)
        assert plan_compaction(tier.state, asked, now_ms=w.clock.now_ms()).is_empty
    assert await contents(w) == before


async def test_index_files_become_one_and_answer_as_before() -> None:
    w = world(INDEX)
    async with w.owned(replace(UPKEEP, interval_s=1.0)) as tier:
        for _ in range(6):
            await put(tier, *QUEUES, count=3)
            await w.pass_time(2)
        many = len(tier.state.index_files)
    w.kill_all()
    async with w.owned() as tier:
        plan = plan_compaction(tier.state, limits(w), now_ms=w.clock.now_ms())
        assert plan.index_files_saved == many - 1 > 0
        await compacted(w, tier)
        assert len(tier.state.index_files) == 1
        found = await find_messages(
            tier, KeyQuery(TOPIC, "key-7", 99), limits=LookupLimits(scan_bytes_max=0)
        )
        assert len(found.messages) == len(QUEUES)
    assert await w.findings() == []


async def test_a_damaged_queue_is_told_and_all_others_are_compacted() -> None:
    w = world(commit_log_bytes_max=1_000_000)
    async with w.owned() as tier:
        for _ in range(8):
            await put(tier, *QUEUES)
        record = tier.queue(QUEUES[2])
        assert record is not None
        hurt = record.commit_log[0].extents[1]
        w.memory._shared.objects[hurt.object_name][hurt.object_offset + 50] ^= 1
        (damage,) = await tier.upkeep.compact(limits(w), jobs_max=2, on_progress=lambda _: None)
        assert (damage.path, damage.position) == (hurt.object_name, hurt.object_offset)
        left = {one.id: len(one.commit_log[0].extents) for one in tier.state.queues.values()}
        assert left.pop(QUEUES[2]) == 8
        assert set(left.values()) == {1}
        w.memory._shared.objects[hurt.object_name][hurt.object_offset + 50] ^= 1


async def test_what_is_due_is_deleted_however_much_it_is() -> None:
    w = world()
    await filled(w)
    few = replace(UPKEEP, tombstones_per_step_max=4)
    async with w.owned(few) as tier:
        await compacted(w, tier)
        names = await w.names("@parts/")
        await w.clock.advance(60.0)
        assert plan_compaction(tier.state, limits(w), now_ms=w.clock.now_ms()).due == len(
            tier.state.tombstones
        )
        await compacted(w, tier)
        assert await w.names("@parts/") == tier.state.parts.keys() < names
        assert not tier.state.tombstones


async def test_a_compaction_that_is_fenced_ends_and_its_successor_finishes() -> None:
    w = world()
    await filled(w)
    before = await contents(w)
    async with w.owned() as tier, w.owned() as rival:
        with pytest.raises(Fenced):
            await compacted(w, tier)
        await compacted(w, rival)
        assert plan_compaction(rival.state, limits(w), now_ms=w.clock.now_ms()).is_empty
        await rival.close()
    assert await contents(w) == before


@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
async def test_whatever_request_it_dies_at_nothing_is_lost(kind: Kind) -> None:
    """Each request of a compaction in turn is the last that its process makes."""
    number, is_done = 1, False
    while not is_done:
        w = world(INDEX)
        before = await indexed(w)
        try:
            async with w.owned() as tier:
                w.stores[-1].faults = [Fault(kind, calls=(number,))]
                await compacted(w, tier)
                is_done = not w.stores[-1].struck
        except* Crashed:
            pass
        w.kill_all()
        assert await contents(w) == before
        async with w.owned() as tier:
            await compacted(w, tier)
            assert plan_compaction(tier.state, limits(w), now_ms=w.clock.now_ms()).is_empty
            assert len(tier.state.index_files) == 1
            await tier.close()  # which finds what the dead one has left
        assert await contents(w) == before
        number += 1
    assert number > 10


async def indexed(w: OwnedWorld) -> dict[QueueId, int]:
    """Rounds with an index file each, and what there is to read."""
    async with w.owned(replace(UPKEEP, interval_s=1.0, seal_bytes_min=10**6)) as tier:
        for number in range(4):
            await put(tier, QUEUES[0], QUEUES[1 + number % 2], count=3)
            await w.pass_time(2)
        assert len(tier.state.index_files) > 1
    w.kill_all()
    return await contents(w)
