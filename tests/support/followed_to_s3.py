"""A store followed to S3 while the storage fails: who writes, who follows, and what must hold."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import tieredstore
from container.names.queue_id import QueueId
from provider.object.store import open_object_store
from tests.support.fake_broker import FakeBroker

assert open_object_store  # its imports read files, so they are not left to a running loop

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
