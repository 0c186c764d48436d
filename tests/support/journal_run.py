"""Owning and running journals in tests."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from container.journal.journal import Journal
from container.journal.options import JournalOptions
from container.metadata.operations import Operation
from provider.clock import ManualClock
from provider.errors import StoreError
from provider.object_store import ObjectStore


async def own(
    store: ObjectStore,
    clock: ManualClock | None = None,
    *,
    seed: int = 0,
    options: JournalOptions | None = None,
    cluster: str = "c",
    imported: Sequence[Operation] = (),
) -> Journal:
    """Take the ownership of broker `b` in cluster `c`."""
    return await Journal.take_ownership(
        store,
        clock=clock or ManualClock(),
        rng=random.Random(seed),
        owner=f"owner {seed}",
        cluster=cluster,
        broker="b",
        options=options,
        imported=imported,
    )


@asynccontextmanager
async def running(*journals: Journal) -> AsyncIterator[None]:
    """Run the journals; how one ends is looked at through its `publish`."""

    async def run(journal: Journal) -> None:
        with suppress(StoreError):
            await journal.run()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(journal)) for journal in journals]
        yield
        for task in tasks:
            task.cancel()
