"""An outage of S3 while a store is followed: uploads pause, nothing is lost, all goes on by itself.

It runs in real time, and waits for progress only.
"""

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.fake_broker import FakeBroker
from tests.support.fault_proxy import FaultProxy, WireFault
from tests.support.followed_to_s3 import assert_whole, following, put_some, settings_for
from tests.support.patience import Patience, until
from tests.support.seaweedfs import SeaweedFs


@pytest.mark.slow
async def test_an_outage_pauses_uploads_and_tiering_goes_on_by_itself(
    seaweed: SeaweedFs, s3_url: str, tmp_path: Path
) -> None:
    url, rng = s3_url, random.Random(7)
    broker = FakeBroker(tmp_path / "store")
    with FaultProxy(seaweed.endpoint) as proxy:
        settings = settings_for(proxy.endpoint)
        put_some(broker, rng, 10)
        async with following(tmp_path / "store", url, settings) as follower:
            patience = Patience("nothing lands", marks=lambda: len(proxy.requests))
            await until(lambda: follower.statistics().messages == 10, patience)
            proxy.faults = [WireFault("reset", "PUT")]
            put_some(broker, rng, 10)
            await until(lambda: proxy.struck["reset"] >= 3, patience)
            await asyncio.sleep(1.5)
            assert proxy.struck["reset"] <= 30, "it hammers a store that is out"
            put_some(broker, rng, 10)
            proxy.faults = []
            await until(lambda: follower.statistics().messages == 30, patience)
        await assert_whole(url, settings, broker)
