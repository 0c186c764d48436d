"""A store at its awkward moments: files that go amid a read, a tier that comes or goes."""

import asyncio
import os
import resource
import shutil
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

import tieredstore
from container.names.queue_id import QueueId
from container.options import HOUR_MS
from container.queue.positions import Boundary
from container.record.message import StoredMessage
from container.tier import Tier
from fetcher.result import FetchStatus
from provider.clock import SystemClock
from provider.errors import Closed, Fenced, Unavailable
from tests.support.hot_store import SMALL, new_message
from tests.support.patience import Patience, until
from tests.support.tiered_world import FrozenClock, TieredWorld
from tieredstore.store.levels import Level
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.tiered import TieredMessageStore


@pytest.fixture
def world(tmp_path: Path) -> TieredWorld:
    return TieredWorld(tmp_path / "store", SystemClock())


class Gate:
    """Holds the opening of a world's tier back until it is let go, or makes it fail."""

    def __init__(self, world: TieredWorld) -> None:
        self._world = world
        self._own = world.own
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.error: Exception | None = None
        self.count = 0

    @asynccontextmanager
    async def own(self) -> AsyncGenerator[Tier]:
        self.count += 1
        self.reached.set()
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error
        async with self._own() as tier:
            yield tier

    def store(self) -> TieredMessageStore:
        """A store that has no tier yet, and opens it through the gate."""
        with patch.object(self._world, "own", self.own):
            return self._world.store("DISABLE")

    async def give_up(self, store: TieredMessageStore) -> None:
        """Want the tier, and be cancelled while it opens."""
        given_up = asyncio.create_task(store.set_level("FORCE"))
        await self.reached.wait()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up


async def test_messages_that_move_amid_a_read_are_read_from_the_tier(world: TieredWorld) -> None:
    async with world.store() as store:
        await store.put_messages([new_message(number) for number in range(100)])
        await world.commit(store)
        log = world.local.log
        await log.bounds(log.queues()[0])
        real_pick = log.pick

        async def late_pick(*arguments: object) -> object:
            await world.local.trim()
            return await real_pick(*arguments)  # pyright: ignore[reportArgumentType] - as given

        read_at = 80
        with patch.object(log, "pick", late_pick):
            result = await store.get_message("g", "Orders", 0, read_at)
        first = await world.local.min_offset("Orders", 0)
        assert read_at < first < read_at + 10, "the deletion ends amid a file of units"
        assert result.status is FetchStatus.FOUND
        assert result.messages[0].queue_offset == read_at


async def test_a_tier_whose_wait_was_cancelled_is_there_for_the_next_who_wants_it(
    world: TieredWorld,
) -> None:
    gate = Gate(world)
    store = gate.store()
    async with store:
        await gate.give_up(store)
        next_one = asyncio.create_task(store.set_level("NOT_IN_DISK"))
        await asyncio.sleep(0)
        gate.goes_on.set()
        async with asyncio.timeout(20):
            await next_one
        assert store.level is Level.NOT_IN_DISK
        assert gate.count == 1


async def test_who_waits_for_a_tier_is_told_when_the_store_closes(world: TieredWorld) -> None:
    gate = Gate(world)
    store = gate.store()
    async with store:
        waiting = asyncio.create_task(store.set_level("FORCE"))
        await gate.reached.wait()
    async with asyncio.timeout(20):
        with pytest.raises(Closed):
            await waiting


async def test_nothing_is_tiered_by_a_tier_that_nobody_waited_for(world: TieredWorld) -> None:
    gate = Gate(world)
    store = gate.store()
    async with store:
        await store.put_message(new_message(0))
        await gate.give_up(store)
        gate.goes_on.set()
        await until(lambda: store.cold is not None, Patience("the tier does not open"))
        assert store.cold is not None
        assert store.level is Level.DISABLE
        assert store.cold.is_paused


async def test_a_tier_that_fails_to_open_after_its_wait_was_cancelled_ends_nothing(
    world: TieredWorld,
) -> None:
    gate = Gate(world)
    gate.error = Unavailable("the disk is away", "tier")
    store = gate.store()
    async with store:
        await gate.give_up(store)
        gate.goes_on.set()
        with pytest.raises(Unavailable, match="disk is away"):
            await store.set_level("FORCE")
        gate.error = None
        await store.set_level("FORCE")
        await store.put_message(new_message(0))
        assert store.level is Level.FORCE


