"""Two owners over one storage: nothing that one of them published is changed by the other."""

import asyncio

import pytest

from provider.errors import AlreadyExists, Closed, Fenced, Unavailable
from provider.file_segments import SegmentSlice
from provider.stores.in_place_segments import InPlaceDriver, InPlaceSegments
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore


class Journal:
    """Stands for the journal: who owns the tier, and who asked."""

    def __init__(self, owner_epoch: int) -> None:
        self.owner_epoch = owner_epoch
        self.asked = 0

    async def verify_owner_of(self, epoch: int) -> None:
        self.asked += 1
        if epoch != self.owner_epoch:
            raise Fenced("a newer owner", "@journal/1")


def segments_of(
    store: MemoryStore | FaultyObjectStore, journal: Journal, epoch: int, *, alone: bool
) -> InPlaceSegments:
    return InPlaceSegments(
        store, alone=alone, epoch=epoch, verify_owner=lambda: journal.verify_owner_of(epoch)
    )


def begin(segment: str, body: bytes) -> list[SegmentSlice]:
    return [SegmentSlice(segment, 0, (body,))]


async def test_an_owner_alone_takes_over_what_a_dead_one_left() -> None:
    dead = MemoryStore()
    await segments_of(dead, Journal(1), 1, alone=True).write(begin("s", b"never published"))
    dead.kill()
    store = FaultyObjectStore(dead.another_client())
    journal = Journal(2)
    segments = segments_of(store, journal, 2, alone=True)
    for _ in range(2):
        await segments.write([*begin("s", b"mine"), *begin("t", b"new")])
    assert bytes(await store.read("s"))[:4] == b"mine"
    assert journal.asked == 1
    assert dict(store.calls) == {"append": 3, "size": 2, "read": 1}
    await segments.write([SegmentSlice("s", 4, (b"+",)), SegmentSlice("t", 3, (b"+",))])
    assert bytes(await store.read("s"))[:5] == b"mine+"


async def test_an_owner_that_was_fenced_overwrites_no_file_of_the_newer_one() -> None:
    paused_store = MemoryStore()
    journal = Journal(1)
    paused = segments_of(paused_store, journal, 1, alone=True)
    journal.owner_epoch = 2
    newer_store = paused_store.another_client()
    newer = segments_of(newer_store, journal, 2, alone=False)
    await newer.write(begin("s", b"published by the newer"))
    with pytest.raises(Fenced):
        await paused.write(begin("s", b"late"))
    assert bytes(await newer_store.read("s")) == b"published by the newer"


async def test_an_owner_beside_another_stops_at_a_file_it_did_not_begin() -> None:
    paused_store = MemoryStore()
    journal = Journal(2)
    await paused_store.create("s", [b"of the paused owner"])
    newer = segments_of(paused_store.another_client(), journal, 2, alone=False)
    with pytest.raises(Unavailable, match="end that process") as caught:
        await newer.write(begin("s", b"x"))
    assert caught.value.path == "s"
    assert isinstance(caught.value.__cause__, AlreadyExists)
    assert bytes(await paused_store.read("s")) == b"of the paused owner"


async def test_an_owner_beside_another_may_repeat_a_write_whose_reply_was_lost() -> None:
    store = FaultyObjectStore(MemoryStore(), faults=[Fault("lost_reply", "append", calls=(1,))])
    segments = segments_of(store, Journal(2), 2, alone=False)
    with pytest.raises(Unavailable, match="lost_reply"):
        await segments.write(begin("s", b"same"))
    (placed,) = await segments.write(begin("s", b"same"))
    assert bytes(await store.read(placed.object_name)) == b"same"


async def test_only_an_owner_alone_continues_segments_of_other_epochs() -> None:
    store, journal = MemoryStore(), Journal(3)
    alone = segments_of(store, journal, 3, alone=True)
    beside = segments_of(store, journal, 3, alone=False)
    assert [alone.must_roll(epoch) for epoch in (1, 3)] == [False, False]
    assert [beside.must_roll(epoch) for epoch in (1, 3)] == [True, False]


