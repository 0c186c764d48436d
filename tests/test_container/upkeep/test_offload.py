"""Offload to a second store: what goes, what stays, and that nothing is lost on the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import Random

import pytest

from container.errors import NewerVersion, Refused
from container.journal.frame import Frame, FrameKind
from container.metadata.offloading import home_of, is_away
from container.metadata.records import Segment
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.options import TierOptions
from container.queue.compact_plan import CompactRules, plan_parts
from container.queue.repack_plan import RepackRules
from container.queue.tail_cut import cut_queue
from container.tier import Tier
from container.tier_reader import TierReader
from container.upkeep.offload import OffloadedQueue, OffloadStep, planned_offload
from container.upkeep.offload_plan import Until
from container.upkeep.options import UpkeepOptions
from container.upkeep.retention import RetentionStep
from provider.clock import ManualClock
from provider.errors import Corrupt, Denied, StoreError
from provider.memory import MemoryObjects, MemoryStore
from provider.object_store import Buffer
from provider.packed_segments import OFFLOAD_PREFIX, PartName
from provider.ranges import ByteRange, QueueOffset
from provider.testing.faulty import Crashed, Fault, Kind
from provider.two_stores import TwoStores
from tests.support.messages import TOPIC, batch_of, make_record
from tests.support.owned_tier import QUEUE, OwnedWorld
from tests.support.store_reader import queue_contents

MINUTE_S = 60
HOUR_S = 3600
OPTIONS = TierOptions(
    commit_log_bytes_max=2_000,
    consume_queue_bytes_max=400,
    extent_bytes_max=1_000,
    cut_grace_hours=1,
)
BY_HAND = UpkeepOptions(
    interval_s=20.0,
    snapshot_entries_max=20,
    grace_s=100.0,
    sealed_segments_max=2,
    manifests_per_level_max=2,
    repack_bytes_max=1_500,
    offloads=True,
    offload_lag_s=1_000.0,
    offload_interval_s=30.0,
)
BY_AGE = replace(BY_HAND, offload_age_hours=1)
OTHER = QueueId("Other", 3)
ALL = Until()


def world(options: UpkeepOptions = BY_HAND, *, packed: bool = False) -> OwnedWorld:
    return OwnedWorld(OPTIONS, options, packed=packed, offloads=True)


async def put(tier: Tier, clock: ManualClock, count: int, *queues: QueueId) -> None:
    """One message a minute for each queue, stored now; the clock goes on."""
    for _ in range(count):
        plans = []
        for queue in queues or (QUEUE,):
            record = tier.queue(queue)
            offset = record.next_offset if record else 0
            body = Random(offset).randbytes(200)
            raw = make_record(*queue, offset, body, store_timestamp=clock.now_ms())
            plans.append(tier.plan_commit(queue, batch_of([raw])))
        await tier.commit(plans)
        await clock.advance(MINUTE_S)


async def by_hand(tier: Tier, until: Until = ALL, topic: str = TOPIC) -> list[OffloadedQueue]:
    step = tier.upkeep.offload
    assert step is not None
    return await step.by_hand(topic, until)


async def segments(world: OwnedWorld, queue: QueueId = QUEUE) -> list[Segment]:
    reader = await TierReader.open(world.view())
    container = reader.container(queue)
    assert container is not None
    return [one for kind in FLAT_FILES for one in await container.segments(kind)]


async def away(world: OwnedWorld, queue: QueueId = QUEUE) -> int:
    """How many segments are in the second store."""
    return sum(map(is_away, await segments(world, queue)))


def in_second(world: OwnedWorld) -> set[str]:
    assert world.second is not None
    return set(world.second._shared.objects)


@pytest.mark.parametrize("packed", [False, True])
async def test_segments_move_by_hand_and_read_back(*, packed: bool) -> None:
    it = world(packed=packed)
    async with it.owned() as tier:
        await put(tier, it.clock, 40)
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
        await put(tier, it.clock, 5)  # goes on behind what was closed
        assert await it.reads_back() == 45
        assert await by_hand(tier, Until(offset=40)) == []
    it.kill_all()
    async with it.owned() as tier:
        await put(tier, it.clock, 5)
        assert await it.reads_back() == 50


async def test_the_first_copy_goes_when_the_lag_is_over() -> None:
    it = world()
    async with it.owned() as tier:
        await put(tier, it.clock, 20)
        files = await it.names()
        await by_hand(tier)
        await it.pass_time(BY_HAND.offload_lag_s - 50)
        assert await it.names() == files
        await it.pass_time(200)
        assert await it.names() == set()
        assert await it.reads_back() == 20
        await put(tier, it.clock, 3)
        assert await it.reads_back() == 23


async def test_whole_segments_below_an_offset_or_a_time_move() -> None:
    it = world()
    async with it.owned() as tier:
        began_ms = it.clock.now_ms()
        await put(tier, it.clock, 40)
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
        await put(tier, it.clock, 30, QUEUE, OTHER)
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
        await put(tier, it.clock, 90)
        await it.pass_time(100)
        told = [(is_away(one), one.end_timestamp or 0) for one in await segments(it)]
        before_ms = it.clock.now_ms() - HOUR_S * 1000
        assert any(gone for gone, _ in told)
        assert all(gone for gone, newest_ms in told if newest_ms < before_ms - 120_000)
        assert not any(gone for gone, newest_ms in told if newest_ms >= before_ms)
        assert await it.reads_back() == 90


async def test_nothing_is_asked_for_where_nothing_is_due() -> None:
    it = world(replace(BY_AGE, offload_age_hours=100))
    async with it.owned() as tier:
        await put(tier, it.clock, 30)
        await it.pass_time(300)
        first, second = it.stores[-1].calls.copy(), it.seconds[-1].calls.copy()
        await it.pass_time(3_000)
        assert it.stores[-1].calls == first
        assert it.seconds[-1].calls == second
        assert in_second(it) == set()


async def test_a_topic_keeps_its_size_in_the_first_store() -> None:
    it = world(replace(BY_HAND, offload_topic_bytes=5_000))
    async with it.owned() as tier:
        await put(tier, it.clock, 60, QUEUE, QueueId(TOPIC, 1))
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
        await put(tier, it.clock, 40)
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
        await put(tier, it.clock, 40)
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
        await put(tier, it.clock, 30, QUEUE, OTHER)
        await by_hand(tier)
        before = in_second(it)
        await put(tier, it.clock, 10)
        await by_hand(tier, topic="Other")
        assert in_second(it) > before
        await it.pass_time(3 * HOUR_S)
        assert not in_second(it) & before
        await tier.delete_topic("Other")
        await it.pass_time(300)
        assert in_second(it) == set()
        assert await it.findings() == []


async def test_a_topic_comes_again_after_its_deletion() -> None:
    it = world()
    async with it.owned() as tier:
        await put(tier, it.clock, 20)
        await by_hand(tier)
        await tier.delete_topic(TOPIC)
        await it.pass_time(150)  # much less than the lag
        assert await it.names() == set()
        await put(tier, it.clock, 4)
        assert await it.reads_back() == 4


@pytest.mark.parametrize("packed", [False, True])
async def test_a_cut_goes_through_what_was_offloaded(*, packed: bool) -> None:
    it = world(packed=packed)
    async with it.owned() as tier:
        await put(tier, it.clock, 30)
        await by_hand(tier)
        await tier.cut_queue(QUEUE, QueueOffset(13), "a test")
        assert await it.reads_back() == 13
        await put(tier, it.clock, 10)
        await it.pass_time(2 * HOUR_S)
        assert await it.reads_back() == 23
        await it.pass_time(3 * HOUR_S)
        assert await it.reads_back() == 23


async def test_a_cut_planned_before_an_offload_is_refused() -> None:
    """It would publish the first store's copies again, which go when the lag is over."""
    it = world(replace(BY_HAND, sealed_segments_max=100))
    async with it.owned() as tier:
        await put(tier, it.clock, 30)
        container = tier.container(QUEUE)
        assert container is not None
        cut = await cut_queue(container, it.view(), QueueOffset(25), now_ms=it.clock.now_ms())
        operation = tier._cut_operation(cut, "a test", ())
        await by_hand(tier, Until(offset=20))
        with pytest.raises(Refused, match="planned on"):
            await tier.journal.publish([operation])
        assert await it.reads_back() == 30


