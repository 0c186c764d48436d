"""Cutting the tail of a queue while its record, its manifests and its files change."""

import asyncio
from random import Random

import pytest

from container.errors import Refused
from container.metadata.operations import CutQueue, DropQueue, MoveToManifest, TrimQueue
from container.metadata.records import Queue, QueueBasis
from container.names.queue_id import SegmentType
from container.options import TierOptions
from container.queue.manifest import name_manifest, plan_manifest, write_manifest
from container.queue.tail_cut import cut_queue
from container.tier import Tier
from container.upkeep.options import UpkeepOptions
from provider.clock import settle
from provider.errors import Unavailable
from provider.ranges import QueueOffset
from provider.testing.faulty import Fault
from tests.support.owned_tier import QUEUE, OwnedWorld, put

TIER = TierOptions(
    commit_log_bytes_max=2_000,
    consume_queue_bytes_max=200,
    extent_bytes_max=1_000,
    takeover_wait_s_max=0,
)
UPKEEP = UpkeepOptions(
    interval_s=1.0,
    grace_s=1.0,
    snapshot_entries_max=10**6,
    sealed_segments_max=1,
    manifests_per_level_max=2,
)
QUIET = UpkeepOptions(interval_s=1e6, snapshot_entries_max=10**6)


def world() -> OwnedWorld:
    return OwnedWorld(TIER, UPKEEP)


def record(tier: Tier) -> Queue:
    found = tier.queue(QUEUE)
    assert found is not None
    return found


def manifests(tier: Tier) -> set[str]:
    return {ref.object_name for ref in record(tier).manifests}


async def stalled_cut(here: OwnedWorld, tier: Tier, to: int) -> "asyncio.Task[None]":
    """A cut that is in the middle of copying what it frees."""
    here.stores[-1].faults = (Fault("stalled", "append", "@cut/"),)
    cut = asyncio.ensure_future(tier.cut_queue(QUEUE, QueueOffset(to), "rewritten"))
    await settle(100)
    assert here.stores[-1].struck["stalled"] == 1
    return cut


async def test_d1_manifests_that_are_merged_while_a_cut_copies_are_not_published_again() -> None:
    here = world()
    async with here.owned() as tier:
        await put(tier, 25)
        await here.pass_time(3)
        await put(tier, 60)
        before = manifests(tier)
        cut = await stalled_cut(here, tier, 70)
        await here.pass_time(20)
        merged = before - manifests(tier)
        assert merged
        assert not merged & await here.names("@manifest/")
        here.stores[-1].released.set()
        await cut
        assert not merged & manifests(tier)
        assert record(tier).generation == 1
        assert await here.reads_back() == 70
        await put(tier, 40)
    assert await here.reads_back() == 110


async def test_messages_that_are_committed_while_a_cut_copies_are_cut_as_well() -> None:
    here = world()
    async with here.owned(QUIET) as tier:
        await put(tier, 50)
        cut = await stalled_cut(here, tier, 20)
        here.stores[-1].faults = ()
        await put(tier, 30)
        here.stores[-1].released.set()
        await cut
        assert record(tier).next_offset == 20
        freed = {name for name in tier.state.tombstones if not name.startswith("@cut/")}
        copies = await here.names("@cut/")
        assert {name.split("/", 2)[2] for name in copies} == freed
        for name in copies:
            assert await here.memory.read(name) == await here.memory.read(name.split("/", 2)[2])
        assert copies <= tier.state.tombstones.keys()
    assert await here.reads_back() == 20


async def test_a_queue_that_never_rests_is_not_cut_for_ever() -> None:
    here = world()
    async with here.owned(QUIET) as tier:
        await put(tier, 50)
        publish = tier.journal.publish

        async def put_before(operations) -> int:
            (operation,) = operations
            if isinstance(operation, CutQueue):
                tier.journal.publish = publish  # type: ignore[method-assign]
                await put(tier, 1)
                tier.journal.publish = put_before  # type: ignore[method-assign]
            return await publish(operations)

        tier.journal.publish = put_before  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="stop what tiers it"):
            await tier.cut_queue(QUEUE, QueueOffset(20), "rewritten")
        tier.journal.publish = publish  # type: ignore[method-assign]
        assert record(tier).generation == 0
    assert await here.reads_back() > 50


async def test_what_is_published_whole_is_refused_on_another_record_than_it_was_planned_on() -> (
    None
):
    """Every operation that replaces a record, or lists all that a record has."""
    here = world()
    async with here.owned() as tier:
        await put(tier, 25)
        await here.pass_time(3)
        await put(tier, 60)
        container = tier.container(QUEUE)
        assert container is not None
        basis = QueueBasis.of(record(tier))
        cut = await cut_queue(container, here.memory, QueueOffset(70), now_ms=0)
        refs = record(tier).manifests
        await here.pass_time(20)
        assert manifests(tier) != set(basis.manifests)
        for stale in (
            CutQueue(cut.queue, "", (), cut.planned_on),
            TrimQueue(QUEUE, QueueOffset(0), QueueOffset(1), 0, 0, refs, (), basis),
            DropQueue(QUEUE, (), basis),
        ):
            with pytest.raises(Refused, match="planned on"):
                await tier.journal.publish([stale])


async def test_a_manifest_of_segments_that_were_cut_and_made_again_is_refused() -> None:
    """The same bases and ends, but other bytes."""
    here = world()
    async with here.owned(QUIET) as tier:
        await put(tier, 50)
        before = record(tier)
        plan = plan_manifest(before, sealed_segments_max=1, manifests_per_level_max=2)
        assert plan is not None
        name = name_manifest(QUEUE, plan, 0, epoch=1, rng=Random(7))
        await tier.cut_queue(QUEUE, QueueOffset(0), "rewritten")
        await put(tier, 50)
        assert [one.end for one in record(tier).commit_log] == [
            one.end for one in before.commit_log
        ]
        ref = await write_manifest(here.memory, name, plan.segments, sequence=1)
        bases = tuple(segment.base for segment in plan.segments)
        move = MoveToManifest(QUEUE, ref, bases, (), (), before.generation)
        with pytest.raises(Refused, match="planned on generation 0"):
            await tier.journal.publish([move])
        await here.memory.delete([str(name)])
    assert record(tier).segments(SegmentType.COMMIT_LOG)
