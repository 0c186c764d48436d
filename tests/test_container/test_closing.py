"""A tier or a journal that is dropped open says so; closing is idempotent and silent."""

import asyncio
import gc
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from container.journal.journal import Journal
from container.tier import Tier, TierIdentity
from provider.stores.in_place_segments import InPlaceDriver
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryStore
from tests.support.journal_run import own


@contextmanager
def warned() -> Iterator[list[str]]:
    """What was warned of in the block, once everything dropped in it is collected."""
    said: list[str] = []
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield said
        gc.collect()
        said += [str(one.message) for one in caught if one.category is ResourceWarning]


async def tier() -> Tier:
    store, clock, rng = MemoryStore(), ManualClock(), random.Random(1)
    driver = InPlaceDriver(store, clock=clock, takeover_wait_s_max=0)
    return await Tier.own(
        store, TierIdentity("c", "b", "owner"), segments=driver, clock=clock, rng=rng
    )


async def test_a_journal_that_is_dropped_open_is_named() -> None:
    with warned() as said:
        await Journal.take_ownership(
            MemoryStore(),
            clock=ManualClock(),
            rng=random.Random(1),
            owner="o",
            cluster="c",
            broker="b",
        )
    assert said == ["unclosed journal <Journal in order: epoch 1, entry 1, 0 waiting>"]


async def test_a_tier_that_is_dropped_open_is_named() -> None:
    with warned() as said:
        await tier()
    assert "unclosed tier <Tier epoch 1: 0 queues>" in said


async def test_what_is_closed_once_or_twice_is_silent() -> None:
    with warned() as said:
        journal = await own(MemoryStore())
        await journal.close()
        await journal.close()
        del journal
        owned = await tier()
        async with asyncio.TaskGroup() as group:
            group.create_task(owned.run())
            await asyncio.sleep(0)
            await owned.close()
            await owned.close()
        await owned.close()
        del owned
    assert said == []


async def test_an_object_whose_making_failed_is_silent() -> None:
    with warned() as said:
        Journal.__new__(Journal)
        Tier.__new__(Tier)
    assert said == []
