"""Reading a few records that lie far apart: which ones, how many, and what that costs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from container.names.queue_id import QueueId, SegmentType
from container.options import TierOptions, UpkeepOptions
from container.tier import Tier, TierIdentity
from provider.errors import Corrupt, NotFound, OutOfRange
from provider.ranges import QueueOffset
from provider.stores.in_place_segments import InPlaceDriver
from provider.testing.faulty import FaultyObjectStore
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryStore
from tests.support.messages import TOPIC, make_batch

QUEUE = QueueId(TOPIC, 0)
SMALL_SEGMENTS = TierOptions(
    commit_log_bytes_max=20_000,
    consume_queue_bytes_max=4_000,
    extent_bytes_max=1_000,
)
TIDY_AT_ONCE = UpkeepOptions(snapshot_entries_max=2, sealed_segments_max=1, interval_s=1.0)
BYTES_MAX = 1 << 20


@asynccontextmanager
async def owned(
    options: TierOptions, upkeep: UpkeepOptions | None = None
) -> AsyncIterator[tuple[FaultyObjectStore, Tier, ManualClock]]:
    clock = ManualClock()
    store = FaultyObjectStore(MemoryStore(), clock=clock)
    tier = await Tier.own(
        store,
        TierIdentity("Cluster", "broker-a", "us"),
        segments=InPlaceDriver(store, clock=clock, takeover_wait_s_max=0),
        clock=clock,
        rng=Random(1),
        options=options,
        upkeep_options=upkeep,
    )
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(tier.run())
        yield store, tier, clock
        worker.cancel()


async def put(tier: Tier, count: int) -> None:
    record = tier.queue(QUEUE)
    first = record.next_offset if record else 0
    batch = make_batch(first, count, 100, Random(first), topic=TOPIC, queue_id=0)
    await tier.commit([tier.plan_commit(QUEUE, batch)])


def offsets_of(records: list[bytes | None]) -> list[int | None]:
    return [None if record is None else int.from_bytes(record[20:28]) for record in records]


def at(*offsets: int) -> list[QueueOffset]:
    return [QueueOffset(offset) for offset in offsets]


async def test_records_far_apart_cost_two_reads_of_few_ranges() -> None:
    async with owned(TierOptions()) as (store, tier, _):
        await put(tier, 5_000)
        wanted = at(
            0, 904, 2952, 3976, 4488, 4744, 4872, 4936, 4968, 4984, 4992, *range(4996, 5000)
        )
        store.calls.clear()
        store.items.clear()
        store.bytes.clear()
        records = await tier.messages_at(QUEUE, wanted, bytes_max=BYTES_MAX)
        assert offsets_of(records) == wanted
        assert store.calls == {"read_many": 2}
        # Units: four alone, and all of the last thousand but the first within a page of another.
        # Records: all alone but the newest four.
        assert store.items == {"read_many": 6 + 12}
        sizes = sum(len(record) for record in records if record is not None)
        assert store.bytes["read_many"] <= sizes + 6 * 4096


async def test_every_choice_of_offsets_over_segments_and_gaps_is_read_right() -> None:
    async with owned(SMALL_SEGMENTS) as (_, tier, _):
        await put(tier, 150)
        await tier.record_gap(QUEUE, QueueOffset(150), QueueOffset(160), "lost")
        await put(tier, 300)
        container = tier.container(QUEUE)
        assert container is not None
        assert len(await container.segments(SegmentType.CONSUME_QUEUE)) > 2
        held = [*range(150), *range(160, 460)]
        rng = Random(7)
        for _ in range(100):
            chosen = at(*sorted(rng.sample(held, rng.randrange(1, 20))))
            records = await tier.messages_at(QUEUE, chosen, bytes_max=BYTES_MAX)
            assert offsets_of(records) == chosen
        records = await tier.messages_at(QUEUE, at(148, 149, 160), bytes_max=BYTES_MAX)
        assert offsets_of(records) == [148, 149, 160]
        with pytest.raises(OutOfRange):
            await tier.messages_at(QUEUE, at(155), bytes_max=BYTES_MAX)


async def test_what_is_held_at_once_is_bounded_but_for_one_record() -> None:
    async with owned(TierOptions()) as (store, tier, _):
        await put(tier, 100)
        wanted = at(10, 30, 50, 70)
        records = await tier.messages_at(QUEUE, wanted, bytes_max=BYTES_MAX)
        sizes = [len(record) for record in records if record is not None]
        for bytes_max, count in [
            (1, 1),
            (sizes[0], 1),
            (sum(sizes[:3]) - 1, 2),
            (sum(sizes[:3]), 3),
            (sum(sizes), 4),
        ]:
            store.bytes.clear()
            found = await tier.messages_at(QUEUE, wanted, bytes_max=bytes_max)
            assert found == records[:count]
            assert store.bytes["read_many"] <= max(bytes_max, sizes[0]) + 61 * 20


async def test_old_places_are_told_only_at_a_word_and_cost_a_manifest() -> None:
    async with owned(SMALL_SEGMENTS, TIDY_AT_ONCE) as (store, tier, clock):
        for _ in range(10):
            await put(tier, 200)
        for _ in range(20):
            await clock.advance(1.0)
        queue = tier.queue(QUEUE)
        assert queue is not None
        assert {ref.type for ref in queue.manifests} == {
            SegmentType.COMMIT_LOG,
            SegmentType.CONSUME_QUEUE,
        }
        store.calls.clear()
        wanted = at(0, 900, 1500, *range(1990, 2000))
        records = await tier.messages_at(QUEUE, wanted, bytes_max=BYTES_MAX)
        assert store.calls["read"] == 0
        told = offsets_of(records)
        assert told[:2] == [None, None]
        assert told[-10:] == wanted[-10:]
        assert await tier.messages_at(QUEUE, wanted[:2], bytes_max=BYTES_MAX) == [None, None]
        records = await tier.messages_at(QUEUE, wanted, bytes_max=BYTES_MAX, history=True)
        assert offsets_of(records) == wanted
        assert store.calls["read"] > 0


@pytest.mark.leaves_findings(
    "checksum", "units-do-not-join", "unit-outside-log", why="a unit is overwritten"
)
async def test_a_unit_that_cannot_be_is_corrupt_and_a_queue_that_is_not_is_not_found() -> None:
    async with owned(TierOptions()) as (store, tier, _):
        await put(tier, 10)
        with pytest.raises(NotFound, match="Orders/3"):
            await tier.messages_at(QueueId("Orders", 3), at(0), bytes_max=BYTES_MAX)
        (name,) = [e.name for e in await store.list(TOPIC) if "CONSUME_QUEUE" in e.name]
        inner = store.inner
        assert isinstance(inner, MemoryStore)
        inner._shared.objects[name][5 * 20 : 5 * 20 + 8] = (-1).to_bytes(8, signed=True)
        with pytest.raises(Corrupt, match="impossible unit at 5"):
            await tier.messages_at(QUEUE, at(1, 5), bytes_max=BYTES_MAX)
