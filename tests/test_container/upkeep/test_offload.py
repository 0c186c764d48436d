"""Offload to a second store: what goes, and what stays."""

from dataclasses import replace

import pytest

from container.metadata.objects import is_away
from container.move.offload_plan import Until
from container.names.queue_id import QueueId, SegmentType
from container.queue.repack_plan import RepackRules
from container.tier_view import TierReader
from container.upkeep.compaction import CompactRules, plan_parts
from container.upkeep.offload import planned_offload
from provider.errors import Unavailable
from provider.stores.packed_segments import PartName
from tests.support.messages import TOPIC
from tests.support.offloaded import (
    ALL,
    BY_AGE,
    BY_HAND,
    HOUR_S,
    OTHER,
    away,
    by_hand,
    in_second,
    segments,
    world,
)
from tests.support.owned_tier import MINUTE_S, QUEUE, planned, put, put_each_minute
from tests.support.store_reader import queue_contents


@pytest.mark.parametrize("packed", [False, True])
async def test_segments_move_by_hand_and_read_back(*, packed: bool) -> None:
    it = world(packed=packed)
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 40)
        before = await queue_contents(await TierReader.open(it.view()), QUEUE)
        record = tier.queue(QUEUE)
        assert record is not None
        assert packed or record.manifests, "some segments are in manifests"
        (done,) = await by_hand(tier)
        assert done.segments == len(await segments(it)) == await away(it) > 5
        assert done.bytes == sum(one.size for one in await segments(it))
        assert {PartName.parse(name) is not None for name in in_second(it)} == {True}
        after = await queue_contents(await TierReader.open(it.view(), verify=True), QUEUE)
        assert after.offsets == before.offsets
        assert await it.reads_back() == 40
        await put_each_minute(tier, it.clock, 5)  # goes on behind what was closed
        assert await it.reads_back() == 45
        assert await by_hand(tier, Until(offset=40)) == []
    it.kill_all()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 5)
        assert await it.reads_back() == 50


async def test_the_first_copy_goes_when_the_lag_is_over() -> None:
    it = world()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 20)
        files = await it.names()
        await by_hand(tier)
        await it.pass_time(BY_HAND.offload_lag_s - 50)
        assert await it.names() == files
        await it.pass_time(200)
        assert await it.names() == set()
        assert await it.reads_back() == 20
        await put_each_minute(tier, it.clock, 3)
        assert await it.reads_back() == 23


async def test_whole_segments_below_an_offset_or_a_time_move() -> None:
    it = world()
    async with it.owned() as tier:
        began_ms = it.clock.now_ms()
        await put_each_minute(tier, it.clock, 40)
        (done,) = await by_hand(tier, Until(offset=10))
        moved = [one for one in await segments(it) if is_away(one)]
        logs = [one for one in moved if one.type is SegmentType.COMMIT_LOG]
        assert done.segments == len(moved)
        assert logs
        left = [one for one in await segments(it) if not is_away(one)]
        first_left = min(
            one.extents[0].first_offset for one in left if one.type is SegmentType.COMMIT_LOG
        )
        assert 5 <= first_left <= 10
        await by_hand(tier, Until(ms=began_ms + 20 * MINUTE_S * 1000))
        newest = [one.end_timestamp or 0 for one in await segments(it) if is_away(one)]
        assert began_ms + 12 * MINUTE_S * 1000 < max(newest) < began_ms + 20 * MINUTE_S * 1000
        assert await it.reads_back() == 40


async def test_what_would_move_is_what_moves() -> None:
    it = world()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 30, QUEUE, OTHER)
        for until in (Until(offset=12), ALL):
            reader = await TierReader.open(it.view())
            wanted = await planned_offload(
                reader.state, reader.store, BY_HAND, TOPIC, until, now_ms=it.clock.now_ms()
            )
            assert wanted == await by_hand(tier, until) != []
        assert await away(it, OTHER) == 0


async def test_age_decides_in_the_background() -> None:
    it = world(BY_AGE)
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 90)
        await it.pass_time(100)
        told = [(is_away(one), one.end_timestamp or 0) for one in await segments(it)]
        before_ms = it.clock.now_ms() - HOUR_S * 1000
        assert any(gone for gone, _ in told)
        assert all(gone for gone, newest_ms in told if newest_ms < before_ms - 120_000)
        assert not any(gone for gone, newest_ms in told if newest_ms >= before_ms)
        assert await it.reads_back() == 90


async def test_an_idle_queue_is_closed_by_age_and_goes() -> None:
    """Its open segments are as old as what is offloaded; the next message begins others."""
    it = world(BY_AGE)
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 5, QUEUE, OTHER)
        for _ in range(14):
            await put_each_minute(tier, it.clock, 5)
        assert await away(it, OTHER) == len(await segments(it, OTHER)) > 0
        newest = [one for one in await segments(it) if one.sealed_ms is None]
        assert newest, "a busy queue goes on"
        assert await it.reads_back(OTHER) == 5
        await put_each_minute(tier, it.clock, 3, OTHER)
        assert await it.reads_back(OTHER) == 8
        await it.pass_time(3 * HOUR_S)
        assert await away(it, OTHER) == len(await segments(it, OTHER))
        entries = tier.journal.statistics().entries
        await it.pass_time(5 * HOUR_S)
        assert tier.journal.statistics().entries == entries, "closed once, not each time"
        assert await it.reads_back() == 75
        assert await it.reads_back(OTHER) == 8


async def test_what_expires_soon_is_not_closed() -> None:
    options = replace(
        BY_AGE,
        expires=True,
        retention_hours=3,
        expiry_interval_s=100_000.0,
        offload_lag_s=2 * HOUR_S,
    )
    it = world(options)
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 3)
        await it.pass_time(2 * HOUR_S)
        assert [one.sealed_ms for one in await segments(it)] == [None, None]
        assert in_second(it) == set()


