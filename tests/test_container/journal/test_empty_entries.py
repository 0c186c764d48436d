"""An empty or cut object under an entry's number: never passed over unasked (decision 0016)."""

import random

import pytest

from container.journal.reader import JournalReader
from container.journal.truncation import JournalCut, cut_journal, find_journal_cut
from container.metadata.state import TierState
from container.names.tier_objects import EntryName
from container.options import JournalOptions
from provider.errors import Corrupt
from provider.testing.manual_clock import ManualClock
from tests.support.journal_run import mark, marked, own, running
from tests.support.journal_store import DictStore

STUMPS = [b"", b"TSJE", b"TSJE\0\2" + bytes(60)]
KEPT = 3


async def repaired(store: DictStore) -> tuple[JournalCut, TierState]:
    """What `repair --journal-to` does, and the state after it."""
    reader = JournalReader(store.view(), JournalOptions())
    loaded = await reader.load_whole_part()
    assert loaded.damage is not None
    cut = await find_journal_cut(store.view(), loaded)
    await cut_journal(store.view(), loaded, cut, rng=random.Random(9), clock=ManualClock())
    return cut, (await reader.load()).state


@pytest.mark.parametrize("stump", STUMPS)
@pytest.mark.parametrize("ahead", [1, 4])
async def test_an_owner_that_meets_one_stops_and_a_repair_loses_nothing(
    stump: bytes, ahead: int
) -> None:
    store = DictStore()
    journal = await marked(store.view(), KEPT)
    met = EntryName(KEPT + ahead)
    store.put(str(met), stump)
    known = [f"m{number}" for number in range(2, KEPT + ahead)]
    async with running(journal):
        for number in range(KEPT + 1, met.sequence):
            await journal.publish(mark(f"m{number}"))
        with pytest.raises(Corrupt, match="nothing was acknowledged under it") as caught:
            await journal.publish(mark("not acknowledged"))
    assert caught.value.path == str(met)
    with pytest.raises(Corrupt):
        await own(store.view(), seed=1)
    assert store.objects[str(met)] == stump, "nobody removes what may be damage"
    cut, state = await repaired(store)
    assert (cut.kept, cut.given_up, cut.ends) == (met.sequence - 1, (met.sequence,), {})
    assert list(state.tombstones) == known
    again = await own(store.view(), seed=1)
    async with running(again):
        await again.publish(mark("more"))
    assert list(again.state.tombstones) == [*known, "more"]


@pytest.mark.parametrize("stump", STUMPS)
async def test_the_newest_entry_may_have_become_one_so_a_start_refuses(stump: bytes) -> None:
    """It cannot be told from one that nobody wrote: what it said was acknowledged."""
    store = DictStore()
    await marked(store.view(), KEPT)
    store.objects[str(EntryName(KEPT))] = stump
    with pytest.raises(Corrupt):
        await own(store.view(), seed=1)
    cut, state = await repaired(store)
    assert (cut.given_up, cut.unreadable) == ((KEPT,), 1)
    assert list(state.tombstones) == ["m2"]


async def test_an_empty_first_entry_is_no_new_tier() -> None:
    store = DictStore()
    store.put(str(EntryName(1)), b"")
    with pytest.raises(Corrupt):
        await own(store.view())
    assert store.names() == [str(EntryName(1))]
