"""A tier whose hot log is gone: its messages are read, and the new ones follow them."""

import asyncio
import shutil
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from fetcher.result import FetchStatus
from provider.clock import SystemClock
from provider.errors import Unavailable
from tests.support.hot_store import SMALL, new_message
from tests.support.tiered_world import OUTAGE, FrozenClock, TieredWorld
from tieredstore.hot.options import RetentionOptions
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.tiered import TieredMessageStore


async def walked(store: TieredMessageStore, end: int) -> list[bytes]:
    """The bodies of `[0, end)`, offsets checked."""
    bodies: list[bytes] = []
    async for message in store.messages("g", "Orders", 0):
        assert message.queue_offset == len(bodies)
        bodies.append(message.body)
        if len(bodies) == end:
            break
    return bodies


def expected(end: int) -> list[bytes]:
    return [new_message(number).body for number in range(end)]


@pytest.mark.parametrize("count", [10, 37])  # a ConsumeQueue file ends there, or does not
async def test_a_store_whose_hot_log_was_lost_goes_on_above_what_the_tier_has(
    count: int, tmp_path: Path
) -> None:
    world = TieredWorld(tmp_path / "store", SystemClock())
    async with world.store() as store:
        await store.put_messages([new_message(number) for number in range(count)])
        await world.commit(store)
    shutil.rmtree(world.root)
    for life in range(2):
        async with world.store() as store:
            bounds = await store.min_offset("Orders", 0), await store.max_offset("Orders", 0)
            assert bounds == (0, count + life)
            waiting = asyncio.create_task(store.wait_for_message("Orders", 0, count + life, 60))
            put = await store.put_message(new_message(count + life))
            assert put.queue_offset == count + life
            assert (await store.put_message(new_message(0, queue_id=1))).queue_offset == life
            assert await waiting
            assert await walked(store, count + life + 1) == expected(count + life + 1)
            await world.commit(store)
            assert await store.commit_offset("Orders", 0) == count + life + 1
            statistics = store.dispatch_statistics()
            assert statistics is not None
            assert not statistics.halted
            assert not statistics.gaps
            await store.set_level("FORCE")
            assert await walked(store, count + life + 1) == expected(count + life + 1)


async def test_a_queue_that_continues_its_tier_has_the_bounds_of_it_before_its_first_message(
    tmp_path: Path,
) -> None:
    """Without the tier its messages were deleted here; the queue is not a new one."""
    queue = QueueId("Orders", 0)
    async with LocalMessageStore(tmp_path, options=SMALL) as store:
        await store.put_messages([new_message(number) for number in range(15)])
        await store.log.continue_queues({queue: 75})
    for life in range(3):
        async with LocalMessageStore(tmp_path, options=SMALL) as store:
            end = 75 + max(life - 1, 0)
            assert (await store.min_offset(*queue), await store.max_offset(*queue)) == (75, end)
            result = await store.get_message("g", *queue, 3)
            assert result.status is FetchStatus.OFFSET_TOO_SMALL
            assert result.next_offset == 75
            assert (await store.get_message("g", *queue, end)).status is (
                FetchStatus.OFFSET_OVERFLOW_ONE
            )
            assert await store.offset_by_time(*queue, 0) == 75
            assert await store.wait_for_message(*queue, 3, 0)
            assert not await store.wait_for_message(*queue, end, 0)
            assert not await store.is_in_store(*queue, 3)
            if life:
                assert (await store.put_message(new_message(0))).queue_offset == end


async def test_a_queue_that_continues_its_tier_is_known_without_the_tier(tmp_path: Path) -> None:
    """The hot log has none of its messages, but no read passes over those of the tier."""
    world = TieredWorld(tmp_path / "store", SystemClock())
    async with world.store() as store:
        await store.put_messages([new_message(number) for number in range(3)])
        await world.commit(store)
    shutil.rmtree(world.root)
    async with world.store():
        pass
    world.tier_store.faults = OUTAGE
    async with world.store("DISABLE") as store:
        assert (dict(store.topics()), store.queue_ids("Orders")) == ({"Orders": 1}, [0])
        result = await store.query_message("Orders", "key-1")
        assert (result.messages, result.is_complete, result.unsearched) == ([], False, 3)
    async with world.store() as store:
        assert store.awaited is not None
        with pytest.raises(Unavailable):
            await anext(store.read("Orders"))
        assert not (await store.query_message("Orders", "key-1")).is_complete
    world.tier_store.faults = ()


async def test_a_copy_of_a_log_that_continues_its_tier_continues_it_again(tmp_path: Path) -> None:
    world = TieredWorld(tmp_path / "store", SystemClock())
    for life in range(3):
        async with world.store() as store:
            if life == 1:  # without a message yet
                shutil.copytree(world.root, tmp_path / "copy")
            await store.put_messages([new_message(number) for number in range(3)])
            await world.commit(store)
        shutil.rmtree(world.root)
        if life == 1:
            (tmp_path / "copy").rename(world.root)
    async with world.store() as store:
        assert (await store.put_message(new_message(0))).queue_offset == 9


async def test_a_copy_with_messages_that_the_tier_lacks_is_not_called_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tier has expired them, or it began later."""
    clock, first = FrozenClock(), 0
    upkeep = UpkeepOptions(expires=True, grace_s=0.0)
    options = TierOptions(commit_log_bytes_max=2_000, consume_queue_bytes_max=400)
    world = TieredWorld(
        tmp_path / "store",
        clock,
        retention=RetentionOptions(),
        tier_options=options,
        upkeep=upkeep,
    )
    for start, end in ((0, 20), (20, 60)):
        async with world.store() as store:
            await store.put_messages([new_message(n, body_bytes=60) for n in range(start, end)])
            await world.commit(store)
            if start:
                first = (await world.expire(store))[QueueId("Orders", 0)]
        if not start:
            shutil.copytree(world.root, tmp_path / "copy")
            clock.ahead_ms += 80 * 3_600_000
    assert 0 < first <= 20
    shutil.rmtree(world.root)
    shutil.copytree(tmp_path / "copy", world.root)
    async with world.store() as store:
        assert await store.min_offset("Orders", 0) == first
    assert f"but not {first} of this copy" in caplog.text
    assert "nothing is lost" not in caplog.text
