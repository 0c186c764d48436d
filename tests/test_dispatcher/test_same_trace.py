"""The same seed gives the same run: every call in the same order, and the same end."""

import random
from collections.abc import Sequence

import pytest

from container.names.queue_id import QueueId
from container.queue.commit_plan import CommitPlan
from container.record.batch import MessageBatch
from container.record.unit import Units
from dispatcher.ports import HotQueue, Wanted
from provider.errors import StoreError, Unavailable
from provider.ranges import QueueOffset
from tests.support.dispatch_world import World
from tests.support.fake_hot_log import FakeHotLog
from tests.support.memory_tier import MemoryTier

QUEUES = [QueueId("Orders", number) for number in range(8)]


class TracedHotLog(FakeHotLog):
    """Notes each read in the order in which it is asked for."""

    trace: list[str]

    async def poll(self) -> Sequence[HotQueue]:
        seen = await super().poll()
        self.trace.append(f"poll {seen}")
        return seen

    async def references(self, queue: QueueId, start: QueueOffset, *, messages_max: int) -> Units:
        self.trace.append(f"references {queue} {start} {messages_max}")
        return await super().references(queue, start, messages_max=messages_max)

    async def records_of_round(
        self, wanted: Sequence[Wanted]
    ) -> Sequence[MessageBatch | StoreError]:
        ranges = [(str(item.queue), item.start, len(item.references)) for item in wanted]
        self.trace.append(f"records {ranges}")
        return await super().records_of_round(wanted)


class TracedTier(MemoryTier):
    """Notes each commit with its time."""

    trace: list[str]

    async def commit(self, plans: Sequence[CommitPlan]) -> None:
        ranges = [(str(plan.queue), plan.expected_offset, plan.next_offset) for plan in plans]
        self.trace.append(f"commit at {self._clock.monotonic_s():.3f} {ranges}")
        await super().commit(plans)


async def traced_run(seed: int) -> list[str]:
    """Two minutes of a broker and a tier in changing weather; what was asked, and how it ended."""
    rng = random.Random(seed)
    trace: list[str] = []
    world = World(
        batch_messages_max=4,
        batch_bytes_max=2000,
        bytes_in_flight_max=8000,
        batches_per_commit_max=2,
        references_max=40,
    )
    world.hot = TracedHotLog(world.clock, batch_messages_max=3)
    world.tier = TracedTier(world.clock, random.Random(seed), commit_s=0.1)
    world.hot.trace = world.tier.trace = trace
    world.dispatcher = world.new_dispatcher()
    async with world.running():
        for _ in range(40):
            for queue in rng.sample(QUEUES, 3):
                world.hot.append(queue, *(bytes(rng.randrange(300)) for _ in range(5)))
            world.tier.refused = rng.choice([0.0, 0.0, 0.3, 1.0])
            world.tier.lost_reply = rng.choice([0.0, 0.3])
            unreadable = rng.choice(QUEUES)
            if unreadable in world.hot.queues:
                error = rng.choice([None, Unavailable("injected", "store")])
                world.hot.queues[unreadable].error = error
            await world.pass_time(3.0, step_s=0.5)
    trace.append(str(world.dispatcher.statistics()))
    return trace


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_same_seed_twice_gives_the_same_trace(seed: int) -> None:
    first, second = await traced_run(seed), await traced_run(seed)
    assert sum(line.startswith("commit") for line in first) > 40
    assert first == second


async def test_another_seed_gives_another_trace() -> None:
    assert await traced_run(1) != await traced_run(2)
