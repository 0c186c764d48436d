"""A store at its awkward moments: files that go amid a read, a tier that comes or goes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from container.tier import Tier
from fetcher.result import FetchStatus
from provider.clock import SystemClock
from tests.support.hot_store import new_message
from tests.support.tiered_world import TieredWorld


@pytest.fixture
def world(tmp_path: Path) -> TieredWorld:
    return TieredWorld(tmp_path / "store", SystemClock())


class Gate:
    """Holds the opening of a world's tier back until it is let go, or makes it fail."""

    def __init__(self, world: TieredWorld) -> None:
        self._own = world.own
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.error: Exception | None = None
        self.count = 0

    @asynccontextmanager
    async def own(self) -> AsyncGenerator[Tier]:
        self.count += 1
        self.reached.set()
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error
        async with self._own() as tier:
            yield tier


async def test_messages_that_move_amid_a_read_are_read_from_the_tier(world: TieredWorld) -> None:
    async with world.store() as store:
        await store.put_messages([new_message(number) for number in range(100)])
        await world.commit(store)
        log = world.local.log
        await log.bounds(log.queues()[0])
        real_pick = log.pick

        async def late_pick(*arguments: object) -> object:
            await world.local.trim()
            return await real_pick(*arguments)  # pyright: ignore[reportArgumentType] - as given

        read_at = 80
        with patch.object(log, "pick", late_pick):
            result = await store.get_message("g", "Orders", 0, read_at)
        first = await world.local.min_offset("Orders", 0)
        assert read_at < first < read_at + 10, "the deletion ends amid a file of units"
        assert result.status is FetchStatus.FOUND
        assert result.messages[0].queue_offset == read_at
