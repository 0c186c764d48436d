"""The assertions of TieredMessageStoreTest: the tier has what the hot log has lost."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from container.queue.positions import Boundary
from fetcher.result import FetchStatus
from provider.clock import SystemClock
from tests.support.hot_store import new_message
from tests.support.tiered_world import TieredWorld
from tieredstore.store.levels import Level
from tieredstore.store.tiered import TieredMessageStore

TIERED, END = 70, 100
LEVELS = [Level.NOT_IN_DISK, Level.NOT_IN_MEM, Level.FORCE]


class SteppedClock(SystemClock):
    """Wall time in whole steps, which a test takes."""

    def __init__(self) -> None:
        self.at_ms = super().now_ms()

    def now_ms(self) -> int:
        """Unix ms."""
        return self.at_ms


@dataclass
class Served:
    """A queue of 100 messages: 70 in the tier, of which the hot log has lost the first."""

    store: TieredMessageStore
    times: list[int]
    hot_first: int


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncGenerator[Served]:
    clock = SteppedClock()
    world = TieredWorld(tmp_path / "store", clock)
    times: list[int] = []
    async with world.store() as store:
        for number in range(END):
            clock.at_ms += 10
            times.append((await store.put_message(new_message(number))).store_timestamp)
            if number + 1 == TIERED:
                await world.move(store)
                await store.set_level("DISABLE")
        hot_first = await world.local.min_offset("Orders", 0)
        assert 0 < hot_first < TIERED
        yield Served(store, times, hot_first)


async def test_7_the_status_is_that_of_both_sides(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        for level in LEVELS:
            await one.store.set_level(level)
            for topic, offset, status, following in (
                ("Orders", -1, FetchStatus.OFFSET_TOO_SMALL, 0),
                ("Orders", 0, FetchStatus.FOUND, None),
                ("Orders", TIERED, FetchStatus.FOUND, None),
                ("Orders", END, FetchStatus.OFFSET_OVERFLOW_ONE, END),
                ("Orders", END + 1, FetchStatus.OFFSET_OVERFLOW_BADLY, END),
                ("Nothing", 3, FetchStatus.NO_MATCHED_LOGIC_QUEUE, 0),
            ):
                found = await one.store.get_message("g", topic, 0, offset)
                assert found.status is status, (level, topic, offset)
                assert following is None or found.next_offset == following
                assert topic == "Nothing" or (found.min_offset, found.max_offset) == (0, END)


async def test_8_and_9_the_first_message_is_the_first_of_either_side(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        assert await one.store.min_offset("Orders", 0) == one.hot_first
        assert await one.store.earliest_message_time("Orders", 0) == one.times[one.hot_first]
        for level in LEVELS:
            await one.store.set_level(level)
            assert await one.store.min_offset("Orders", 0) == 0
            assert await one.store.earliest_message_time("Orders", 0) == one.times[0]
            assert await one.store.earliest_message_time("Nothing", 0) is None


async def test_10_a_messages_time_is_told_by_the_side_that_has_it(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        assert await one.store.message_store_time("Orders", 0, 0) is None
        for level in LEVELS:
            await one.store.set_level(level)
            for offset in (0, one.hot_first, TIERED - 1, TIERED, END - 1):
                told = await one.store.message_store_time("Orders", 0, offset)
                assert told == one.times[offset], (level, offset)
            for offset in (-1, END):
                assert await one.store.message_store_time("Orders", 0, offset) is None


async def test_11_boundaries_are_passed_on_to_the_side_that_decides(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        for level in LEVELS:
            await one.store.set_level(level)
            for offset in (0, one.hot_first, TIERED - 1, TIERED, END - 2):
                for moment, lower, upper in (
                    (one.times[offset], offset, offset),
                    (one.times[offset] + 5, offset + 1, offset),
                ):
                    assert await one.store.offset_by_time("Orders", 0, moment) == lower
                    found = await one.store.offset_by_time("Orders", 0, moment, Boundary.UPPER)
                    assert found == upper, (level, offset)


async def test_13_topics_that_nobody_keeps_are_deleted_with_their_metadata(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        assert await one.store.clean_unused_topics([]) == ["Orders"]
        assert one.store.topics() == {}
        assert one.store.cold is not None
        assert not one.store.cold.tier.state.queues
        found = await one.store.get_message("g", "Orders", 0, 0)
        assert found.status is FetchStatus.NO_MATCHED_LOGIC_QUEUE