async def test_a_manifest_planned_before_an_offload_is_refused() -> None:
    it = world(replace(BY_HAND, sealed_segments_max=100))
    async with it.owned() as tier:
        await put(tier, it.clock, 30)
    it.kill_all()
    async with it.owned(BY_HAND) as tier:
        it.stores[-1].faults = (Fault("stalled", "create", "@manifest/", calls=(1,)),)
        async with asyncio.TaskGroup() as group:
            group.create_task(it.clock.advance(30))
            await asyncio.sleep(0)
            await by_hand(tier, Until(offset=20))
            it.stores[-1].released.set()
        await it.pass_time(3 * HOUR_S)
        assert await away(it) > 3
        assert await it.reads_back() == 30


class _LyingStore(TwoStores):
    """Gives back other bytes of one object than it was given."""

    def __init__(self, inner: TwoStores, lies_from: int) -> None:
        super().__init__(inner.inner, inner.second)
        self._left = lies_from

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        found = await super().read(name, wanted)
        if name.startswith(OFFLOAD_PREFIX) and wanted is None:
            self._left -= 1
            if self._left < 0:
                return bytes(found)[:-1] + bytes([bytes(found)[-1] ^ 1])
        return found


@asynccontextmanager
async def lied_to(it: OwnedWorld, lies_from: int) -> AsyncIterator[Tier]:
    async with it.owned() as tier:
        step = tier.upkeep.offload
        assert isinstance(step, OffloadStep)
        liar = _LyingStore(TwoStores(it.stores[-1], it.seconds[-1]), lies_from)
        object.__setattr__(step._offloader._tier, "store", liar)
        yield tier


