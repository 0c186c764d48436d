"""Storage that refuses, stalls, loses replies, fills up or turns read-only, and then recovers.

While it lasts memory is bounded and what is published stays readable; afterwards everything is
tiered without anybody's help.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from container.names.queue_id import QueueId
from container.options import JournalOptions, UpkeepOptions
from dispatcher.options import DispatchOptions
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from provider.errors import Unavailable
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryStore
from tests.support.level import by_level
from tests.support.store_harness import (
    DISPATCH_OPTIONS,
    JOURNAL_OPTIONS,
    UPKEEP_OPTIONS,
    StoreHotLog,
    StoreProcess,
    pass_time,
)
from tests.support.store_reader import Follower, findings

QUEUES = [QueueId("T", number) for number in range(5)]
WRITES = ("create", "append", "delete")
HOUR_S = 3600.0
BURSTS = by_level(quick=2, full=2, nightly=10)


def failing(kind: str, *verbs: str, prefix: str = "", often: float = 1.0) -> list[Fault]:
    return [
        Fault(kind, verb, prefix, probability=often)  # pyright: ignore[reportArgumentType] - a Kind
        for verb in verbs or ("",)
    ]


def set_faults(faults: list[Fault]) -> Callable[[FaultyObjectStore], None]:
    def begin(store: FaultyObjectStore) -> None:
        store.faults = faults

    return begin


def fill_up(store: FaultyObjectStore) -> None:
    store.full = True


def turn_read_only(store: FaultyObjectStore) -> None:
    store.read_only = True


def lift(store: FaultyObjectStore) -> None:
    store.faults = []
    store.full = store.read_only = False
    store.released.set()


WEATHER: dict[str, Callable[[FaultyObjectStore], None]] = {
    "every write is refused": set_faults(failing("refused", *WRITES)),
    "data is refused": set_faults(failing("refused", "append")),
    "the journal is refused": set_faults(failing("refused", "create", prefix="@journal/")),
    "data stalls": set_faults(failing("stalled", "append")),
    "the journal stalls": set_faults(failing("stalled", "create", prefix="@journal/")),
    "data is cut short": set_faults(failing("short", "append")),
    "every reply to a write is lost": set_faults(failing("lost_reply", *WRITES)),
    "every second write is lost": set_faults(failing("refused", *WRITES, often=0.5)),
    "it is full": fill_up,
    "it is read-only": turn_read_only,
}


@dataclass
class Open:
    """A store with messages tiered, and a reader's way in."""

    clock: ManualClock
    hot: StoreHotLog
    memory: MemoryStore
    process: StoreProcess
    fetcher: TieredMessageFetcher

    @property
    def store(self) -> FaultyObjectStore:
        return self.process.store

    def write(self, count: int, body_bytes: int = 100) -> None:
        for queue in QUEUES:
            self.hot.append(queue, *(bytes([n % 256]) * body_bytes for n in range(count)))

    async def read(self, queue: QueueId, upto: int) -> None:
        """Read `[0, upto)` as a consumer does, and compare."""
        at = 0
        while at < upto:
            found = await self.fetcher.get_message(
                "group", queue.topic, queue.queue_id, at, messages_max=32
            )
            assert found.messages is not None
            assert len(found.messages) > 0, f"{found} at {at} of {upto}"
            for message, offset in zip(
                found.messages, found.messages.offsets.tolist(), strict=True
            ):
                hot = self.hot.queues[queue].records[offset]
                raw = bytes(message)
                assert (raw[:28], raw[36:]) == (hot[:28], hot[36:])
            at = found.next_offset

    def published(self, queue: QueueId) -> int:
        assert self.process.tier is not None
        record = self.process.tier.queue(queue)
        return record.next_offset if record else 0

    def assert_bounded(self, options: DispatchOptions = DISPATCH_OPTIONS) -> None:
        assert self.process.dispatcher is not None
        assert self.process.tier is not None
        now = self.process.dispatcher.statistics()
        assert now.bytes_in_flight <= now.bytes_in_flight_peak <= options.bytes_in_flight_max
        assert now.references <= max(options.references_max, 256 * len(QUEUES))
        assert self.process.tier.journal.statistics().waiting <= options.rounds_max + 2


