"""What a program that tiers sees: `tieredstore.follow`."""

import asyncio
import os
from pathlib import Path
from unittest.mock import patch

import pytest

import tieredstore
from tests.support.fake_broker import FakeBroker
from tests.support.golden import ROCKETMQ_533, expected, unpack
from tieredstore.following.queues import poll_schedule

assert tieredstore.Follower  # its imports read files, so they are not left to a running loop


async def test_a_store_is_tiered_and_what_comes_later_too(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put_many("A", 0, [b"%d" % number for number in range(10)])
    root = tmp_path / "tier"
    quick = {"tieredStoreScanInterval": 0, "tieredStorePollInterval": 1}
    async with tieredstore.follow(
        broker.directory, root, cluster="C", broker="b", settings=quick
    ) as follower:
        statistics = await follower.drain()
        assert (statistics.messages, statistics.behind) == (10, 0)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(follower.run())
            async with tieredstore.open(root) as opened:
                broker.put_many("A", 0, [b"later"] * 5)
                await follower.drain()
                assert await opened.refresh()
                bodies = [message.body async for message in opened.messages("A", 0, 10)]
                assert bodies == [b"later"] * 5
            await follower.stop()
            await running
        assert [(one.topic, one.messages_new) for one in follower.topics()] == [("A", 15)]
        assert follower.scan_statistics().troubles == []
    with pytest.raises(tieredstore.Closed):
        follower.statistics()


@pytest.mark.parametrize("has_queues", [True, False])
async def test_draining_tiers_what_there_is_however_long_the_last_look_took(
    tmp_path: Path, *, has_queues: bool
) -> None:
    """Looks at all queues take a small share of the time: the next one comes late on a slow disk.

    So that it comes late on any disk the shares are all but 0.
    """
    broker = FakeBroker(tmp_path / "store")
    if not has_queues:
        (broker.directory / "consumequeue" / "CURRENT").write_text("MANIFEST-000004\n")
    broker.put("A", 0, b"first")
    with (
        patch.object(poll_schedule, "SHARE_AT_REST", 1e-9),
        patch.object(poll_schedule, "SHARE_OF_GROWTH", 1e-9),
    ):
        async with tieredstore.follow(broker.directory, tmp_path / "tier", broker="b") as follower:
            await follower.drain()
            for number in range(10):
                broker.put("A", 0)
                broker.put(f"New{number}", 0)
                drained = await follower.drain()
                assert (drained.messages, drained.behind) == (3 + 2 * number, 0)


async def test_running_until_cancelled_leaves_a_whole_tier(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put_many("A", 0, [b"x"] * 100)
    root = tmp_path / "tier"

    async def work() -> None:
        async with (
            tieredstore.follow(broker.directory, root, broker="b") as follower,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(follower.run())
            await follower.drain()
            task.cancel()

    task = asyncio.get_running_loop().create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    async with tieredstore.open(root) as opened:
        assert opened.queue("A", 0).messages == 100
        assert [finding async for finding in opened.check()] == []


async def test_an_owner_that_was_fenced_learns_it_as_one_error(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put("A", 0, b"first")
    given = {"tieredStoreTakeoverTimeout": 0}

    async def work() -> None:
        root = tmp_path / "tier"
        first = tieredstore.follow(broker.directory, root, broker="b", settings=given)
        second = tieredstore.follow(
            broker.directory, root, broker="b", settings=given, take_over=True
        )
        async with first as older:
            await older.drain()
            async with second:
                broker.put("A", 0, b"second")
                await older.drain()

    with pytest.raises(tieredstore.Fenced, match=f"process {os.getpid()} on .* took this tier"):
        await work()


async def test_what_cannot_be_followed_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(tieredstore.StoreError, match="no such directory"):
        async with tieredstore.follow(tmp_path / "none", tmp_path / "tier"):
            pass
    with pytest.raises(tieredstore.Unavailable, match="too long"):
        async with tieredstore.follow(tmp_path / ("x" * 300), tmp_path / "tier"):
            pass
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    for where, words in (("store/tier", "inside one another"), ("store", "inside one another")):
        with pytest.raises(tieredstore.ConfigError, match=words):
            async with tieredstore.follow(tmp_path / "store", tmp_path / where):
                pass
    disabled = {"tieredStorageLevel": "DISABLE"}
    with pytest.raises(tieredstore.ConfigError, match="switches tiering off"):
        async with tieredstore.follow(tmp_path / "store", tmp_path / "t", settings=disabled):
            pass
    assert not (tmp_path / "tier").exists()


async def test_a_follower_that_is_dropped_open_warns_and_is_not_entered_again(
    tmp_path: Path,
) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put("A", 0, b"body")
    follower = tieredstore.follow(broker.directory, tmp_path / "tier", broker="b")
    async with follower:
        with pytest.warns(ResourceWarning, match="Follower.*was not closed"):
            follower.__del__()
        with pytest.raises(RuntimeError, match="is open already"):
            await follower.__aenter__()


def test_a_golden_store_is_followed_from_a_brokers_own_file(tmp_path: Path) -> None:
    tree = unpack(ROCKETMQ_533, "closed", tmp_path)

    async def work() -> int:
        follower = tieredstore.follow(tree.store, tmp_path / "t", conf=ROCKETMQ_533.broker_conf)
        async with follower:
            return (await follower.drain()).messages

    assert asyncio.run(work()) == len(expected(ROCKETMQ_533, "messages"))
