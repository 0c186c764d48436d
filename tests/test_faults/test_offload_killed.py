"""The process that tiers and offloads is killed with SIGKILL amid a request, and started again.

`KILLS=20` does it so often. A broker writes all the time. Whatever request the death met: nothing
is lost, nothing is wrong, and in the end both stores hold what is referred to.
"""

import asyncio
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from provider.errors import NotFound
from tests.soak.forked_commands import ForkedCommands
from tests.support.fake_broker import FakeBroker
from tests.support.fault_proxy import FaultProxy, WireFault
from tests.support.followed_to_s3 import (
    BROKER,
    SMALL_ROUNDS,
    assert_whole,
    bodies_in,
    following,
    put_some,
)
from tests.support.level import by_level
from tests.support.patience import HANGS_AFTER_S, Patience
from tests.support.seaweedfs import SeaweedFs

KILLS = int(os.environ.get("KILLS") or by_level(quick=2, full=3, nightly=40))
REQUESTS_MAX = 30
"""Of a method, before the one that meets the death."""
OBJECTS_MIN = 12
"""In the second store at the end."""
OFFLOADS = {
    **SMALL_ROUNDS,
    "tieredStoreCommitLogMaxSize": 1 << 13,
    "tieredStoreConsumeQueueMaxSize": 1000,
    "tieredStoreJournalGraceTime": 0,
    "tieredStoreOffloadTopicSize": 1 << 13,
    "tieredStoreOffloadInterval": 100,
    "tieredStoreOffloadDeletionLag": 0,
}


async def ends_of(url: str, settings: dict[str, Any]) -> dict[tuple[str, int], int]:
    """Messages of each queue, every one of which is read. Empty: nobody has begun the tier."""
    try:
        return {key: len(found) for key, found in (await bodies_in(url, settings)).items()}
    except NotFound:
        return {}


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.timeout(HANGS_AFTER_S)
@pytest.mark.leaves_findings("journal", why="nobody tells the fixture of the second store")
@pytest.mark.parametrize("first", ["a directory", "S3"])
def test_an_owner_killed_amid_an_offload_loses_nothing(
    seaweed: SeaweedFs, s3_url: str, tmp_path: Path, first: str
) -> None:
    rng, broker = random.Random(KILLS), FakeBroker(tmp_path / "store")
    url = str(tmp_path / "tier") if first == "a directory" else f"{s3_url}/first"
    put_some(broker, rng, 300)
    seen: dict[tuple[str, int], int] = {}
    with (
        FaultProxy(seaweed.endpoint, seed=KILLS) as proxy,
        ForkedCommands(tmp_path / "commands.log") as commands,
    ):
        settings = {**OFFLOADS, "tieredStoreOffloadPath": f"{s3_url}/second"}
        given = {**settings, "objectStoreEndpoint": proxy.endpoint, "tieredStoreFilePath": url}
        given |= {"brokerClusterName": BROKER["cluster"], "brokerName": BROKER["broker"]}
        words = [word for key, value in given.items() for word in ("-D", f"{key}={value}")]
        for kill in range(KILLS):
            method = ("PUT", "GET", "PUT", "")[kill % 4]
            proxy.faults = [WireFault("dies", method, calls=(rng.randint(1, REQUESTS_MAX),))]
            pid = commands.start([*words, "tier", "--follow", str(broker.directory)])
            proxy.on_death = lambda pid=pid: os.kill(pid, signal.SIGKILL)
            patience = commands.patience("no request meets the death", lambda: len(proxy.requests))
            while not commands.has_ended():
                put_some(broker, rng, 5)
                patience.look()
                time.sleep(0.02)
            assert commands.ended() == -signal.SIGKILL, commands.last_words()
            proxy.faults = []
            now = asyncio.run(ends_of(url, settings))
            assert all(now[queue] >= end for queue, end in seen.items())
            seen = now
        assert proxy.struck["dies"] == KILLS
    second = f"{s3_url}/second".removeprefix("s3://tiers/")

    async def last_life() -> None:
        async with following(broker.directory, url, settings) as follower:
            patience = Patience("nothing is offloaded", marks=follower.statistics)
            listed = partial(
                asyncio.to_thread, lambda: seaweed.client("tiers").list(second).collect()
            )
            while len(await listed()) < OBJECTS_MIN:
                patience.look()
                await asyncio.sleep(0.1)
            await follower.drain()

    asyncio.run(last_life())
    asyncio.run(assert_whole(url, settings, broker))