@asynccontextmanager
async def opened(
    dispatch: DispatchOptions = DISPATCH_OPTIONS,
    journal: JournalOptions = JOURNAL_OPTIONS,
    upkeep: UpkeepOptions = UPKEEP_OPTIONS,
) -> AsyncIterator[Open]:
    clock, memory = ManualClock(), MemoryStore()
    hot = StoreHotLog(clock)
    process = StoreProcess(memory, hot, clock, 1, dispatch=dispatch, journal=journal, upkeep=upkeep)
    async with asyncio.TaskGroup() as group:
        process.start(group)
        await pass_time(clock, 0.1)
        assert process.tier is not None
        options = FetcherOptions(cache_enabled=False)
        async with TieredMessageFetcher(process.tier, options=options, clock=clock) as fetcher:
            world = Open(clock, hot, memory, process, fetcher)
            world.write(20)
            await pass_time(clock, 2.0)
            assert [world.published(queue) for queue in QUEUES] == [20] * len(QUEUES)
            yield world
            assert process.error is None
        process.kill()


LASTS_AN_HOUR = (
    "every write is refused",
    "the journal is refused",
    "it is full",
    "it is read-only",
)
"""By day, these are survived in `test_an_outage_of_an_hour_costs_few_requests`."""


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.parametrize(
    "weather",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if name in LASTS_AN_HOUR else [])
        for name in WEATHER
    ],
    ids=lambda name: name.replace(" ", "-"),
)
async def test_bad_weather_is_survived_in_bounded_memory_and_ends_by_itself(weather: str) -> None:
    async with opened() as world:
        follower = Follower(world.memory.another_client(), world.hot)
        await follower.look()
        WEATHER[weather](world.store)
        for _ in range(BURSTS):
            world.write(40)
            await pass_time(world.clock, 3.0)
            world.assert_bounded()
            await follower.look()
        assert world.store.struck or world.store.full or world.store.read_only
        for queue in QUEUES:
            await world.read(queue, world.published(queue))
        lift(world.store)
        world.write(1)
        await pass_time(world.clock, 30.0)
        end = 20 + 40 * BURSTS + 1
        assert [world.published(queue) for queue in QUEUES] == [end] * len(QUEUES)
        world.assert_bounded()
        assert world.process.dispatcher is not None
        now = world.process.dispatcher.statistics()
        assert (now.behind, now.halted, now.outage) == (0, (), False)
        assert set(world.hot.released.values()) == {end}
        await follower.look()
        for queue in QUEUES:
            await world.read(queue, end)
    assert await findings(world.memory.another_client()) == []


@pytest.mark.parametrize("weather", LASTS_AN_HOUR)
async def test_an_outage_of_an_hour_costs_few_requests(weather: str) -> None:
    dispatch, journal, upkeep = DispatchOptions(poll_s_max=5.0), JournalOptions(), UpkeepOptions()
    async with opened(dispatch, journal, upkeep) as world:
        WEATHER[weather](world.store)
        world.write(40)
        await pass_time(world.clock, 60.0)
        before = world.store.calls.total()
        await pass_time(world.clock, HOUR_S, step_s=10.0)
        requests = world.store.calls.total() - before
        # One probe in `backoff_s_max`; an entry in flight is looked for and sent in `retry_s_max`,
        # which is from half of it on; upkeep tries once in `interval_s`.
        bound = HOUR_S / dispatch.backoff_s_max + 4 * HOUR_S / journal.retry_s_max
        assert 0 < requests < bound + 4 * HOUR_S / upkeep.interval_s, requests
        world.assert_bounded(dispatch)
        lift(world.store)
        await pass_time(world.clock, 2 * dispatch.backoff_s_max)
        assert [world.published(queue) for queue in QUEUES] == [60] * len(QUEUES)


async def test_reads_that_fail_are_errors_and_never_no_message() -> None:
    async with opened() as world:
        world.store.faults = failing("refused", "read_many", "read")
        for queue in QUEUES:
            with pytest.raises(Unavailable):
                await world.read(queue, 20)
        world.write(5)
        await pass_time(world.clock, 3.0)
        assert [world.published(queue) for queue in QUEUES] == [25] * len(QUEUES)
        lift(world.store)
        for queue in QUEUES:
            await world.read(queue, 25)


async def test_a_stalled_read_holds_up_neither_commits_nor_the_end() -> None:
    async with opened() as world:
        world.store.faults = failing("stalled", "read_many")
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(world.read(queue, 20)) for queue in QUEUES]
            world.write(5)
            await pass_time(world.clock, 3.0)
            assert [world.published(queue) for queue in QUEUES] == [25] * len(QUEUES)
            assert not any(task.done() for task in reading)
            lift(world.store)
        await world.read(QUEUES[0], 25)
