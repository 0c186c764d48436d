"""A ConsumeQueue that cannot be read holds its own queue back, and is told."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueue, HotQueueState
from provider.errors import Denied, StoreError, Unavailable
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, broker, clock, follow, logs, poll_later
from tieredstore.following.hot_log import RocketMqHotLog

__all__ = ["broker", "clock", "logs"]  # fixtures

A0, A1, B0 = QueueId("A", 0), QueueId("A", 1), QueueId("B", 0)


@pytest.fixture
def filled(broker: FakeBroker) -> FakeBroker:
    """Two queues with three files of 20 units each, the last one half full; and another topic."""
    for queue_id in (0, 1):
        broker.put_many("A", queue_id, [b"x"] * 50)
    broker.put("B", 0)
    return broker


class Faults:
    """Errors of the operating system for everything at and below some paths."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: dict[Path, int] = {}
        for name in ("open", "scandir"):
            monkeypatch.setattr(os, name, self._guarded(getattr(os, name)))

    def _guarded(self, call: Callable[..., object]) -> Callable[..., object]:
        def guarded(path: object, *args: object, **more: object) -> object:
            for place, number in self.at.items():
                if isinstance(path, str | Path) and Path(path).is_relative_to(place):
                    raise OSError(number, os.strerror(number), str(path))
            return call(path, *args, **more)

        return guarded


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def state(log: RocketMqHotLog, queue: QueueId) -> HotQueueState:
    seen = log.queue(queue)
    assert seen is not None
    return seen.state


def loop_of_links(path: Path) -> Callable[[], None]:
    away = path.parent.parent.parent / "away"
    path.rename(away)
    path.symlink_to(path)

    def undo() -> None:
        path.unlink()
        away.rename(path)

    return undo


@pytest.mark.parametrize("what", ["directory", "last file"])
async def test_a_queue_that_becomes_a_loop_of_links_is_held_back_alone(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], what: str
) -> None:
    log = await follow(filled, clock, logs, files_mapped_max=1)  # a mapped file stays readable
    await log.poll()
    last = filled.queue_files(A0)[-1]
    path = last.parent if what == "directory" else last
    undo = loop_of_links(path)
    filled.put("A", 1)
    changed = {seen.id: seen for seen in await log.poll()}
    assert (changed[A0].state, changed[A0].max_offset) == (HotQueueState.UNREADABLE, 50)
    assert str(path) in changed[A0].detail
    assert (changed[A1].state, changed[A1].max_offset) == (HotQueueState.READY, 51)
    assert await poll_later(log, clock) == {}  # said once
    undo()
    filled.put("A", 0)
    assert await poll_later(log, clock) == {A0: (0, 51)}
    assert state(log, A0) is HotQueueState.READY
    assert await bodies(log, A0, 0, 51) == 51


@pytest.mark.parametrize(
    ("what", "number"),
    [("directory", errno.EACCES), ("first file", errno.EIO), ("last file", errno.EACCES)],
)
async def test_a_queue_that_cannot_be_read_at_the_start_is_held_back_alone(  # noqa: PLR0917 - fixtures
    filled: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    faults: Faults,
    what: str,
    number: int,
) -> None:
    files = filled.queue_files(A0)
    path = {"directory": files[0].parent, "first file": files[0], "last file": files[-1]}[what]
    faults.at[path] = number
    log = await follow(filled, clock, logs)
    seen = {queue.id: queue for queue in await log.poll()}
    assert seen[A0].state is HotQueueState.UNREADABLE
    assert os.strerror(number) in seen[A0].detail
    assert str(path) in seen[A0].detail
    assert (seen[A1].state, seen[A1].max_offset) == (HotQueueState.READY, 50)
    assert await bodies(log, A1, 0, 50) == 50
    assert await poll_later(log, clock) == {}  # said once
    faults.at.clear()
    assert await poll_later(log, clock) == {A0: (0, 50)}
    assert state(log, A0) is HotQueueState.READY
    assert await bodies(log, A0, 0, 50) == 50


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
async def test_a_middle_file_that_a_reader_cannot_read_holds_its_queue_back(
    filled: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    faults: Faults,
    number: int,
) -> None:
    log = await follow(filled, clock, logs, files_mapped_max=1)
    await log.poll()
    faults.at[filled.queue_files(A0)[1]] = number
    assert len(await log.references(A0, QueueOffset(0), messages_max=20)) == 20
    with pytest.raises((Unavailable, Denied)):
        await log.references(A0, QueueOffset(20), messages_max=20)
    (seen,) = await log.poll()
    assert (seen.id, seen.state) == (A0, HotQueueState.UNREADABLE)
    faults.at.clear()
    assert await poll_later(log, clock) == {A0: (0, 50)}
    assert state(log, A0) is HotQueueState.READY


