"""Merging small parts and gathering closed segments, beside commits, cuts and damage."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from container.errors import Refused
from container.metadata.operations import (
    DropQueue,
    MoveToManifest,
    Release,
    RepackedRun,
    RepackSegments,
)
from container.metadata.records import ManifestRef, Queue
from container.move import repack
from container.move.repack import RepackStep
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import parse_segment_name
from container.options import TierOptions, UpkeepOptions
from container.queue.repack_plan import Run, runs_to_merge
from container.queue.truncate import cut_queue
from container.record.unit import UNIT_BYTES
from container.tier import Tier
from container.tier_view import TierReader
from provider.errors import Unavailable
from provider.ranges import ByteRange, QueueOffset, ReadTogether, together
from provider.stores.packed_segments import PackedSegments, PartName
from tests.support.messages import TOPIC, make_batch
from tests.support.owned_tier import OwnedWorld, live_segments, planned
from tests.support.owned_tier import put as put_any
from tests.support.store_reader import queue_contents

QUEUES = [QueueId(TOPIC, number) for number in range(5)]
TIER = TierOptions(cut_grace_hours=0)
UPKEEP = UpkeepOptions(
    interval_s=1.0,
    snapshot_entries_max=1_000,
    grace_s=5.0,
    extents_max=8,
    merge_fan=4,
    merge_extents_min=30,
    seal_bytes_min=20_000,
    seal_wait_s_max=100.0,
    repack_bytes_max=40_000,
)
EXTENTS_MAX = 3 * 3 + 1
"""Of a segment after 64 rounds: three of each level."""


def world(**tier: int) -> OwnedWorld:
    return OwnedWorld(replace(TIER, **tier), UPKEEP, packed=True)


async def put(tier: Tier, count: int, *queues: QueueId) -> None:
    await put_any(tier, count, *queues, body_bytes=60)


async def test_many_rounds_of_thin_queues_leave_few_extents_and_few_parts() -> None:
    w = world()
    async with w.owned() as tier:
        for _ in range(64):
            await put(tier, 1, *QUEUES)
            await w.clock.advance(1.0)
        await w.pass_time(20.0)
        assert max(len(segment.extents) for segment in live_segments(tier)) <= EXTENTS_MAX
        assert await w.names("@parts/") == tier.state.parts.keys()
        assert len(tier.state.parts) <= EXTENTS_MAX
        figures = tier.upkeep.statistics().figures
        content = 64 * len(QUEUES) * (20 + len(make_batch(0, 1, 60, random.Random(0)).data))
        assert 0 < figures["repacked_bytes"] <= 3.5 * content
        assert figures["repack_jobs"] <= 24
        assert tier.upkeep.statistics().last_error == ""
    assert [await w.reads_back(queue) for queue in QUEUES] == [64] * 5


async def test_jobs_of_one_run_are_published_together() -> None:
    """A journal entry costs as much as an object."""
    w = OwnedWorld(TIER, replace(UPKEEP, repack_bytes_max=2_000), packed=True)
    async with w.owned() as tier:
        for _ in range(8):
            await put(tier, 1, *QUEUES)
        before = tier.state.sequence
        await w.pass_time(5.0)
        figures = tier.upkeep.statistics().figures
        assert figures["repack_jobs"] > 3
        assert tier.state.sequence - before <= 2, "the merges, and tombstones of what they replaced"
    assert [await w.reads_back(queue) for queue in QUEUES] == [8] * 5


async def test_copies_are_published_before_another_job_once_they_waited_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then they look like what a dead owner left."""
    w = OwnedWorld(TIER, replace(UPKEEP, repack_bytes_max=2_000), packed=True)
    write = PackedSegments.write

    async def slow(self: PackedSegments, *args: Any, **options: Any) -> Any:
        await w.clock.sleep(repack.UNPUBLISHED_S_MAX / 2)
        return await write(self, *args, **options)

    async with w.owned() as tier:
        for _ in range(8):
            await put(tier, 1, *QUEUES)
        before = tier.state.sequence
        monkeypatch.setattr(PackedSegments, "write", slow)
        await w.pass_time(100.0)
        jobs = tier.upkeep.statistics().figures["repack_jobs"]
        assert jobs / 3 <= tier.state.sequence - before - 1 < jobs
    assert [await w.reads_back(queue) for queue in QUEUES] == [8] * 5