@pytest.mark.parametrize("lies_from", [0, 3])
async def test_a_second_store_that_lies_publishes_nothing(lies_from: int) -> None:
    it = world()
    async with lied_to(it, lies_from) as tier:
        await put(tier, it.clock, 30)
        with pytest.raises(Corrupt, match=r"gave back other bytes than the \d+ that it was given"):
            await by_hand(tier)
        assert (await away(it) == 0) == (lies_from == 0)
        assert await it.reads_back() == 30
        made = in_second(it)
        await it.pass_time(2 * HOUR_S)
        assert len(in_second(it)) < len(made), "what was made in vain goes"
    it.kill_all()
    async with it.owned() as tier:
        assert await by_hand(tier)
        assert await it.reads_back() == 30


@pytest.mark.leaves_findings("checksum", "body-crc", why="a byte of the first store was changed")
async def test_damage_in_the_first_store_stays_where_it_is() -> None:
    it = world()
    async with it.owned() as tier:
        await put(tier, it.clock, 30)
        victim = sorted(await it.names(f"{QUEUE}/COMMIT_LOG/"))[1]
        it.memory._shared.objects[victim][700] ^= 1
        (done,) = await by_hand(tier)
        assert [(type(error), error.path) for error in done.errors] == [(Corrupt, victim)]
        stay = [one for one in await segments(it) if not is_away(one)]
        assert len(stay) == 1
        assert await by_hand(tier) == []
        assert any(victim in one for one in await it.findings())


KINDS: tuple[Kind, ...] = ("refused", "lost_reply", "crash_before", "crash_after")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["first", "second"])
async def test_an_offload_may_end_at_every_request(kind: Kind, which: str) -> None:
    before = world()
    async with before.owned() as tier:
        await put(tier, before.clock, 14)
    number, struck = 0, True
    while struck:
        number += 1
        it = world()
        it.memory, it.clock = copied(before.memory), ManualClock(before.clock.now_ms())
        with suppress(BaseExceptionGroup):
            async with it.owned() as tier:
                store = (it.stores if which == "first" else it.seconds)[-1]
                store.faults = (Fault(kind, calls=(number,)),)
                async with asyncio.TaskGroup() as group:
                    work = group.create_task(_until_it_fails(tier))
                    await it.pass_time(20)
                    work.cancel()
        struck = bool((it.stores if which == "first" else it.seconds)[-1].struck)
        it.kill_all()
        async with it.owned() as tier:
            await by_hand(tier)
            await it.pass_time(1_500)
            assert await it.reads_back() == 14
            known = {one.object_name for s in await segments(it) for one in s.extents}
            assert in_second(it) == known
            assert await it.names() == set()
    assert number > (10 if which == "first" else 5)


def copied(memory: MemoryStore) -> MemoryStore:
    objects = MemoryObjects()
    objects.objects = {name: bytearray(raw) for name, raw in memory._shared.objects.items()}
    return MemoryStore(objects)


async def _until_it_fails(tier: Tier) -> None:
    with suppress(StoreError, Crashed, ExceptionGroup):
        await by_hand(tier)


async def test_two_rivals_lose_nothing() -> None:
    it = world()
    async with it.owned() as one:
        await put(one, it.clock, 30)
        it.seconds[-1].faults = (Fault("stalled", "create", calls=(3,)),)
        async with asyncio.TaskGroup() as group:
            late = group.create_task(_until_it_fails(one))
            for _ in range(200):
                await asyncio.sleep(0)
            async with it.owned() as other:
                await by_hand(other)
                it.seconds[0].released.set()
                await late
                await it.pass_time(2 * HOUR_S)
                reader = await TierReader.open(it.view(), verify=True)
                assert len((await queue_contents(reader, QUEUE)).offsets) == 30
    it.kill_all()
    async with it.owned() as tier:
        await by_hand(tier)
        await it.pass_time(2 * HOUR_S)
        known = {one.object_name for s in await segments(it) for one in s.extents}
        assert in_second(it) == known
        assert await it.reads_back() == 30


