"""Pins of messages that a queue cannot tell of yet: damaged, or not found, they are kept."""

import os
from collections.abc import Mapping

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueueState
from provider.errors import StoreError
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import broker, clock, logs, poll_later
from tests.support.pinned import follow_pinned, pinned, read, write
from tieredstore.following.directory.layout import FileRun, scan_run
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.log.commit_log import CommitLogFiles, table_of
from tieredstore.following.log.followed_log import Pins
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.queues.files import ConsumeQueueFiles
from tieredstore.following.queues.pinned_units import Floors
from tieredstore.following.queues.tail import ConsumeQueueTail, PollTime

A0, B0 = QueueId("A", 0), QueueId("B", 0)


__all__ = ["broker", "clock", "logs"]  # fixtures


async def test_a_queue_whose_file_goes_during_the_first_look_keeps_its_pins(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [bytes(150)] * 50)
    await (await follow_pinned(broker, clock, logs)).close()  # pins all, and is killed
    broker.put_many("B", 0, [bytes(150)] * 50)
    files = MappedFiles(8, 1 << 20)
    tail = ConsumeQueueTail(A0, ConsumeQueueFiles(files, broker.queue_files(A0)[0].parent))
    log = CommitLogFiles(files, table_of(scan_run(broker.directory / "commitlog"), {}))
    tail.files.rescan()
    gone = broker.queue_files(A0)[0]
    raw = gone.read_bytes()
    gone.unlink()
    assert tail.poll(log, PollTime(), lambda: None) == tail.seen
    assert not tail.is_known
    gone.write_bytes(raw)
    assert tail.poll(log, PollTime(), lambda: None).max_offset == 50
    assert tail.is_known
    files.close()


async def test_a_queue_whose_file_goes_during_a_look_keeps_the_pins_of_what_it_did_not_see(
    broker: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the end that was seen before would count as the end, and all behind it would be lost."""
    broker.put_many("A", 0, [bytes(150)] * 15)
    log = await follow_pinned(broker, clock, logs)
    await log.release(A0, QueueOffset(15))
    await poll_later(log, clock)
    sync, find = Pins.sync, Floors.find

    def sync_before_files_go(self: Pins, live: FileRun, low: int) -> list[str]:
        said = sync(self, live, low)
        delete_all_but(broker, 2)
        return said

    def find_before_files_go(
        self: Floors, queues: Mapping[QueueId, ConsumeQueueFiles]
    ) -> dict[QueueId, StoreError]:
        found = find(self, queues)
        delete_all_but(broker, 2)
        return found

    broker.put_many("A", 0, [bytes(150)] * 60)
    with monkeypatch.context() as patched:
        patched.setattr(Pins, "sync", sync_before_files_go)
        await log.poll()  # notices that the log grew, and misses the file of the queue's end
    broker.put_many("A", 0, [bytes(150)] * 60)
    with monkeypatch.context() as patched:
        patched.setattr(Floors, "find", find_before_files_go)
        await poll_later(log, clock)  # a look at everything misses it, too
    for _ in range(3):
        await poll_later(log, clock)
    seen = log.queue(A0)
    assert seen is not None
    assert (seen.min_offset <= 15, seen.max_offset) == (True, 135)
    assert [offset for offset, _, _ in await read(log, A0, 15)] == list(range(15, 135))


def delete_all_but(broker: FakeBroker, files: int) -> None:
    """Let the broker delete CommitLog files, and the ConsumeQueue files that go with them."""
    while broker.position - broker.min_position > files * broker.commit_log_bytes:
        broker.delete_oldest_file()


async def test_a_queue_that_is_damaged_at_its_first_look_keeps_the_pins_of_its_messages(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    before = await read(log, A0, 0)
    files = pinned(broker)
    await log.close()
    for _ in range(4):
        broker.delete_oldest_file()
    path = broker.queue_files(A0)[0]
    whole = path.read_bytes()
    os.truncate(path, 100)
    again = await follow_pinned(broker, clock, logs)
    seen = again.queue(A0)
    assert seen is not None
    assert (seen.max_offset, seen.state) == (0, HotQueueState.DAMAGED)
    await again.release(B0, QueueOffset(100))
    for _ in range(2):
        await poll_later(again, clock)
    assert pinned(broker) == files
    path.write_bytes(whole)
    for _ in range(2):
        await poll_later(again, clock)
    assert await read(again, A0, 0) == before


async def test_a_damaged_queue_keeps_the_pins_of_what_is_behind_its_end(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 50)
    bad = broker.unit("A", 0, 49)
    broker.damage(bad.position + 20, b"\7")
    log = await follow_pinned(broker, clock, logs)
    write(broker, 50)
    await poll_later(log, clock)
    seen = log.queue(A0)
    assert seen is not None
    assert (seen.max_offset, seen.state) == (49, HotQueueState.DAMAGED)
    await log.release(A0, QueueOffset(49))
    await log.release(B0, QueueOffset(100))
    for _ in range(2):
        await poll_later(log, clock)
    assert pinned(broker)[0] == broker.log_path(bad.position).name


@pytest.mark.parametrize("length", [10, 100])
async def test_a_truncated_file_that_floors_are_looked_for_in_stops_its_queue_alone(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], length: int
) -> None:
    write(broker, 100)
    await (await follow_pinned(broker, clock, logs)).close()
    for _ in range(4):
        broker.delete_oldest_file()
    path = broker.queue_files(A0)[0]
    assert int(path.name) > 0
    whole = path.read_bytes()
    os.truncate(path, length)
    log = await follow_pinned(broker, clock, logs)
    assert len(await read(log, B0, 0)) == 100
    seen = log.queue(A0)
    assert seen is not None
    assert seen.state in {HotQueueState.DAMAGED, HotQueueState.UNREADABLE}
    path.write_bytes(whole)
    await poll_later(log, clock)
    assert len(await read(log, A0, 0)) == 100


async def test_a_new_queues_messages_stay_pinned_until_its_directory_is_found(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    """The broker writes more than a file between two looks at the directories."""
    broker.put("A", 0, b"first")
    log = await follow_pinned(broker, clock, logs)
    broker.put("New", 0, b"of a queue that nobody knows yet")
    first = broker.min_position
    for _ in range(4):
        for _ in range(20):
            broker.put("A", 0, bytes(200))
        await clock.advance(0.1)
        await log.poll()
        seen = log.queue(A0)
        assert seen is not None
        await log.release(A0, seen.max_offset)
    assert log.queue(QueueId("New", 0)) is None, "the test looks between two scans"
    assert broker.log_path(first).name in pinned(broker)
    broker.delete_oldest_file()
    await poll_later(log, clock)
    assert [body for _, body, _ in await read(log, QueueId("New", 0), 0)] == [
        b"of a queue that nobody knows yet"
    ]
