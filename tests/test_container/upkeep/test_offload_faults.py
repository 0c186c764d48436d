"""Offload beside cuts, rivals, crashes, lies and programs that do not know: nothing is lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from container.errors import NewerVersion, Refused
from container.journal.frame import Frame, FrameKind
from container.metadata.objects import home_of, is_away
from container.move.offload_plan import Until
from container.queue.truncate import cut_queue
from container.tier import Tier
from container.tier_view import TierReader
from container.upkeep.offload import OffloadStep
from container.upkeep.retention import RetentionStep
from provider.errors import Corrupt, Denied, StoreError
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset
from provider.stores.packed_segments import OFFLOAD_PREFIX, PartName
from provider.stores.two_stores import TwoStores
from provider.testing.faulty import Crashed, Fault, Kind
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryObjects, MemoryStore
from tests.support.messages import TOPIC
from tests.support.offloaded import (
    BY_HAND,
    HOUR_S,
    OTHER,
    away,
    by_hand,
    in_second,
    segments,
    world,
)
from tests.support.owned_tier import MINUTE_S, QUEUE, OwnedWorld, put_each_minute
from tests.support.store_reader import queue_contents


@pytest.mark.parametrize("packed", [False, True])
async def test_a_cut_goes_through_what_was_offloaded(*, packed: bool) -> None:
    it = world(packed=packed)
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 30)
        await by_hand(tier)
        await tier.cut_queue(QUEUE, QueueOffset(13), "a test")
        assert await it.reads_back() == 13
        await put_each_minute(tier, it.clock, 10)
        await it.pass_time(2 * HOUR_S)
        assert await it.reads_back() == 23
        await it.pass_time(3 * HOUR_S)
        assert await it.reads_back() == 23


async def test_a_cut_planned_before_an_offload_is_refused() -> None:
    """It would publish the first store's copies again, which go when the lag is over."""
    it = world(replace(BY_HAND, sealed_segments_max=100))
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 30)
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
        await put_each_minute(tier, it.clock, 30)
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
        if PartName.parse(name) and name.startswith(OFFLOAD_PREFIX) and wanted is None:
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


@pytest.mark.parametrize(("lies_from", "at_once"), [(0, 1), (3, 1), (0, 8), (8, 8)])
async def test_a_second_store_that_lies_publishes_nothing(lies_from: int, at_once: int) -> None:
    it = world(replace(BY_HAND, offload_copies_max=at_once))
    async with lied_to(it, lies_from) as tier:
        await put_each_minute(tier, it.clock, 30)
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


async def damaged_segment(it: OwnedWorld) -> str:
    """Change a byte of the second log segment in the first store; return its name."""
    victim = sorted(await it.names(f"{QUEUE}/COMMIT_LOG/"))[1]
    it.memory._shared.objects[victim][700] ^= 1
    return victim


@pytest.mark.leaves_findings("checksum", "body-crc", why="a byte of the first store was changed")
async def test_damage_in_the_first_store_stays_where_it_is() -> None:
    it = world()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 30)
        victim = await damaged_segment(it)
        (done,) = await by_hand(tier)
        assert [(type(error), error.path) for error in done.errors] == [(Corrupt, victim)]
        stay = [one for one in await segments(it) if not is_away(one)]
        assert len(stay) == 1
        assert await by_hand(tier) == []
        assert any(victim in one for one in await it.findings())


@pytest.mark.leaves_findings("checksum", "body-crc", why="a byte of the first store was changed")
async def test_damage_of_a_deleted_topic_is_forgotten() -> None:
    """The topic comes again, and its segments have the same numbers."""
    it = world()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 30)
        await damaged_segment(it)
        (done,) = await by_hand(tier)
        assert done.errors
        await tier.delete_topic(TOPIC)
        await it.pass_time(300)
        await put_each_minute(tier, it.clock, 30)
        await by_hand(tier)
        assert await away(it) == len(await segments(it))


KINDS: tuple[Kind, ...] = ("refused", "lost_reply", "crash_before", "crash_after")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["first", "second"])
async def test_an_offload_may_end_at_every_request(kind: Kind, which: str) -> None:
    before = world()
    async with before.owned() as tier:
        await put_each_minute(tier, before.clock, 14)
    number, struck = 0, True
    while struck:
        number += 1
        it = world()
        it.memory, it.clock = copied(before.memory), ManualClock(before.clock.now_ms())
        with suppress(BaseExceptionGroup, Crashed, StoreError):
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
        await put_each_minute(one, it.clock, 30)
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
            await put_each_minute(tier, it.clock, 20)
            await by_hand(tier)
    both = in_second(one)
    for _ in range(2):
        other.kill_all()
        async with other.owned() as tier:
            await put_each_minute(tier, other.clock, 25)
            await other.pass_time(2 * HOUR_S)
    assert in_second(one) >= both
    assert await one.reads_back() == 20
    assert await other.reads_back() == 70


async def test_readers_that_do_not_know_the_second_store_say_so() -> None:
    it = world()
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 20)
        await put_each_minute(tier, it.clock, 5, OTHER)
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
        await put_each_minute(tier, it.clock, 20)
        await by_hand(tier)
    it.kill_all()
    made = in_second(it)
    second, it.second = it.second, None
    async with it.owned(replace(BY_HAND, offloads=False)) as tier:
        await put_each_minute(tier, it.clock, 30)
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
        await put_each_minute(tier, it.clock, 40)
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
        await put_each_minute(tier, it.clock, 110)
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


async def test_copies_that_are_not_published_yet_are_none_of_an_earlier_owner() -> None:
    """The search meets them in storage, and in no record yet: their own epoch keeps them."""
    it = world(replace(BY_HAND, grace_s=0.0, snapshot_entries_max=2))
    async with it.owned() as tier:
        await put_each_minute(tier, it.clock, 8)
        await by_hand(tier)
        await put_each_minute(tier, it.clock, 8)
    it.kill_all()
    it.options = replace(it.options, cut_grace_hours=0)
    async with it.owned() as tier:
        it.seconds[-1].faults = (Fault("stalled", "create", "@offload/", calls=(2,)),)
        async with asyncio.TaskGroup() as group:
            late = group.create_task(_until_it_fails(tier))
            await put_each_minute(tier, it.clock, 5, OTHER)
            await it.pass_time(200)
            assert sum(it.seconds[-1].listed.values()) == 1
            assert not late.done()
            it.seconds[-1].released.set()
        await it.pass_time(200)
        assert await away(it) >= 3
        assert await it.reads_back() == 16
