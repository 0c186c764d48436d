"""A topic whose ConsumeQueues lie on a volume of their own, which may be away for a while."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import DeletedQueue, HotQueueState
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, broker, clock, follow, logs, poll_later
from tests.support.pinned import follow_pinned, write
from tieredstore.following.hot_log import RocketMqHotLog

__all__ = ["broker", "clock", "logs"]
A0, B0 = QueueId("A", 0), QueueId("B", 0)
Logs = list[RocketMqHotLog]


@pytest.fixture
def volume(broker: FakeBroker) -> Iterator[Path]:
    """Where the queues of A lie by now: on another volume than those of B."""
    write(broker, 100)
    with TemporaryDirectory(dir="/dev/shm") as mounted:
        place = Path(mounted) / "volume"
        topic = broker.directory / "consumequeue/A"
        shutil.move(topic, place)
        topic.symlink_to(place)
        assert place.stat().st_dev != broker.directory.stat().st_dev
        yield place


def state(log: RocketMqHotLog, queue: QueueId) -> HotQueueState:
    seen = log.queue(queue)
    assert seen is not None
    return seen.state


@pytest.mark.parametrize("has_pins", [False, True])
@pytest.mark.parametrize("leaves", ["nothing", "an empty directory", "one queue"])
async def test_a_volume_that_is_away_deletes_nothing(
    broker: FakeBroker, volume: Path, clock: ManualClock, logs: Logs, *, has_pins: bool, leaves: str
) -> None:
    log = await (follow_pinned if has_pins else follow)(broker, clock, logs)
    await poll_later(log, clock)
    topic, away = broker.directory / "consumequeue/A", volume.with_name("away")

    def take_away() -> None:
        volume.rename(away)
        topic.unlink()
        if leaves != "nothing":
            topic.mkdir()
        if leaves == "one queue":
            (topic / "7").mkdir()  # such as a broker makes that does not find the others

    def bring_back() -> None:
        shutil.rmtree(topic, ignore_errors=True)
        away.rename(volume)
        topic.symlink_to(volume)

    take_away()
    for _ in range(3):
        await poll_later(log, clock)
    told = log.queue(A0)
    assert told is not None
    assert (told.max_offset, told.state, told.deleted) == (100, HotQueueState.UNREADABLE, None)
    assert "volume" in told.detail
    assert state(log, B0) is HotQueueState.READY
    assert not any("deleted on the broker" in finding for finding in log.statistics.findings)
    bring_back()
    for _ in range(2):
        await poll_later(log, clock)
    assert state(log, A0) is HotQueueState.READY
    assert await bodies(log, A0, 0, 100) == 100


async def test_a_topic_that_is_deleted_on_its_volume_is_deleted(
    broker: FakeBroker, volume: Path, clock: ManualClock, logs: Logs
) -> None:
    log = await follow(broker, clock, logs)
    for _ in range(2):
        await poll_later(log, clock)
    shutil.rmtree(volume / "0")
    (broker.directory / "consumequeue/A").unlink()  # the broker removes what is empty
    for _ in range(2):
        await poll_later(log, clock)
    told = log.queue(A0)
    assert told is not None
    assert told.deleted == DeletedQueue(QueueOffset(0), QueueOffset(100))


async def test_queues_that_were_moved_to_the_volume_of_the_others_are_theirs(
    broker: FakeBroker, volume: Path, clock: ManualClock, logs: Logs
) -> None:
    log = await follow(broker, clock, logs)
    await poll_later(log, clock)
    topic = broker.directory / "consumequeue/A"
    topic.unlink()
    shutil.move(volume, topic)
    for _ in range(2):
        await poll_later(log, clock)
    assert await bodies(log, A0, 0, 100) == 100
    shutil.rmtree(topic)
    await poll_later(log, clock)
    assert getattr(log.queue(A0), "deleted", None) == DeletedQueue(QueueOffset(0), QueueOffset(100))
