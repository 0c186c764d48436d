"""Snapshots, boundaries and followers: starting is short, cutting is safe, damage is survived."""

import asyncio
from random import Random

import pytest

from container.journal import reader
from container.journal.frame import Frame, FrameKind
from container.journal.journal import Journal
from container.journal.reader import (
    JournalFollower,
    decode_in_turns,
    decode_snapshot,
    encode_snapshot,
    write_snapshot,
)
from container.metadata.codec import RECORDS_PER_TURN, state_pieces
from container.metadata.records import Queue, Tombstone
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.names.tier_objects import BoundaryName, EntryName, parse_name
from container.options import UpkeepOptions
from container.upkeep.upkeep import Upkeep
from provider.errors import Corrupt, Fenced, NotFound
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.journal_run import mark, own, own_with_upkeep, running
from tests.support.journal_store import DictStore, Faults

OPTIONS = UpkeepOptions(snapshot_entries_max=10, grace_s=100.0)


async def grow(journal: Journal, clock: ManualClock, entries: int, tag: str = "m") -> None:
    """Publish one by one, with time for upkeep after each."""
    for number in range(entries):
        await journal.publish(mark(f"{tag}{number}"))
        await settle()
    await clock.advance(OPTIONS.grace_s + 1)


async def cut_store(rounds: int = 3) -> tuple[DictStore, ManualClock, Journal, Upkeep]:
    """A store whose journal was cut some times."""
    store, clock = DictStore(), ManualClock()
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=OPTIONS)
    async with running(journal, upkeep):
        for number in range(rounds):
            await grow(journal, clock, 10, f"r{number}-")
    return store, clock, journal, upkeep


def numbers(store: DictStore) -> list[int]:
    return [int(name[-20:]) for name in store.names("@journal/")]


async def test_entries_behind_the_second_newest_snapshot_stay() -> None:
    store, _, journal, upkeep = await cut_store()
    boundary = upkeep.statistics().figures["boundary"]
    snapshots = [parse_name(name) for name in store.names("@snapshot/")]
    assert len(snapshots) >= 2
    assert snapshots[0].sequence == boundary > 0  # type: ignore[union-attr]
    assert numbers(store) == list(range(boundary + 1, journal.state.sequence + 1))
    assert str(BoundaryName(boundary)) in store.objects


async def test_starting_reads_one_snapshot_and_what_is_behind_it() -> None:
    costs: list[int] = []
    for rounds in (3, 12):
        store, clock, journal, _ = await cut_store(rounds)
        before = store.requests
        again = await own(store.view(), clock, seed=1)
        costs.append(store.requests - before)
        assert again.state.tombstones == journal.state.tombstones
    assert costs[1] <= costs[0] + 1
    assert costs[0] < 30


async def test_a_damaged_newest_snapshot_is_replaced_by_the_one_before() -> None:
    store, clock, journal, _ = await cut_store()
    store.damage(store.names("@snapshot/")[-1])
    again, kept = await own_with_upkeep(store.view(), clock, seed=1, upkeep=OPTIONS)
    assert again.state.tombstones == journal.state.tombstones
    assert kept.statistics().figures["damaged_snapshots"] == 1
    follower = await JournalFollower.open(store.view())
    assert len(follower.damaged_snapshots) == 1


async def test_no_usable_snapshot_is_corrupt_and_never_an_empty_tier() -> None:
    store, clock, _, _ = await cut_store()
    for name in store.names("@snapshot/"):
        store.damage(name)
    with pytest.raises(Corrupt, match="@snapshot"):
        await own(store.view(), clock, seed=1)
    for name in store.names("@snapshot/"):
        del store.objects[name]
    with pytest.raises(Corrupt, match="no snapshot"):
        await own(store.view(), clock, seed=1)
    for name in store.names("@journal/"):
        del store.objects[name]
    with pytest.raises(Corrupt):
        await own(store.view(), clock, seed=1)


async def test_a_sleeper_cannot_succeed_under_a_number_that_was_deleted() -> None:
    store, clock = DictStore(), ManualClock()
    sleeper = await own(store.view(), clock)
    newer, upkeep = await own_with_upkeep(store.view(), clock, seed=1, upkeep=OPTIONS)
    async with running(newer, upkeep):
        for number in range(4):
            await grow(newer, clock, 10, f"r{number}-")
    assert str(EntryName(2)) not in store.objects
    async with running(sleeper):
        with pytest.raises(Fenced, match="cut"):
            await sleeper.publish(mark("zombie"))
    assert str(EntryName(2)) in store.objects  # it did create it
    follower = await JournalFollower.open(store.view())
    assert follower.state.tombstones == newer.state.tombstones
    async with running(newer, upkeep):  # and the next cut sweeps it
        await grow(newer, clock, 12, "more")
        await grow(newer, clock, 12, "and more")
    assert str(EntryName(2)) not in store.objects


async def test_a_follower_below_the_boundary_does_not_believe_a_sleepers_entry() -> None:
    store, clock = DictStore(), ManualClock()
    sleeper = await own(store.view(), clock)
    follower = await JournalFollower.open(store.view())
    newer, upkeep = await own_with_upkeep(store.view(), clock, seed=1, upkeep=OPTIONS)
    async with running(newer, upkeep):
        for number in range(4):
            await grow(newer, clock, 10, f"r{number}-")
    async with running(sleeper):
        with pytest.raises(Fenced):
            await sleeper.publish(mark("zombie"))
    assert follower.state.sequence == 1
    assert await follower.refresh()
    assert follower.state.tombstones == newer.state.tombstones
    assert "loaded again 1 times" in repr(follower)


