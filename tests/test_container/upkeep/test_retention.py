"""Expiry by age and size, and deletion of topics: what goes, what stays, what readers see."""

from contextlib import suppress
from dataclasses import replace

import pytest

from container.metadata.operations import DropIndexFile, PutIndexFile
from container.metadata.records import MADE_AGAIN_REASON, IndexFile
from container.names.queue_id import QueueId, SegmentType
from container.options import TierOptions, UpkeepOptions
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from fetcher.result import FetchStatus
from provider.errors import Fenced, StoreError, Unavailable
from provider.ranges import QueueOffset
from provider.testing.faulty import Crashed, Fault, Kind
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryObjects, MemoryStore
from tests.support.messages import FIRST_STORE_TIMESTAMP, TOPIC, batch_of, make_record
from tests.support.owned_tier import MINUTE_S, QUEUE, OwnedWorld, put_each_minute

OPTIONS = TierOptions(
    commit_log_bytes_max=2_000, consume_queue_bytes_max=400, extent_bytes_max=1_000
)
EXPIRING = UpkeepOptions(
    interval_s=20.0,
    snapshot_entries_max=20,
    grace_s=100.0,
    sealed_segments_max=2,
    manifests_per_level_max=2,
    expires=True,
    retention_hours=1,
    expiry_interval_s=30.0,
)
KEEPING = replace(EXPIRING, expires=False)
OTHER = QueueId("Other", 3)


async def readable(world: OwnedWorld, queue: QueueId = QUEUE) -> list[int]:
    """The offsets that a new reader reads, from the first on; `check` finds nothing."""
    assert await world.findings() == []
    reader = await TierReader.open(world.memory, verify=True)
    found: list[int] = []
    async with TieredMessageFetcher(reader, clock=ManualClock()) as fetcher:
        at = 0
        while True:
            result = await fetcher.get_message("g", *queue, at, messages_max=100)
            if result.status is FetchStatus.OFFSET_TOO_SMALL:
                assert (at, result.next_offset) == (0, result.min_offset)
            found += result.messages.offsets.tolist() if len(result.messages) else []
            if result.next_offset <= at:
                return found
            at = result.next_offset


def continued(world: OwnedWorld) -> OwnedWorld:
    """Another world that begins where this one is."""
    objects = MemoryObjects()
    objects.objects = {entry: bytearray(raw) for entry, raw in world.memory._shared.objects.items()}
    after = OwnedWorld(world.options, world.upkeep, packed=world.packed)
    after.memory = MemoryStore(objects)
    after.clock = ManualClock(world.clock.now_ms())
    return after


def age_minutes(world: OwnedWorld, offset: int) -> int:
    """How long ago the message at an offset was stored, if one was stored every minute."""
    return (world.clock.now_ms() - FIRST_STORE_TIMESTAMP) // 60_000 - offset


@pytest.mark.parametrize("packed", [False, True])
async def test_what_is_older_than_its_time_goes_by_whole_segments(*, packed: bool) -> None:
    world = OwnedWorld(OPTIONS, EXPIRING, packed=packed)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 120)
        await world.pass_time(120)
        offsets = await readable(world)
        assert offsets == list(range(offsets[0], 120))
        per_segment = 2_000 // (200 + 91)
        assert age_minutes(world, offsets[0] - 1) >= 60, "nothing inside retention went"
        assert age_minutes(world, offsets[0]) <= 60 + per_segment + 2
        if not packed:
            names = await world.names()
            record = tier.queue(QUEUE)
            assert record is not None
            assert len(names) < 20, "the files of what expired are gone after the grace time"
        figures = tier.upkeep.statistics().figures
        assert figures["expired_messages"] == offsets[0]
        assert figures["expired_bytes"] > 200 * offsets[0]


async def test_nothing_expires_unless_the_options_say_so() -> None:
    world = OwnedWorld(OPTIONS, KEEPING)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 100)
        await world.pass_time(3 * 3600)
        assert await readable(world) == list(range(100))
        assert "expired_messages" not in tier.upkeep.statistics().figures