async def test_without_an_age_nothing_is_closed() -> None:
    it = world(replace(BY_HAND, offload_topic_bytes=1))
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 3)
        await it.pass_time(5 * HOUR_S)
        assert [one.sealed_ms for one in await segments(it)] == [None, None]


@pytest.mark.parametrize("packed", [False, True])
async def test_a_commit_beside_the_closing_is_planned_again(*, packed: bool) -> None:
    it = world(BY_AGE, packed=packed)
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 3)
        plan = planned(tier, 2)
        await it.pass_time(2 * HOUR_S)
        assert {one.sealed_ms is None for one in await segments(it)} == {False}
        with pytest.raises(Unavailable, match="plan again"):
            await tier.commit([plan])
        await put(tier, 2)
        assert await it.reads_back() == 5
        await it.pass_time(3 * HOUR_S)
        assert await it.reads_back() == 5
        assert await it.findings() == []


async def test_nothing_is_asked_for_where_nothing_is_due() -> None:
    it = world(replace(BY_AGE, offload_age_hours=100))
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 30)
        await it.pass_time(300)
        first, second = it.stores[-1].calls.copy(), it.seconds[-1].calls.copy()
        await it.pass_time(3_000)
        assert it.stores[-1].calls == first
        assert it.seconds[-1].calls == second
        assert in_second(it) == set()


async def test_a_topic_keeps_its_size_in_the_first_store() -> None:
    it = world(replace(BY_HAND, offload_topic_bytes=5_000))
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 60, QUEUE, QueueId(TOPIC, 1))
        await it.pass_time(100)
        both = [await segments(it, QueueId(TOPIC, number)) for number in range(2)]
        logs = [one for some in both for one in some if one.type is SegmentType.COMMIT_LOG]
        held = [one for one in logs if not is_away(one)]
        assert 3_000 < sum(one.size for one in held) <= 5_000
        oldest_held = min(one.end_timestamp or 0 for one in held)
        assert all((one.end_timestamp or 0) <= oldest_held for one in logs if is_away(one))
        assert await it.reads_back() == 60


async def test_what_expires_within_the_lag_is_never_uploaded() -> None:
    lag_h = 2
    options = replace(
        BY_AGE,
        expires=True,
        retention_hours=3,
        expiry_interval_s=100_000.0,
        offload_lag_s=lag_h * HOUR_S,
        offload_interval_s=30.0,
    )
    it = world(options)
    async with it.owned(replace(options, offload_age_hours=0)) as tier:
        await put_each_minute(tier, it.clock, 40)
        await it.pass_time(HOUR_S + 10 * MINUTE_S)
    it.kill_all()
    async with it.owned() as tier:
        await it.pass_time(100)
        assert in_second(it) == set()
        assert await by_hand(tier) == []


async def test_size_bounded_retention_is_not_uploaded_either() -> None:
    options = replace(BY_HAND, expires=True, retention_hours=1_000, expiry_interval_s=100_000.0)
    it = world(replace(options, topic_bytes_max=5_000))
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 40)
        await by_hand(tier)
        logs = [one for one in await segments(it) if one.type is SegmentType.COMMIT_LOG]
        newest = sum(one.size for one in logs if is_away(one))
        assert 3_000 < newest <= 5_000
        assert [is_away(one) for one in logs] == sorted(is_away(one) for one in logs)


@pytest.mark.parametrize("packed", [False, True])
async def test_retention_and_deletion_take_offloaded_objects(*, packed: bool) -> None:
    options = replace(BY_HAND, expires=True, retention_hours=3, expiry_interval_s=30.0)
    it = world(options, packed=packed)
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 30, QUEUE, OTHER)
        await by_hand(tier)
        before = in_second(it)
        await put_each_minute(tier, it.clock, 10)
        await by_hand(tier, topic="Other")
        assert in_second(it) > before
        await it.pass_time(3 * HOUR_S)
        assert not in_second(it) & before
        await tier.delete_topic("Other")
        await it.pass_time(300)
        assert in_second(it) == set()
        assert await it.findings() == []


async def test_manifests_that_are_gone_are_forgotten() -> None:
    it = world(replace(BY_AGE, expires=True, retention_hours=3))
    async with it.owned() as tier:
        step, seen, names = tier.upkeep.offload, set[str](), set[str]()
        assert step is not None
        for _ in range(10):
            await put_each_minute(tier, it.clock, 30)
            await it.pass_time(100)
            record = tier.queue(QUEUE)
            assert record is not None
            names = {ref.object_name for ref in record.manifests}
            seen |= names
            assert step._held._away.get(QUEUE, set()) <= names
        assert len(seen) > 3 * len(names) > 0, "manifests of segments in the second store went"
        assert "of 1 queues" in repr(step._held)
        await tier.delete_topic(TOPIC)
        assert repr(step._held) == "<HeldSegments: 0 manifests of 0 queues list none>"


async def test_a_topic_comes_again_after_its_deletion() -> None:
    it = world()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 20)
        await by_hand(tier)
        await tier.delete_topic(TOPIC)
        await it.pass_time(150)  # much less than the lag
        assert await it.names() == set()
        await put_each_minute(tier, it.clock, 4)
        assert await it.reads_back() == 4


async def test_compacting_leaves_what_was_offloaded_where_it_is() -> None:
    it = world(packed=True)
    rules = CompactRules(RepackRules(8, 2, 1_000_000, 1_000_000), 1_000_000, 100)
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 30)
        state = tier.state
        assert plan_parts(state.queues.values(), state.parts, rules).jobs
        await by_hand(tier)
        assert not plan_parts(state.queues.values(), state.parts, rules).jobs
