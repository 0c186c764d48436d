"""What reading a tier of parts costs in requests: cold, again, and from the cache on disk."""

import random
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import SystemClock
from provider.disk_cache.store import DiskCachedStore
from provider.object_store import ObjectStore
from provider.options import DiskCacheOptions, RangeOptions
from provider.stores.packed_segments import PARTS_PREFIX
from provider.stores.range_reads import RangeReads
from provider.testing.faulty import FaultyObjectStore
from provider.testing.memory import MemoryStore
from tests.support.messages import TOPIC
from tests.support.owned_tier import OwnedWorld, put
from tests.support.patience import HANGS_AFTER_S

QUEUES = tuple(QueueId(TOPIC, number) for number in range(3))
ROUNDS, MESSAGES = 12, 40


@pytest.fixture
async def memory() -> MemoryStore:
    """Three queues whose messages lie in twelve parts."""
    world = OwnedWorld(TierOptions(), UpkeepOptions(), packed=True)
    async with world.owned() as tier:
        for _ in range(ROUNDS):
            await put(tier, MESSAGES, *QUEUES)
        await tier.close()
    return world.memory


class PartReads(FaultyObjectStore):
    """Counts what is read of parts, and nothing else."""

    def __init__(self, memory: MemoryStore) -> None:
        super().__init__(memory.another_client())
        self.parts_read: list[str] = []

    async def read(self, name, wanted=None):
        self.parts_read += [name] if name.startswith(PARTS_PREFIX) else []
        return await super().read(name, wanted)

    async def read_many(self, wanted):
        self.parts_read += [name for name, _ in wanted]
        return await super().read_many(wanted)


async def read_all(store: ObjectStore, queue: QueueId, step: int) -> list[int]:
    reader = await TierReader.open(store)
    offsets: list[int] = []
    async with TieredMessageFetcher(reader) as fetcher:
        at = 0
        while True:
            found = await fetcher.get_message("g", *queue, at, messages_max=step, bytes_max=None)
            offsets += found.messages.offsets.tolist()
            if found.next_offset == at:
                return offsets
            at = found.next_offset


async def test_a_cold_read_asks_once_for_what_it_wants_of_each_part_and_never_for_sizes(
    memory: MemoryStore,
) -> None:
    store = PartReads(memory)
    ranged = RangeReads(store, clock=SystemClock(), options=RangeOptions())
    every = ROUNDS * MESSAGES
    assert await read_all(ranged, QUEUES[1], step=every) == list(range(every))
    assert len(set(store.parts_read)) == ROUNDS
    assert len(store.parts_read) == ROUNDS, "units and records of a part are one request"
    assert store.calls["size"] == 0
    assert store.calls["list"] <= 3, "those that open the tier"


async def test_what_the_disk_has_costs_no_request_in_another_process(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provider.disk_cache.store.DISK_S_MIN", HANGS_AFTER_S)
    rng = random.Random(5)
    for number in range(3):
        store = PartReads(memory)
        cached = DiskCachedStore(
            store, tmp_path, scope="memory", clock=SystemClock(), options=DiskCacheOptions(),
            is_immutable=lambda name: name.startswith(PARTS_PREFIX),
        )  # fmt: skip
        ranged = RangeReads(cached, clock=SystemClock(), options=RangeOptions())
        step = rng.randrange(20, 200)
        assert await read_all(ranged, QUEUES[0], step) == list(range(ROUNDS * MESSAGES))
        assert bool(store.parts_read) == (number == 0), "nothing is asked for twice"
        await cached.close()
