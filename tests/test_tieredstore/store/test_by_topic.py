"""Calls of a store by topic: append without a queue number, reads that end, positions kept."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from container.record.header import COMPRESSED
from container.record.message import moment_of
from provider.clock import SystemClock
from tests.support.patience import Patience, until
from tests.support.tiered_world import OUTAGE, FrozenClock, TieredWorld
from tieredstore import (
    Appended,
    Closed,
    Config,
    ConfigError,
    Corrupt,
    ForwardingMessageStore,
    HotWriteOptions,
    Level,
    LocalMessageStore,
    Message,
    MessageRefused,
    NewMessage,
    PluggedStore,
    PluginContext,
    Unavailable,
    open_store,
)
from tieredstore.serve.options import NAME
from tieredstore.store.plugins import StoreLayers
from tieredstore.store.tiered import TieredMessageStore


async def bodies(messages: AsyncGenerator[Message, None]) -> list[str]:
    return [message.body.decode() async for message in messages]


async def half_moved(world: TieredWorld, store: TieredMessageStore, clock: FrozenClock) -> None:
    """Sixty messages of two queues, of which the hot log has deleted the oldest."""
    for number in range(60):
        clock.ahead_ms += 1000
        await store.put_message(
            NewMessage("Orders", number % 2, b"%d" % number, {"TAGS": f"T{number % 3}"})
        )
        if number == 39:
            assert await world.move(store)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def world(tmp_path: Path, clock: FrozenClock) -> TieredWorld:
    return TieredWorld(tmp_path / "store", clock)


@pytest.mark.parametrize("level", ["NOT_IN_DISK", "NOT_IN_MEM", "FORCE"])
async def test_a_read_joins_hot_log_and_tier_in_order_of_time_and_ends(
    world: TieredWorld, clock: FrozenClock, level: str
) -> None:
    async with world.store(level) as store:
        await half_moved(world, store, clock)
        assert await world.local.min_offset("Orders", 0) > 0
        assert await bodies(store.read("Orders")) == [str(number) for number in range(60)]
        tagged = [str(number) for number in range(60) if number % 3]
        assert await bodies(store.read("Orders", tags="T1 || T2")) == tagged
        assert await bodies(store.read("Nothing")) == []


async def test_a_read_takes_datetimes_and_gives_the_messages_between(
    world: TieredWorld, clock: FrozenClock
) -> None:
    async with world.store() as store:
        await half_moved(world, store, clock)
        times = {one.body: one.stored_at async for one in store.read("Orders")}
        since, end = times[b"17"], times[b"50"]
        assert since is not None
        assert end is not None
        between = [str(number) for number in range(17, 50)]
        assert await bodies(store.read("Orders", since=since, until=end)) == between
        at_ms = int(since.timestamp() * 1000)
        assert (await bodies(store.read("Orders", since=at_ms, until=end))) == between
        assert await bodies(store.read("Orders", since=end + timedelta(days=1))) == []
        with pytest.raises(ValueError, match="no time zone"):
            await bodies(store.read("Orders", since=since.replace(tzinfo=None)))
        with pytest.raises(ValueError, match="leave out until or follow"):
            await bodies(store.read("Orders", until=end, follow=True))
        with pytest.raises(ValueError, match="no tag"):
            await bodies(store.read("Orders", tags="||"))


async def test_messages_of_a_read_are_those_of_the_tier(world: TieredWorld) -> None:
    async with world.store("FORCE") as store:
        await store.append("Orders", "körper", tags="T", keys="a b", properties={"x": "1"})
        await world.commit(store)
        (message,) = [one async for one in store.read("Orders")]
        assert isinstance(message, Message)
        assert (message.body.decode(), message.tags, message.keys) == ("körper", "T", ["a", "b"])
        assert message.properties["x"] == "1"
        assert message.offset == 0


async def test_a_read_that_follows_gets_later_messages_of_old_and_new_queues(
    tmp_path: Path,
) -> None:
    found: list[bytes] = []
    async with LocalMessageStore(tmp_path, clock=SystemClock()) as store:

        async def follow() -> None:
            async for message in store.read("Orders", follow=True):
                found.append(message.body)  # noqa: PERF401 - the list is looked at meanwhile

        async with asyncio.TaskGroup() as tasks:
            follower = tasks.create_task(follow())
            for number, queue_id in enumerate((0, 0, 3, 1)):
                body = b"%d" % number
                await store.put_message(NewMessage("Orders", queue_id, body))
                await until(partial(found.__contains__, body), Patience("it is not read"))
            follower.cancel()
        assert found == [b"0", b"1", b"2", b"3"]
        assert store.statistics()["waiting"] == 0
        await store.append("Orders", b"4")
        late = store.read("Orders", follow=True)
        for _ in range(5):
            await anext(late)
        waiting = asyncio.create_task(anext(late))
        await until(lambda: store.statistics()["waiting"] > 0, Patience("nothing waits"))
    with pytest.raises(Closed):
        await waiting


async def test_append_keeps_the_order_of_a_new_topic_and_of_each_key(tmp_path: Path) -> None:
    async with LocalMessageStore(tmp_path, clock=SystemClock()) as store:
        for number in range(5):
            placed = await store.append("One", b"body")
            assert (placed.queue_id, placed.offset) == (0, number)
            assert placed.stored_at == moment_of(placed.store_timestamp)
        for queue_id in range(4):
            await store.put_message(NewMessage("Four", queue_id, b"body"))
        taken = Counter([(await store.append("Four", b"body")).queue_id for _ in range(8)])
        assert taken == dict.fromkeys(range(4), 2)
        keyed = {(await store.append("Four", b"body", keys=["k", "l"])).queue_id for _ in range(5)}
        assert len(keyed) == 1
        spread = {(await store.append("Four", b"b", keys=f"k{one}")).queue_id for one in range(99)}
        assert spread == set(range(4))
        for keys in (["a b"], [""]):
            with pytest.raises(MessageRefused, match="is empty or has a blank in it"):
                await store.append("One", b"body", keys=keys)


async def test_appends_to_two_topics_go_to_all_queues_of_each(tmp_path: Path) -> None:
    async with LocalMessageStore(tmp_path, clock=SystemClock()) as store:
        for topic in ("A", "B"):
            await store.put_messages([NewMessage(topic, queue_id, b"") for queue_id in range(2)])
        taken = [(await store.append(topic, b"")).queue_id for topic in "ABABAB"]
        assert taken == [0, 0, 1, 1, 0, 0]


async def test_append_takes_keys_of_an_iterator_and_refuses_what_is_no_text(tmp_path: Path) -> None:
    async with LocalMessageStore(tmp_path, clock=SystemClock()) as store:
        await store.append("Orders", b"body", keys=(key for key in ("a", "b")))
        (message,) = [one async for one in store.read("Orders")]
        assert message.keys == ["a", "b"]
        wrong: list[Any] = [[5], 5, None, b"key"]
        for keys in wrong:
            with pytest.raises(MessageRefused, match=r"of type (int|NoneType), not"):
                await store.append("Orders", b"body", keys=keys)


async def test_a_position_is_not_durable_before_its_message(tmp_path: Path) -> None:
    rarely = HotWriteOptions(flush_interval_s=3600)
    store = open_store(
        tmp_path, broker="b", level="DISABLE", settings={"flushIntervalCommitLog": 3_600_000}
    )
    for one in (LocalMessageStore(tmp_path / "local", options=rarely), store):
        async with one:
            for number in range(3):
                await one.append("Orders", b"%d" % number)
            position, durable = one.position("mailer", "Orders"), one.log.durable_offset
            first, second, _ = [message async for message in position.messages()]
            assert durable(QueueId("Orders", 0)) == 0
            await position.acknowledge(first)
            assert durable(QueueId("Orders", 0)) == 3
            with patch.object(one.log, "flush", side_effect=AssertionError("all is durable")):
                await position.acknowledge(second)
            assert await position.offsets() == {0: 2}


async def test_a_position_above_the_end_of_its_queue_is_put_back_there(tmp_path: Path) -> None:
    async with LocalMessageStore(tmp_path) as store:
        await store.append("Orders", b"0")
        path = tmp_path / "config" / NAME
        path.write_text('{"offsetTable":{"Orders@mailer":{"0":9}}}')
        position = store.position("mailer", "Orders")
        assert await bodies(position.messages()) == []
        assert await position.offsets() == {0: 1}
        await store.append("Orders", b"1")
        assert await bodies(position.messages()) == ["1"]


SELDOM = HotWriteOptions(flush_queues_interval_s=3600)
"""No sync meets the moved directory."""


async def test_a_position_of_a_moved_or_closed_store_is_not_written(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    async with LocalMessageStore(root, options=SELDOM) as store:
        await store.append("Orders", b"body")
        position = store.position("mailer", "Orders")
        message = await anext(position.messages())
        await store.log.flush()
        root.rename(elsewhere)
        for there in (False, True):
            if there:
                root.mkdir()
            with pytest.raises(Unavailable, match="the store directory was moved or deleted"):
                await position.acknowledge(message)
            assert not (root / "config").exists()
        root.rmdir()
        elsewhere.rename(root)
        await position.acknowledge(message)
        assert await position.offsets() == {0: 1}
    path = root / "config" / NAME
    path.unlink()
    with pytest.raises(Closed):
        await position.acknowledge(message)
    with pytest.raises(Closed):
        await position.offsets()
    assert not path.exists()


async def test_sound_messages_before_a_damaged_one_are_read_and_acknowledged(
    tmp_path: Path, clock: FrozenClock
) -> None:
    bad = 7
    async with LocalMessageStore(tmp_path, clock=clock) as store:
        for number in range(10):
            clock.ahead_ms += 1000
            flag = COMPRESSED if number == bad else 0
            body = b"%d" % number
            await store.put_message(NewMessage("Orders", number % 2, body, sys_flag=flag))
        position = store.position("mailer", "Orders")
        handled: list[str] = []

        async def handle() -> None:
            async for message in position.messages():
                handled.append(message.body.decode())
                await position.acknowledge(message)

        for _ in range(2):
            with pytest.raises(Corrupt):
                await handle()
        # No time is known of the damaged one, so nothing of the other queue comes before it.
        assert handled == [str(number) for number in range(bad - 1)]
        assert await position.offsets() == {0: 3, 1: 3}


async def test_a_position_in_the_hot_log_is_read_while_the_tier_is_away(
    world: TieredWorld, clock: FrozenClock
) -> None:
    async with world.store() as store:
        await half_moved(world, store, clock)
        position = store.position("mailer", "Orders")
        async for message in position.messages():
            if message.offset == 24:
                await position.acknowledge(message)
    world.tier_store.faults = OUTAGE
    async with world.store() as store:
        assert store.awaited is not None
        position = store.position("mailer", "Orders")
        assert await bodies(position.messages()) == [str(number) for number in range(50, 60)]
        with pytest.raises(Unavailable, match="away since the store was opened"):
            await bodies(store.position("another", "Orders").messages())


async def test_a_position_is_kept_and_moves_only_forward(tmp_path: Path) -> None:
    async with LocalMessageStore(tmp_path, clock=SystemClock()) as store:
        for number in range(6):
            await store.put_message(NewMessage("Orders", number % 2, b"%d" % number))
        mailer = store.position("mailer", "Orders")
        assert await mailer.offsets() == {}
        first = {message.body: message async for message in mailer.messages()}
        assert len(first) == 6
        await mailer.acknowledge(first[b"2"])
        await mailer.acknowledge(first[b"0"])  # before the position of its queue
        await store.append("Other", b"body")
        with pytest.raises(ValueError, match="not of the topic Orders"):
            await mailer.acknowledge(await anext(store.read("Other")))
    async with LocalMessageStore(tmp_path, clock=SystemClock()) as store:
        assert await store.position("mailer", "Orders").offsets() == {0: 2}
        rest = store.position("mailer", "Orders").messages()
        assert sorted(await bodies(rest)) == ["1", "3", "4", "5"]  # by time, which may be equal
        assert len(await bodies(store.position("another", "Orders").messages())) == 6
    path = tmp_path / "config" / NAME
    written = json.loads(path.read_bytes())["offsetTable"]
    assert written == {"Orders@mailer": {"0": 2}}


async def test_a_position_begins_where_a_broker_left_its_group(tmp_path: Path) -> None:
    async with LocalMessageStore(tmp_path, clock=SystemClock()) as store:
        for number in range(3):
            await store.append("Orders", b"%d" % number)
        path = tmp_path / "config" / NAME
        path.write_text('{"offsetTable":{"Orders@mailer":{0:2},"Kept@other":{7:9}}}')
        position = store.position("mailer", "Orders")
        (message,) = [one async for one in position.messages()]
        assert message.body == b"2"
        await position.acknowledge(message)
        written = json.loads(path.read_bytes())["offsetTable"]
        assert written == {"Orders@mailer": {"0": 3}, "Kept@other": {"7": 9}}
        path.write_text("{")
        path.with_name(f"{NAME}.bak").unlink()
        with pytest.raises(ConfigError, match="bring the file back, or remove it"):
            await position.offsets()
        with pytest.raises(ValueError, match="name of the group is not allowed"):
            store.position("mail er", "Orders")


async def test_a_position_whose_messages_are_deleted_continues_at_the_first(
    world: TieredWorld,
) -> None:
    async with world.store() as store:
        position = store.position("mailer", "Orders")
        await store.append("Orders", b"first")
        (first,) = [one async for one in position.messages()]
        await position.acknowledge(first)
        await store.delete_topics(["Orders"])
        placed = await store.append("Orders", b"second")
        assert placed.offset >= 1
        assert await bodies(position.messages()) == ["second"]


async def test_a_plug_in_sees_what_is_appended_and_read_by_topic(tmp_path: Path) -> None:
    class Loud(ForwardingMessageStore):
        async def put_message(self, message: NewMessage) -> Appended:
            return await super().put_message(message._replace(body=message.body.upper()))

    config = Config.load(settings={"storePathRootDir": tmp_path}, environment={})
    local = LocalMessageStore(tmp_path, clock=SystemClock())
    context = PluginContext(config, local, SystemClock(), level=Level.DISABLE)
    tiered = TieredMessageStore(Loud(local), local=local, config=config, level=Level.DISABLE)
    async with PluggedStore(context, StoreLayers(tiered, [("ours", tiered)])) as store:
        await store.append("Orders", "quiet")
        assert await bodies(store.read("Orders")) == ["QUIET"]
        position = store.position("mailer", "Orders")
        (message,) = [one async for one in position.messages()]
        assert message.body == b"QUIET"
        await position.acknowledge(message)
        assert await position.offsets() == {0: 1}
