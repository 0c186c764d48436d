"""Workers beside a block: which failure is raised, and that a cancellation is never lost."""

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress

import pytest

from provider.errors import Corrupt, Fenced, Unavailable
from tieredstore.lifetime import keep_opened, running


async def fails(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("others", [[], [Unavailable("away", "p"), ValueError()]])
async def test_the_failure_that_matters_is_raised_bare(others: list[Exception]) -> None:
    errors = [*others, Fenced("a newer owner", "p")]
    with pytest.raises(Fenced):
        async with running([lambda error=error: fails(error) for error in errors]):
            await asyncio.Event().wait()


async def test_a_failure_of_the_block_is_raised_bare() -> None:
    with pytest.raises(Corrupt):
        async with running([asyncio.Event().wait]):  # pyright: ignore[reportArgumentType]
            raise Corrupt("rot", "p", 0)


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("nested", [1, 2])
async def test_a_cancellation_counts_more_than_a_failure_of_the_same_turn(
    turns: int, nested: int
) -> None:
    failing, ended = asyncio.Event(), asyncio.Event()

    async def worker() -> None:
        await failing.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        raise Unavailable("away", "p")

    async def block(depth: int) -> None:
        async with running([worker]):
            if depth > 1:
                await block(depth - 1)
            await asyncio.Event().wait()

    async def caller() -> None:
        try:
            await block(nested)
        finally:
            ended.set()

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    failing.set()
    for _ in range(2):
        await asyncio.sleep(0)
    is_late = ended.is_set()
    task.cancel()
    with suppress(asyncio.CancelledError, Unavailable):
        await task
    assert task.cancelled() or is_late


class Cycle:
    """An object that only a collection frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def opened() -> Iterator[None]:
    """A process that keeps its opened objects."""
    try:
        keep_opened()
        yield
    finally:
        gc.unfreeze()


@pytest.mark.usefixtures("opened")
def test_a_full_collection_sees_what_came_since_the_last_one() -> None:
    survivor, dead = Cycle(), weakref.ref(Cycle())
    gc.collect()
    assert dead() is None
    known = weakref.ref(survivor)
    assert not any(one is survivor for one in gc.get_objects())
    del survivor
    gc.collect()
    assert known() is not None  # excluded, until the memory has doubled


@pytest.mark.usefixtures("opened")
def test_garbage_of_excluded_objects_is_collected_once_the_memory_has_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    survivor = Cycle()
    gc.collect()
    known = weakref.ref(survivor)
    del survivor
    blocks = 3 * sys.getallocatedblocks()
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: blocks)
    gc.collect()
    gc.collect()
    assert known() is None
    later = Cycle()
    gc.collect()
    assert not any(one is later for one in gc.get_objects())  # excluded again
