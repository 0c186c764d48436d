"""Owning and running journals in tests."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from container.journal.journal import Journal
from container.metadata.operations import AddTombstones, Operation
from container.metadata.records import Tombstone
from container.options import JournalOptions, UpkeepOptions
from container.upkeep.upkeep import Upkeep
from provider.errors import StoreError
from provider.object_store import ObjectStore
from provider.testing.manual_clock import ManualClock


async def own(
    store: ObjectStore,
    clock: ManualClock | None = None,
    *,
    seed: int = 0,
    options: JournalOptions | None = None,
    cluster: str = "c",
    imported: Sequence[Operation] = (),
) -> Journal:
    """Take the ownership of broker `b` in cluster `c`; checked after each entry."""
    journal = await Journal.take_ownership(
        store,
        clock=clock or ManualClock(),
        rng=random.Random(seed),
        owner=f"owner {seed}",
        cluster=cluster,
        broker="b",
        options=options,
        imported=imported,
    )
    journal.subscribe(lambda _: journal.check())
    return journal


async def own_with_upkeep(
    store: ObjectStore,
    clock: ManualClock | None = None,
    *,
    seed: int = 0,
    journal: JournalOptions | None = None,
    upkeep: UpkeepOptions | None = None,
) -> tuple[Journal, Upkeep]:
    """As `own`, with the upkeep of the tier; both are checked after each entry."""
    clock = clock or ManualClock()
    owned = await own(store, clock, seed=seed, options=journal)
    kept = Upkeep.of(owned, store, clock=clock, rng=random.Random(-seed - 1), options=upkeep)
    owned.subscribe(lambda _: kept.check())
    return owned, kept


@asynccontextmanager
async def running(*owners: Journal | Upkeep) -> AsyncIterator[None]:
    """Run journals and upkeep; a journal that ends tells why in `publish`."""

    async def run(one: Journal | Upkeep) -> None:
        with suppress(StoreError):
            await one.run()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(one)) for one in owners]
        yield
        for task in tasks:
            task.cancel()


def mark(name: str) -> list[Operation]:
    """A small transaction that can be found again."""
    return [AddTombstones((Tombstone(name, 2**60, "test"),))]


async def marked(store: ObjectStore, entries: int) -> Journal:
    """An ended owner of a fence and one mark an entry, from `m2` on."""
    journal = await own(store)
    async with running(journal):
        for number in range(2, entries + 1):
            await journal.publish(mark(f"m{number}"))
    return journal
