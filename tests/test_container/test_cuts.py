"""Cutting the tail of a queue while its record, its manifests and its files change."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from container.errors import Refused
from container.metadata.operations import (
    CutQueue,
    DropQueue,
    DropTombstones,
    MoveToManifest,
    TrimQueue,
)
from container.metadata.records import Queue, QueueBasis, Tombstone
from container.names.queue_id import SegmentType
from container.names.rocketmq import segment_name
from container.options import TierOptions, UpkeepOptions
from container.queue.manifest import name_manifest, plan_manifest, write_manifest
from container.queue.truncate import cut_queue
from container.tier import Tier
from provider.errors import Unavailable
from provider.ranges import QueueOffset
from provider.testing.faulty import Fault
from provider.testing.manual_clock import settle
from tests.support.owned_tier import QUEUE, OwnedWorld, put

UNITS = SegmentType.CONSUME_QUEUE
TIER = TierOptions(
    commit_log_bytes_max=2_000,
    consume_queue_bytes_max=200,
    extent_bytes_max=1_000,
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
        name = name_manifest(QUEUE, plan.segments, 0, epoch=1, rng=Random(7))
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


BUSY = UpkeepOptions(interval_s=1.0, grace_s=0.0, snapshot_entries_max=10**6)


async def test_d2_a_paused_deletion_of_a_former_owner_reaches_no_file_of_a_newer_one() -> None:
    """A name is freed by a cut, deleted by two owners, and wanted again after a second cut."""
    here = OwnedWorld(replace(TIER, cut_grace_hours=0), BUSY)
    async with here.owned() as former:
        await put(former, 40)
        await former.cut_queue(QUEUE, QueueOffset(15), "rewritten")
        await put(former, 30)
        freed = segment_name(QUEUE, UNITS, 20 * 20)
        assert freed in former.state.tombstones
        paused = here.stores[-1]
        paused.faults = (Fault("stalled", "delete", f"{QUEUE}/"),)
        await here.pass_time(3)  # it has verified that it owns the tier, and sleeps
        assert paused.struck["stalled"] == 1
        async with here.owned() as newer:
            await here.pass_time(3)
            assert freed not in newer.state.tombstones
            assert freed not in await here.names()
            await newer.cut_queue(QUEUE, QueueOffset(20), "rewritten")
            with pytest.raises(Unavailable, match="end that process"):
                await put(newer, 20)
            paused.released.set()
            await settle(100)
            here.clients[0].kill()
            await put(newer, 20)
            assert freed in await here.names()
            assert await here.reads_back() == 40


async def test_an_owner_beside_another_begins_names_again_that_were_never_used() -> None:
    here = OwnedWorld(TIER, QUIET)
    async with here.owned() as former:
        await put(former, 40)
        await former.cut_queue(QUEUE, QueueOffset(15), "rewritten")
        await put(former, 40)
        async with here.owned() as newer:
            await put(newer, 40)
            assert await here.reads_back() == 95


@pytest.mark.parametrize("alone", [True, False])
async def test_in_a_record_of_an_older_program_every_name_may_have_been_used(
    *, alone: bool
) -> None:
    here = OwnedWorld(TIER, QUIET)
    async with here.owned() as former:
        await put(former, 15)
        if alone:
            here.kill_all()
        async with here.owned() as newer:
            newer.state.queues[QUEUE] = replace(record(newer), used_below=None)
            if alone:
                await put(newer, 40)
            else:
                with pytest.raises(Unavailable, match="end that process"):
                    await put(newer, 40)


async def test_a_queue_that_is_made_again_after_it_was_dropped_goes_on_counting() -> None:
    here = OwnedWorld(TIER, QUIET)
    async with here.owned() as tier:
        await put(tier, 15)
        await tier.cut_queue(QUEUE, QueueOffset(5), "rewritten")
        names = tuple(Tombstone(name, 0, "dropped") for name in await here.names())
        await tier.journal.publish([DropQueue(QUEUE, names, QueueBasis.of(record(tier)))])
        await here.memory.delete([one.object_name for one in names])
        await tier.journal.publish([DropTombstones(tuple(tier.state.tombstones))])
        await put(tier, 3)
        assert record(tier).generation == 2
        assert record(tier).used_below is None
        await tier.cut_queue(QUEUE, QueueOffset(0), "rewritten")
        assert record(tier).generation == 3
    await here.memory.delete(list(await here.names("@cut/")))
    assert await here.reads_back() == 0


@pytest.mark.parametrize("kind", ["stalled", "late"])
async def test_d2_a_file_that_is_being_deleted_is_not_begun_again_by_its_own_owner(kind) -> None:
    here = OwnedWorld(replace(TIER, cut_grace_hours=0), BUSY)
    async with here.owned() as tier:
        await put(tier, 40)
        await tier.cut_queue(QUEUE, QueueOffset(15), "rewritten")
        await put(tier, 30)
        store = here.stores[-1]
        store.faults = (Fault(kind, "delete", f"{QUEUE}/"),)
        await here.pass_time(3)
        await tier.cut_queue(QUEUE, QueueOffset(20), "rewritten")
        if kind == "late":
            with pytest.raises(Unavailable, match="may still land"):
                await put(tier, 20)
            await store.land_late()
            store.faults = ()
        else:
            writing = asyncio.ensure_future(put(tier, 20))
            await settle(100)
            assert not writing.done()
            store.released.set()
            await writing
        await here.pass_time(20)
        if kind == "late":
            await put(tier, 20)
        assert await here.reads_back() == 40
