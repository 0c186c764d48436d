"""Deleted topics of a store with a tier: gone from both, whatever fails or moves meanwhile."""

import asyncio
import shutil
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueue
from fetcher.result import FetchStatus
from provider.clock import SystemClock
from provider.errors import Unavailable
from provider.testing.faulty import Fault
from tests.support.hot_store import SMALL, new_message, of_older_version
from tests.support.patience import Patience, until
from tests.support.tiered_world import OUTAGE, TieredWorld
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.options import HotLogOptions
from tieredstore.hot.encoding import NewMessage
from tieredstore.store import cold_side
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.tiered import TieredMessageStore

LEVELS = ["NOT_IN_DISK", "NOT_IN_MEM", "FORCE"]
GONE = QueueId("Gone", 0)


@pytest.fixture
def world(tmp_path: Path) -> TieredWorld:
    return TieredWorld(tmp_path / "store", SystemClock())


def of(topic: str, numbers: range) -> list[NewMessage]:
    return [new_message(number, topic=topic) for number in numbers]


def bodies_of(topic: str, numbers: range) -> list[bytes]:
    return [message.body for message in of(topic, numbers)]


async def walked(store: TieredMessageStore, topic: str) -> list[bytes]:
    """The bodies of all that is there now, offsets checked."""
    first, end = await store.min_offset(topic, 0), await store.max_offset(topic, 0)
    bodies: list[bytes] = []
    if first < end:
        async for message in store.messages("g", topic, 0, first):
            assert message.queue_offset == first + len(bodies)
            bodies.append(message.body)
            if message.queue_offset + 1 == end:
                break
    return bodies


async def assert_gone(store: TieredMessageStore, topic: str = "Gone") -> None:
    level = store.level
    for each in LEVELS:
        await store.set_level(each)
        for offset in (0, 50, 10_000):
            result = await store.get_message("g", topic, 0, offset)
            assert result.status is FetchStatus.NO_MATCHED_LOGIC_QUEUE, (each, offset)
        assert topic not in store.topics()
        assert await store.max_offset(topic, 0) == 0
        assert not (await store.query_message(topic, "key-1")).messages
    await store.set_level(level)


def names_of(world: TieredWorld, topic: str) -> list[str]:
    return [name for name in world.memory._shared.objects if name.startswith(f"{topic}/")]


async def assert_bytes_go(world: TieredWorld, topic: str = "Gone") -> None:
    patience = Patience(lambda: f"{topic} has bytes", marks=lambda: names_of(world, topic))
    await until(lambda: not names_of(world, topic), patience)


@pytest.mark.parametrize("level", LEVELS)
async def test_a_topic_goes_from_hot_log_and_tier_while_readers_walk_and_messages_move(
    level: str, world: TieredWorld
) -> None:
    total = 300
    seen: list[list[int]] = [[], []]

    async def walk(store: TieredMessageStore, into: list[int]) -> None:
        messages: AsyncGenerator[Any, None] = store.messages("g", "Gone", 0)
        async with aclosing(messages):
            async for message in messages:
                number = int(message.body.partition(b":")[0])
                assert message.queue_offset == number
                into.append(number)
                if number == 2 * total - 1:
                    return

    async with world.store(level) as store:
        async with asyncio.TaskGroup() as group:
            for into in seen:
                group.create_task(walk(store, into))
            for start in (0, total):
                for number in range(start, start + total, 10):
                    await store.put_messages(of("Gone", range(number, number + 10)))
                    await store.put_messages(of("Kept", range(number, number + 10)))
                    if number % 100 == 90:
                        await world.move(store)
                if not start:
                    await store.delete_topics(["Gone"])
                    await assert_gone(store)
        for into in seen:
            assert into == sorted(set(into)), "each once and in order"
            assert into[-total:] == list(range(total, 2 * total))
        assert await walked(store, "Gone") == bodies_of("Gone", range(total, 2 * total))
        assert await walked(store, "Kept") == bodies_of("Kept", range(2 * total))
        await world.move(store)
        assert await store.min_offset("Gone", 0) == total
        assert await store.commit_offset("Gone", 0) == 2 * total
        assert await walked(store, "Gone") == bodies_of("Gone", range(total, 2 * total))
    assert await world.findings() == []


