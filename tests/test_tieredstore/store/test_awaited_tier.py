"""A store that is opened while its tier is away: the hot log is used alone until it answers."""

import logging
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from container.tier import Tier
from fetcher.result import FetchStatus
from provider.clock import SystemClock
from provider.errors import Denied, StoreError, Unauthorized, Unavailable
from tests.support.hot_store import new_message
from tests.support.patience import Patience, until
from tests.support.tiered_world import OUTAGE, TieredWorld
from tieredstore.store.levels import Level
from tieredstore.store.tiered import TieredMessageStore

LEVELS = ("NOT_IN_DISK", "NOT_IN_MEM", "FORCE")
QUEUE = ("Orders", 0)
TIERED, PUT = 100, 110


@pytest.fixture
async def world(tmp_path: Path) -> TieredWorld:
    """A queue whose oldest messages only the tier has."""
    world = TieredWorld(tmp_path / "store", SystemClock())
    async with world.store() as store:
        await store.put_messages([new_message(number) for number in range(TIERED)])
        assert await world.move(store)
    return world


def bodies(start: int, end: int) -> list[bytes]:
    return [bytes(new_message(number).body) for number in range(start, end)]


async def walked(store: TieredMessageStore, start: int, end: int) -> list[bytes]:
    found: list[bytes] = []
    async for message in store.messages("g", *QUEUE, start):
        found.append(message.body)
        if len(found) == end - start:
            break
    return found


async def back(world: TieredWorld, store: TieredMessageStore) -> None:
    """Have the tier answer, and wait until all is in it."""
    world.tier_store.faults = ()
    await until(lambda: store.cold is not None, Patience("the tier does not open"))
    assert store.awaited is None
    await world.commit(store)


@pytest.mark.parametrize("level", LEVELS)
async def test_a_hot_log_takes_puts_until_the_tier_answers(
    level: str, world: TieredWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.tier_store.faults = OUTAGE
    async with world.store(level) as store:
        assert isinstance(store.awaited, Unavailable)
        assert "offsets continue from the hot log alone" in caplog.text
        for number in range(TIERED, PUT):
            assert (await store.put_message(new_message(number))).queue_offset == number
        first = await world.local.min_offset(*QUEUE)
        assert 0 < first < TIERED
        assert not (await world.local.trim()).files, "the tier may lack them"
        assert await walked(store, first, PUT) == bodies(first, PUT)
        with pytest.raises(Unavailable, match="away since the store was opened"):
            await store.get_message("g", *QUEUE, first - 1)
        at_end = await store.get_message("g", *QUEUE, PUT)
        assert (at_end.status, at_end.next_offset) == (FetchStatus.OFFSET_OVERFLOW_ONE, PUT)
        assert not (await store.query_message("Orders", f"key-{PUT - 1}")).is_complete
        with pytest.raises(Unavailable):
            await store.min_offset(*QUEUE)
        with pytest.raises(Unavailable):
            await store.get_message("g", "Unknown", 0, 0)
        with pytest.raises(Unavailable):
            await store.delete_topics(["Orders"])
        await back(world, store)
        assert store.level is Level.of(level)
        assert await store.commit_offset(*QUEUE) == PUT
        assert await walked(store, 0, PUT) == bodies(0, PUT)
    assert not await world.findings()


async def test_a_queue_that_lost_nothing_yet_is_whole_without_the_tier(tmp_path: Path) -> None:
    world = TieredWorld(tmp_path / "store", SystemClock())
    async with world.store() as store:
        await store.put_messages([new_message(number) for number in range(20)])
        await world.commit(store)
    world.tier_store.faults = OUTAGE
    async with world.store("FORCE") as store:
        assert (await store.min_offset(*QUEUE), await store.max_offset(*QUEUE)) == (0, 20)
        assert await store.earliest_message_time(*QUEUE) is not None
        assert await store.offset_by_time(*QUEUE, 0) == 0
        assert await walked(store, 0, 20) == bodies(0, 20)


async def test_by_disable_the_hot_log_alone_counts_and_nothing_is_tiered(
    world: TieredWorld,
) -> None:
    world.tier_store.faults = OUTAGE
    async with world.store() as store:
        await store.set_level("DISABLE")
        assert await store.min_offset(*QUEUE) == await world.local.min_offset(*QUEUE) > 0
        world.tier_store.faults = ()
        await until(lambda: store.cold is not None, Patience("the tier does not open"))
        assert store.cold is not None
        assert store.cold.is_paused
        await store.set_level("FORCE")
        assert await walked(store, 0, TIERED) == bodies(0, TIERED)


async def test_an_awaited_tier_may_refuse_for_a_while_once_it_answers(
    world: TieredWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is not set yet, or a token that is being renewed."""
    errors = [Unavailable("it is away", "tier"), Unauthorized("the token has expired", "tier")]
    own = world.own

    @asynccontextmanager
    async def refusing() -> AsyncGenerator[Tier]:
        if errors:
            raise errors.pop(0)
        async with own() as tier:
            yield tier

    monkeypatch.setattr(world, "own", refusing)
    async with world.store() as store:
        assert store.awaited is not None
        await back(world, store)
        assert await walked(store, 0, TIERED) == bodies(0, TIERED)


async def test_an_empty_hot_log_is_not_opened_without_its_tier(world: TieredWorld) -> None:
    shutil.rmtree(world.root)
    world.tier_store.faults = OUTAGE
    with pytest.raises(Unavailable):
        async with world.store():
            pass
    world.tier_store.faults = ()
    async with world.store() as store:
        assert (await store.put_message(new_message(TIERED))).queue_offset == TIERED


async def test_what_was_put_stays_in_the_hot_log_where_the_tier_stays_away(
    world: TieredWorld,
) -> None:
    world.tier_store.faults = OUTAGE
    for life in range(2):
        async with world.store() as store:
            put = await store.put_message(new_message(TIERED + life))
            assert put.queue_offset == TIERED + life
    world.tier_store.faults = ()
    async with world.store() as store:
        await world.commit(store)
        assert await walked(store, 0, TIERED + 2) == bodies(0, TIERED + 2)


async def test_a_copy_that_went_on_without_its_tier_ends_when_that_answers(
    world: TieredWorld, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    shutil.copytree(world.root, tmp_path / "copy")
    async with world.store() as store:
        await store.put_messages([new_message(number) for number in range(TIERED, PUT)])
        await world.commit(store)
    shutil.rmtree(world.root)
    (tmp_path / "copy").rename(world.root)
    (world.root / "config/storePlace.json").unlink()  # as of a snapshot of a disk: not noticed
    world.tier_store.faults = OUTAGE

    async def live() -> None:
        async with world.store() as store:
            await store.put_message(new_message(0))
            await back(world, store)

    with pytest.raises(StoreError) as raised:
        await live()
    assert isinstance(raised.value, Denied)
    assert "the hot log contradicts its tier" in str(raised.value)
