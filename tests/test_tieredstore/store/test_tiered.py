"""Hot log and tier as one store: no seam, no lost message, whatever fails or moves."""

import asyncio
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from container.index.options import IndexOptions
from container.lookup.query import Found, KeyQuery
from container.queue.positions import Boundary, TimeRules
from fetcher.result import FetchStatus
from provider.clock import SystemClock
from provider.errors import Closed, Fenced, Unavailable
from provider.object.store import open_object_store
from tests.support.hot_store import new_message, of_older_version
from tests.support.patience import Patience, until
from tests.support.tiered_world import OUTAGE, FrozenClock, TieredWorld
from tests.support.time_oracle import offset_by_scan
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.store.key_scan import scan_for_key
from tieredstore.store.levels import Level
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.tiered import TieredMessageStore

LEVELS = ["NOT_IN_DISK", "NOT_IN_MEM", "FORCE"]


@pytest.fixture(params=["files", "objects"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> TieredWorld:
    """Over a tier of files that grow, or of shared objects in `memory://`."""
    url = f"memory://worlds/{tmp_path.name}"
    objects = (lambda: open_object_store(url)) if request.param == "objects" else None
    return TieredWorld(tmp_path / "store", SystemClock(), objects=objects)


async def walked(store: TieredMessageStore, start: int, end: int) -> list[bytes]:
    """The bodies of `[start, end)`, offsets checked."""
    bodies: list[bytes] = []
    async for message in store.messages("g", "Orders", 0, start):
        assert message.queue_offset == start + len(bodies)
        bodies.append(message.body)
        if message.queue_offset + 1 == end:
            break
    return bodies


def expected(start: int, end: int) -> list[bytes]:
    return [new_message(number).body for number in range(start, end)]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_walk_sees_each_message_once_while_messages_move_and_expire(
    level: str, world: TieredWorld
) -> None:
    total = 400
    async with world.store(level) as store:

        async def write() -> None:
            for number in range(total):
                await store.put_message(new_message(number))
                if number % 60 == 59:
                    assert await world.move(store)

        async with asyncio.TaskGroup() as group:
            walks = [group.create_task(walked(store, start, total)) for start in (0, 0, 150)]
            group.create_task(write())
        for start, walk in zip((0, 0, 150), walks, strict=True):
            assert walk.result() == expected(start, total)
        assert await walked(store, 0, total) == expected(0, total)
        figures = store.statistics()
        assert figures["messages_from_tier"] > 0
        assert await store.min_offset("Orders", 0) == 0
        assert await world.local.min_offset("Orders", 0) > 300


async def test_the_level_says_who_serves_and_changes_at_run_time(world: TieredWorld) -> None:
    async with world.store("DISABLE") as store:
        assert store.cold is None
        await store.put_messages([new_message(number) for number in range(100)])
        assert (await world.local.trim()).files == ()  # nothing is deleted that is not tiered
        await store.set_level(Level.FORCE)
        await world.commit(store)
        assert await store.commit_offset("Orders", 0) == 100
        await walked(store, 0, 100)
        assert store.statistics()["messages_from_tier"] >= 100
        await world.local.trim()
        first = await world.local.min_offset("Orders", 0)
        assert first > 0
        await store.set_level("0")
        assert store.level is Level.DISABLE
        result = await store.get_message("g", "Orders", 0, 0)
        assert (result.status, result.next_offset) == (FetchStatus.OFFSET_TOO_SMALL, first)
        assert await store.min_offset("Orders", 0) == first
        await store.put_message(new_message(100))
        await world.local.log.flush()
        assert await store.commit_offset("Orders", 0) == 100
        with pytest.raises(ValueError, match="no level"):
            await store.set_level("OFTEN")
        await store.set_level(1)
        assert await walked(store, 0, 101) == expected(0, 101)
        await until(
            lambda: store.statistics()["tier_behind"] == 0, Patience("101 is not tiered again")
        )


async def test_force_reads_all_that_is_tiered_from_the_tier_and_the_rest_from_the_hot_log(
    world: TieredWorld,
) -> None:
    async with world.store("FORCE") as store:
        await store.put_messages([new_message(number) for number in range(20)])
        await world.commit(store)
        assert store.cold is not None
        store.cold.pause()
        await store.put_messages([new_message(number) for number in range(20, 30)])
        assert await walked(store, 0, 30) == expected(0, 30)
        figures = store.statistics()
        assert (figures["messages_from_tier"], figures["messages_from_hot"]) == (20, 10)


@pytest.mark.parametrize("level", LEVELS)
async def test_a_tier_that_fails_is_replaced_by_the_hot_log_where_that_has_the_message(
    level: str, world: TieredWorld
) -> None:
    async with world.store(level) as store:
        await store.put_messages([new_message(number) for number in range(100)])
        await world.move(store)
        first = await world.local.min_offset("Orders", 0)
        world.tier_store.faults = OUTAGE
        with patch.object(world.local.log, "is_resident", _no):
            assert await walked(store, first, 100) == expected(first, 100)
        with pytest.raises(Unavailable):
            await store.get_message("g", "Orders", 0, first - 1)
        result = await store.get_message("g", "Orders", 0, 100)
        assert (result.status, result.next_offset) == (FetchStatus.OFFSET_OVERFLOW_ONE, 100)
        await store.put_message(new_message(100))
        assert await walked(store, 100, 101) == expected(100, 101)
        if level != "NOT_IN_DISK":
            assert store.statistics()["fallbacks_to_hot"] > 0
        world.tier_store.faults = ()
        assert await walked(store, 0, 101) == expected(0, 101)


async def _no(*_: object, **__: object) -> bool:
    return False


async def test_a_hot_log_that_cannot_be_read_is_replaced_by_the_tier(world: TieredWorld) -> None:
    async with world.store() as store:
        await store.put_messages([new_message(number) for number in range(20)])
        await world.commit(store)
        with (world.root / "commitlog/00000000000000000000").open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 60)
        assert await walked(store, 0, 20) == expected(0, 20)
        assert store.statistics()["fallbacks_to_tier"] > 0


async def test_what_was_put_is_tiered_when_the_store_is_closed_and_goes_on_afterwards(
    world: TieredWorld,
) -> None:
    for round_ in range(3):
        async with world.store() as store:
            first = 50 * round_
            assert await store.commit_offset("Orders", 0) == first
            await store.put_messages([new_message(n) for n in range(first, first + 50)])
            assert await walked(store, 0, first + 50) == expected(0, first + 50)
            await world.local.trim()
    async with world.store() as store:
        await world.move(store)  # a trim deletes what this owner has published by then
        assert await world.local.min_offset("Orders", 0) > 0
        assert await walked(store, 0, 150) == expected(0, 150)
        assert await store.earliest_message_time("Orders", 0) is not None
        assert await store.message_store_time("Orders", 0, 0) is not None
        assert await store.message_store_time("Orders", 0, 150) is None
        assert await store.earliest_message_time("Orders", 1) is None
        assert store.topics() == {"Orders": 1}


async def test_an_outage_at_the_end_leaves_the_rest_to_the_next_start(world: TieredWorld) -> None:
    async with world.store() as store:
        await store.put_messages([new_message(n) for n in range(10)])
        await world.commit(store)
        await store.put_messages([new_message(n) for n in range(10, 20)])
        cold = store.cold
        assert cold is not None
        cold.pause()
    async with world.store("FORCE") as store:
        assert await store.commit_offset("Orders", 0) == 10
        assert await walked(store, 0, 20) == expected(0, 20)
        await world.commit(store)
        assert await store.commit_offset("Orders", 0) == 20


async def test_statuses_are_of_both_sides_together(world: TieredWorld) -> None:
    async with world.store() as store:
        nothing = await store.get_message("g", "Orders", 0, 5)
        assert (nothing.status, nothing.next_offset) == (FetchStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        await store.put_messages([new_message(n) for n in range(100)])
        await world.move(store)
        hot_first = await world.local.min_offset("Orders", 0)
        for offset, status, following in (
            (-1, FetchStatus.OFFSET_TOO_SMALL, 0),
            (0, FetchStatus.FOUND, None),
            (hot_first - 1, FetchStatus.FOUND, hot_first),
            (hot_first, FetchStatus.FOUND, None),
            (100, FetchStatus.OFFSET_OVERFLOW_ONE, 100),
            (101, FetchStatus.OFFSET_OVERFLOW_BADLY, 100),
        ):
            result = await store.get_message("g", "Orders", 0, offset, messages_max=1)
            assert result.status is status, offset
            assert following is None or result.next_offset == following
            assert (result.min_offset, result.max_offset) == (0, 100)
        found = await store.get_message("g", "Orders", 0, 0, subscription="Tag1")
        assert {message.tags for message in found.messages} == {"Tag1"}
        none = await store.get_message("g", "Orders", 0, 0, subscription="Other")
        assert (none.status, none.next_offset) == (FetchStatus.NO_MATCHED_MESSAGE, 100)


async def test_a_topic_that_is_never_tiered_is_served_by_the_hot_log(world: TieredWorld) -> None:
    async with of_older_version(world.root, world.options) as old:
        await old.put_message(new_message(0, topic="TBW102"))
    async with world.store("FORCE") as store:
        await world.commit(store)
        result = await store.get_message("g", "TBW102", 0, 0)
        assert (result.status, len(result.messages)) == (FetchStatus.FOUND, 1)
        assert await store.commit_offset("TBW102", 0) == 0


async def test_a_store_whose_tier_is_taken_ends_with_fenced(world: TieredWorld) -> None:
    async def used_until_fenced() -> None:
        async with world.store() as store:
            await store.put_message(new_message(0))
            await world.commit(store)
            async with world.own():
                pass
            await store.put_message(new_message(1))
            await world.local.log.flush()
            await asyncio.Event().wait()

    with pytest.raises(Fenced):
        await used_until_fenced()


async def test_calls_outside_of_the_block_say_so(world: TieredWorld) -> None:
    store = world.store()
    with pytest.raises(Closed):
        await store.get_message("g", "Orders", 0, 0)
    async with store:
        pass
    with pytest.raises(Closed):
        await store.set_level("FORCE")
    async with store:  # it may be opened again
        await store.put_message(new_message(0))
        assert await walked(store, 0, 1) == expected(0, 1)


async def test_a_tier_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    local = LocalMessageStore(tmp_path / "store")
    unnamed = Config.load(settings={}, environment={})
    with pytest.raises(ConfigError, match="tieredStoreFilePath"):
        async with TieredMessageStore(local, local=local, config=unnamed):
            pass
    inside = {"tieredStoreFilePath": str(tmp_path / "store/tier"), "brokerName": "b"}
    config = Config.load(settings=inside, environment={})
    with pytest.raises(ConfigError, match="inside one another"):
        async with TieredMessageStore(local, local=local, config=config):
            pass
    async with TieredMessageStore(local, local=local, config=unnamed, level="DISABLE") as store:
        with pytest.raises(ConfigError, match="tieredStoreFilePath"):
            await store.set_level("FORCE")
        assert store.level is Level.DISABLE
        await store.put_message(new_message(0))
        assert (await store.get_message("g", "Orders", 0, 0)).status is FetchStatus.FOUND


async def test_a_moment_is_found_in_hot_log_and_tier_together(tmp_path: Path) -> None:
    clock = FrozenClock()
    world = TieredWorld(tmp_path / "store", clock)
    times: dict[int, int] = {}
    async with world.store() as store:
        for offset in range(100):
            clock.ahead_ms += offset % 3  # some messages share a time
            times[offset] = (await store.put_message(new_message(offset))).store_timestamp
            if offset == 69:
                await world.move(store)
        hot_first = await world.local.min_offset("Orders", 0)
        assert 0 < hot_first < 70 == await store.commit_offset("Orders", 0)
        for level in LEVELS:
            await store.set_level(level)
            for moment in range(min(times.values()) - 1, max(times.values()) + 2):
                for boundary, rules in product(Boundary, TimeRules):
                    expects = offset_by_scan(times, moment, boundary, rules, first=0, end=100)
                    found = await store.offset_by_time("Orders", 0, moment, boundary, rules)
                    assert found == expects, (level, moment, boundary, rules)
                    if rules is TimeRules.LOCAL:
                        assert await store.offset_by_time("Orders", 0, moment, boundary) == found
        assert await store.offset_by_time("Nothing", 0, 0) == 0
        await store.set_level("DISABLE")
        hot_first = await world.local.min_offset("Orders", 0)
        found = await store.offset_by_time("Orders", 0, 0)
        # What is tiered meanwhile may be deleted between the calls.
        assert hot_first <= found <= await world.local.min_offset("Orders", 0)
        await store.set_level("FORCE")
        await world.move(store)
        assert await store.offset_by_time("Orders", 0, 0) == 0


async def test_messages_with_a_key_are_found_once_in_hot_log_and_tier(tmp_path: Path) -> None:
    clock = FrozenClock()
    world = TieredWorld(tmp_path / "store", clock)
    times: list[int] = []
    async with world.store("DISABLE") as store:

        async def put(first: int, end: int) -> None:
            for number in range(first, end):
                clock.ahead_ms += 1
                message = new_message(number % 10, queue_id=number % 2, body_bytes=number + 1)
                times.append((await store.put_message(message)).store_timestamp)

        async def found(**wanted: Any) -> list[int]:
            result = await store.query_message("Orders", "key-3", **wanted)
            assert result.is_complete
            return [len(message.body) - 1 for message in result.messages]

        expects = list(range(93, 0, -10))
        await put(0, 100)
        assert await found() == expects  # in the hot log alone
        await store.set_level("NOT_IN_DISK")
        await world.move(store)
        assert await found() == expects  # in both, and in the tier alone
        await put(100, 120)
        expects = [113, 103, *expects]
        assert await found() == expects  # the newest are not in the tier
        assert await found(newest_first=False) == expects[::-1]
        assert await found(begin_ms=times[53], end_ms=times[103]) == [103, 93, 83, 73, 63, 53]
        few = await store.query_message("Orders", "key-3", messages_max=2)
        assert [len(message.body) - 1 for message in few.messages] == [113, 103]
        assert not few.is_complete
        for topic, key in (("Orders", "key"), ("Orders", ""), ("Other", "key-3")):
            nothing = await store.query_message(topic, key)
            assert (list(nothing.messages), nothing.is_complete) == ([], True)
        world.tier_store.faults = OUTAGE
        rest = await store.query_message("Orders", "key-3")
        first = await world.local.min_offset("Orders", 1)
        assert first > 0, "the tier alone has the oldest"
        assert [len(one.body) - 1 for one in rest.messages] == [
            n for n in expects if n // 2 >= first
        ]
        assert (rest.is_complete, rest.unsearched >= first) == (False, True)
        world.tier_store.faults = ()  # the close waits ten seconds for a store that fails


async def test_a_key_of_an_open_store_costs_a_read_of_the_messages_that_have_it(
    tmp_path: Path,
) -> None:
    world = TieredWorld(tmp_path / "store", SystemClock(), index=IndexOptions())
    async with world.store("FORCE") as store:
        sizes = [
            (await store.put_message(new_message(number, body_bytes=500))).size
            for number in range(300)
        ]
        await world.move(store)
        tier = world.tier_store
        requests = tier.calls["read"] + tier.calls["read_many"]
        size = tier.bytes["read"] + tier.bytes["read_many"]
        result = await store.query_message("Orders", "key-299")
        assert [message.queue_offset for message in result.messages] == [299]
        assert result.is_complete
        assert tier.calls["read"] + tier.calls["read_many"] - requests == 1
        assert tier.bytes["read"] + tier.bytes["read_many"] - size == sizes[299]
        await store.put_message(new_message(7))  # the tier does not have it yet, or just now
        both = await store.query_message("Orders", "key-7")
        assert [message.queue_offset for message in both.messages] == [300, 7]


async def test_a_scan_for_a_key_is_bounded_and_says_what_is_left(world: TieredWorld) -> None:
    async with world.store("DISABLE") as store:
        await store.put_messages([new_message(number) for number in range(600)])
        query = KeyQuery("Orders", "key-599", 10)
        found = Found(query)
        scan = await scan_for_key(world.local, query, found, bytes_max=1)
        assert (scan.unsearched, len(found.messages())) == (512, 1)
