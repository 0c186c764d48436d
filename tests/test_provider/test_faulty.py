"""Each fault does what the model at the head of the file says, and only where it should."""

import asyncio
from random import Random

import pytest

from provider.errors import Denied, NotFound, Unavailable
from provider.object_store import Append
from provider.ranges import ByteRange
from provider.testing.faulty import Crashed, Fault, FaultyObjectStore, torn
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore


async def test_refused_does_nothing_and_lost_reply_does_all() -> None:
    store = FaultyObjectStore(MemoryStore())
    store.faults = (Fault("refused", "create", prefix="r/"), Fault("lost_reply", prefix="l/"))
    for name in ("r/1", "l/1"):
        with pytest.raises(Unavailable):
            await store.create(name, [b"x"])
    store.faults = ()
    assert [entry.name for entry in await store.list("")] == ["l/1"]
    assert store.struck == {"refused": 1, "lost_reply": 1}


async def test_a_schedule_strikes_the_calls_that_it_names() -> None:
    store = FaultyObjectStore(MemoryStore(), faults=[Fault("refused", "create", "q", calls=(2, 4))])
    outcomes = ""
    for name in ("q1", "other", "q2", "q3", "q4", "q5"):
        try:
            await store.create(name, [b"12"])
            outcomes += "+"
        except Unavailable:
            outcomes += "-"
    assert outcomes == "++-+-+"
    assert store.calls["create"] == 6
    assert store.bytes["create"] == 12


async def test_the_same_seed_strikes_the_same_calls() -> None:
    async def run(seed: int) -> str:
        faults = [Fault("refused", "create", probability=0.5)]
        store = FaultyObjectStore(MemoryStore(), rng=Random(seed), faults=faults)
        outcomes = ""
        for number in range(64):
            try:
                await store.create(str(number), [b""])
                outcomes += "+"
            except Unavailable:
                outcomes += "-"
        return outcomes

    first = await run(1)
    assert first == await run(1) != await run(2)
    assert 10 < first.count("-") < 54


async def test_a_late_append_does_not_overtake_the_next_one_to_its_file() -> None:
    faults = [Fault("late", "append", calls=(1, 2))]
    store = FaultyObjectStore(MemoryStore(), faults=faults)
    for name in ("f", "other"):
        with pytest.raises(Unavailable, match="late"):
            await store.append([Append(name, 0, (b"late",))])
    await store.append([Append("f", 0, (b"next",))])
    await store.land_late()
    assert bytes(await store.read("f")) == b"next"
    assert bytes(await store.read("other")) == b"late"


async def test_a_late_write_lands_when_the_test_says_so() -> None:
    store = FaultyObjectStore(MemoryStore(), faults=[Fault("late", "append")])
    with pytest.raises(Unavailable, match="late"):
        await store.append([Append("f", 0, (b"late",))])
    with pytest.raises(NotFound):
        await store.read("f")
    await store.land_late()
    assert bytes(await store.read("f")) == b"late"


async def test_short_lands_a_prefix_of_the_round() -> None:
    lengths: set[int] = set()
    for seed in range(30):
        store = FaultyObjectStore(MemoryStore(), rng=Random(seed), faults=[Fault("short")])
        with pytest.raises(Unavailable, match="short"):
            await store.append([Append("a", 0, (b"ab", b"cd")), Append("b", 0, (b"ef",))])
        landed = [bytes(await store.inner.read(e.name)) for e in await store.list("")]
        assert b"abcdef".startswith(b"".join(landed))
        lengths.add(len(b"".join(landed)))
    assert len(lengths) > 3
    assert torn([Append("a", 5, (b"abc",))], 2) == [Append("a", 5, (b"ab",))]


async def test_bit_flip_spoils_reads_and_nothing_else() -> None:
    store = FaultyObjectStore(MemoryStore(), faults=[Fault("bit_flip")])
    await store.create("f", [b"\0" * 8])
    wrong = int.from_bytes(await store.read("f"), "big")
    assert wrong.bit_count() == 1
    (part,) = await store.read_many([("f", ByteRange(2, 4))])
    assert int.from_bytes(part, "big").bit_count() == 1
    store.faults = ()
    assert bytes(await store.read("f")) == b"\0" * 8


@pytest.mark.parametrize(
    ("kind", "landed"), [("crash_before", [0]), ("crash_torn", range(5)), ("crash_after", [4])]
)
async def test_nothing_lands_after_a_crash(kind: str, landed: list[int]) -> None:
    memory = MemoryStore()
    store = FaultyObjectStore(memory, faults=[Fault(kind, "append")])  # pyright: ignore[reportArgumentType]
    with pytest.raises(Crashed):
        await store.append([Append("f", 0, (b"1234",))])
    store.faults = ()
    with pytest.raises(Crashed):
        await store.create("g", [b"x"])
    assert store.crashed
    assert sum(entry.size_bytes for entry in await memory.list("")) in landed


async def test_a_call_that_waits_when_the_process_dies_does_not_land() -> None:
    memory = MemoryStore()
    store = FaultyObjectStore(memory)
    store.faults = (Fault("stalled", "create"), Fault("crash_before", "delete"))
    stalled = asyncio.ensure_future(store.create("f", [b"x"]))
    await settle()
    with pytest.raises(Crashed):
        await store.delete(["x"])
    store.released.set()
    with pytest.raises(Crashed):
        await stalled
    assert await memory.list("") == []


async def test_stalled_waits_for_the_event_and_delayed_for_the_clock() -> None:
    clock = ManualClock()
    store = FaultyObjectStore(MemoryStore(), clock=clock)
    store.faults = (Fault("stalled", "create"), Fault("delayed", "size", delay_s=2.0))
    creating = asyncio.ensure_future(store.create("f", [b"x"]))
    await settle()
    assert not creating.done()
    store.released.set()
    await creating
    asking = asyncio.ensure_future(store.size("f"))
    await settle()
    await clock.advance(1.9)
    assert not asking.done()
    await clock.advance(0.2)
    assert await asking == 1


async def test_a_slow_reply_comes_after_the_effect() -> None:
    clock, memory = ManualClock(), MemoryStore()
    store = FaultyObjectStore(memory, clock=clock)
    store.faults = (Fault("slow_reply", "create", delay_s=2.0),)
    creating = asyncio.ensure_future(store.create("f", [b"x"]))
    await settle()
    assert bytes(await memory.read("f")) == b"x"
    await clock.advance(1.9)
    assert not creating.done()
    await clock.advance(0.2)
    await creating


async def test_full_and_read_only_last_until_lifted() -> None:
    store = FaultyObjectStore(MemoryStore())
    store.full = True
    with pytest.raises(Unavailable, match="full"):
        await store.append([Append("f", 0, (b"x",))])
    await store.delete(["f"])
    store.full, store.read_only = False, True
    with pytest.raises(Denied, match="read_only"):
        await store.delete(["f"])
    store.read_only = False
    await store.append([Append("f", 0, (b"x",))])


@pytest.mark.parametrize(("turns", "landed"), [(1, False), (2, True)])
async def test_cancelling_can_strike_before_and_after_the_effect(
    turns: int, *, landed: bool
) -> None:
    store = FaultyObjectStore(MemoryStore())
    task = asyncio.ensure_future(store.create("f", [b"x"]))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert bool(await store.list("")) is landed
