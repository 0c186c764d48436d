"""The server over a tier in an object store that another process writes."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from provider.clock import SystemClock
from tests.support.fake_broker import FakeBroker
from tests.support.http import free_port
from tests.support.patience import Patience, until
from tests.support.remoting_client import RemotingClient
from tieredstore import follow
from tieredstore import open as open_tier
from tieredstore.config.effective import Config
from tieredstore.config.keys import KEYS
from tieredstore.metrics.reads import ReadMeter
from tieredstore.serve.options import ServeOptions
from tieredstore.serve.server import serving
from tieredstore.serve.wire.frame import ResponseCode

pytestmark = pytest.mark.s3


async def put(broker: FakeBroker, url: str, *bodies: bytes) -> None:
    broker.put_many("A", 0, bodies)
    async with follow(broker.directory, url, cluster="C", broker="b") as follower:
        await follower.drain()


async def test_what_is_published_in_a_bucket_is_consumed_after_the_stated_interval(
    s3_url: str, tmp_path: Path
) -> None:
    broker = FakeBroker(tmp_path / "store")
    await put(broker, s3_url, b"first")
    values = {
        "tieredStoreFilePath": s3_url,
        "brokerClusterName": "C",
        "brokerName": "b",
        "tieredStoreServeStatePath": str(tmp_path / "state"),
        "tieredStoreServeRefreshInterval": "50",
        "tieredStoreServePort": str(free_port()),
    }
    default = Config.load(settings={"tieredStoreFilePath": s3_url}, environment={})
    interval = default.settings["tieredStoreServeRefreshInterval"].value
    assert interval == KEYS["tieredStoreServeRefreshInterval"].object_default == 10_000
    options = ServeOptions.of(Config.load(settings=values))
    async with (
        open_tier(s3_url, cluster="C", broker="b") as tier,
        serving(options, tier, ReadMeter(CollectorRegistry(), SystemClock()), SystemClock()) as one,
        await RemotingClient.connect(one.address) as client,
    ):
        found = await client.pull("A", 0, 0)
        assert (found.code, found.body.count(b"first")) == (ResponseCode.SUCCESS, 1)
        held = client.send_pull("A", 0, 1, sysFlag=6, suspendTimeoutMillis=60_000)
        await until(lambda: len(one.consuming.held) == 1, Patience("no pull is held"))
        await put(broker, s3_url, b"second")
        found = await client.answer(held)
        assert (found.code, found.body.count(b"second")) == (ResponseCode.SUCCESS, 1)