async def test_its_bytes_go_from_the_tier_and_its_records_wait_for_no_tier(
    world: TieredWorld,
) -> None:
    async with world.store() as store:
        await store.put_messages(of("Gone", range(200)) + of("Kept", range(3)))
        await world.commit(store)
        assert len(names_of(world, "Gone")) >= 2
        assert store.cold is not None
        store.cold.pause()
        await store.put_messages(of("Gone", range(200, 300)))  # these the tier never had
        await store.delete_topics({"Gone"})
        assert store.cold.is_paused
        await assert_gone(store)
        await assert_bytes_go(world)
        store.cold.resume()
        assert len((await world.local.trim()).files) > 5
        assert await walked(store, "Kept") == bodies_of("Kept", range(3))
        await world.commit(store)
        assert not names_of(world, "Gone"), "what was tiered before does not come back"
        assert store.cold.dispatcher.statistics().behind == 0
        assert [one.queue.topic for one in store.cold.dispatcher.statistics().queues] == ["Kept"]
    assert await world.findings() == []


async def test_nothing_comes_back_of_a_batch_that_was_read_before(world: TieredWorld) -> None:
    """The dispatcher has read records, and is held up at the first request for them."""
    async with world.store() as store:
        await store.put_messages(of("Kept", range(5)))
        await world.commit(store)
        world.tier_store.faults = [Fault("delayed", verb="append", delay_s=0.05)]
        await store.put_messages(of("Gone", range(100)))
        calls = world.tier_store.calls["append"]
        await until(
            lambda: world.tier_store.calls["append"] > calls, Patience("nothing is written")
        )
        await store.delete_topics(["Gone"])
        world.tier_store.faults = ()
        await store.put_messages(of("Kept", range(5, 9)))
        await world.commit(store)
        await assert_gone(store)
        await assert_bytes_go(world)
        assert await walked(store, "Kept") == bodies_of("Kept", range(9))
    assert await world.findings() == []


async def test_bytes_go_that_were_written_and_never_published(world: TieredWorld) -> None:
    """The first commit of a queue wrote its bytes, and the topic is deleted before its entry."""
    async with world.store() as store:
        await store.put_messages(of("Kept", range(5)))
        await world.commit(store)
        world.tier_store.faults = [Fault("lost_reply", verb="append", prefix="Gone/")]
        await store.put_messages(of("Gone", range(100)))
        calls = world.tier_store.calls["append"]
        await until(
            lambda: world.tier_store.calls["append"] > calls + 1, Patience("nothing is written")
        )
        assert names_of(world, "Gone")
        await store.delete_topics(["Gone"])
        world.tier_store.faults = ()
        await assert_bytes_go(world)
        await store.put_messages(of("Gone", range(100, 103)))
        await world.commit(store)
        assert await walked(store, "Gone") == bodies_of("Gone", range(100, 103))
        assert await walked(store, "Kept") == bodies_of("Kept", range(5))
    assert await world.findings() == []


class Killed(BaseException):
    """The process ends here."""


async def killed_in(
    world: TieredWorld, tmp_path: Path, place: str, method: str, *, after: bool
) -> None:
    """Delete a topic in a process that ends before or after a step; the next one finds the copy."""
    copy = tmp_path / f"after {method}-{after}"

    def ending(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **options: Any) -> Any:
            if after:
                await real(*args, **options)
            await asyncio.to_thread(shutil.copytree, world.root, copy)
            world.tier_store.faults = OUTAGE  # nothing of this process lands any more
            raise Killed

        return call

    store = world.store()
    await store.__aenter__()
    await store.put_messages(of("Gone", range(60)) + of("Kept", range(20)))
    await world.commit(store)
    module, _, name = place.rpartition(".")
    owner = getattr(__import__(module, fromlist=[name]), name)
    with (
        patch.object(owner, method, ending(getattr(owner, method))),
        pytest.raises(Killed),
    ):
        await store.delete_topics(["Gone"])
    await store.set_level("DISABLE")
    await store.__aexit__(None, None, None)
    world.tier_store.faults = ()
    world.root = copy


