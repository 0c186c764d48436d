"""Short cuts for tests of a store that is followed from its CommitLog alone."""

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueueState
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import broker, clock, follow, logs
from tests.support.without_queues import hide_queues
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.log_reader.log_scan import Remembered

__all__ = ["broker", "clock", "logs"]
A0, A1, B0 = QueueId("A", 0), QueueId("A", 1), QueueId("B", 0)


@pytest.fixture
def rocks(broker: FakeBroker) -> FakeBroker:
    """Its ConsumeQueue files are still written, where nobody looks."""
    hide_queues(broker.directory)
    (broker.directory / "consumequeue" / "CURRENT").unlink()
    (broker.directory / "consumequeue_rocksdb").mkdir()
    (broker.directory / "consumequeue_rocksdb" / "CURRENT").write_text("MANIFEST-000004\n")
    return broker


def state(log: RocketMqHotLog, queue: QueueId) -> HotQueueState:
    seen = log.queue(queue)
    assert seen is not None
    return seen.state


def ends(log: RocketMqHotLog, queue: QueueId) -> tuple[int, int]:
    seen = log.queue(queue)
    assert seen is not None
    return seen.min_offset, seen.max_offset


async def resumed(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], said: Remembered | None
) -> RocketMqHotLog:
    log = await follow(broker, clock, logs)
    if said is not None:
        await log.resume(said)
    await log.poll()
    return log
