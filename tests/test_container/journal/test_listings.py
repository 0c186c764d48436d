"""What a listing may lack: whatever was created or deleted while it ran, and it may run for hours.

P4 speaks of what was acknowledged before a listing began. A process that sleeps in the middle of
one misses what was replaced meanwhile, and what replaced it.
"""

from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest

from container.journal.ownership import EntryWriter, Outcome
from container.journal.reader import JournalReader, encode_snapshot
from container.journal.truncation import DurableBoundary, plan_old_boundaries
from container.metadata.operations import AddTombstones
from container.metadata.records import Tombstone
from container.metadata.state import TierState
from container.names.tier_objects import (
    BOUNDARY_PREFIX,
    JOURNAL_PREFIX,
    SNAPSHOT_PREFIX,
    BoundaryName,
    EntryName,
)
from container.options import JournalOptions, UpkeepOptions
from provider.errors import Fenced, Unavailable
from provider.object_store import Buffer, ObjectEntry
from provider.ranges import ByteRange
from provider.testing.manual_clock import ManualClock, settle
from tests.support.journal_run import own, own_with_upkeep, running
from tests.support.journal_store import DictStore, Faults, StoreView

OPTIONS = JournalOptions(listing_s_max=60.0)
UPKEEP = UpkeepOptions(snapshot_entries_max=2, grace_s=0.0)
Meanwhile = Callable[[], Awaitable[None]]


class SleepyView(StoreView):
    """Sleeps within its next requests: `meanwhile`, by verb and prefix, is done in their middle."""

    def __init__(self, shared: DictStore) -> None:
        super().__init__(shared, Random(0), Faults())
        self.meanwhile: dict[tuple[str, str], list[Meanwhile]] = {}

    async def _sleep(self, verb: str, name: str) -> None:
        waiting = self.meanwhile.get((verb, name.partition("/")[0] + "/"))
        if waiting:
            await waiting.pop(0)()

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        await self._sleep("read", name)
        return await super().read(name, wanted)

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        await self._sleep("read_many", wanted[0][0])
        return await super().read_many(wanted)

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        before = {one.name for one in await super().list(prefix, after=after)}
        await self._sleep("list", prefix)
        return [one for one in await super().list(prefix, after=after) if one.name in before]


async def test_a_boundary_that_was_replaced_while_it_was_listed_is_not_missed() -> None:
    store, clock = DictStore(), ManualClock()
    view = SleepyView(store)
    store.put(str(BoundaryName(5)), b"")

    async def two_cuts() -> None:
        store.put(str(BoundaryName(9)), b"")
        del store.objects[str(BoundaryName(5))]
        await clock.advance(2 * OPTIONS.listing_s_max + 1)

    view.meanwhile["list", BOUNDARY_PREFIX] = [two_cuts]
    writer = EntryWriter(view, clock=clock, rng=Random(1), options=OPTIONS)
    written = await writer.write(EntryName(3), b"of an owner that slept through a deletion")
    assert written.outcome is Outcome.STALE


async def test_listings_that_are_always_long_prove_nothing() -> None:
    store, clock = DictStore(), ManualClock()
    view = SleepyView(store)
    view.meanwhile["list", BOUNDARY_PREFIX] = [lambda: clock.advance(61.0)] * 8
    with pytest.raises(Unavailable, match="prove nothing"):
        await JournalReader(view, OPTIONS, clock=clock).boundary()
    assert store.counts["list"] == 16
    assert await JournalReader(view, OPTIONS, clock=clock).boundary() == 0


def test_a_boundary_goes_only_when_a_newer_one_is_older_than_two_listings() -> None:
    made = [DurableBoundary(3, 0.0), DurableBoundary(7, 50.0), DurableBoundary(9, 100.0)]
    assert plan_old_boundaries(made, 120.0, listing_s_max=60.0) == 0
    assert plan_old_boundaries(made, 121.0, listing_s_max=60.0) == 3
    assert plan_old_boundaries(made, 171.0, listing_s_max=60.0) == 7
    assert plan_old_boundaries([], 1e9, listing_s_max=60.0) == 0