async def test_a_follower_that_is_up_to_date_makes_one_request() -> None:
    store, clock = DictStore(), ManualClock()
    journal = await own(store.view(), clock)
    follower = await JournalFollower.open(store.view())
    async with running(journal):
        await journal.publish(mark("a"))
        assert await follower.refresh()
        assert "a" in follower.state.tombstones
        before = store.requests
        assert not await follower.refresh()
        assert store.requests == before + 1


async def test_following_nothing_is_not_found_in_a_sentence() -> None:
    with pytest.raises(NotFound, match="there is no tier here"):
        await JournalFollower.open(DictStore().view())


async def test_readers_never_write() -> None:
    store, _, _, _ = await cut_store()
    before = dict(store.objects)
    store.counts.clear()
    follower = await JournalFollower.open(store.view())
    await follower.refresh()
    assert store.counts["create"] == store.counts["delete"] == 0
    assert store.objects == before


async def test_a_snapshot_is_written_after_a_while_though_entries_are_few() -> None:
    store, clock = DictStore(), ManualClock()
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=OPTIONS)
    async with running(journal, upkeep):
        await journal.publish(mark("a"))
        await clock.advance(OPTIONS.snapshot_age_s_max - 20)
        assert store.names("@snapshot/") == []
        await clock.advance(40)
        assert len(store.names("@snapshot/")) == 1


async def test_a_snapshot_that_reads_back_different_is_not_used() -> None:
    store, clock = DictStore(), ManualClock()
    view = store.view()
    journal, upkeep = await own_with_upkeep(view, clock, upkeep=OPTIONS)
    create = view.create

    async def damaging(name, buffers) -> None:
        await create(name, buffers)
        if name.startswith("@snapshot/"):
            store.damage(name)

    view.create = damaging  # type: ignore[method-assign]
    async with running(journal, upkeep):
        for number in range(3):
            await grow(journal, clock, 10, f"r{number}-")
        assert "different" in upkeep.statistics().last_error
        assert upkeep.statistics().figures["snapshots"] == 0
    assert numbers(store) == list(range(1, journal.state.sequence + 1))


@pytest.mark.parametrize("seed", range(5))
async def test_refreshes_at_the_same_time_apply_every_entry_once(seed: int) -> None:
    store, clock = DictStore(), ManualClock()
    journal = await own(store.view(), clock)
    follower = await JournalFollower.open(store.view(seed, Faults(turns_max=5)))
    async with running(journal):
        for number in range(5):
            await journal.publish(mark(f"m{number}"))
    async with asyncio.TaskGroup() as group:
        refreshes = [group.create_task(follower.refresh()) for _ in range(4)]
    assert sum(refresh.result() for refresh in refreshes) == 1
    assert follower.state.tombstones == journal.state.tombstones


class CountingClock(ManualClock):
    """Counts the turns that others get."""

    turns = 0

    async def sleep(self, seconds: float) -> None:
        self.turns += 1
        await super().sleep(seconds)


def large_state(prefix: str = "m") -> TierState:
    state = TierState(sequence=7)
    for n in range(1000):
        state.tombstones[f"{prefix}{n}"] = Tombstone(f"{prefix}{n}", n, "test")
    return state


@pytest.mark.parametrize("prefix", ["m", "@offload/1/m"])
async def test_a_snapshot_in_chunks_is_one_frame_and_lets_others_run(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CHUNKS_PER_TURN", 4)
    state, clock = large_state(prefix), CountingClock()
    name, chunks = await encode_snapshot(state, epoch=3, nonce=bytes(16), clock=clock)
    payload = b"".join(state_pieces(state))
    whole = Frame(FrameKind.SNAPSHOT, 3, 7, bytes(16), payload).encode()
    assert b"".join(chunks) == whole
    assert len(chunks) > 1000 // RECORDS_PER_TURN
    assert clock.turns >= 1000 // RECORDS_PER_TURN + 2 * (len(chunks) // 4 - 1)
    assert decode_snapshot(whole, name) == state


async def test_a_start_lets_others_run_while_it_reads_many_queues() -> None:
    state, clock = TierState(sequence=1), CountingClock()
    for number in range(1000):
        queue = QueueId("T", number)
        state.queues[queue] = Queue(queue, QueueOffset(0), QueueOffset(0))
    name, chunks = await encode_snapshot(state, epoch=1, nonce=bytes(16), clock=ManualClock())
    assert await decode_in_turns(b"".join(chunks), name, clock) == state
    assert clock.turns == 1000 // RECORDS_PER_TURN


@pytest.mark.parametrize("damage", ["a byte", "its end", "more behind it", "the first chunk alone"])
async def test_a_snapshot_that_reads_back_different_is_told(damage: str) -> None:
    def worse(raw: bytes) -> bytes:
        match damage:
            case "a byte":
                return raw[:-9] + b"#" + raw[-8:]
            case "its end":
                return raw[:-1]
            case "more behind it":
                return raw + b" "
            case _:
                return raw[: Frame.SIZE]

    class Liar(MemoryStore):
        async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
            return worse(bytes(await super().read(name, wanted)))

    with pytest.raises(Corrupt, match="different from what was written"):
        await write_snapshot(Liar(), large_state(), epoch=1, rng=Random(1), clock=ManualClock())