async def test_a_tier_that_ended_is_never_no_message(world: TieredWorld) -> None:
    """Between the loss of the tier and the end of the block, and while the store closes."""
    said: list[object] = []

    async def used_until_fenced() -> None:
        async with world.store() as store:
            await store.put_messages([new_message(number) for number in range(100)])
            assert await world.move(store)
            async with world.own():
                pass
            await store.put_message(new_message(100))
            await world.local.log.flush()
            try:
                await asyncio.Event().wait()
            finally:
                assert store.cold is None
                try:
                    said.append(await store.get_message("g", "Orders", 0, 0))
                except Closed as error:
                    said.append(error)
                said.append((await store.get_message("g", "Orders", 0, 100)).status)

    with pytest.raises(Fenced):
        await used_until_fenced()
    closed, newest = said
    assert isinstance(closed, Closed)
    assert newest is FetchStatus.FOUND


async def test_nobody_waits_for_a_message_that_the_tier_has(world: TieredWorld) -> None:
    async with world.store() as store:
        await store.put_messages([new_message(number) for number in range(10)])
        await world.commit(store)
        with patch.object(world.local.log, "end_offset", lambda _: 0):  # a hot log that was lost
            assert await store.wait_for_message("Orders", 0, 9, 0)
            assert not await store.wait_for_message("Orders", 0, 10, 0)


@pytest.mark.parametrize("is_used", [True, False])
async def test_a_hot_log_that_was_lost_gives_no_offset_a_second_time(
    world: TieredWorld, *, is_used: bool
) -> None:
    """The next one goes on where the tier ends, also if it is closed or crashes before a put."""
    async with world.store() as store:
        await store.put_messages([new_message(number) for number in range(25)])
        await store.put_message(new_message(0, queue_id=3))
    shutil.rmtree(world.root)
    total = 25
    async with world.store() as store:
        if is_used:
            assert (await store.put_message(new_message(25))).queue_offset == 25
            total = 26
        crashed = shutil.copytree(world.root, world.root.parent / "crashed")
    ends = [(await end_of(root), total) for root in (world.root, crashed)]
    assert not is_used or all(found == end for found, end in ends), ends
    async with world.store() as store:
        place = await store.put_message(new_message(total))
        assert place.queue_offset == total
        assert (await store.put_message(new_message(1, queue_id=3))).queue_offset == 1
        await world.commit(store)
        assert await store.commit_offset("Orders", 0) == total + 1
        cold = store.cold
        assert cold is not None
        assert not cold.dispatcher.statistics().halted
        seen = [message.body async for message in upto(store, total)]
        assert seen == [new_message(number).body for number in range(total + 1)]


async def end_of(root: Path) -> int:
    """Where a hot log says that the queue ends, without its tier."""
    async with LocalMessageStore(root, options=SMALL) as store:
        return await store.max_offset("Orders", 0)


async def upto(store: TieredMessageStore, last: int) -> AsyncGenerator[StoredMessage]:
    async for message in store.messages("g", "Orders", 0):
        yield message
        if message.queue_offset == last:
            break


async def test_a_queue_that_was_looked_at_when_it_was_empty_begins_with_its_first_message(
    tmp_path: Path,
) -> None:
    queue = QueueId("Orders", 3)
    (tmp_path / "consumequeue/Orders/3").mkdir(parents=True)
    async with LocalMessageStore(tmp_path, options=SMALL) as store:
        assert await store.log.bounds(queue) == (0, 0)
        await store.log.continue_queues({queue: 104})
        assert (await store.put_message(new_message(0, queue_id=3))).queue_offset == 104
        assert await store.log.bounds(queue) == (104, 105)
        assert not await store.is_in_store(*queue, 103)


def moves_first(
    world: TieredWorld, store: TieredMessageStore, name: str
) -> AbstractContextManager[object]:
    """The hot log's messages go to the tier just before a call of its asks for them."""
    real = getattr(world.local, name)

    async def late(*arguments: object) -> object:
        await world.move(store)
        return await real(*arguments)

    return patch.object(world.local, name, late)


