"""Retention and deletion beside commits and merges, and the counts of parts through them."""

from dataclasses import replace
from typing import Any

import pytest

from container.metadata.records import ManifestRef, Segment
from container.names.queue_id import QueueId
from container.queue.manifest import ManifestReader
from container.upkeep.retention import RetentionStep
from container.upkeep.snapshots import ManifestStep
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, put_each_minute
from tests.test_container.upkeep.test_retention import EXPIRING, KEEPING, OPTIONS


async def test_commits_of_every_queue_amid_a_run_leave_no_queue_untrimmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = [QueueId(TOPIC, number) for number in range(6)]
    world = OwnedWorld(OPTIONS, replace(EXPIRING, expiry_interval_s=1e9), packed=True)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 120, *queues)
        steps = (one.step for one in tier.upkeep._scheduled)
        (step,) = (one for one in steps if isinstance(one, RetentionStep))
        read = step._manifests.segments

        async def while_all_commit(ref: ManifestRef) -> tuple[Segment, ...]:
            await put_each_minute(tier, world.clock, 1, *queues)
            return await read(ref)

        monkeypatch.setattr(step._manifests, "segments", while_all_commit)
        before = {queue: tier.state.queues[queue].next_offset for queue in queues}
        await step.step()
        for queue in queues:
            assert tier.state.queues[queue].min_offset > 40, "trimmed"
            assert tier.state.queues[queue].next_offset > before[queue], "and committed to"
    assert await world.findings() == []


async def test_a_trim_whose_manifest_is_merged_meanwhile_is_planned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = OwnedWorld(OPTIONS, replace(EXPIRING, expiry_interval_s=1e9))
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 120)
        steps = [one.step for one in tier.upkeep._scheduled]
        (step,) = (one for one in steps if isinstance(one, RetentionStep))
        (manifests,) = (one for one in steps if isinstance(one, ManifestStep))
        write, merges = step._writer.write, list[int]()

        async def after_a_merge(*words: Any) -> ManifestRef:
            made = await write(*words)
            if not merges:
                merges.append(1)
                await put_each_minute(tier, world.clock, 40)
                await manifests.step()
            return made

        monkeypatch.setattr(step._writer, "write", after_a_merge)
        await step.step()
        assert merges
        assert tier.state.queues[QUEUE].min_offset > 40
        await world.pass_time(400)
        listed = {entry.name for entry in await world.memory.list("@manifest/")}
        assert listed == {ref.object_name for ref in tier.state.queues[QUEUE].manifests}
    assert await world.findings() == []


async def test_a_topic_is_deleted_beside_commits_to_all_of_its_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = [QueueId(TOPIC, number) for number in range(4)]
    world = OwnedWorld(OPTIONS, KEEPING, packed=True)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 60, *queues)
        read = ManifestReader.segments

        async def while_all_commit(self: ManifestReader, ref: ManifestRef) -> tuple[Segment, ...]:
            await put_each_minute(tier, world.clock, 1, *queues)
            return await read(self, ref)

        monkeypatch.setattr(ManifestReader, "segments", while_all_commit)
        assert await tier.delete_topic(TOPIC) == len(queues)
        assert not tier.state.queues
    assert await world.findings() == []


@pytest.mark.slow
@pytest.mark.parametrize("short", ["AShort", "Zshort"])
async def test_counting_goes_on_where_manifests_of_own_files_expire_beside_offloaded_ones(
    short: str,
) -> None:
    brief, long = QueueId(short, 0), QueueId("Long", 0)
    upkeep = replace(
        EXPIRING,
        snapshot_entries_max=50,
        retention_hours=6,
        expiry_interval_s=3600.0,
        offloads=True,
        offload_age_hours=2,
        offload_lag_s=300,
        offload_interval_s=600.0,
    )
    options = replace(OPTIONS, consume_queue_bytes_max=200)
    world = OwnedWorld(options, upkeep, offloads=True)
    counted: list[bool] = []
    async with world.owned() as tier:
        tier.journal.subscribe(lambda changes: counted.extend(c.parts_counted for c in changes))
        await put_each_minute(tier, world.clock, 1, brief, long)
        await tier.set_topics({brief.topic: 1})
        for _ in range(3):
            await put_each_minute(tier, world.clock, 240, brief, long)
            await world.pass_time(400)
            assert world.second is not None
            listed = {one.name for one in await world.second.list("@offload/")}
            known = tier.state.parts.keys() | tier.state.tombstones.keys()
            assert {name for name in listed if not name.endswith("@store")} <= known
    assert all(counted), "no transaction of ours ends the counting"
    assert await world.findings() == []
