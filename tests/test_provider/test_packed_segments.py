"""Parts: what becomes of a round whose reply is unclear, and whose parts are whose."""

from random import Random

import pytest

from provider.errors import Denied, Unavailable
from provider.file_segments import SegmentSlice
from provider.stores.packed_segments import PackedDriver, PackedSegments, PartName
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.memory import MemoryStore
from tests.support.rival_store import RivalObjects, RivalStore, Weather
from tests.support.simulated_time import simulated

ROUND = [SegmentSlice("t/0/LOG/0", 0, (b"records",)), SegmentSlice("t/0/CQ/0", 0, (b"units",))]


def faulty(*faults: Fault) -> FaultyObjectStore:
    return FaultyObjectStore(MemoryStore(), faults=faults)


def packed(store: MemoryStore | FaultyObjectStore, epoch: int = 1, seed: int = 1) -> PackedSegments:
    return PackedSegments(store, epoch=epoch, rng=Random(seed))


async def test_a_round_costs_one_request() -> None:
    store = faulty()
    segments = packed(store)
    await segments.write(ROUND)
    assert dict(store.calls) == {"create": 1}
    assert repr(segments) == "<PackedSegments epoch 1: 1 parts, 0 settled>"


async def test_a_lost_reply_is_settled_by_a_second_create_and_reading_back() -> None:
    store = faulty(Fault("lost_reply", "create", calls=(1,)))
    segments = packed(store)
    log, units = await segments.write(ROUND)
    assert dict(store.calls) == {"create": 2, "read": 1}
    assert log.object_name == units.object_name
    assert (log.object_offset, units.object_offset) == (0, 7)
    assert len(await store.list("@parts/")) == 1
    assert segments.settled == 1


async def test_a_refused_create_is_made_at_the_second_try() -> None:
    store = faulty(Fault("refused", "create", calls=(1,)))
    await packed(store).write(ROUND)
    assert dict(store.calls) == {"create": 2}


async def test_what_stays_unclear_is_unavailable_and_the_next_write_takes_another_name() -> None:
    store = faulty(Fault("late", "create", calls=(1, 2)))
    segments = packed(store)
    with pytest.raises(Unavailable):
        await segments.write(ROUND)
    (placed, _) = await segments.write(ROUND)
    await store.land_late()
    late = {one.name for one in await store.list("@parts/")} - {placed.object_name}
    assert len(late) == 1, "nothing refers to it; a later owner finds it"


async def test_a_storage_that_refuses_on_principle_is_told_at_once() -> None:
    store = faulty()
    store.read_only = True
    with pytest.raises(Denied):
        await packed(store).write(ROUND)
    assert dict(store.calls) == {"create": 1}


async def test_another_ones_bytes_under_our_name_are_never_taken_for_ours() -> None:
    store = MemoryStore()
    await packed(store, seed=7).write([SegmentSlice("s", 0, (b"theirs",))])
    segments = packed(store, seed=7)
    with pytest.raises(Unavailable, match="same name"):
        await segments.write([SegmentSlice("s", 0, (b"ours!!",))])
    (placed,) = await segments.write([SegmentSlice("s", 0, (b"ours!!",))])
    assert bytes(await store.read(placed.object_name)) == b"ours!!"


async def test_a_part_that_goes_while_it_is_settled_is_unavailable() -> None:
    store = faulty(Fault("lost_reply", "create", calls=(1,)), Fault("stalled", "read"))

    class Owner:
        epoch = 1

        async def verify_owner(self) -> None:
            return

    driver = PackedDriver(store, rng=Random(1))
    await driver.prepare()
    segments = await driver.open(Owner())
    store.released.set()
    read = store.inner.read

    async def gone(name, wanted=None):  # a newer owner deletes what it found unpublished
        await store.inner.delete([name])
        return await read(name, wanted)

    store.inner.read = gone
    with pytest.raises(Unavailable, match="deleted"):
        await segments.write(ROUND)


async def test_earlier_objects_are_the_parts_of_earlier_epochs() -> None:
    store = MemoryStore()
    for epoch in (1, 2, 3):
        await packed(store, epoch).write(ROUND)
    await store.create("@parts/0000000001/not-a-part", [b"?"])
    found = [PartName.parse(name) for name in await packed(store, 3).earlier_objects()]
    assert [part.epoch for part in found if part] == [1, 2]


def test_a_name_says_whose_it_is_and_nothing_else_is_a_name() -> None:
    name = PartName(12, "0" * 31 + "f")
    assert str(name) == "@parts/0000000012/0000000000000000000000000000000f"
    assert PartName.parse(str(name)) == name
    for other in ("@parts/12/" + name.nonce, str(name) + "0", "x" + str(name), f"{name}\n"):
        assert PartName.parse(other) is None


@pytest.mark.parametrize("seed", range(30))
def test_rivals_in_any_weather_find_what_was_acknowledged(seed: int) -> None:
    async def run() -> None:
        rng = Random(seed)
        shared = RivalObjects()
        weather = Weather(delay_s_max=0.1, refused=0.2, lost_reply=0.3, late=0.2, late_s_max=2.0)
        acknowledged: list[tuple[str, int, bytes]] = []
        for epoch in (1, 2):
            store = RivalStore(shared, Random(f"{seed} {epoch}"), weather)
            segments = PackedSegments(store, epoch=epoch, rng=rng)
            for _ in range(20):
                parts = [SegmentSlice(f"s{n}", 0, (rng.randbytes(9),)) for n in range(3)]
                try:
                    placements = await segments.write(parts)
                except Unavailable:
                    continue
                for part, placed in zip(parts, placements, strict=True):
                    body = bytes(part.buffers[0])
                    acknowledged.append((placed.object_name, placed.object_offset, body))
        shared.land(1e9)
        assert len(acknowledged) > 30
        for name, at, body in acknowledged:
            assert shared.objects[name][at : at + len(body)] == body
        shared.lose_power()
        assert all(name in shared.objects for name, _, _ in acknowledged), "P6, P9"

    simulated(run())
