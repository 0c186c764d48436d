"""An outage of S3 while a store is followed: uploads pause, nothing is lost, all goes on by itself.

It runs in real time, and waits for progress only.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import tieredstore
from container.names.queue_id import QueueId
from provider.object.opening import open_object_store
from tests.support.fake_broker import FakeBroker
from tests.support.fault_proxy import FaultProxy, WireFault
from tests.support.patience import Patience, until
from tests.support.seaweedfs import SeaweedFs

assert open_object_store  # its imports read files, so they are not left to a running loop

BUCKET = "killed"
BROKER: dict[str, Any] = {"cluster": "KilledCluster", "broker": "killed"}
QUEUES = [(topic, queue_id) for topic in "AB" for queue_id in range(2)]
SMALL_ROUNDS = {
    "tieredStoreGroupCommitTimeout": 50,
    "tieredStorePollInterval": 20,
    "tieredStoreExtentMaxSize": 1 << 16,
    "tieredStoreJournalSnapshotCount": 25,
    "messageIndexEnable": False,
}


def settings_for(endpoint: str) -> dict[str, Any]:
    return {**SMALL_ROUNDS, "objectStoreEndpoint": endpoint}


def put_some(broker: FakeBroker, rng: random.Random, messages: int) -> None:
    for _ in range(messages):
        topic, queue_id = rng.choice(QUEUES)
        body = b"%d " % broker.next_offsets.get(QueueId(topic, queue_id), 0) + rng.randbytes(100)
        broker.put(topic, queue_id, body)


async def bodies_in(url: str, settings: dict[str, Any]) -> dict[tuple[str, int], list[bytes]]:
    """Every message of the tier by queue, each compared with its checksum."""
    found: dict[tuple[str, int], list[bytes]] = {}
    async with tieredstore.open(url, settings=settings, **BROKER) as tier:
        for queue in tier.queues():
            key = queue.topic, queue.queue_id
            found[key] = [one.body async for one in tier.messages(*key)]
    return found


async def assert_whole(url: str, settings: dict[str, Any], broker: FakeBroker) -> None:
    """Everything that the broker wrote is there once, in order, and nothing is wrong."""
    found = await bodies_in(url, settings)
    assert {queue: len(bodies) for queue, bodies in found.items()} == {
        (queue.topic, queue.queue_id): end for queue, end in broker.next_offsets.items()
    }
    for bodies in found.values():
        assert [int(body.split(b" ")[0]) for body in bodies] == list(range(len(bodies)))
    async with tieredstore.open(url, settings=settings, **BROKER) as tier:
        assert [finding async for finding in tier.check(bodies=True)] == []


@contextlib.asynccontextmanager
async def following(
    store: Path, url: str, settings: dict[str, Any]
) -> AsyncIterator[tieredstore.Follower]:
    """A follower that runs until the block ends; its `run` must not end before."""
    async with tieredstore.follow(store, url, settings=settings, **BROKER) as follower:
        task = asyncio.create_task(follower.run())
        try:
            yield follower
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait([task])
        with contextlib.suppress(asyncio.CancelledError):
            task.result()


@pytest.mark.slow
async def test_an_outage_pauses_uploads_and_tiering_goes_on_by_itself(
    seaweed: SeaweedFs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**seaweed.environment, "XDG_RUNTIME_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    seaweed.make_bucket(BUCKET)
    url, rng = f"s3://{BUCKET}/{uuid4().hex}", random.Random(7)
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