async def test_replaced_boundaries_stay_for_two_listings_and_then_go() -> None:
    store, clock = DictStore(), ManualClock()
    journal, upkeep = await own_with_upkeep(store.view(), clock, journal=OPTIONS, upkeep=UPKEEP)
    async with running(journal, upkeep):
        for number in range(12):
            await journal.publish([AddTombstones((Tombstone(f"{number}", 2**60, "test"),))])
            await settle()
        boundaries = len(store.names(BOUNDARY_PREFIX))
        assert boundaries >= 4, "each cut left one"
        await clock.advance(2 * OPTIONS.listing_s_max + 1)
        for number in range(2):
            await journal.publish([AddTombstones((Tombstone(f"l{number}", 2**60, "test"),))])
            await settle()
        assert len(store.names(BOUNDARY_PREFIX)) == 2
        assert upkeep.statistics().last_error == ""


async def test_an_owner_that_slept_within_a_listing_is_told_that_it_was_fenced() -> None:
    store, clock = DictStore(), ManualClock()
    view = SleepyView(store)
    old = await own(view, clock, options=OPTIONS, seed=1)
    new, upkeep = await own_with_upkeep(store.view(), clock, seed=2, journal=OPTIONS, upkeep=UPKEEP)
    fence = store.names(JOURNAL_PREFIX)[-1]

    async def cuts() -> None:
        async with running(new, upkeep):
            for number in range(8):
                await new.publish([AddTombstones((Tombstone(f"{number}", 2**60, "test"),))])
                await settle()
        assert fence not in store.objects
        await clock.advance(OPTIONS.listing_s_max + 1)

    view.meanwhile["list", JOURNAL_PREFIX] = [cuts]
    with pytest.raises(Fenced):
        await old.verify_owner()


async def snapshot(store: DictStore, sequence: int) -> str:
    """Put a snapshot there, whose state is empty but for its number."""
    state = TierState()
    state.sequence = sequence
    nonce = sequence.to_bytes(16)
    name, chunks = await encode_snapshot(state, epoch=1, nonce=nonce, clock=ManualClock())
    store.put(str(name), b"".join(chunks))
    return str(name)


async def test_snapshots_that_go_while_they_are_read_are_listed_again() -> None:
    store = DictStore()
    view = SleepyView(store)
    store.put(str(BoundaryName(4)), b"")
    old = await snapshot(store, 4)

    async def replaced() -> None:
        nonlocal old
        del store.objects[old]
        sequence = int(old[len(SNAPSHOT_PREFIX) :][:20]) + 3
        store.put(str(BoundaryName(sequence)), b"")  # so that its own entry may be gone, too
        old = await snapshot(store, sequence)

    view.meanwhile["read", SNAPSHOT_PREFIX] = [replaced, replaced, replaced]
    loaded = await JournalReader(view, OPTIONS, clock=ManualClock()).load()
    assert loaded.state.sequence == 13
    assert loaded.damaged == ()


async def test_a_start_goes_on_where_a_request_failed_as_long_as_it_gets_on() -> None:
    store = DictStore()
    journal = await own(store.view())
    async with running(journal):
        for number in range(40):
            await journal.publish([AddTombstones((Tombstone(f"m{number}", 0, "test"),))])
    view, read_many = store.view(), store.view().read_many
    asked: list[str] = []
    flaky = True

    async def every_other(wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        asked.append(wanted[0][0])
        if len(asked) % 2 == 0 if flaky else len(asked) > 3:
            raise Unavailable("not now", wanted[0][0])
        return await read_many(wanted)

    view.read_many = every_other  # type: ignore[method-assign]
    reader = JournalReader(view, JournalOptions(catch_up_entries_max=2))
    assert (await reader.load()).state == journal.state
    assert len(asked) == 2 * 21 - 1, "each batch but the first was asked for twice"
    flaky = False
    asked.clear()
    with pytest.raises(Unavailable):
        await reader.load()
    assert len(asked) == 5, "it is told soon where nothing gets on"


async def test_an_entry_that_is_created_again_and_shorter_is_not_an_error() -> None:
    store, clock = DictStore(), ManualClock()
    view = SleepyView(store)
    journal = await own(store.view(), clock, options=OPTIONS)
    first = str(EntryName(1))

    async def cut_and_created_again() -> None:
        store.put(str(BoundaryName(1)), b"")
        del store.objects[first]
        store.put(first, b"shorter")
        await snapshot(store, 1)

    assert journal.state.sequence == 1
    view.meanwhile["read_many", JOURNAL_PREFIX] = [cut_and_created_again]
    loaded = await JournalReader(view, OPTIONS, clock=clock).load()
    assert loaded.snapshot is not None
    assert loaded.state.sequence == 1
