"""Where the metadata say that a moment lies: over manifests, gaps, and what has expired."""

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise

import pytest

from container.metadata.records import Extent, Gap
from container.options import TierOptions, UpkeepOptions
from container.queue.positions import Boundary, TimeRules, TimeStretch, stretch_by_time
from container.tier import Tier
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.messages import batch_of, make_record
from tests.support.owned_tier import QUEUE, OwnedWorld
from tests.support.time_oracle import offset_by_scan

OPTIONS = TierOptions(commit_log_bytes_max=1_000, consume_queue_bytes_max=400, extent_bytes_max=300)
UPKEEP = UpkeepOptions(
    interval_s=5.0, sealed_segments_max=1, manifests_per_level_max=2, retention_hours=1,
    expiry_interval_s=5.0,
)  # fmt: skip


def extent(first: int, low: int, high: int) -> Extent:
    return Extent(0, 1, 0, QueueOffset(first), low, high)


def test_a_stretch_ends_at_a_gap_and_at_what_does_not_count() -> None:
    extents = [extent(0, 10, 20), extent(5, 20, 30), extent(15, 30, 40)]
    gaps = [Gap(QueueOffset(9), QueueOffset(15), "lost", 0)]

    def found(moment: int, boundary: Boundary, low: int = 0, high: int = 20) -> TimeStretch | None:
        return stretch_by_time(extents, 20, gaps, moment, boundary, within=(low, high))

    assert found(21, Boundary.LOWER) == (5, 9, (20, 30))
    assert found(20, Boundary.LOWER) == (0, 5, (10, 20))
    assert found(20, Boundary.LOWER, low=5) == (5, 9, (20, 30))
    assert found(41, Boundary.LOWER) is None
    assert found(20, Boundary.UPPER) == (5, 9, (20, 30))
    assert found(20, Boundary.UPPER, high=7) == (5, 7, (20, 30))
    assert found(9, Boundary.UPPER) is None
    assert found(99, Boundary.UPPER, low=3, high=3) is None


def test_a_search_goes_on_behind_a_gap_within_an_extent() -> None:
    extents = [extent(0, 10, 30), extent(20, 30, 40)]
    gaps = [Gap(QueueOffset(a), QueueOffset(b), "lost", 0) for a, b in ((5, 8), (8, 9), (12, 14))]

    def found(boundary: Boundary) -> list[tuple[int, int]]:
        within = [0, 30]
        stretches: list[tuple[int, int]] = []
        while one := stretch_by_time(
            extents, 30, gaps, 30, boundary, within=(within[0], within[1])
        ):
            stretches.append((one.start, one.end))
            if boundary is Boundary.LOWER:
                within[0] = one.end
            else:
                within[1] = one.start
        return stretches

    whole = [(0, 5), (9, 12), (14, 20), (20, 30)]
    assert found(Boundary.LOWER) == whole
    assert found(Boundary.UPPER) == whole[::-1]


def test_an_extent_that_a_gap_covers_is_passed_over() -> None:
    extents = [extent(0, 10, 20), extent(5, 20, 20), extent(15, 20, 40)]
    gaps = [Gap(QueueOffset(5), QueueOffset(15), "lost", 0)]
    for boundary, wanted in ((Boundary.LOWER, (4, 5)), (Boundary.UPPER, (15, 20))):
        one = stretch_by_time(extents, 20, gaps, 20, boundary, within=(4, 20))
        assert one is not None
        assert (one.start, one.end) == wanted
        assert stretch_by_time(extents, 20, gaps, 20, boundary, within=(5, 15)) is None


async def put(tier: Tier, clock: ManualClock, count: int) -> dict[int, int]:
    """One message a minute and a round; when each was stored."""
    stored: dict[int, int] = {}
    for _ in range(count):
        record = tier.queue(QUEUE)
        offset = record.next_offset if record else 0
        stored[offset] = clock.now_ms()
        raw = make_record(*QUEUE, offset, bytes(60), store_timestamp=clock.now_ms())
        await tier.commit([tier.plan_commit(QUEUE, batch_of([raw]))])
        await clock.advance(60)
    return stored


async def tiers(*, expires: bool) -> AsyncIterator[tuple[OwnedWorld, Tier, dict[int, int]]]:
    world = OwnedWorld(OPTIONS, replace(UPKEEP, expires=expires))
    async with world.owned() as tier:
        stored = await put(tier, world.clock, 40)
        await tier.record_gap(QUEUE, QueueOffset(40), QueueOffset(47), "lost")
        stored |= await put(tier, world.clock, 40)
        await world.pass_time(30)
        yield world, tier, stored


@pytest.mark.parametrize("expires", [False, True])
async def test_every_moment_is_found_whether_its_segment_moved_or_expired(*, expires: bool) -> None:
    async for world, tier, stored in tiers(expires=expires):
        record = tier.state.queues[QUEUE]
        assert record.manifests
        assert (record.min_offset > 0) is expires
        there = {offset: at for offset, at in stored.items() if offset >= record.min_offset}
        times = sorted(stored.values())
        moments = [times[0] - 1, *times, *(a + (b - a) // 2 for a, b in pairwise(times)), 1 << 60]
        reader = await TierReader.open(world.memory, verify=True)
        async with TieredMessageFetcher(reader, clock=ManualClock()) as fetcher:
            for boundary in Boundary:
                for moment in moments:
                    found = await fetcher.offset_by_time(QUEUE, moment, boundary)
                    assert found == offset_by_scan(
                        there, moment, boundary, TimeRules.LOCAL,
                        first=record.min_offset, end=record.next_offset,
                    )  # fmt: skip
            assert await fetcher.earliest_message_time(QUEUE) == min(there.values())