async def test_an_idle_queue_is_rolled_and_expires_whole_and_goes_on_where_it_ended() -> None:
    world = OwnedWorld(OPTIONS, EXPIRING)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 20)
        await world.pass_time(3600 + 200)
        assert await readable(world) == []
        record = tier.queue(QUEUE)
        assert record is not None
        assert record.min_offset == record.next_offset == 20
        assert await world.names() == set(), "not one file is left"
        await put_each_minute(tier, world.clock, 5)
        assert await readable(world) == list(range(20, 25))
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 3)
        assert await readable(world) == list(range(20, 28))


async def test_a_queue_that_expired_whole_goes_on_above_a_gap_and_under_a_new_owner() -> None:
    for with_gap in (False, True):
        world = OwnedWorld(OPTIONS, EXPIRING)
        async with world.owned() as tier:
            await put_each_minute(tier, world.clock, 20)
            await world.pass_time(3600 + 200)
        async with world.owned() as tier:  # beside the first, which may still write
            if with_gap:
                await tier.record_gap(QUEUE, QueueOffset(20), QueueOffset(25), "lost")
            await put_each_minute(tier, world.clock, 12)
            first = 25 if with_gap else 20
            assert await readable(world) == list(range(first, first + 12))


@pytest.mark.parametrize("packed", [False, True])
async def test_gaps_leave_with_the_messages_around_them(*, packed: bool) -> None:
    world = OwnedWorld(OPTIONS, EXPIRING, packed=packed)
    made: list[tuple[int, int]] = []
    messages: list[int] = []
    sizes: list[int] = []
    async with world.owned() as tier:
        for number in range(100):
            await put_each_minute(tier, world.clock, 1)
            queue = tier.state.queues[QUEUE]
            messages.append(queue.next_offset - 1)
            start, end = queue.next_offset, QueueOffset(queue.next_offset + 1 + number % 5)
            reason = MADE_AGAIN_REASON if number in {7, 11} else "lost"
            await tier.record_gap(QUEUE, start, end, reason)
            made.append((start, end))
            sizes.append(len(tier.state.queues[QUEUE].gaps))
        await put_each_minute(tier, world.clock, 1)
        await world.pass_time(120)
    assert max(sizes) <= 70, "as many as an hour has, and what one run of retention is late"
    queue = tier.state.queues[QUEUE]
    messages.append(queue.next_offset - 1)
    assert await readable(world) == [one for one in messages if one >= queue.min_offset]
    marked, *kept = [(gap.start, gap.end) for gap in queue.gaps]
    assert marked == made[11], "a queue that is made again goes on behind it"
    counted = [gap for gap in made if gap[1] > queue.min_offset]
    assert kept[-len(counted) :] == counted, "lost messages are counted above the first offset"
    async with world.owned() as again:
        await put_each_minute(again, world.clock, 3)
        messages += range(queue.next_offset, queue.next_offset + 3)
        first = again.state.queues[QUEUE].min_offset
        assert await readable(world) == [one for one in messages if one >= first]


async def test_a_topic_has_a_time_of_its_own() -> None:
    world = OwnedWorld(OPTIONS, EXPIRING)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 20, QUEUE, OTHER)
        await tier.set_topics({OTHER.topic: 3, "Nobody": 9})
        await world.pass_time(2 * 3600)
        assert await readable(world) == []
        assert await readable(world, OTHER) == list(range(20))
        await world.pass_time(2 * 3600)
        assert await readable(world, OTHER) == []


async def test_a_topic_keeps_no_more_than_its_size_and_its_newest_messages() -> None:
    options = replace(EXPIRING, retention_hours=1000, topic_bytes_max=10_000)
    world = OwnedWorld(OPTIONS, options)
    second = QueueId(TOPIC, 1)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 40)
        await put_each_minute(tier, world.clock, 60, second)
        await world.pass_time(200)
        assert await readable(world) == list(range(36, 40)), "only the segment that grows"
        offsets = await readable(world, second)
        assert offsets == list(range(offsets[0], 60))
        kept = 0
        for queue in (QUEUE, second):
            container = tier.container(queue)
            assert container is not None
            kept += sum(one.size for one in await container.segments(SegmentType.COMMIT_LOG))
        assert 10_000 - 2_000 < kept <= 10_000


