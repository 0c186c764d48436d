"""Lookups of segments agree with what readers read, over files, parts, manifests and gaps."""

import pytest

from container.metadata.records import CopyState
from container.names.queue_id import SegmentType
from container.options import TierOptions, UpkeepOptions
from container.queue.segments import TieredSegment, TieredSegments
from container.record.unit import UNIT_BYTES
from container.tier import Tier
from container.tier_view import TierReader
from provider.ranges import QueueOffset
from tests.support.owned_tier import QUEUE, OwnedWorld, put

OPTIONS = TierOptions(
    commit_log_bytes_max=2_000, consume_queue_bytes_max=7 * UNIT_BYTES, extent_bytes_max=700
)
UPKEEP = UpkeepOptions(
    interval_s=1, sealed_segments_max=1, manifests_per_level_max=2, snapshot_entries_max=5
)


def lookups(tier: Tier | TierReader) -> TieredSegments:
    found = tier.segments(QUEUE)
    assert found is not None
    return found


async def holders(tier: Tier | TierReader, offsets: range) -> list[TieredSegment | None]:
    found = lookups(tier)
    return [await found.at(offset) for offset in offsets]


async def with_gap(world: OwnedWorld) -> None:
    """Messages 0 to 59 and 70 to 99, of two owners; history lies in manifests."""
    async with world.owned() as tier:
        for _ in range(6):
            await put(tier, 10)
            await world.pass_time(40)
        await tier.record_gap(QUEUE, QueueOffset(60), QueueOffset(70), "a test")
        await tier.close()
    world.kill_all()
    async with world.owned() as tier:
        for _ in range(3):
            await put(tier, 10)
            await world.pass_time(40)
        await tier.close()


@pytest.mark.parametrize("packed", [False, True], ids=["in place", "packed"])
async def test_every_offset_is_in_the_segment_that_its_unit_points_into(*, packed: bool) -> None:
    world = OwnedWorld(OPTIONS, UPKEEP, packed=packed)
    await with_gap(world)
    reader = await TierReader.open(world.memory)
    record, container = reader.queue(QUEUE), reader.container(QUEUE)
    assert record is not None
    assert container is not None
    manifests = sum(ref.type == SegmentType.COMMIT_LOG for ref in record.manifests)
    assert packed or manifests > 1, "parts are gathered first"
    found = lookups(reader)
    assert found.first_offset == 0
    for offset in [*range(60), *range(70, 100)]:
        segment = await found.at(offset)
        assert segment is not None
        unit = await container.units(QueueOffset(offset), QueueOffset(offset + 1))
        at = int(unit["position"][0])
        assert segment.size_bytes is not None
        assert segment.base <= at < segment.base + segment.size_bytes
        assert segment.first_offset is not None
        assert segment.end_offset is not None
        assert segment.first_offset <= offset < segment.end_offset
    assert [await found.at(offset) for offset in (-1, 60, 69, 100, 10**9)] == [None] * 5
    logs = [one for one in await found.listed() if one.type is SegmentType.COMMIT_LOG]
    covered = [range(one.first_offset or 0, one.end_offset or 0) for one in logs]
    assert [at for part in covered for at in part] == [*range(60), *range(70, 100)]


async def test_what_an_owner_continues_in_a_part_of_its_own_has_two_epochs() -> None:
    world = OwnedWorld(TierOptions(), UpkeepOptions(), packed=True)
    for _ in range(2):
        async with world.owned() as tier:
            await put(tier, 10)
    segment = (await lookups(await TierReader.open(world.memory)).listed())[0]
    assert segment.epochs == ((1, 0), (2, 10))


async def test_the_newest_segments_cost_no_request_and_old_ones_a_few() -> None:
    world = OwnedWorld(OPTIONS, UPKEEP, packed=True)
    await with_gap(world)
    async with world.owned() as tier:
        store = world.stores[-1]
        before = store.calls["read"]
        assert (await holders(tier, range(99, 100)))[0] is not None
        assert store.calls["read"] == before
        assert (await holders(tier, range(1)))[0] is not None
        record = tier.queue(QUEUE)
        assert record is not None
        assert store.calls["read"] - before <= len(record.manifests).bit_length()
        await tier.close()


@pytest.mark.parametrize("packed", [False, True], ids=["in place", "packed"])
async def test_a_deletion_that_has_begun_is_listed_until_it_is_finished(*, packed: bool) -> None:
    upkeep = UpkeepOptions(
        interval_s=60, expires=True, retention_hours=1, expiry_interval_s=60, grace_s=3_600
    )
    world = OwnedWorld(OPTIONS, upkeep, packed=packed)
    async with world.owned() as tier:
        await put(tier, 60)
        assert not [
            one for one in await lookups(tier).listed() if one.state != CopyState.COPY_FINISHED
        ]
        published = {one.path for one in await lookups(tier).listed()}
        await world.pass_time(7_200)
        await world.pass_time(100)
        assert lookups(tier).first_offset is None, "everything has expired"
        assert await lookups(tier).at(0) is None
        dying = await lookups(tier).listed({CopyState.DELETE_STARTED})
        assert {one.path for one in dying} == (set() if packed else published & await world.names())
        assert all(one.size_bytes is None for one in dying)
        await world.pass_time(8_000)
        assert await lookups(tier).listed({CopyState.DELETE_STARTED}) == []
        assert await lookups(tier).listed({CopyState.DELETE_FINISHED}) == []
        await tier.close()


async def test_kafka_20977_segments_of_single_records_are_not_behind() -> None:
    world = OwnedWorld(TierOptions(commit_log_bytes_max=100), UpkeepOptions())
    async with world.owned() as tier:
        for _ in range(5):
            await put(tier, 1)
        sealed = [one for one in await lookups(tier).listed() if one.type == SegmentType.COMMIT_LOG]
        assert [(one.first_offset, one.end_offset) for one in sealed] == [
            (number, number + 1) for number in range(5)
        ]
        await tier.close()


async def size_of(tier: Tier) -> int:
    return sum(one.size_bytes or 0 for one in await lookups(tier).listed())


async def test_kafka_seeding_the_first_expiration_of_a_new_owner_keeps_what_may_stay() -> None:
    upkeep = UpkeepOptions(
        interval_s=1, expires=True, retention_hours=24 * 365 * 100, expiry_interval_s=10
    )
    world = OwnedWorld(OPTIONS, upkeep, packed=True)
    async with world.owned() as tier:
        await put(tier, 60)
        size_bytes = await size_of(tier)
        await tier.close()
    world.kill_all()
    log_bytes = size_bytes - 60 * UNIT_BYTES
    async with world.owned(
        UpkeepOptions(interval_s=1, expires=True, retention_hours=24 * 365 * 100,
                      expiry_interval_s=10, topic_bytes_max=log_bytes)
    ) as tier:  # fmt: skip
        await world.pass_time(100)
        assert (lookups(tier).first_offset, await size_of(tier)) == (0, size_bytes)
        await tier.close()
