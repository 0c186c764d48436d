"""Servers of RocketMQ clients in this process, over a tier that is there or that grows."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from provider.clock import SystemClock
from tests.support.fake_broker import FakeBroker
from tests.support.remoting_client import RemotingClient
from tieredstore import follow
from tieredstore import open as open_tier
from tieredstore.metrics.reads import ReadMeter
from tieredstore.serve.options import NewGroups, ServeOptions
from tieredstore.serve.server import Server, serving
from tieredstore.serve.wire.frame import (
    JSON,
)


@asynccontextmanager
async def served(tier: Path, state: Path, **more: Any) -> AsyncGenerator[Server]:
    given: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 0,
        "address": "",
        "offsets_path": state / "consumerOffset.json",
        "seed_path": None,
        "new_groups": NewGroups.FIRST,
        "refresh_s": 0.01,
    }
    options = ServeOptions(**(given | more))
    async with (
        open_tier(tier) as opened,
        serving(
            options, opened, ReadMeter(CollectorRegistry(), SystemClock()), SystemClock()
        ) as one,
    ):
        yield one


@asynccontextmanager
async def asked(tier: Path, state: Path, kind: int = JSON) -> AsyncGenerator[RemotingClient]:
    """A client of a server of its own."""
    async with (
        served(tier, state) as one,
        await RemotingClient.connect(one.address, kind) as client,
    ):
        yield client


class Grown:
    """A store that grows, and its tier."""

    def __init__(self, directory: Path) -> None:
        self.broker = FakeBroker(
            directory / "store", commit_log_bytes=4096, consume_queue_bytes=400
        )
        self.tier = directory / "tier"

    async def put(self, *bodies: bytes) -> None:
        self.broker.put_many("A", 0, bodies)
        place = (self.broker.directory, self.tier)
        async with follow(*place, cluster="C", broker="b") as follower:
            await follower.drain()


@pytest.fixture
async def grown(tmp_path: Path) -> Grown:
    one = Grown(tmp_path)
    await one.put(b"first")
    return one