async def test_of_a_manifest_what_did_not_expire_stays_in_a_new_one() -> None:
    world = OwnedWorld(OPTIONS, KEEPING)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 150)
        await world.pass_time(30)
        record = tier.state.queues[QUEUE]
        assert {ref.level for ref in record.manifests} >= {0, 1}
    async with world.owned(EXPIRING) as tier:
        await world.pass_time(60)
        first = tier.state.queues[QUEUE].min_offset
        assert 0 < first < 150
        assert await readable(world) == list(range(first, 150))
        await put_each_minute(tier, world.clock, 30)
        await world.pass_time(200)
        offsets = await readable(world)
        assert offsets == list(range(offsets[0], 180))
        assert offsets[0] > first


async def test_readers_of_older_metadata_read_on_until_the_grace_time_is_over() -> None:
    world = OwnedWorld(OPTIONS, KEEPING)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 100)
        reader = await TierReader.open(world.memory)
    async with (
        world.owned(EXPIRING) as tier,
        TieredMessageFetcher(reader, clock=ManualClock()) as fetcher,
    ):
        await world.pass_time(40)
        minimum = tier.state.queues[QUEUE].min_offset
        assert minimum > 0
        found = await fetcher.get_message("g", *QUEUE, 3, messages_max=1)
        assert found.status is FetchStatus.FOUND
        await world.pass_time(200)
        found = await fetcher.get_message("g", *QUEUE, 0, messages_max=1)
        assert found.status is FetchStatus.OFFSET_TOO_SMALL
        assert found.next_offset >= minimum


async def test_a_deletion_that_fails_is_tried_again() -> None:
    world = OwnedWorld(OPTIONS, EXPIRING)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 20)
        world.stores[-1].faults = (Fault("refused", "delete", f"{QUEUE}/"),)
        await world.pass_time(3600 + 300)
        assert await world.names() != set()
        assert tier.upkeep.statistics().figures["undeletable"] > 0
        world.stores[-1].faults = ()
        await world.pass_time(20_000)
        assert await world.names() == set()


async def test_a_commit_that_a_roll_overtakes_is_planned_again() -> None:
    world = OwnedWorld(OPTIONS, EXPIRING)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 3)
        record = tier.state.queues[QUEUE]
        raw = make_record(*QUEUE, record.next_offset, store_timestamp=world.clock.now_ms())
        plan = tier.plan_commit(QUEUE, batch_of([raw]))
        await world.pass_time(3600 + 60)
        with pytest.raises(Unavailable, match="plan again"):
            await tier.commit([plan])
        await tier.commit([tier.plan_commit(QUEUE, batch_of([raw]))])
        await world.pass_time(1000)
        assert await readable(world) in ([3], [])


async def test_a_segment_holds_no_more_than_the_time_that_messages_are_kept() -> None:
    """Or a queue with few messages would keep its oldest ones for as long as it is written."""
    world = OwnedWorld(TierOptions(), EXPIRING)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 200)
        bases = [segment.base for segment in tier.state.queues[QUEUE].commit_log]
        assert len(bases) >= 2
        await world.pass_time(100)
        offsets = await readable(world)
        assert age_minutes(world, offsets[0]) <= 2 * 60 + 2
    world = OwnedWorld(TierOptions(), KEEPING)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 200)
        assert len(tier.state.queues[QUEUE].commit_log) == 1, "else cuts stay RocketMQ's"


