"""A clean end leaves the next start a short way, and never waits for a storage that fails."""

import asyncio

from container.journal.journal import Journal
from container.metadata.operations import AddTombstones
from container.metadata.records import Tombstone
from container.options import UpkeepOptions
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.journal_run import own, own_with_upkeep, running

OPTIONS = UpkeepOptions()

FINISH_ENTRIES_MAX = UpkeepOptions().finish_entries_max


async def publish(journal: Journal, entries: int) -> None:
    for number in range(entries):
        await journal.publish([AddTombstones((Tombstone(f"m{number}", 2**60, "test"),))])


async def test_a_snapshot_of_a_clean_end_spares_the_next_start_the_entries() -> None:
    clock, shared = ManualClock(), MemoryStore()
    journal, upkeep = await own_with_upkeep(shared, clock, upkeep=OPTIONS)
    async with running(journal, upkeep):
        await publish(journal, FINISH_ENTRIES_MAX)
        await upkeep.finish()
    assert upkeep.statistics().figures["snapshots"] == 1
    counted = FaultyObjectStore(shared.another_client())
    again = await own(counted, clock, seed=1)
    assert again.state.tombstones == journal.state.tombstones
    assert counted.items["read_many"] + counted.calls["read"] < FINISH_ENTRIES_MAX


async def test_a_clean_end_with_little_behind_the_snapshot_asks_for_nothing() -> None:
    clock, counted = ManualClock(), FaultyObjectStore(MemoryStore())
    journal, upkeep = await own_with_upkeep(counted, clock, upkeep=OPTIONS)
    async with running(journal, upkeep):
        await publish(journal, 3)
        before = counted.calls.total()
        await upkeep.finish()
        assert counted.calls.total() == before


async def test_a_clean_end_gives_up_on_storage_that_stalls() -> None:
    clock, store = ManualClock(), FaultyObjectStore(MemoryStore())
    journal, upkeep = await own_with_upkeep(store, clock, upkeep=OPTIONS)
    async with running(journal, upkeep):
        await publish(journal, FINISH_ENTRIES_MAX)
        store.faults = (Fault("stalled", verb="create", prefix="@snapshot/"),)
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(upkeep.finish())
            await settle(100)
            assert not ending.done()
            await clock.advance(OPTIONS.finish_s_max + 1)
            await settle(100)
            assert ending.done()
            store.released.set()
    assert upkeep.statistics().figures["snapshots"] == 0