async def test_a_topic_that_cannot_be_read_is_said_and_its_queues_are_found_later(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], faults: Faults
) -> None:
    faults.at[filled.queue_files(A0)[0].parent.parent] = errno.EACCES
    log = await follow(filled, clock, logs)
    assert [seen.id for seen in await log.poll()] == [B0]
    (trouble,) = log.statistics.troubles
    assert str(filled.queue_files(B0)[0].parents[2] / "A") in trouble
    assert await poll_later(log, clock) == {}
    faults.at.clear()
    assert await poll_later(log, clock) == {A0: (0, 50), A1: (0, 50)}
    assert log.statistics.troubles == []


async def test_a_place_of_topics_that_are_refused_keeps_nobody_else_back(
    filled: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    faults: Faults,
) -> None:
    name = "batchconsumequeue"
    filled.create_topic("Compacted", {"cleanup.policy": "COMPACTION"})
    filled.put("Compacted", 0)
    compacted = QueueId("Compacted", 0)
    faults.at[filled.directory / name] = errno.EACCES
    log = await follow(filled, clock, logs)
    assert {seen.id for seen in await log.poll()} == {A0, A1, B0, compacted}
    assert state(log, compacted) is HotQueueState.REFUSED
    for _ in range(3):
        assert await poll_later(log, clock) == {}
    (trouble,) = log.statistics.troubles
    assert name in trouble
    faults.at.clear()
    await poll_later(log, clock)
    assert log.statistics.troubles == []


async def test_queues_are_found_once_a_store_that_could_not_be_read_for_long_can_be(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], faults: Faults
) -> None:
    faults.at[filled.directory / "consumequeue"] = errno.EIO
    log = await follow(filled, clock, logs)
    for _ in range(4):
        with pytest.raises(Unavailable):
            await poll_later(log, clock)
    faults.at.clear()
    assert set(await poll_later(log, clock)) == {A0, A1, B0}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_what_the_process_lacks_is_no_queues_fault(
    filled: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    faults: Faults,
    number: int,
) -> None:
    faults.at[filled.queue_files(A0)[-1]] = number
    log = await follow(filled, clock, logs)
    with pytest.raises(StoreError, match=os.strerror(number)):
        await log.poll()
    faults.at.clear()
    assert set(await poll_later(log, clock)) == {A0, A1, B0}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("which", ["first", "middle", "last"])
async def test_a_file_of_the_commit_log_that_cannot_be_read_holds_back_who_needs_it(  # noqa: PLR0917 - fixtures
    broker: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    faults: Faults,
    which: str,
    number: int,
) -> None:
    """The queues whose messages lie in other files go on."""
    first = {"first": A0, "middle": B0, "last": A1}
    for queue in (A0, B0, A1):
        broker.put_many(queue.topic, queue.queue_id, [bytes(200)] * 40)
    path = broker.log_path(
        {A0: 0, B0: broker.unit("B", 0, 20).position, A1: broker.position - 1}[first[which]]
    )
    faults.at[path] = number
    log = await follow(broker, clock, logs)
    for _ in range(2):
        await poll_later(log, clock)
        await log.poll()
    for queue in {A0, B0, A1} - {first[which]}:
        assert (state(log, queue), getattr(log.queue(queue), "max_offset", 0)) == (
            HotQueueState.READY,
            40,
        )
        assert await bodies(log, queue, 0, 40) == 40
    held = log.queue(first[which])
    assert held is not None
    if held.state is HotQueueState.READY:
        await log.release(held.id, QueueOffset(0))
        with pytest.raises((Denied, Unavailable)):
            await bodies(log, held.id, 0, 40)
        await poll_later(log, clock)
        held = log.queue(first[which])
    assert held is not None
    assert held.state is HotQueueState.UNREADABLE
    assert str(path) in held.detail
    faults.at.clear()
    for _ in range(2):
        await poll_later(log, clock)
    assert state(log, held.id) is HotQueueState.READY
    assert await bodies(log, held.id, 0, 40) == 40


async def test_a_pinned_file_that_cannot_be_read_holds_back_who_has_units_there(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], faults: Faults
) -> None:
    """Its messages are no gap: they may be readable again."""
    broker.put_many("A", 0, [bytes(200)] * 60)
    broker.put_many("B", 0, [bytes(200)] * 5)
    log = await follow(broker, clock, logs, pin_path=str(broker.directory.parent / "pins"))
    await log.poll()
    broker.delete_oldest_file()
    broker.delete_oldest_file()
    faults.at[broker.directory.parent / "pins/commitlog" / f"{0:020}"] = errno.EIO
    await poll_later(log, clock)
    assert state(log, A0) is HotQueueState.UNREADABLE
    assert state(log, B0) is HotQueueState.READY
    faults.at.clear()
    await poll_later(log, clock)
    assert log.queue(A0) == HotQueue(A0, QueueOffset(0), QueueOffset(60))
    assert await bodies(log, A0, 0, 60) == 60
