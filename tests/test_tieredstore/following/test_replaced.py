"""A store that is replaced by another one while it is followed: nothing of the other is tiered."""

import signal
import subprocess
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import Wanted, records_of_queue
from provider.errors import Closed
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.cli import COMMAND
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, broker, clock, follow, logs, poll_later
from tests.support.patience import communicated
from tieredstore.following.hot_log import RocketMqHotLog

__all__ = ["broker", "clock", "logs"]  # fixtures

A0 = QueueId("A", 0)


def fill(broker: FakeBroker, letter: bytes) -> FakeBroker:
    """The same places for any letter."""
    broker.put_many("A", 0, [letter * 100] * 60)
    return broker


@pytest.fixture
def other(broker: FakeBroker, tmp_path: Path) -> FakeBroker:
    """A store with other messages at the same offsets and positions."""
    fill(broker, b"x")
    return fill(
        FakeBroker(tmp_path / "other", commit_log_bytes=4096, consume_queue_bytes=400), b"y"
    )


def put_in_place(other: FakeBroker, broker: FakeBroker) -> None:
    broker.directory.rename(broker.directory.parent / "old")
    other.directory.rename(broker.directory)


async def test_a_store_that_was_replaced_is_noticed_by_the_next_poll(
    broker: FakeBroker, other: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    log = await follow(broker, clock, logs)
    await log.poll()
    other.put("A", 0)
    put_in_place(other, broker)
    for _ in range(3):
        with pytest.raises(Closed, match="replaced"):
            await poll_later(log, clock)


@pytest.mark.parametrize("files_mapped_max", [1, 512])
async def test_no_message_of_a_store_that_took_the_place_is_given_out(
    broker: FakeBroker,
    other: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    files_mapped_max: int,
) -> None:
    log = await follow(broker, clock, logs, files_mapped_max=files_mapped_max)
    await log.poll()
    units = await log.references(A0, QueueOffset(0), messages_max=60)
    put_in_place(other, broker)
    with pytest.raises(Closed, match="replaced"):
        await records_of_queue(log, Wanted(A0, QueueOffset(0), units))
    with pytest.raises(Closed, match="replaced"):
        await log.poll()


async def test_a_file_that_was_read_and_is_another_one_now_is_a_log_that_was_replaced(
    broker: FakeBroker, other: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    log = await follow(broker, clock, logs)
    await log.poll()
    other.log_path(4096).replace(broker.log_path(4096))
    with pytest.raises(Closed) as caught:
        await poll_later(log, clock)
    assert caught.value.path == str(broker.log_path(4096))


async def test_a_store_without_a_file_of_the_same_name_is_another_one(
    broker: FakeBroker, tmp_path: Path, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    log = await follow(fill(broker, b"x"), clock, logs)
    await log.poll()
    later = FakeBroker(
        tmp_path / "later", commit_log_bytes=4096, consume_queue_bytes=400, start=1 << 20
    )
    put_in_place(fill(later, b"y"), broker)
    with pytest.raises(Closed, match="replaced"):
        await poll_later(log, clock)


async def test_a_file_after_the_end_may_be_made_again(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put("A", 0)
    spare = broker.log_path(4096)
    spare.write_bytes(bytes(4096))
    log = await follow(broker, clock, logs)
    await log.poll()
    copy = spare.with_name("copy")
    copy.write_bytes(bytes(4096))
    copy.replace(spare)
    assert await poll_later(log, clock) == {}
    fill(broker, b"x")
    await poll_later(log, clock)  # finds the files that were added
    await poll_later(log, clock)
    assert await bodies(log, A0, 0, 61) == 61


async def test_the_same_files_in_a_new_directory_are_the_same_log(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    log = await follow(fill(broker, b"x"), clock, logs)
    await log.poll()
    directory, away = broker.directory / "commitlog", broker.directory.parent / "away"
    directory.rename(away)
    directory.mkdir()
    for path in away.iterdir():
        path.rename(directory / path.name)
    broker.put("A", 0)
    assert await poll_later(log, clock) == {A0: (0, 61)}


@pytest.mark.process
@pytest.mark.slow
def test_a_follower_ends_with_a_sentence_when_its_store_is_replaced(
    broker: FakeBroker, other: FakeBroker, tmp_path: Path
) -> None:
    options = ["-D", "brokerName=b", "-D", "brokerClusterName=c"]
    options += ["-D", f"tieredStoreFilePath={tmp_path / 'tier'}"]
    command = [*COMMAND, *options, "tier", str(broker.directory), "--follow"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not list((tmp_path / "tier").glob("*/*/A/0/*/*")):
            assert process.poll() is None, process.communicate()
        put_in_place(other, broker)
        _, err = communicated(process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    assert process.returncode == 3
    assert err.count("the CommitLog was replaced by another one while it was followed") == 1
    assert str(broker.directory / "commitlog") in err
    assert err.endswith(": try again\n")
