"""One damaged journal entry costs at most what only it says: the next one holds a copy of it."""

import random

import pytest

from container.errors import NewerVersion
from container.journal.frame import Frame, FrameKind, copy_in, decode_entry
from container.journal.reader import JournalFollower, JournalReader, Loaded
from container.journal.truncation import JournalCut, cut_journal, find_journal_cut
from container.names.tier_objects import EntryName
from container.options import JournalOptions, UpkeepOptions
from provider.errors import Corrupt, Fenced
from provider.testing.manual_clock import ManualClock, settle
from tests.support.journal_run import mark, marked, own, own_with_upkeep, running
from tests.support.journal_store import DictStore
from tests.support.tier_values import Q0, begin_queue, commit

NEWEST = 6


async def whole_part(store: DictStore) -> Loaded:
    return await JournalReader(store.view(), JournalOptions()).load_whole_part()


def remove(store: DictStore, number: int) -> None:
    del store.objects[str(EntryName(number))]


def cut_short(store: DictStore, number: int) -> None:
    store.objects[str(EntryName(number))] = store.objects[str(EntryName(number))][:20]


def empty(store: DictStore, number: int) -> None:
    store.objects[str(EntryName(number))] = b""


def flip(store: DictStore, number: int) -> None:
    store.damage(str(EntryName(number)))


def exchange(store: DictStore, number: int) -> None:
    """The bytes of an entry long before it."""
    store.objects[str(EntryName(number))] = store.objects[str(EntryName(number - 1))]


DAMAGES = [remove, cut_short, empty, flip, exchange]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_d7_one_damaged_entry_costs_nothing_while_the_next_is_whole(damage) -> None:
    for number in range(2, NEWEST):
        store = DictStore()
        before = await marked(store.view(), NEWEST)
        follower = await JournalFollower.open(store.view())
        damage(store, number)
        loaded = await JournalReader(store.view(), JournalOptions()).load()
        assert loaded.state == before.state == follower.state
        again = await own(store.view(), seed=1)
        assert again.state.tombstones == before.state.tombstones
        async with running(again):
            await again.publish(mark("more"))
        await follower.refresh()
        assert follower.state == again.state


@pytest.mark.parametrize("damage", [cut_short, empty, flip, exchange])
async def test_d7_the_newest_entry_costs_what_only_it_says(damage) -> None:
    store = DictStore()
    before = await marked(store.view(), NEWEST)
    damage(store, NEWEST)
    loaded = await whole_part(store)
    assert loaded.damage is not None
    assert loaded.damage.path == str(EntryName(NEWEST))
    assert loaded.state.tombstones.keys() == before.state.tombstones.keys() - {f"m{NEWEST}"}
    with pytest.raises(Corrupt) as caught:
        await own(store.view(), seed=1)
    assert caught.value.path == str(EntryName(NEWEST))


async def test_d7_a_follower_that_met_damage_goes_on_once_a_copy_is_there() -> None:
    store = DictStore()
    journal = await marked(store.view(), NEWEST)
    flip(store, NEWEST)
    with pytest.raises(Corrupt):
        await JournalFollower.open(store.view())
    follower = await JournalFollower.open(store.view(), damaged=True)
    assert follower.damage is not None
    with pytest.raises(Corrupt):
        await follower.refresh()
    async with running(journal):  # its owner lives and knows nothing of the damage
        await journal.publish(mark("more"))
    assert await follower.refresh()
    assert follower.state == journal.state


async def test_two_damaged_entries_in_a_row_are_named() -> None:
    store = DictStore()
    await marked(store.view(), NEWEST)
    for number in (3, 4):
        flip(store, number)
    loaded = await whole_part(store)
    assert loaded.damage is not None
    assert loaded.damage.path == str(EntryName(3))
    assert loaded.state.tombstones.keys() == {"m2"}


async def test_a_damaged_copy_hurts_nothing_and_is_told() -> None:
    store = DictStore()
    before = await marked(store.view(), NEWEST)
    name = EntryName(4)
    raw = bytearray(store.objects[str(name)])
    raw[-1] ^= 1
    store.objects[str(name)] = bytes(raw)
    assert (await whole_part(store)).state == before.state
    with pytest.raises(Corrupt, match="its copy of the entry before it") as caught:
        copy_in(raw, name)
    assert caught.value.position > Frame.SIZE


async def test_an_entry_that_ends_before_its_copy_is_read_and_told() -> None:
    store = DictStore()
    before = await marked(store.view(), NEWEST)
    name = EntryName(4)
    raw = store.objects[str(name)]
    _, own = decode_entry(raw, name)
    store.objects[str(name)] = own
    assert len(own) < len(raw)
    assert (await whole_part(store)).state == before.state
    with pytest.raises(Corrupt, match="copy of the entry before it is missing") as caught:
        copy_in(own, name)
    assert caught.value.position == len(own)