async def test_index_files_go_with_the_last_message_that_they_cover() -> None:
    world = OwnedWorld(OPTIONS, EXPIRING)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 40)
        files = [
            IndexFile("x/1", 0, 10, 0, 0, 1, 1, ((QUEUE, QueueOffset(0), QueueOffset(5)),)),
            IndexFile("x/2", 1, 10, 0, 0, 1, 1, ((QUEUE, QueueOffset(5), QueueOffset(40)),)),
            IndexFile("x/3", 2, 10, world.clock.now_ms(), 1, 1, 1),
            IndexFile("x/4", 3, 10, 0, 0, 1, 1),
        ]
        await tier.journal.publish([PutIndexFile(one) for one in files])
        await world.pass_time(40 * 60)
        assert set(tier.state.index_files) == {"x/2", "x/3"}, "x/4 is older than every message"
        await world.pass_time(3600)
        assert set(tier.state.index_files) == {"x/3"}
        await tier.journal.publish([DropIndexFile("x/3")])


@pytest.mark.parametrize("packed", [False, True])
async def test_a_topic_is_deleted_with_all_of_its_history_and_begins_again(*, packed: bool) -> None:
    world = OwnedWorld(OPTIONS, KEEPING, packed=packed)
    second = QueueId(TOPIC, 1)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 60, QUEUE, second, OTHER)
        assert await tier.delete_topic(TOPIC) == 2
        assert set(tier.state.queues) == {OTHER}
        assert await tier.delete_topic(TOPIC) == 0
        if not packed:
            with pytest.raises(Unavailable, match="deleted"):
                await put_each_minute(tier, world.clock, 1)
            await world.pass_time(60)
            assert await world.names() == set()
        await put_each_minute(tier, world.clock, 3)
        assert tier.state.queues[QUEUE].generation > 0
        assert await readable(world) == [0, 1, 2]
        assert await readable(world, OTHER) == list(range(60))
    async with world.owned() as tier:
        await world.pass_time(400)
        assert await readable(world) == [0, 1, 2]


async def test_a_commit_that_a_deletion_overtakes_publishes_nothing_of_the_old_queue() -> None:
    world = OwnedWorld(OPTIONS, KEEPING)
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 9)
        raw = make_record(*QUEUE, 9, store_timestamp=world.clock.now_ms())
        plan = tier.plan_commit(QUEUE, batch_of([raw]))
        await tier.delete_topic(TOPIC)
        with pytest.raises(Unavailable):
            await tier.commit([plan])
        await world.pass_time(60)
        with pytest.raises(Unavailable):
            await tier.commit([plan])
        assert QUEUE not in tier.state.queues


async def test_an_owner_that_was_fenced_expires_and_deletes_nothing() -> None:
    world = OwnedWorld(OPTIONS, EXPIRING)
    async with world.owned() as former:
        await put_each_minute(former, world.clock, 100)
        async with world.owned(KEEPING) as newer:
            with pytest.raises(Fenced):
                await former.delete_topic(TOPIC)
            first = newer.state.queues[QUEUE].min_offset
            await world.pass_time(7200)
            assert newer.state.queues[QUEUE].min_offset == first
            assert await readable(world) == list(range(first, 100))


@pytest.mark.parametrize("kind", ["crash_before", "crash_after", "lost_reply"])
async def test_what_a_run_leaves_that_dies_at_any_request_the_next_owner_finishes(
    kind: Kind,
) -> None:
    """Requests of a first run of retention, after a history that lies in manifests."""
    before = OwnedWorld(OPTIONS, KEEPING)
    async with before.owned() as tier:
        await put_each_minute(tier, before.clock, 50)
        await before.pass_time(30)
    before.kill_all()
    await before.clock.advance(50 * MINUTE_S)
    number, struck = 0, True
    while struck:
        number += 1
        world = continued(before)
        with suppress(BaseExceptionGroup, Crashed, StoreError):
            async with world.owned(EXPIRING):
                world.stores[-1].faults = (Fault(kind, calls=(number,)),)
                await world.pass_time(45)
        struck = bool(world.stores[-1].struck)
        world.kill_all()
        async with world.owned(EXPIRING) as tier:
            await world.pass_time(400)
            await tier.close()
            first = tier.state.queues[QUEUE].min_offset
            assert first >= 39, "what is older than an hour is gone"
            assert await readable(world) == list(range(first, 50))
    assert number >= 5