async def test_what_is_copied_is_published_where_the_next_job_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = OwnedWorld(TIER, replace(UPKEEP, repack_bytes_max=2_000), packed=True)
    write, calls = PackedSegments.write, 0

    async def failing(self: PackedSegments, *args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Unavailable("no answer", "@parts/x")
        return await write(self, *args, **options)

    async with w.owned() as tier:
        for _ in range(8):
            await put(tier, 1, *QUEUES)
        monkeypatch.setattr(PackedSegments, "write", failing)
        await w.pass_time(2.0)
        assert calls == 3
        assert tier.upkeep.statistics().figures["extents_saved"] > 0
        await w.pass_time(60.0)
        assert await w.names("@parts/") == tier.state.parts.keys()
        assert max(len(segment.extents) for segment in live_segments(tier)) <= EXTENTS_MAX
    assert [await w.reads_back(queue) for queue in QUEUES] == [8] * 5


async def test_positions_beyond_32_bits_are_read_merged_and_cut() -> None:
    w, first = world(), QueueOffset(1 << 33)
    async with w.owned() as tier:
        await tier.begin_queue(QUEUES[0], first)
        for _ in range(64):
            await put(tier, 1, QUEUES[0])
            await w.clock.advance(1.0)
        await w.pass_time(20.0)
        record = tier.queue(QUEUES[0])
        assert record is not None
        assert record.consume_queue[0].base == UNIT_BYTES * first > 1 << 32
        assert tier.upkeep.statistics().figures["extents_saved"] > 0
        await tier.cut_queue(QUEUES[0], QueueOffset(first + 60), "now")
        await put(tier, 3, QUEUES[0])
    assert await w.reads_back(QUEUES[0]) == 63
    reader = await TierReader.open(w.memory, verify=True)
    container = reader.container(QUEUES[0])
    assert container is not None
    units = await container.units(QueueOffset(first + 59), QueueOffset(first + 63))
    assert len(units) == 4
    log = ByteRange(int(units["position"][3]), int(units["position"][3] + units["size"][3]))
    assert len(await container.log(log)) == units["size"][3]


async def test_a_commit_that_was_planned_before_a_merge_lands_behind_it() -> None:
    w = world()
    async with w.owned() as tier:
        for _ in range(9):
            await put(tier, 1, QUEUES[0])
        late = planned(tier, 2, QUEUES[0])
        await w.pass_time(10.0)
        (log,) = late.planned_on.commit_log
        now = tier.queue(QUEUES[0])
        assert now is not None
        assert len(now.commit_log[0].extents) < len(log.extents)
        await tier.commit([late])
    assert await w.reads_back(QUEUES[0]) == 11


async def test_a_cut_that_was_planned_before_a_merge_is_planned_again() -> None:
    w = world()
    async with w.owned() as tier:
        for _ in range(9):
            await put(tier, 1, QUEUES[0])
        container = tier.container(QUEUES[0])
        assert container is not None
        cut = await cut_queue(container, w.memory, QueueOffset(7), now_ms=1)
        await w.pass_time(10.0)
        with pytest.raises(Refused, match="planned on"):
            await tier.journal.publish([tier._cut_operation(cut, "late", ())])
        await tier.cut_queue(QUEUES[0], QueueOffset(7), "now")
        await put(tier, 1, QUEUES[0])
        await w.pass_time(20.0)
    assert await w.reads_back(QUEUES[0]) == 8


async def test_an_older_programs_change_of_a_merged_queue_can_be_read() -> None:
    w = world()
    async with w.owned() as tier:
        for _ in range(9):
            await put(tier, 1, QUEUES[0])
        await w.pass_time(10.0)
        container = tier.container(QUEUES[0])
        assert container is not None
        assert container.record.repacks > 0
        cut = await cut_queue(container, w.memory, QueueOffset(7), now_ms=1)
        said = tier._cut_operation(cut, "by one that knows no merges", ())
        ours = replace(said, planned_on=replace(cut.planned_on, repacks=0))
        with pytest.raises(Refused, match="planned on"):
            tier.state.plan([ours])
        older = replace(ours, release=None)
        dropped = DropQueue(QUEUES[0], (), ours.planned_on)
        for change in (older, dropped):
            state = tier.state.copy()
            state.apply([change])
            state.check()


async def test_a_manifest_that_was_planned_before_a_merge_is_refused() -> None:
    w = world(commit_log_bytes_max=1_000)
    async with w.owned() as tier:
        for _ in range(9):
            await put(tier, 1, QUEUES[0])
        record = tier.queue(QUEUES[0])
        assert record is not None
        oldest = record.commit_log[0]
        assert oldest.sealed_ms is not None
        ref = ManifestRef("m", oldest.type, 0, oldest.end, 1, oldest.size, 0, 1)
        now = (record.generation, record.repacks)
        move = MoveToManifest(QUEUES[0], ref, (0,), (), (), *now)
        tier.state.plan([move])
        whole = oldest.extents[0]._replace(length=oldest.size)
        run = RepackedRun(oldest.type, 0, 0, len(oldest.extents), (whole,))
        state = tier.state.copy()
        state.apply([RepackSegments(QUEUES[0], *now, 1, (run,), Release(1))])
        with pytest.raises(Refused, match="planned on repacking 0, it is 1"):
            state.plan([move])


async def test_a_job_of_many_runs_lets_others_have_turns_before_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = world()
    turns = 0
    turns_before: list[int] = []

    def noted(wanted: Sequence[tuple[str, ByteRange]], **limits: int) -> list[ReadTogether]:
        turns_before.append(turns)
        assert len({name for name, _ in wanted}) == 1
        return together(wanted, **limits)

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with w.owned() as tier:
        for _ in range(3):
            await put(tier, 1, QUEUES[0])
        steps = [one.step for one in tier.upkeep._scheduled]
        (step,) = (one for one in steps if isinstance(one, RepackStep))
        (segment,) = (one for one in live_segments(tier) if one.type == FLAT_FILES[0])
        run = Run(QUEUES[0], segment.type, 0, segment.extents, 1, 0, segment.size)
        monkeypatch.setattr(repack, "together", noted)
        others = asyncio.create_task(take_turns())
        bodies = await step.repacker._read([run] * 5 * repack.AT_ONCE, [])
        others.cancel()
    assert turns_before[0] >= 5
    assert all(len(one) == 3 for one in bodies)


async def test_a_merge_that_is_late_is_refused_by_the_state() -> None:
    w = world()
    async with w.owned() as tier:
        for _ in range(4):
            await put(tier, 1, QUEUES[0])
        record = tier.queue(QUEUES[0])
        assert record is not None
        extents = record.commit_log[0].extents
        whole = extents[0]._replace(length=extents[-1].end)

        def merge(position: int, replaced: int, repacks: int = 0) -> RepackSegments:
            run = RepackedRun(record.commit_log[0].type, 0, position, replaced, (whole,))
            return RepackSegments(QUEUES[0], record.generation, repacks, 1, (run,), Release(1))

        for late in (merge(0, 4, repacks=1), merge(0, 3), merge(0, 5), merge(7, 4)):
            with pytest.raises(Refused):
                tier.state.plan([late])
        changed = tier.state.plan([merge(0, 4)]).queues.get(QUEUES[0])
        assert isinstance(changed, Queue)
        assert changed.repacks == 1


async def test_closed_segments_are_gathered_small_ones_together() -> None:
    w = world(commit_log_bytes_max=3_000, consume_queue_bytes_max=200)
    async with w.owned(replace(UPKEEP, sealed_segments_max=100)) as tier:
        for _ in range(60):
            await put(tier, 1, *QUEUES)
            await w.clock.advance(1.0)
        await w.pass_time(120.0)
        closed = [one for one in live_segments(tier) if one.sealed_ms is not None]
        assert len(closed) > 20
        assert {len({e.object_name for e in one.extents}) for one in closed} == {1}
        assert await w.names("@parts/") == tier.state.parts.keys()
        assert len(tier.state.parts) < 15
        assert tier.upkeep.statistics().last_error == ""
    assert [await w.reads_back(queue) for queue in QUEUES] == [60] * 5


async def test_a_large_closed_segment_gets_objects_of_its_own_with_its_name() -> None:
    w = world(commit_log_bytes_max=90_000, extent_bytes_max=2_000)
    async with w.owned() as tier:
        for _ in range(30):
            await put(tier, 40, *QUEUES[:2])
            await w.clock.advance(1.0)
        await w.pass_time(20.0)
        closed = [one for one in live_segments(tier) if one.sealed_ms is not None]
        assert closed
        for segment in closed:
            names = {extent.object_name for extent in segment.extents}
            assert len(names) <= 1 + 2 * (segment.size // UPKEEP.repack_bytes_max)
            whole = [part.segment for name in names if (part := PartName.parse(name))]
            parsed = [parse_segment_name(name) for name in whole if name]
            assert parsed
            said = {one and (one.type, one.base) for one in parsed}
            assert said == {(segment.type, segment.base)}
    assert [await w.reads_back(queue) for queue in QUEUES[:2]] == [1200, 1200]


@pytest.mark.leaves_findings("checksum", "body-crc", "record", why="a bit of a part is flipped")
async def test_damaged_bytes_are_never_copied_and_hold_up_no_other_queue() -> None:
    w = world()
    async with w.owned(replace(UPKEEP, interval_s=50.0, extents_max=64)) as tier:
        for _ in range(8):
            await put(tier, 1, *QUEUES)
        record = tier.queue(QUEUES[2])
        assert record is not None
        hurt = record.commit_log[0].extents[1]
        w.memory._shared.objects[hurt.object_name][hurt.object_offset + 50] ^= 1
        await w.pass_time(60.0)
        assert "CRC-32C" in tier.upkeep.statistics().last_error
        lengths = {
            queue.id: len(queue.commit_log[0].extents) for queue in tier.state.queues.values()
        }
        assert lengths.pop(QUEUES[2]) == 8
        assert set(lengths.values()) == {1}
        now = tier.queue(QUEUES[2])
        assert now is not None
        assert hurt in now.commit_log[0].extents
        await put(tier, 1, *QUEUES)
        await w.pass_time(60.0)
        assert tier.upkeep.statistics().last_error == "", "it is told once"
        await tier.delete_topic(TOPIC)
        for _ in range(8):
            await put(tier, 1, *QUEUES)
        await w.pass_time(60.0)
        again = tier.queue(QUEUES[2])
        assert again is not None
        assert len(again.commit_log[0].extents) == 1, "the damage went with the topic"


async def test_a_reader_with_an_old_record_reads_on_after_one_refresh() -> None:
    w = world()
    async with w.owned() as tier:
        for _ in range(8):
            await put(tier, 1, *QUEUES)
        reader = await TierReader.open(w.memory, verify=True)
        await w.pass_time(3.0)
        assert tier.upkeep.statistics().figures["repack_jobs"] > 0
        assert len((await queue_contents(reader, QUEUES[0])).offsets) == 8, "within the grace time"
        await w.pass_time(20.0)
        await reader.refresh()
        assert len((await queue_contents(reader, QUEUES[0])).offsets) == 8


async def test_idle_queues_cost_no_request() -> None:
    w = world()
    async with w.owned() as tier:
        for _ in range(8):
            await put(tier, 1, *QUEUES)
        await w.pass_time(60.0)
        before = w.stores[0].calls.copy()
        await w.pass_time(100.0)
        assert w.stores[0].calls == before
        assert tier.upkeep.statistics().last_error == ""


async def test_an_object_of_a_deleted_topic_is_given_up_beside_one_that_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w, gone = world(), QueueId("Gone", 0)
    async with w.owned(replace(UPKEEP, interval_s=1e9)) as tier:
        for _ in range(8):
            await put(tier, 1, QUEUES[0], gone)
        steps = (one.step for one in tier.upkeep._scheduled)
        step = next(one for one in steps if isinstance(one, RepackStep))
        jobs = [
            runs_to_merge(tier.state.queues[queue], step._level_of, step.rules)
            for queue in (gone, QUEUES[0])
        ]
        segments, made = step.repacker._segments, list[str]()
        write = segments.write

        async def then_delete(slices: Any, *, alone: bool = False) -> Any:
            placed = await write(slices, alone=alone)
            made.append(placed[0].object_name)
            if len(made) == 2:
                await tier.delete_topic(gone.topic)
            return placed

        monkeypatch.setattr(segments, "write", then_delete)
        await step.repacker.do_all(jobs, [])
        assert made[1] in tier.state.parts
        assert list(segments.abandoned) == [made[0]]