async def test_two_tiers_share_a_second_store() -> None:
    one, other = world(), world()
    other.second = one.second
    for it in (one, other):
        async with it.owned() as tier:
            await put(tier, it.clock, 20)
            await by_hand(tier)
    both = in_second(one)
    for _ in range(2):
        other.kill_all()
        async with other.owned() as tier:
            await put(tier, other.clock, 25)
            await other.pass_time(2 * HOUR_S)
    assert in_second(one) >= both
    assert await one.reads_back() == 20
    assert await other.reads_back() == 70


async def test_readers_that_do_not_know_the_second_store_say_so() -> None:
    it = world()
    async with it.owned() as tier:
        await put(tier, it.clock, 20)
        await put(tier, it.clock, 5, OTHER)
        await by_hand(tier)
    it.second = None
    reader = await TierReader.open(it.view())
    assert len((await queue_contents(reader, OTHER)).offsets) == 5
    with pytest.raises(Denied, match="set tieredStoreOffloadPath"):
        await queue_contents(reader, QUEUE)
    with pytest.raises(Denied, match="set tieredStoreOffloadPath"):
        await it.findings()


async def test_an_owner_that_does_not_know_it_goes_on_and_deletes_nothing_there() -> None:
    it = world()
    async with it.owned() as tier:
        await put(tier, it.clock, 20)
        await by_hand(tier)
    it.kill_all()
    second, it.second = it.second, None
    made = set(second._shared.objects) if second is not None else set[str]()
    async with it.owned(replace(BY_HAND, offloads=False)) as tier:
        await put(tier, it.clock, 30)
        await tier.delete_topic(TOPIC)
        await it.pass_time(2 * HOUR_S)
    it.kill_all()
    it.second = second
    assert in_second(it) == made
    async with it.owned() as tier:
        await it.pass_time(3 * HOUR_S)
        assert in_second(it) == set()


async def test_older_programs_refuse_a_tier_that_was_offloaded() -> None:
    it = world()
    async with it.owned() as tier:
        await put(tier, it.clock, 40)
        objects = it.memory._shared.objects
        assert {
            bytes(raw[6:8]) for name, raw in objects.items() if name.startswith("@journal/")
        } == {b"\x00\x00"}
        before = {name for name in objects if name.startswith(("@journal/", "@manifest/"))}
        await by_hand(tier)
        new = {
            name: bytes(raw)
            for name, raw in objects.items()
            if name.startswith(("@journal/", "@manifest/")) and name not in before
        }
        assert any(raw[6:8] == b"\x00\x02" for raw in new.values())
        for name, raw in new.items():
            assert (OFFLOAD_PREFIX.encode() in raw) == (raw[6:8] == b"\x00\x02"), name
        name, raw = next((n, r) for n, r in new.items() if n.startswith("@manifest/"))
        with pytest.raises((NewerVersion, Corrupt)):
            Frame.decode(raw[:6] + b"\x00\x03" + raw[8:], FrameKind.MANIFEST, path=name)
        assert home_of(tier.state.attempts)


async def test_a_trim_beside_an_offload_is_planned_again() -> None:
    options = replace(BY_HAND, expires=True, retention_hours=2, expiry_interval_s=30.0)
    it = world(replace(options, offload_lag_s=0.0))
    async with it.owned() as tier:
        await put(tier, it.clock, 110)
        async with asyncio.TaskGroup() as group:
            group.create_task(by_hand(tier))  # type: ignore[arg-type]
            group.create_task(it.pass_time(2 * MINUTE_S))
        await it.pass_time(30 * MINUTE_S)
        assert await it.findings() == []
        assert RetentionStep.name not in tier.upkeep.statistics().errors
        known = {one.object_name for s in await segments(it) for one in s.extents}
        await it.pass_time(HOUR_S)
        assert await it.findings() == []
        assert in_second(it) <= known


async def test_compacting_leaves_what_was_offloaded_where_it_is() -> None:
    it = world(packed=True)
    rules = CompactRules(RepackRules(8, 2, 1_000_000, 1_000_000), 1_000_000, 100)
    async with it.owned() as tier:
        await put(tier, it.clock, 30)
        state = tier.state
        assert plan_parts(state.queues.values(), state.parts, rules).jobs
        await by_hand(tier)
        assert not plan_parts(state.queues.values(), state.parts, rules).jobs