async def test_messages_that_move_amid_a_query_are_found_once(world: TieredWorld) -> None:
    async with world.store() as store:
        await store.put_messages([new_message(number) for number in range(10)])
        await world.commit(store)
        assert store.cold is not None
        store.cold.pause()
        await store.put_messages([new_message(number % 10) for number in range(10, 100)])
        with moves_first(world, store, "min_offset"):
            result = await store.query_message("Orders", "key-3")
        assert await world.local.min_offset("Orders", 0) > 50
        assert [message.queue_offset for message in result.messages] == list(range(93, 0, -10))
        assert result.is_complete


@pytest.mark.parametrize("boundary", Boundary)
async def test_messages_that_move_amid_a_search_by_time_are_found(
    tmp_path: Path, boundary: Boundary
) -> None:
    clock = FrozenClock()
    world = TieredWorld(tmp_path / "store", clock)
    stored_ms: list[int] = []
    async with world.store() as store:
        for number in range(100):
            clock.ahead_ms += 10
            stored_ms.append((await store.put_message(new_message(number))).store_timestamp)
            if number == 49:
                await world.move(store)
                assert store.cold is not None
                store.cold.pause()
        assert await world.local.min_offset("Orders", 0) < 50
        with moves_first(world, store, "offset_by_time"):
            assert await store.offset_by_time("Orders", 0, stored_ms[55], boundary) == 55
        assert await world.local.min_offset("Orders", 0) > 55


@pytest.mark.parametrize("level", ["DISABLE", "NOT_IN_DISK"])
async def test_a_clock_that_was_set_back_hides_no_message_from_a_query(
    tmp_path: Path, level: str
) -> None:
    clock = FrozenClock()
    world = TieredWorld(tmp_path / "store", clock)
    async with world.store(level) as store:
        if store.cold is not None:
            store.cold.pause()
        now_ms = clock.now_ms()
        for number in range(30):
            clock.ahead_ms += HOUR_MS if number < 3 else -HOUR_MS
            await store.put_message(new_message(number))
        result = await store.query_message("Orders", "key-2", begin_ms=now_ms + 3 * HOUR_MS)
        assert [message.queue_offset for message in result.messages] == [2]
        assert result.is_complete


async def test_a_store_that_ends_just_as_tiering_begins_again_ends_well(world: TieredWorld) -> None:
    async with world.store() as store:
        await store.put_message(new_message(0))
        await store.set_level("DISABLE")
        await store.set_level("NOT_IN_DISK")
    async with world.store() as store:
        assert await store.commit_offset("Orders", 0) == 1


@contextmanager
def few_descriptors(spare: int) -> Generator[None]:
    """Let this process open only so many more files in the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + spare, limits[1]))
    held: list[int] = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(min(spare, len(held))):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in held:
            os.close(fd)


async def test_a_process_without_descriptors_loses_nothing_and_recovers(tmp_path: Path) -> None:
    """Each call serves or raises `Unavailable`; once there are descriptors again all goes on."""
    names = [f"Topic{number}" for number in range(24)]
    acknowledged: dict[str, list[bytes]] = {name: [] for name in names}
    failed = 0
    async with tieredstore.open_store(
        tmp_path / "store",
        tmp_path / "tier",
        broker="b",
        hot=SMALL,
        settings={"tieredStoreGroupCommitTimeout": 0},
        durable=True,
    ) as store:
        await store.put_message(new_message(0, topic="Before"))
        for spare, name in enumerate(names):
            with few_descriptors(spare // 3):
                for _ in range(3):
                    message = new_message(len(acknowledged[name]), topic=name)
                    try:
                        done = await store.put_message(message)
                        assert done.queue_offset == len(acknowledged[name])
                        acknowledged[name].append(bytes(message.body))
                        await store.get_message("g", name, 0, 0)
                        await store.query_message(name, "key-0")
                    except Unavailable:
                        failed += 1
        assert failed > 10
        for name in names:
            message = new_message(len(acknowledged[name]), topic=name)
            await store.put_message(message)
            acknowledged[name].append(bytes(message.body))
        assert store.cold is not None
        await store.cold.tier_now()
        statistics = store.dispatch_statistics()
        assert statistics is not None
        assert (statistics.halted, statistics.gaps) == ((), 0)
        for level in ("NOT_IN_DISK", "FORCE"):
            await store.set_level(level)
            for name, bodies in acknowledged.items():
                found = (await store.get_message("g", name, 0, 0)).messages
                assert [one.body for one in found] == bodies
