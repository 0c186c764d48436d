"""A tier as its owner and its readers see it: commits, rivals, gaps, cuts."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from container.check.tier import check_tier
from container.names.queue_id import QueueId, SegmentType
from container.options import TierOptions
from container.tier import Tier, TierIdentity
from container.tier_view import TierReader
from provider.errors import Corrupt, Denied, Fenced, OutOfRange
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset
from provider.stores.in_place_segments import InPlaceDriver
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryStore
from tests.support.messages import TOPIC, make_batch
from tests.support.owned_tier import run_until_fenced

QUEUE = QueueId(TOPIC, 0)
OPTIONS = TierOptions(
    commit_log_bytes_max=4_000,
    consume_queue_bytes_max=400,
    extent_bytes_max=1_000,
)


@asynccontextmanager
async def owned(store: MemoryStore, owner: str = "a", seed: int = 1) -> AsyncIterator[Tier]:
    identity = TierIdentity("Cluster", "broker-a", owner)
    clock = ManualClock()
    tier = await Tier.own(
        store,
        identity,
        segments=InPlaceDriver(store, clock=clock, takeover_wait_s_max=0),
        clock=clock,
        rng=random.Random(seed),
        options=OPTIONS,
    )
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(run_until_fenced(tier))
        try:
            yield tier
        finally:
            worker.cancel()


class DeniedStore(MemoryStore):
    """The same objects, one of which we may not read."""

    def __init__(self, store: MemoryStore, denied: str) -> None:
        super().__init__(store._shared)
        self._denied = denied

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        if name == self._denied:
            raise Denied("permission denied", name)
        return await super().read(name, wanted)


async def put(tier: Tier, count: int, queue: QueueId = QUEUE, body_bytes: int = 100) -> None:
    record = tier.queue(queue)
    first = record.next_offset if record else 0
    batch = make_batch(
        first, count, body_bytes, random.Random(first), topic=queue.topic, queue_id=queue.queue_id
    )
    await tier.commit([tier.plan_commit(queue, batch)])


async def findings(tier: Tier | TierReader) -> list[str]:
    return [str(finding) async for finding in check_tier(tier)]


async def test_what_is_committed_reads_back_through_a_reader_without_the_owner() -> None:
    store = MemoryStore()
    async with owned(store) as tier:
        for count in (1, 30, 7):
            await put(tier, count)
        await put(tier, 5, QueueId(TOPIC, 1))
        await put(tier, 5, QueueId("Other", 0))
    reader = await TierReader.open(store, verify=True)
    assert {str(q): r.next_offset for q, r in reader.state.queues.items()} == {
        "TopicTest/0": 38,
        "TopicTest/1": 5,
        "Other/0": 5,
    }
    assert sorted(t.topic_id for t in reader.state.topics.values()) == [0, 1]
    container = reader.container(QUEUE)
    assert container is not None
    assert len(await container.segments(SegmentType.COMMIT_LOG)) > 1
    units = await container.units(QueueOffset(0), QueueOffset(38))
    end = int(units["position"][-1] + units["size"][-1])
    log = bytes(await container.log(ByteRange(0, end)))
    for number, unit in enumerate(units):
        at = int(unit["position"])
        assert int.from_bytes(log[at + 20 : at + 28], "big") == number
    assert await findings(reader) == []


async def test_a_queue_can_begin_before_its_first_message() -> None:
    store = MemoryStore()
    async with owned(store) as tier:
        await tier.begin_queue(QUEUE, QueueOffset(7))
        await tier.begin_queue(QUEUE, QueueOffset(9))
        assert await findings(tier) == []
        await put(tier, 2)
        queue = tier.queue(QUEUE)
        assert queue is not None
        assert (queue.min_offset, queue.next_offset) == (7, 9)
        assert await findings(tier) == []


async def test_a_range_that_is_not_published_is_an_error_and_never_short() -> None:
    store = MemoryStore()
    async with owned(store) as tier:
        await put(tier, 3)
        container = tier.container(QUEUE)
        assert container is not None
        with pytest.raises(OutOfRange):
            await container.units(QueueOffset(1), QueueOffset(4))


async def test_a_second_owner_fences_the_first_and_leaves_its_segments_alone() -> None:
    store = MemoryStore()
    async with owned(store) as first:
        await put(first, 3)
        rival_store = store.another_client()
        async with owned(rival_store, "b", seed=2) as second:
            with pytest.raises(Fenced):
                await put(first, 1)
            await put(second, 2)
            queue = second.queue(QUEUE)
            assert queue is not None
            assert [s.epoch for s in queue.commit_log] == [1, 2]
            assert queue.next_offset == 5
            assert await findings(second) == []


async def test_an_owner_whose_predecessor_died_goes_on_in_the_same_files() -> None:
    store = MemoryStore()
    async with owned(store) as first:
        await put(first, 3)
    successor = store.another_client()
    store.kill()
    async with owned(successor, "b", seed=2) as second:
        await put(second, 2)
        queue = second.queue(QUEUE)
        assert queue is not None
        assert len(queue.commit_log) == 1
        assert await findings(second) == []


async def test_a_gap_keeps_all_history_and_begins_new_segments_above_it() -> None:
    store = MemoryStore()
    async with owned(store) as tier:
        await put(tier, 3)
        await tier.record_gap(QUEUE, QueueOffset(3), QueueOffset(10), "deleted by the broker")
        await put(tier, 2)
        queue = tier.queue(QUEUE)
        assert queue is not None
        assert (queue.min_offset, queue.next_offset) == (0, 12)
        assert [s.base for s in queue.consume_queue] == [0, 200]
        assert [(gap.start, gap.end) for gap in queue.gaps] == [(3, 10)]
        assert await findings(tier) == []


@pytest.mark.parametrize("keep", [0, 1, 9, 20, 36])
async def test_a_cut_unpublishes_the_tail_and_the_queue_goes_on(keep: int) -> None:
    store = MemoryStore()
    async with owned(store) as tier:
        for count in (13, 20, 4):
            await put(tier, count)
        await tier.cut_queue(QUEUE, QueueOffset(keep), "the hot log was rewritten")
        assert await findings(tier) == []
        await put(tier, 30)
        queue = tier.queue(QUEUE)
        assert queue is not None
        assert queue.next_offset == keep + 30
        assert await findings(tier) == []
    reader = await TierReader.open(store, verify=True)
    assert await findings(reader) == []


@pytest.mark.parametrize("behind", [0, 1, 17])
@pytest.mark.parametrize("keep", [12, 13, 20, 29, 30])
async def test_a_cut_at_or_in_a_gap_keeps_what_is_below_it(keep: int, behind: int) -> None:
    store = MemoryStore()
    async with owned(store) as tier:
        await put(tier, 13)
        await tier.record_gap(QUEUE, QueueOffset(13), QueueOffset(30), "deleted by the broker")
        if behind:
            await put(tier, behind)
        elif keep == 30:
            return  # nothing lies there
        await tier.cut_queue(QUEUE, QueueOffset(keep), "the hot log was rewritten")
        queue = tier.queue(QUEUE)
        assert queue is not None
        assert queue.next_offset == keep
        assert [(gap.start, gap.end) for gap in queue.gaps] == ([(13, keep)] if keep > 13 else [])
        assert await findings(tier) == []
        await put(tier, 20)
        assert await findings(tier) == []
    reader = await TierReader.open(store, verify=True)
    assert await findings(reader) == []
    container = reader.container(QUEUE)
    assert container is not None
    assert len(await container.units(QueueOffset(0), QueueOffset(min(keep, 13)))) == min(keep, 13)
    assert len(await container.units(QueueOffset(keep), QueueOffset(keep + 20))) == 20


async def test_the_bytes_of_what_was_cut_outlive_the_segments_that_take_their_names() -> None:
    store = MemoryStore()
    async with owned(store) as tier:
        await put(tier, 40)
        names = [e.name for e in await store.list(f"{TOPIC}/")]
        before = {name: bytes(await store.read(name)) for name in names}
        await tier.cut_queue(QUEUE, QueueOffset(0), "the hot log was rewritten")
        await put(tier, 40, body_bytes=50)
        kept = {e.name: bytes(await store.read(e.name)) for e in await store.list("@cut/")}
        assert {name.split("/", 2)[2]: raw for name, raw in kept.items()} == before
        assert kept.keys() <= tier.state.tombstones.keys()
        assert await findings(tier) == []


async def test_nothing_is_cut_where_nothing_is() -> None:
    store = MemoryStore()
    async with owned(store) as tier:
        await put(tier, 3)
        with pytest.raises(OutOfRange):
            await tier.cut_queue(QUEUE, QueueOffset(3), "nothing")


@pytest.mark.leaves_findings("checksum", "body-crc", why="a bit is flipped")
async def test_a_flipped_bit_is_found_by_check_and_by_a_verifying_read() -> None:
    store = MemoryStore()
    async with owned(store) as tier:
        await put(tier, 10)
    name = next(e.name for e in await store.list(TOPIC) if "COMMIT_LOG" in e.name)
    raw = bytearray(await store.read(name))
    raw[150] ^= 1
    await store.delete([name])
    await store.create(name, [raw])
    reader = await TierReader.open(store, verify=True)
    found = [finding async for finding in check_tier(reader)]
    assert "checksum" in {finding.finding for finding in found}
    container = reader.container(QUEUE)
    assert container is not None
    with pytest.raises(Corrupt) as caught:
        await container.log(ByteRange(140, 160))
    assert caught.value.path == name


async def test_an_object_that_may_not_be_read_is_a_finding_and_the_check_goes_on() -> None:
    store = MemoryStore()
    async with owned(store) as tier:
        for queue_id in range(2):
            await put(tier, 10, QueueId(TOPIC, queue_id))
    name = next(e.name for e in await store.list(f"{TOPIC}/0/COMMIT_LOG"))
    reader = await TierReader.open(DeniedStore(store, name))
    found = [(finding.finding, finding.path) async for finding in check_tier(reader)]
    assert ("unreadable", name) in found
    assert not any(path.startswith(f"{TOPIC}/1") for _, path in found)


@pytest.mark.leaves_findings(
    "object-missing",
    "object-short",
    "orphan",
    "unreadable",
    "checksum",
    why="objects are removed, cut and added",
)
async def test_missing_short_and_unknown_objects_are_all_found_at_once() -> None:
    store = MemoryStore()
    async with owned(store) as tier:
        for queue_id in range(3):
            await put(tier, 10, QueueId(TOPIC, queue_id))
    names = {e.name: e for e in await store.list(TOPIC)}
    gone = next(n for n in names if n.startswith(f"{TOPIC}/0/COMMIT_LOG"))
    short = next(n for n in names if n.startswith(f"{TOPIC}/1/CONSUME_QUEUE"))
    raw = bytes(await store.read(short))
    await store.delete([gone, short])
    await store.create(short, [raw[:-7]])
    await store.create("Stranger/0/COMMIT_LOG/x", [b"?"])
    reader = await TierReader.open(store)
    kinds = {(f.finding, f.path) async for f in check_tier(reader)}
    assert ("object-missing", gone) in kinds
    assert ("object-short", short) in kinds
    assert ("orphan", "Stranger/0/COMMIT_LOG/x") in kinds
    assert not any(path.startswith(f"{TOPIC}/2") for _, path in kinds)
