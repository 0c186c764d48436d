"""Short cuts for tests that follow a broker with pins."""

import os

from container.names.queue_id import QueueId
from container.record.header import TRANSACTION_ROLLBACK
from container.record.message import StoredMessage
from dispatcher.ports import Wanted, records_of_queue
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import follow
from tieredstore.following.hot_log import RocketMqHotLog


async def follow_pinned(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], bytes_max: int = 1 << 30
) -> RocketMqHotLog:
    """Follow with a directory of pins beside the store, and poll once."""
    pins = broker.directory.parent / "pins"
    log = await follow(broker, clock, logs, pin_path=str(pins), pinned_bytes_max=bytes_max)
    await log.poll()
    return log


def pinned(broker: FakeBroker) -> list[str]:
    return sorted(os.listdir(broker.directory.parent / "pins" / "commitlog"))  # noqa: PTH208


async def read(log: RocketMqHotLog, queue: QueueId, start: int) -> list[tuple[int, bytes, int]]:
    """Offset, body and tags code of every message from `start` on."""
    seen = log.queue(queue)
    assert seen is not None
    found: list[tuple[int, bytes, int]] = []
    at = start
    while at < seen.max_offset:
        units = await log.references(queue, QueueOffset(at), messages_max=13)
        batch = await records_of_queue(log, Wanted(queue, QueueOffset(at), units))
        for row in range(len(batch)):
            raw = batch.data[batch.starts[row] :][: batch.sizes[row]].tobytes()
            message = StoredMessage.decode(raw, path="batch", position=0)
            code = int(batch.tag_hashes[row])
            found.append((message.queue_offset, message.body, code))
        at = batch.next_offset
    return found


def write(broker: FakeBroker, count: int) -> None:
    for number in range(count):
        broker.put("A", 0, str(number).encode(), tags=f"Tag{number % 5}")
        broker.put("B", 0, bytes(50))
        broker.put("C", 0, sys_flag=TRANSACTION_ROLLBACK, with_unit=False)
