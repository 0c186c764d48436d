"""Where a store lies: a CommitLog elsewhere (`storePathCommitLog`), and wrong directories."""

from dataclasses import replace
from pathlib import Path

import pytest

from container.errors import InUse
from container.names.queue_id import QueueId
from container.names.rocketmq import broker_directory
from provider.errors import Denied
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import SMALL, new_message
from tieredstore.hot.hot_log import open_hot_log
from tieredstore.hot.hot_log_source import open_feed
from tieredstore.hot.log.directory import StoreDirectory

QUEUE = QueueId("Orders", 0)


async def test_records_lie_there_and_are_found_again_and_tiered(tmp_path: Path) -> None:
    root, log_path, clock = tmp_path / "store", tmp_path / "disk" / "log", ManualClock()
    options = replace(SMALL, commit_log_path=str(log_path))
    async with open_hot_log(root, options=options, clock=clock) as log:
        await log.append_many([new_message(number) for number in range(60)])
    assert len(list(log_path.iterdir())) > 1
    assert not (root / "commitlog").exists()
    (root / "abort").touch()
    async with (
        open_hot_log(root, options=options, clock=clock) as log,
        open_feed(log, clock=clock, cluster="TestCluster", broker="broker-a") as feed,
    ):
        assert (await log.get(QUEUE, 59))[0].queue_offset == 59
        (told,) = await feed.poll()
        assert (told.id, told.max_offset) == (QUEUE, 60)


def test_two_stores_never_share_one(tmp_path: Path) -> None:
    first = StoreDirectory(tmp_path / "a", tmp_path / "log")
    try:
        with pytest.raises(InUse, match="writes the store"):
            StoreDirectory(tmp_path / "b", tmp_path / "log")
    finally:
        first.close()
    StoreDirectory(tmp_path / "b", tmp_path / "log").close()


async def test_the_log_of_another_store_is_refused(tmp_path: Path) -> None:
    """As when a broker's file names it, and only the store directory is overridden."""
    clock = ManualClock()
    async with open_hot_log(tmp_path / "broker", options=SMALL, clock=clock) as log:
        await log.append(new_message(0))
    options = replace(SMALL, commit_log_path=str(tmp_path / "broker" / "commitlog"))
    with pytest.raises(Denied, match=r"is that of the store .*broker, not of .*ours: name both"):
        async with open_hot_log(tmp_path / "ours", options=options, clock=clock):
            pass
    assert not (tmp_path / "ours").exists()
    async with open_hot_log(tmp_path / "broker", options=options, clock=clock) as log:
        assert (await log.bounds(QUEUE)).max_offset == 1


def test_a_store_in_the_directory_of_a_tier_is_refused(tmp_path: Path) -> None:
    (tmp_path / broker_directory("TestCluster", "broker-a")).mkdir(parents=True)
    with pytest.raises(Denied, match="holds a tier"):
        StoreDirectory(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


async def test_a_store_where_no_directory_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root, words in (
        (tmp_path / "file", "a file stands where a directory is needed"),
        (tmp_path / "file" / "store", "a file stands where a directory is needed"),
        (Path("/proc/none"), "no directory can be made here"),
    ):
        with pytest.raises(Denied, match=words):
            async with open_hot_log(root, options=SMALL, clock=ManualClock()):
                pass