async def test_a_journal_without_even_the_entry_of_its_snapshot_may_have_lost_newer_ones() -> None:
    store, clock = DictStore(), ManualClock()
    options = UpkeepOptions(snapshot_entries_max=3)
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=options)
    async with running(journal, upkeep):
        for number in range(2, NEWEST + 1):
            await journal.publish(mark(f"m{number}"))
            await settle()
    held = max(int(name.split("/")[1][:20]) for name in store.names("@snapshot/"))
    for number in range(held + 1, NEWEST + 1):
        remove(store, number)
    assert (await whole_part(store)).damage is None, "nothing tells of those that are gone"
    for name in store.names("@journal/"):
        del store.objects[name]
    loaded = await whole_part(store)
    assert loaded.damage is not None
    assert loaded.damage.path == str(EntryName(held + 1))
    assert "the newest journal entries are missing" in loaded.damage.reason
    with pytest.raises(Corrupt):
        await own(store.view(), seed=1)
    assert await carry_out(store) > held
    again = await own(store.view(), seed=1)
    assert again.state.tombstones.keys() == {f"m{number}" for number in range(2, held + 1)}


async def test_an_old_programs_entries_have_no_copies_and_are_read() -> None:
    store = DictStore()
    before = await marked(store.view(), NEWEST)
    for number in range(1, NEWEST + 1):
        name = str(EntryName(number))
        frame, _ = Frame.decode_first(store.objects[name], FrameKind.ENTRY, path=name)
        store.objects[name] = frame.encode()
    assert (await whole_part(store)).state == before.state
    again = await own(store.view(), seed=1)
    async with running(again):
        await again.publish(mark("more"))
    flip(store, NEWEST)
    assert (await whole_part(store)).state.tombstones == again.state.tombstones
    flip(store, NEWEST - 1)
    loaded = await whole_part(store)
    assert loaded.damage is not None
    assert loaded.damage.path == str(EntryName(NEWEST - 1))


def test_an_entry_of_a_newer_version_is_told_from_damage() -> None:
    raw = Frame(FrameKind.ENTRY, 1, 1, bytes(16), b"{}").encode(Frame.VERSION_WITH_COPY + 1)
    with pytest.raises(NewerVersion, match="upgrade"):
        decode_entry(raw + b"whatever it has", EntryName(1))


async def cut_of(store: DictStore) -> tuple[Loaded, JournalCut]:
    loaded = await whole_part(store)
    return loaded, await find_journal_cut(store.view(), loaded)


async def carry_out(store: DictStore) -> int:
    loaded, cut = await cut_of(store)
    return await cut_journal(store.view(), loaded, cut, rng=random.Random(9), clock=ManualClock())


async def test_d7_a_cut_says_what_would_go_and_then_the_tier_goes_on() -> None:
    store = DictStore()
    journal = await own(store.view())
    async with running(journal):
        await journal.publish(begin_queue())
        for _ in range(4):
            await journal.publish([commit(journal.state.queues[Q0], 2)])
    follower = await JournalFollower.open(store.view())
    for number in (4, 5):
        flip(store, number)
    _, cut = await cut_of(store)
    assert (cut.kept, cut.given_up, cut.newest) == (3, (4, 5, 6), 6)
    assert cut.ends == {Q0: (2, 8)}
    assert cut.unreadable == 1
    assert await carry_out(store) == 7
    loaded = await whole_part(store)
    assert loaded.damage is None
    assert loaded.state.queues[Q0].next_offset == 2
    again = await own(store.view(), seed=1)
    async with running(again):
        await again.publish([commit(again.state.queues[Q0], 5, epoch=again.epoch)])
    await follower.refresh()  # it had seen what went
    assert follower.state == again.state
    assert follower.state.queues[Q0].next_offset == 7


async def test_d7_an_owner_that_slept_through_a_cut_is_fenced() -> None:
    store = DictStore()
    sleeper = await marked(store.view(), NEWEST)
    flip(store, NEWEST)
    await carry_out(store)
    async with running(sleeper):
        with pytest.raises(Fenced):
            await sleeper.publish(mark("zombie"))
    assert "zombie" not in (await whole_part(store)).state.tombstones


async def test_d7_a_cut_survives_a_damaged_snapshot_and_is_swept_by_the_next_truncation() -> None:
    store, clock = DictStore(), ManualClock()
    await marked(store.view(), NEWEST)
    flip(store, NEWEST)
    end = await carry_out(store)
    snapshots = store.names("@snapshot/")
    assert len(snapshots) == 2
    store.damage(snapshots[-1])
    options = UpkeepOptions(snapshot_entries_max=2, grace_s=1.0)
    journal, upkeep = await own_with_upkeep(store.view(), clock, seed=1, upkeep=options)
    async with running(journal, upkeep):
        for number in range(8):
            await journal.publish(mark(f"more{number}"))
            await settle()
            await clock.advance(options.grace_s + 1)
    assert min(int(name[-20:]) for name in store.names("@journal/")) > end
    assert (await whole_part(store)).state == journal.state
