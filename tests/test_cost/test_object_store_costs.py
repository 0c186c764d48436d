"""What a tier in an object store costs in requests, with the settings that it has by default.

Every byte is real, in memory, and time is simulated. The requests are those that a service bills:
`FsspecStore` counts them where they are sent.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import fsspec
import numpy as np
import pytest

from container.journal.heartbeat import Heartbeat
from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.properties import tag_hash
from container.record.unit import UNIT_DTYPE, Units
from container.tier import Tier, TierIdentity
from container.tier_view import TierReader
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.ports import HotQueue, HotQueueState, Wanted, WantedUnits
from dispatcher.work import Wakeup
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import Clock, SystemClock
from provider.errors import StoreError
from provider.object.store import REQUEST_KINDS, FsspecStore, open_object_store
from provider.ranges import QueueOffset
from provider.stores.packed_segments import PackedDriver
from provider.stores.range_reads import RangeReads
from tests.support.clean_tier import (
    OPENING_REQUESTS_MAX,
    QUEUES,
    SEGMENTS_OF_A_QUEUE,
    segments_of,
    write_clean_tier,
)
from tests.support.fake_hot_log import one_by_one
from tests.support.level import by_level
from tests.support.memory_tier import InlineExecutor
from tests.support.messages import make_record
from tests.support.simulated_time import SimulatedClock, simulated
from tieredstore.config.effective import Config
from tieredstore.config.prices import MONTH_S, Load, PriceTable, forecast
from tieredstore.session.takeover import watch_ownership

QUEUE_OFFSET, STORE_TIMESTAMP = slice(20, 28), slice(56, 64)
TAG = "TagA"


class UniformHotLog:
    """`HotLog` of queues whose records differ in queue, offset and store timestamp only."""

    def __init__(self, clock: Clock, queues: int, *, body_bytes: int, keyed: bool = True) -> None:
        self.ends = {QueueId("T", number): 0 for number in range(queues)}
        """Messages of each queue; `extend` adds some."""
        self._clock = clock
        self._alarm = Wakeup(clock)
        self._changed = set(self.ends)
        properties = {"TAGS": TAG, **({"KEYS": "a-key"} if keyed else {})}
        self._records = {
            queue: np.frombuffer(
                make_record(
                    queue.topic, queue.queue_id, 0, bytes(body_bytes), properties=properties
                ),
                np.uint8,
            )
            for queue in self.ends
        }
        self.record_bytes = len(self._records[QueueId("T", 0)])

    def extend(self, queue: QueueId, messages: int) -> None:
        """Add so many messages, as a broker does."""
        self.ends[queue] += messages
        self._changed.add(queue)
        self._alarm.ring()

    async def poll(self) -> Sequence[HotQueue]:
        changed, self._changed = self._changed, set()
        return [self._hot(queue) for queue in sorted(changed)]

    async def poll_again(self, queues: Collection[QueueId]) -> Sequence[HotQueue]:
        return [self._hot(queue) for queue in queues]

    async def wait(self, seconds: float) -> None:
        await self._alarm.wait(seconds)

    def queue(self, queue: QueueId) -> HotQueue | None:
        return self._hot(queue) if queue in self.ends else None

    async def references(self, queue: QueueId, start: QueueOffset, *, messages_max: int) -> Units:
        units = np.zeros(min(self.ends[queue] - start, messages_max), UNIT_DTYPE)
        units["size"] = self.record_bytes
        return units

    async def references_of_queues(
        self, wanted: Sequence[WantedUnits]
    ) -> Sequence[Units | StoreError]:
        return await one_by_one(self.references, wanted)

    async def records_of_round(
        self, wanted: Sequence[Wanted]
    ) -> Sequence[MessageBatch | StoreError]:
        return [self._batch(queue, start, len(units)) for queue, start, units in wanted]

    async def release(self, queue: QueueId, offset: QueueOffset) -> None:
        return None

    async def close(self) -> None:
        return None

    def _hot(self, queue: QueueId) -> HotQueue:
        end = QueueOffset(self.ends[queue])
        return HotQueue(queue, QueueOffset(0), end, HotQueueState.READY, "", None)

    def _batch(self, queue: QueueId, start: QueueOffset, count: int) -> MessageBatch:
        data = np.tile(self._records[queue], (count, 1))
        offsets = np.arange(start, start + count, dtype=">i8")
        data[:, QUEUE_OFFSET] = offsets.view(np.uint8).reshape(count, 8)
        now_ms = np.full(count, self._clock.now_ms(), ">i8")
        data[:, STORE_TIMESTAMP] = now_ms.view(np.uint8).reshape(count, 8)
        sizes = np.full(count, self.record_bytes, np.int64)
        return MessageBatch(
            first_offset=start,
            data=data.reshape(-1),
            starts=np.cumsum(sizes) - sizes,
            sizes=sizes,
            tag_hashes=np.full(count, tag_hash(TAG), np.int64),
            store_timestamps=now_ms.astype(np.int64),
        )


URL = "memory://costs/tier"
HOUR_S = 3600
GIB = 1 << 30
BUSY_QUEUES, BUSY_BODY_BYTES = 8, 16 << 10
THIN_QUEUES, THIN_BODY_BYTES = by_level(quick=200, full=200, nightly=1_000), 100
STEP_S = 25
"""Messages of thin queues are added so many seconds apart, as many at once as seconds."""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    fsspec.filesystem("memory").store.clear()
    yield
    fsspec.filesystem("memory").store.clear()


def configured(*defines: str) -> Config:
    return Config.load(defines=[f"tieredStoreFilePath={URL}", *defines], environment={})


def store_on(clock: Clock, config: Config) -> FsspecStore:
    return open_object_store(URL, options=config.objects, clock=clock)


@asynccontextmanager
async def tiering(
    hot: UniformHotLog,
    store: FsspecStore,
    clock: Clock,
    config: Config,
    *,
    shows_life: bool = False,
) -> AsyncIterator[TieredDispatcher]:
    """An owner with all that it does in the background; signs of life cost apart."""
    rng = Random(1)
    tier = await Tier.own(
        store,
        TierIdentity("C", "b", "a test"),
        segments=PackedDriver(store, rng=rng),
        clock=clock,
        rng=rng,
        options=config.tier,
        journal_options=config.journal,
        upkeep_options=config.upkeep,
        index=config.index,
    )
    dispatcher = TieredDispatcher(
        hot, tier, options=config.dispatch, clock=clock, executor=InlineExecutor(), rng=Random(2)
    )
    heartbeat = Heartbeat(
        tier.journal, store, "a test", clock=clock, interval_s=config.journal.heartbeat_s
    )
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(tier.run()),
            group.create_task(dispatcher.run()),
            group.create_task(
                watch_ownership(tier.journal, clock=clock, interval_s=config.owner_check_s)
            ),
        ]
        if shows_life:
            tasks.append(group.create_task(heartbeat.run()))
        yield dispatcher
        await dispatcher.close()
        await tier.close()
        for task in tasks:
            task.cancel()


async def tier_a_gibibyte(config: Config) -> tuple[FsspecStore, int]:
    """8 busy queues with a GiB of records between them, tiered; the store, and the messages."""
    clock = SystemClock()
    store, hot = (
        store_on(clock, config),
        UniformHotLog(clock, BUSY_QUEUES, body_bytes=BUSY_BODY_BYTES),
    )
    each = GIB // BUSY_QUEUES // hot.record_bytes
    async with tiering(hot, store, clock, config) as dispatcher:
        for queue in hot.ends:
            hot.extend(queue, each)
        await dispatcher.drain()
    return store, each


@pytest.mark.slow
def test_a_gibibyte_tiers_in_40_writes_and_reads_back_in_300_gets() -> None:
    config = configured()

    async def run() -> None:
        store, each = await tier_a_gibibyte(config)
        print(f"tiered: {store.meter}")
        assert store.meter.writes <= 40, store.meter
        assert store.meter.requests["LIST"] <= 40, store.meter
        cold = store_on(SystemClock(), config)
        in_pieces = RangeReads(cold, clock=SystemClock(), options=config.ranges)
        reader = await TierReader.open(in_pieces)
        assert cold.meter.total <= OPENING_REQUESTS_MAX, cold.meter
        async with TieredMessageFetcher(reader, options=config.fetcher) as fetcher:
            for queue in reader.state.queues:
                at = 0
                while at < each:
                    found = await fetcher.get_message(
                        "g", *queue, at, messages_max=1024, bytes_max=None
                    )
                    assert found.next_offset > at
                    at = found.next_offset
        print(f"read: {cold.meter}")
        assert cold.meter.requests["GET"] <= 300, cold.meter
        assert cold.meter.requests["HEAD"] == 0, "nobody asks for a length before a read"

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.timeout(1_200)
def test_thin_queues_cost_150_writes_an_hour() -> None:
    """However many they are; by night a thousand."""
    config = configured()

    async def run() -> None:
        clock = SimulatedClock()
        store = store_on(clock, config)
        hot = UniformHotLog(clock, THIN_QUEUES, body_bytes=THIN_BODY_BYTES)
        async with tiering(hot, store, clock, config) as dispatcher:
            for _ in range(HOUR_S // STEP_S):
                for queue in hot.ends:
                    hot.extend(queue, STEP_S)
                await clock.sleep(STEP_S)
            spent, listings = store.meter.writes, store.meter.requests["LIST"]
            messages = dispatcher.statistics().messages
        print(f"{messages} messages in an hour: {store.meter}")
        assert messages >= THIN_QUEUES * (HOUR_S - 100)
        assert spent <= 150, store.meter
        _, sent, merging, _ = forecast(
            Load(THIN_QUEUES * hot.record_bytes, HOUR_S, THIN_QUEUES),
            replace(config.request_limits, heartbeat_s=math.inf),  # signs of life are not shown
            PriceTable("", "", {**dict.fromkeys(REQUEST_KINDS, 0), "PUT": 1000}, 0, 0, 0),
        )
        expected = (sent.currency_a_month + merging.currency_a_month) * HOUR_S / MONTH_S
        print(f"expected: {expected}")
        assert 0.7 < expected / spent < 1.5
        assert listings <= 150, store.meter
        reader = await TierReader.open(store_on(clock, config))
        ends = [queue.next_offset for queue in reader.state.queues.values()]
        assert ends == [HOUR_S // STEP_S * STEP_S] * THIN_QUEUES

    simulated(run())


def test_opening_a_tier_of_a_hundred_thousand_segments_costs_ten_requests() -> None:
    config = configured()

    async def run() -> None:
        clock = SimulatedClock()
        sequence = await write_clean_tier(store_on(clock, config), clock, config)
        reading = store_on(clock, config)
        reader = await TierReader.open(reading)
        print(f"opened: {reading.meter}")
        assert reader.state.sequence == sequence
        assert segments_of(reader.state) == QUEUES * SEGMENTS_OF_A_QUEUE
        assert reading.meter.total <= OPENING_REQUESTS_MAX, reading.meter
        assert reading.meter.requests["LIST"] <= 4, reading.meter

    simulated(run())


@pytest.mark.parametrize(("interval_ms", "looks_max"), [(None, 30), (300_000, 6), (0, 0)])
def test_an_idle_owner_makes_the_requests_of_its_signs_of_life_and_of_its_looks(
    interval_ms: int | None, looks_max: int
) -> None:
    """By default 5 a minute: 2 PUT, 2 DELETE and 1 LIST, as `docs/s3.md` says."""
    setting = [] if interval_ms is None else [f"tieredStoreOwnerCheckInterval={interval_ms}"]
    config = configured(*setting)

    async def run() -> None:
        clock = SimulatedClock()
        store = store_on(clock, config)
        hot = UniformHotLog(clock, 2, body_bytes=100)
        async with tiering(hot, store, clock, config, shows_life=True) as dispatcher:
            for queue in hot.ends:
                hot.extend(queue, 10)
            await dispatcher.drain()
            await clock.sleep(HOUR_S / 2)  # snapshots and deletions that the start gave cause for
            before = store.meter.requests.copy()
            await clock.sleep(HOUR_S / 2)
            made = store.meter.requests - before
        print(f"idle for half an hour: {dict(made)}")
        assert max(0, looks_max - 1) <= made["LIST"] <= looks_max
        signs = HOUR_S / 2 / config.journal.heartbeat_s
        assert signs - 2 <= made["PUT"] <= signs
        assert signs - 2 <= made["DELETE"] <= signs
        assert made.total() == made["LIST"] + made["PUT"] + made["DELETE"], "nothing else"

    simulated(run())


@pytest.mark.slow
def test_a_later_owner_lists_no_directory_of_a_queue() -> None:
    """All bytes lie in parts, which one listing finds, however many queues there are."""
    config, queues = configured(), 300

    async def run() -> None:
        clock = SimulatedClock()
        hot = UniformHotLog(clock, queues, body_bytes=100)
        first, second = store_on(clock, config), store_on(clock, config)
        for one in (first, second):
            async with tiering(hot, one, clock, config) as dispatcher:
                for queue in hot.ends:
                    hot.extend(queue, 10)
                await dispatcher.drain()
                await clock.sleep(HOUR_S)
        print(f"the second owner: {dict(second.meter.requests)}")
        assert second.meter.requests["LIST"] < queues / 2

    simulated(run())
