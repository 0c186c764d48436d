"""What a whole store asks of the storage, and how long anybody waits, counted on a manual clock."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from container.names.queue_id import QueueId
from container.options import JournalOptions, UpkeepOptions
from dispatcher.options import DispatchOptions
from provider.ranges import QueueOffset
from provider.testing.faulty import Fault
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.store_harness import StoreHotLog, StoreProcess, pass_time, while_time_passes

HOUR_S = 3600.0
JOURNAL, UPKEEP = JournalOptions(), UpkeepOptions()


@asynccontextmanager
async def running(
    memory: MemoryStore, hot: StoreHotLog, clock: ManualClock, dispatch: DispatchOptions
) -> AsyncIterator[StoreProcess]:
    process = StoreProcess(memory, hot, clock, 1, dispatch=dispatch, journal=JOURNAL, upkeep=UPKEEP)
    async with asyncio.TaskGroup() as group:
        process.start(group)
        await settle(200)
        assert process.dispatcher is not None
        yield process
        assert process.error is None
        process.kill()


async def test_an_idle_store_asks_the_storage_for_nothing_in_an_hour() -> None:
    clock, memory = ManualClock(), MemoryStore()
    hot = StoreHotLog(clock)
    async with running(memory, hot, clock, DispatchOptions(poll_s_max=5.0)) as process:
        for number in range(20):
            hot.append(QueueId("T", number), b"a message")
        # It snapshots what it has after five minutes, and forgets what that replaced.
        await pass_time(clock, HOUR_S, step_s=10.0)
        assert process.tier is not None
        assert process.tier.upkeep.statistics().figures["snapshots"] >= 1
        before = Counter(process.store.calls)
        await pass_time(clock, HOUR_S, step_s=10.0)
        assert process.store.calls == before
        hot.append(QueueId("T", 0), b"another")
        await pass_time(clock, 2.0)
        assert process.store.calls["append"] == before["append"] + 1


async def test_queues_that_commit_together_share_one_round_and_one_entry() -> None:
    clock, memory = ManualClock(), MemoryStore()
    hot = StoreHotLog(clock)
    queues = [QueueId("T", number) for number in range(300)]
    async with running(memory, hot, clock, DispatchOptions()) as process:
        for turn in range(3):
            before = Counter(process.store.calls)
            for queue in queues:
                hot.append(queue, b"message")
            await pass_time(clock, 2.0)
            assert process.tier is not None
            published = [process.tier.queue(queue) for queue in queues]
            assert all(one is not None and one.next_offset == turn + 1 for one in published)
            # The entry, and one listing that proves that it lies above the boundary. Once, the
            # same for the announcement of the new queues.
            entries = 2 if turn == 0 else 1
            assert process.store.calls - before == Counter(append=1, create=entries, list=entries)


async def start_up(memory: MemoryStore, hot: StoreHotLog, clock: ManualClock) -> StoreProcess:
    """Begin on a tier, open every queue, and stop."""
    process = StoreProcess(memory, hot.reopened(), clock, 7, journal=JOURNAL, upkeep=UPKEEP)

    async def job(process: StoreProcess) -> None:
        assert process.dispatcher is not None
        await process.dispatcher.drain()

    await while_time_passes(clock, process.live(job), shown=process)
    assert process.error is None
    await process.client.close()
    return process


@pytest.mark.slow
async def test_a_start_costs_the_same_after_a_long_history() -> None:
    costs: list[tuple[int, int]] = []
    queue = QueueId("T", 0)
    for messages in (200, 2_000):
        clock, memory = ManualClock(), MemoryStore()
        hot = StoreHotLog(clock)
        options = UpkeepOptions(
            snapshot_entries_max=10, grace_s=0.0, sealed_segments_max=2, manifests_per_level_max=4
        )
        writer = StoreProcess(memory, hot.reopened(), clock, 1, journal=JOURNAL, upkeep=options)

        async def job(process: StoreProcess, hot=hot, clock=clock, n=messages) -> None:
            for _ in range(n // 20):
                hot.append(queue, *(bytes(60) for _ in range(20)))
                assert process.dispatcher is not None
                await process.dispatcher.drain()
            await clock.sleep(400.0)  # a last snapshot

        await while_time_passes(clock, writer.live(job), step_s=0.2, shown=writer)
        assert writer.error is None
        await writer.client.close()
        process = await start_up(memory, hot, clock)
        assert process.tier is not None
        published = process.tier.queue(queue)
        assert published is not None
        assert published.next_offset == messages
        read = process.store.bytes["read"] + process.store.bytes["read_many"]
        costs.append((process.store.calls.total(), read))
    (few_calls, few_bytes), (many_calls, many_bytes) = costs
    assert many_calls <= few_calls + 2, costs
    assert many_bytes <= 3 * few_bytes, costs


class TimedHotLog(StoreHotLog):
    """Notes when each message was written and when it was durable."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.written_s: dict[QueueId, list[float]] = {}
        self.waited_s: dict[QueueId, list[float]] = {}

    def append(self, queue: QueueId, *bodies: bytes) -> None:
        moments = self.written_s.setdefault(queue, [])
        moments += [self._clock.monotonic_s()] * len(bodies)
        super().append(queue, *bodies)

    async def release(self, queue: QueueId, offset: QueueOffset) -> None:
        waited = self.waited_s.setdefault(queue, [])
        now_s = self._clock.monotonic_s()
        waited += [now_s - then_s for then_s in self.written_s[queue][len(waited) : offset]]
        await super().release(queue, offset)


@pytest.mark.slow
async def test_no_thin_queue_waits_longer_than_its_age_limit_and_one_commit() -> None:
    clock, memory, rng = ManualClock(), MemoryStore(), Random(5)
    hot = TimedHotLog(clock)
    hot_queue, thin = QueueId("Hot", 0), [QueueId("Thin", number) for number in range(999)]
    commit_s = 0.2
    options = DispatchOptions(
        batch_messages_max=256,
        batch_bytes_max=64 << 10,
        bytes_in_flight_max=256 << 10,
        batches_per_commit_max=4,
        batch_age_s_max=0.5,
    )
    async with running(memory, hot, clock, options) as process:
        process.store.faults = [Fault("delayed", "append", delay_s=commit_s)]
        for _ in range(60):
            hot.append(hot_queue, *(bytes(200) for _ in range(250)))
            for queue in rng.sample(thin, 40):
                hot.append(queue, bytes(rng.randrange(100)))
            await clock.advance(0.1)
            await settle(40)
        assert process.dispatcher is not None
        behind = {one.queue: one.behind for one in process.dispatcher.statistics().queues}
        assert behind[hot_queue] > 5_000, "the hot queue is not hot enough to be in the way"
        await pass_time(clock, 2.0)
        waits = [wait for queue in thin for wait in hot.waited_s.get(queue, [])]
        assert len(waits) == 2_400
        limit_s = options.batch_age_s_max + commit_s
        assert max(waits) <= limit_s + 0.01, sorted(waits)[-5:]
        peak = process.dispatcher.statistics().bytes_in_flight_peak
        assert peak <= options.bytes_in_flight_max