STEPS = [
    ("container.tier.Tier", "settle"),
    ("tieredstore.hot.hot_log.HotLog", "delete_topics"),
    ("container.tier.Tier", "delete_topic"),
]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("place", "method"), STEPS)
async def test_a_process_that_is_killed_at_any_step_loses_nothing_else_and_a_repeat_ends_it(
    place: str, method: str, world: TieredWorld, tmp_path: Path, *, after: bool
) -> None:
    await killed_in(world, tmp_path, place, method, after=after)
    async with world.store() as store:
        assert await walked(store, "Kept") == bodies_of("Kept", range(20))
        there = await walked(store, "Gone")
        assert there in ([], bodies_of("Gone", range(60)))
        assert (there == []) == (method == "delete_topic" and after)
        await store.delete_topics(["Gone"])
        await assert_gone(store)
        (place_again,) = await store.put_messages(of("Gone", range(60, 61)))
        assert place_again.queue_offset == 60
        await world.commit(store)
        assert await store.commit_offset("Gone", 0) == 61
    async with world.store() as store:
        assert await walked(store, "Gone") == bodies_of("Gone", range(60, 61))
        assert await walked(store, "Kept") == bodies_of("Kept", range(20))
    assert await world.findings() == []


@pytest.mark.parametrize("is_repeated", [True, False])
async def test_a_tier_that_does_not_answer_is_waited_for_and_a_cancelled_call_can_be_repeated(
    world: TieredWorld, *, is_repeated: bool
) -> None:
    async with world.store() as store:
        await store.put_messages(of("Gone", range(60)) + of("Kept", range(20)))
        await world.commit(store)
        world.tier_store.faults = OUTAGE
        deleting = asyncio.create_task(store.delete_topics(["Gone"]))
        await until(lambda: "Gone" not in world.local.topics(), Patience("it is not deleted"))
        assert not deleting.done()
        if is_repeated:
            deleting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await deleting
        world.tier_store.faults = ()
        await (store.delete_topics(["Gone"]) if is_repeated else deleting)
        await assert_gone(store)
        await store.put_messages(of("Kept", range(20, 25)))
        await world.commit(store)
        assert await walked(store, "Kept") == bodies_of("Kept", range(25))
        await assert_bytes_go(world)
    assert await world.findings() == []


async def test_a_tier_that_does_not_answer_holds_up_nothing_else_for_ever(
    world: TieredWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_side, "ANSWER_S_MAX", 0.1)
    async with world.store() as store:
        await store.put_messages(of("Gone", range(60)) + of("Kept", range(20)))
        await world.commit(store)
        world.tier_store.faults = OUTAGE
        with pytest.raises(Unavailable, match=r"does not answer.*call it again"):
            await store.delete_topics(["Gone"])
        await store.set_level("DISABLE")  # the way out of an outage
        await store.put_messages(of("Kept", range(20, 25)))
        await store.set_level("NOT_IN_DISK")
        world.tier_store.faults = ()
        monkeypatch.undo()
        await store.delete_topics(["Gone"])
        await assert_gone(store)
        await world.commit(store)
        assert await walked(store, "Kept") == bodies_of("Kept", range(25))


async def test_a_topic_made_again_at_once_is_tiered_when_the_old_files_are_gone(
    world: TieredWorld,
) -> None:
    async with world.store() as store:
        for turn in range(3):
            first = 40 * turn
            await store.put_messages(of("Gone", range(first, first + 40)))
            await store.put_messages(of("Kept", range(first, first + 40)))
            await world.commit(store)
            assert await store.commit_offset("Gone", 0) == first + 40
            assert await walked(store, "Gone") == bodies_of("Gone", range(first, first + 40))
            await store.delete_topics(["Gone"])
        assert await walked(store, "Kept") == bodies_of("Kept", range(120))
    assert await world.findings() == []


async def test_by_disable_the_tier_is_opened_to_delete_from_it_too(world: TieredWorld) -> None:
    async with world.store() as store:
        await store.put_messages(of("Gone", range(40)) + of("Kept", range(2)))
        await world.commit(store)
    async with world.store("DISABLE") as store:
        assert store.cold is None
        await store.delete_topics(["Gone"])
        assert store.cold is not None
        assert store.cold.is_paused
        await assert_gone(store)


async def test_what_the_tier_alone_has_goes_and_is_made_again_above_it(
    world: TieredWorld, tmp_path: Path
) -> None:
    async with world.store() as store:
        await store.put_messages(of("Gone", range(40)))
        await world.commit(store)
    world.root = tmp_path / "an empty one"
    for _ in range(2):
        async with world.store() as store:
            await store.delete_topics(["Gone"])
            await assert_gone(store)
    async with world.store() as store:
        (place,) = await store.put_messages(of("Gone", range(1)))
        assert place.queue_offset == 40