async def test_a_killed_owner_writes_nothing_more() -> None:
    store = MemoryStore()
    assert await store.register("@lock")
    successor = store.another_client()
    assert not await successor.register("@lock")
    store.kill()
    assert await successor.register("@lock")
    with pytest.raises(Closed):
        await segments_of(store, Journal(1), 1, alone=True).write(begin("s", b"x"))
    assert await successor.list("") == []


async def test_an_owner_that_was_never_alone_keeps_later_ones_from_believing_so() -> None:
    first = MemoryStore()
    second, third = first.another_client(), first.another_client()
    assert await first.register("@lock")
    assert not await second.register("@lock")
    first.kill()
    assert not await third.register("@lock"), "the second may still write"
    second.kill()
    assert await third.register("@lock")


class Owner:
    """What a driver sees of a journal."""

    epoch = 2

    async def verify_owner(self) -> None:
        return


async def test_a_driver_registers_before_the_epoch_and_believes_only_a_later_answer() -> None:
    clock = ManualClock()
    earlier = MemoryStore()
    await earlier.register("@lock")
    store = FaultyObjectStore(earlier.another_client(), clock=clock)
    driver = InPlaceDriver(store, clock=clock, takeover_wait_s_max=1.0)
    await driver.prepare()
    assert dict(store.calls) == {"register": 1}
    assert not await earlier.register("@lock"), "a later owner would see us from here on"
    earlier.kill()
    segments = await driver.open(Owner())
    assert dict(store.calls) == {"register": 2}
    assert not segments.must_roll(1)


@pytest.mark.parametrize("ends", [True, False])
async def test_a_driver_waits_for_an_earlier_owner_and_then_writes_beside_it(*, ends: bool) -> None:
    clock = ManualClock()
    earlier = MemoryStore()
    await earlier.register("@lock")
    driver = InPlaceDriver(earlier.another_client(), clock=clock, takeover_wait_s_max=1.0)
    await driver.prepare()
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(driver.open(Owner()))
        await settle()
        await clock.advance(0.5)
        assert not opening.done()
        if ends:
            earlier.kill()
        while not opening.done():
            assert clock.monotonic_s() < 1.2
            await clock.advance(0.01)
    assert ends == (clock.monotonic_s() < 0.9)
    assert opening.result().must_roll(1) is not ends


async def test_files_of_segments_that_go_are_copied_and_what_is_missing_is_not() -> None:
    store = MemoryStore()
    segments = segments_of(store, Journal(1), 1, alone=True)
    await segments.write(begin("s", b"to be cut"))
    assert await segments.preserve({"s": "@cut/s", "gone": "@cut/gone"}) == ["@cut/s"]
    await segments.write(begin("s", b"other"))
    assert bytes(await store.read("@cut/s")) == b"to be cut"


async def test_a_name_that_was_used_before_is_begun_only_by_an_owner_alone() -> None:
    earlier = MemoryStore()
    store = FaultyObjectStore(earlier.another_client())
    journal = Journal(2)
    await earlier.register("@lock")
    segments = InPlaceSegments(
        store,
        alone=False,
        epoch=2,
        verify_owner=lambda: journal.verify_owner_of(2),
        ask_alone=lambda: store.register("@lock"),
    )
    again = [SegmentSlice("s", 0, (b"x",), reused=True)]
    with pytest.raises(Unavailable, match="end that process"):
        await segments.write(again)
    assert store.calls["append"] == 0
    journal.owner_epoch = 3
    with pytest.raises(Fenced):
        await segments.write(again)
    journal.owner_epoch = 2
    earlier.kill()
    await segments.write(again)
    calls = store.calls.copy()
    await segments.write([SegmentSlice("t", 0, (b"y",), reused=True)])
    assert store.calls - calls == {"append": 1}
