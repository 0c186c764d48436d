"""The real S3 server is killed with SIGKILL amid a request, and started again: nothing is lost.

`KILLS=20 make kill-s3` does it so often. A store is followed, and the tier is read from its first
message on, over and over, all the time; nobody is told of the deaths, and nobody is restarted.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from provider.errors import Unavailable
from tests.support.fake_broker import FakeBroker
from tests.support.fault_proxy import FaultProxy, WireFault
from tests.support.followed_to_s3 import (
    BROKER,
    QUEUES,
    assert_whole,
    following,
    put_some,
    settings_for,
)
from tests.support.level import by_level
from tests.support.patience import HANGS_AFTER_S, Patience, until
from tests.support.seaweedfs import SeaweedFs

KILLS = int(os.environ.get("KILLS") or by_level(quick=2, full=2, nightly=20))
REQUESTS_MAX = 6
"""Of a kind, before the one that meets the death of the server."""

LONG = 3
"""Every so many deaths last until a reader was told of it; the others, as long as a start takes."""
PAUSE_S = 0.1
"""Between two readings: time for others."""


class Rereader:
    """One open tier that is read from the beginning again and again, without a cache."""

    def __init__(self) -> None:
        self.seen = 0
        """Messages that the last whole reading had."""
        self.readings = self.failures = 0

    async def run(self, tier: tieredstore.ReadableTier) -> None:
        while True:
            try:
                await tier.refresh()
                self.seen = await self._read(tier)
                self.readings += 1
            except Unavailable:
                self.failures += 1
            await asyncio.sleep(PAUSE_S)

    async def _read(self, tier: tieredstore.ReadableTier) -> int:
        """How many messages there are: from the first on, each once, whole and in order."""
        seen = 0
        for queue in tier.queues():
            at = 0
            async for message in tier.messages(queue.topic, queue.queue_id):
                assert message.offset == int(message.body.split(b" ")[0]) == at
                at += 1
            assert at >= queue.max_offset
            seen += at
        return seen


@contextlib.asynccontextmanager
async def rereading(url: str, settings: dict[str, Any]) -> AsyncIterator[Rereader]:
    """Somebody who reads until the block ends, and must not end before."""
    rereader = Rereader()
    uncached = {**settings, "readAheadCacheEnable": False}
    async with tieredstore.open(url, settings=uncached, **BROKER) as tier:
        task = asyncio.create_task(rereader.run(tier))
        try:
            yield rereader
        finally:
            assert task.cancel(), task.exception()
            await asyncio.wait([task])


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.timeout(HANGS_AFTER_S)
async def test_a_server_killed_amid_tiering_and_reading_loses_nothing(
    seaweed: SeaweedFs, s3_url: str, tmp_path: Path
) -> None:
    rng, broker = random.Random(KILLS), FakeBroker(tmp_path / "store")
    with contextlib.ExitStack() as revived, FaultProxy(seaweed.endpoint, seed=KILLS) as proxy:
        settings, proxy.on_death = settings_for(proxy.endpoint), seaweed.kill
        revived.callback(lambda: seaweed.is_running or seaweed.start())
        put_some(broker, rng, 10)
        async with following(tmp_path / "store", s3_url, settings) as follower:
            patience = Patience("nothing is tiered", marks=lambda: len(proxy.requests))
            await until(lambda: follower.statistics().messages == 10, patience)
            async with rereading(s3_url, settings) as rereader:
                for kill in range(KILLS):
                    call = rng.randint(1, REQUESTS_MAX)
                    proxy.faults = [WireFault("dies", ("PUT", "GET")[kill % 2], calls=(call,))]
                    while seaweed.is_running:
                        put_some(broker, rng, 3)
                        patience.look()
                        await asyncio.sleep(rng.uniform(0, 0.05))
                    put_some(broker, rng, 10)  # they must wait
                    if kill % LONG == 0:
                        failed = rereader.failures
                        await until(lambda before=failed: rereader.failures > before, patience)
                    await asyncio.to_thread(seaweed.start)
                    put_some(broker, rng, 10)
                    all_of_them = sum(broker.next_offsets.values())
                    await until(lambda every=all_of_them: rereader.seen == every, patience)
                    assert follower.statistics().messages == all_of_them
        assert proxy.struck["dies"] == KILLS
        assert len(broker.next_offsets) == len(QUEUES)
        await assert_whole(s3_url, settings, broker)