async def test_unused_topics_go_and_system_topics_stay(world: TieredWorld) -> None:
    system = ["SCHEDULE_TOPIC_" + 4 * "X", "rmq_sys_wheel_timer", "TestCluster", "broker-a"]
    async with of_older_version(world.root, world.options) as old:
        for topic in system:
            await old.put_messages(of(topic, range(3)))
    async with world.store() as store:
        for topic in ["Gone", "Kept", "Other"]:
            await store.put_messages(of(topic, range(3)))
        await world.commit(store)
        with pytest.raises(ValueError, match="is a system topic"):
            await store.delete_topics(["Gone", "rmq_sys_other"])
        for call in (store.delete_topics, store.clean_unused_topics):
            with pytest.raises(ValueError, match="give a list of names"):
                await call("Gone")
        assert await walked(store, "Gone") == bodies_of("Gone", range(3))
        assert await store.clean_unused_topics({"Kept", "Never"}) == ["Gone", "Other"]
        assert await store.clean_unused_topics({"Kept"}) == []
        assert set(store.topics()) == {"Kept", *system}
        assert {queue.topic for queue in store.cold.tier.state.queues} == {"Kept"}  # type: ignore[union-attr]
        await store.delete_topics([])
        await store.delete_topics(["Never"])
        await store.delete_topics(system)
        assert set(store.topics()) == {"Kept"}


async def test_a_hot_log_alone_keeps_its_system_topics_until_they_are_named(tmp_path: Path) -> None:
    async with of_older_version(tmp_path, SMALL) as local:
        for topic in ("Gone", "Kept", "rmq_sys_x"):
            await local.put_messages(of(topic, range(3)))
        assert await local.clean_unused_topics(["Kept"]) == ["Gone"]
        assert set(local.topics()) == {"Kept", "rmq_sys_x"}
        await local.delete_topics(["rmq_sys_x"])
        assert set(local.topics()) == {"Kept"}


async def test_who_follows_the_same_directory_is_told_by_its_files(world: TieredWorld) -> None:
    async def seen(reader: RocketMqHotLog) -> dict[QueueId, HotQueue]:
        reader.poll_all()
        return {one.id: one for one in await reader.poll()}

    async with world.store("DISABLE") as store:
        await store.put_messages(of("Gone", range(40)) + of("Kept", range(2)))
        reader = await RocketMqHotLog.open(
            world.root, options=HotLogOptions(), clock=world.clock, cluster="c", broker="b"
        )
        assert {queue: one.max_offset for queue, one in (await seen(reader)).items()} == {
            GONE: 40,
            QueueId("Kept", 0): 2,
        }
        await store.delete_topics(["Gone"])
        deleted = (await seen(reader))[GONE].deleted
        assert deleted is not None
        assert (deleted.end, deleted.is_made_again) == (40, False)
        await store.put_messages(of("Gone", range(40, 45)))
        again = (await seen(reader))[GONE]
        assert (again.min_offset, again.max_offset) == (40, 45)
        await reader.close()


async def test_a_read_amid_the_deletion_of_its_topic_misses_no_file(tmp_path: Path) -> None:
    """Its files are gone before its bounds are."""
    async with LocalMessageStore(tmp_path, options=SMALL) as store:
        await store.put_messages([new_message(number) for number in range(30)])
        queues, dropped, goes_on = store.log._appender.queues, threading.Event(), threading.Event()
        drop = queues.drop

        def drop_slowly(some: Collection[QueueId]) -> None:
            drop(some)
            dropped.set()
            goes_on.wait()

        with patch.object(queues, "drop", drop_slowly):
            deleting = asyncio.create_task(store.delete_topics({"Orders"}))
            await asyncio.to_thread(dropped.wait)
            reading = asyncio.create_task(store.get_message("g", "Orders", 0, 5))
            asking = asyncio.create_task(store.message_store_time("Orders", 0, 5))
            await asyncio.wait({reading, asking}, timeout=0.5)
            goes_on.set()
            assert (await reading).status is FetchStatus.NO_MATCHED_LOGIC_QUEUE
            assert await asking is None
            await deleting
