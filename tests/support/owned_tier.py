"""One owner after the other, or beside each other, over one tier in memory, on a manual clock."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from container.check.tier import check_tier
from container.index.options import IndexOptions
from container.metadata.records import Segment
from container.names.queue_id import FLAT_FILES, QueueId
from container.options import JournalOptions, TierOptions, UpkeepOptions
from container.queue.commit_plan import CommitPlan
from container.tier import Tier, TierIdentity
from container.tier_view import TierReader
from provider.errors import Fenced
from provider.object_store import ObjectEntry, ObjectStore
from provider.stores.in_place_segments import InPlaceDriver
from provider.stores.packed_segments import PackedDriver
from provider.stores.two_stores import TwoStores
from provider.testing.faulty import FaultyObjectStore
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.messages import TOPIC, batch_of, make_batch, make_record
from tests.support.part_recount import PartRecount
from tests.support.store_reader import queue_contents

QUEUE = QueueId(TOPIC, 0)
MINUTE_S = 60
ROUNDS = 6
"""Of upkeep, in each step of a long time."""


class NotedStore(FaultyObjectStore):
    """Notes what was listed."""

    def __init__(self, inner: MemoryStore, clock: ManualClock) -> None:
        super().__init__(inner, clock=clock)
        self.listed: Counter[str] = Counter()

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        self.listed[prefix] += 1
        return await super().list(prefix, after=after)


class OwnedWorld:
    """Objects, a clock, and owners, each with a store of its own that can fail.

    `packed`: over immutable objects; nobody may append then. `offloads`: there is a second store.
    """

    def __init__(
        self,
        options: TierOptions,
        upkeep: UpkeepOptions,
        *,
        packed: bool = False,
        index: IndexOptions | None = None,
        offloads: bool = False,
    ) -> None:
        self.options = options
        self.upkeep = upkeep
        self.packed = packed
        self.index = index
        self.clock = ManualClock()
        self.memory = MemoryStore()
        self.clients: list[MemoryStore] = []
        self.stores: list[NotedStore] = []
        self.second = MemoryStore() if offloads else None
        self.seconds: list[NotedStore] = []

    def view(self) -> ObjectStore:
        """What readers read, without faults."""
        return TwoStores(self.memory, self.second)

    @asynccontextmanager
    async def owned(
        self, upkeep: UpkeepOptions | None = None, journal: JournalOptions | None = None
    ) -> AsyncIterator[Tier]:
        """The next owner, running until the block ends or a newer one fences it."""
        self.clients.append(self.memory.another_client())
        number, store = len(self.clients), NotedStore(self.clients[-1], self.clock)
        self.stores.append(store)
        second = None
        if self.second is not None:
            second = NotedStore(self.second.another_client(), self.clock)
            self.seconds.append(second)
        rng = random.Random(number)
        in_place = InPlaceDriver(store, clock=self.clock, takeover_wait_s_max=0)
        tier = await Tier.own(
            TwoStores(store, second),
            TierIdentity("Cluster", "broker-a", f"owner {number}"),
            segments=PackedDriver(store, rng=rng) if self.packed else in_place,
            clock=self.clock,
            rng=rng,
            options=self.options,
            journal_options=journal,
            upkeep_options=upkeep or self.upkeep,
            index=self.index,
        )
        if self.packed or self.second is not None:
            tier.journal.subscribe(PartRecount(self.memory, tier))
        async with asyncio.TaskGroup() as group:
            worker = group.create_task(run_until_fenced(tier))
            try:
                yield tier
            finally:
                worker.cancel()
        assert not self.packed or store.calls["append"] == store.calls["register"] == 0

    def kill_all(self) -> None:
        """Whoever comes next is alone."""
        for client in self.clients:
            client.kill()

    async def pass_time(self, seconds: float) -> None:
        """In steps, so that what becomes due on the way is done.

        In a long one the machine sleeps until its last rounds of upkeep: each costs CPU time.
        """
        step_s = seconds / 20
        awake_s = min(step_s, ROUNDS * self.upkeep.interval_s)
        for _ in range(20):
            self.clock.suspend(step_s - awake_s)
            await self.clock.advance(awake_s)
            await settle(100)

    async def names(self, prefix: str = f"{TOPIC}/") -> set[str]:
        return {entry.name for entry in await self.memory.list(prefix)}

    async def findings(self, tier: Tier | TierReader | None = None) -> list[str]:
        tier = tier or await TierReader.open(self.view(), verify=True)
        return [str(finding) async for finding in check_tier(tier)]

    async def reads_back(self, queue: QueueId = QUEUE) -> int:
        """How many messages a reader sees, every checksum and both directions checked."""
        assert await self.findings() == []
        reader = await TierReader.open(self.view(), verify=True)
        return len((await queue_contents(reader, queue)).offsets)


async def run_until_fenced(tier: Tier) -> None:
    try:
        await tier.run()
    except Fenced:
        return


def planned(tier: Tier, count: int, queue: QueueId = QUEUE, body_bytes: int = 100) -> CommitPlan:
    """The commit of so many further messages of a queue; bodies depend on the offset alone."""
    record = tier.queue(queue)
    first = record.next_offset if record else 0
    batch = make_batch(
        first, count, body_bytes, random.Random(first), topic=queue.topic, queue_id=queue.queue_id
    )
    return tier.plan_commit(queue, batch)


async def put(tier: Tier, count: int, *queues: QueueId, body_bytes: int = 100) -> None:
    """One round: so many messages for each of the queues."""
    await tier.commit([planned(tier, count, queue, body_bytes) for queue in queues or (QUEUE,)])


async def put_each_minute(tier: Tier, clock: ManualClock, count: int, *queues: QueueId) -> None:
    """One message a minute for each queue, stored now; the clock goes on."""
    for _ in range(count):
        plans = []
        for queue in queues or (QUEUE,):
            record = tier.queue(queue)
            offset = record.next_offset if record else 0
            body = random.Random(offset).randbytes(200)
            raw = make_record(*queue, offset, body, store_timestamp=clock.now_ms())
            plans.append(tier.plan_commit(queue, batch_of([raw])))
        await tier.commit(plans)
        await clock.advance(MINUTE_S)


def live_segments(tier: Tier | TierReader) -> list[Segment]:
    """Segments of all queues in the snapshot."""
    return [
        segment
        for queue in tier.state.queues.values()
        for kind in FLAT_FILES
        for segment in queue.segments(kind)
    ]
