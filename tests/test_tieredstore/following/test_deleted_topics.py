"""Topics that the broker deletes while they are followed, and perhaps makes again at once."""

import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.record.unit import ConsumeQueueUnit
from dispatcher.ports import DeletedQueue, HotQueue
from provider.errors import OutOfRange
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import broker, clock, follow, logs, poll_later
from tests.support.pinned import follow_pinned, pinned, read, write
from tieredstore.following.directory.layout import open_layout
from tieredstore.following.directory.queues import QueueDirectories
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.log.followed_log import FollowedLog
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.options import HotLogOptions
from tieredstore.following.queues.followed_queues import FollowedQueues
from tieredstore.following.queues.tail import PollTime
from tieredstore.following.statistics import ScanStatistics

A0, B0 = QueueId("A", 0), QueueId("B", 0)
Logs = list[RocketMqHotLog]

__all__ = ["broker", "clock", "logs"]  # fixtures


def gone(queue: QueueId, start: int, end: int, *, is_made_again: bool = False) -> HotQueue:
    """What is told of a deleted queue of which nothing can be read."""
    deleted = DeletedQueue(QueueOffset(start), QueueOffset(end), is_made_again)
    return HotQueue(queue, deleted.end, deleted.end, deleted=deleted)


def bodies(rows: list[tuple[int, bytes, int]]) -> list[tuple[int, bytes]]:
    return [(offset, body) for offset, body, _ in rows]


def mapped_and_deleted(directory: Path) -> list[str]:
    """Mappings of this process that keep the disk space of deleted files."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in maps if str(directory) in line and line.endswith("(deleted)")]


async def test_a_deleted_queue_is_told_once_and_not_looked_at_any_more(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    write(broker, 100)
    log = await follow(broker, clock, logs)
    await log.poll()
    await read(log, A0, 0)
    broker.delete_topics("A")
    await clock.advance(10.0)
    assert await log.poll() == [gone(A0, 0, 100)]
    with pytest.raises(OutOfRange):
        await log.references(A0, QueueOffset(60), messages_max=1)
    assert mapped_and_deleted(broker.directory) == []
    looks = log.statistics.queue_looks
    for _ in range(5):
        await clock.advance(10.0)
        assert await log.poll() == []
    assert log.statistics.queue_looks - looks == 5, "B alone"
    assert len(await read(log, B0, 0)) == 100
    (finding,) = log.statistics.findings
    assert "A was deleted on the broker; what waits of that, 100 messages, becomes a gap" in finding


async def test_a_deletion_that_a_reader_meets_is_found_out_within_a_second(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    write(broker, 100)
    log = await follow(broker, clock, logs, scan_s_max=3600.0, files_mapped_max=1)
    await log.poll()
    broker.delete_topics("A")
    with pytest.raises(OutOfRange, match="deleted"):
        await log.references(A0, QueueOffset(60), messages_max=1)
    await clock.advance(1.0)
    await log.poll()
    assert log.queue(A0) == gone(A0, 0, 100)


async def test_with_pins_what_waits_of_a_deleted_queue_is_read_to_its_end_and_then_let_go(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    before = await read(log, A0, 0)
    await log.release(A0, QueueOffset(30))
    await log.release(B0, QueueOffset(100))
    await poll_later(log, clock)
    broker.delete_topics("A")
    for _ in range(4):
        broker.delete_oldest_file()
    await poll_later(log, clock)
    assert log.queue(A0) == HotQueue(A0, QueueOffset(30), QueueOffset(100))
    assert await read(log, A0, 30) == before[30:]
    assert "70 messages, is tiered all the same" in log.statistics.findings[0]
    kept = pinned(broker)
    looks = log.statistics.queue_looks
    await log.release(A0, QueueOffset(70))
    await poll_later(log, clock)
    assert 2 < len(pinned(broker)) < len(kept)
    assert await read(log, A0, 70) == before[70:]
    await log.release(A0, QueueOffset(100))
    await poll_later(log, clock)
    assert log.queue(A0) == gone(A0, 30, 100)
    await poll_later(log, clock)
    assert len(pinned(broker)) == 2  # the newest and one before it
    assert log.statistics.queue_looks - looks == 3, "B alone"


async def test_what_waits_of_a_deleted_queue_and_is_dropped_over_the_bound_of_pins_is_told(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs, bytes_max=2 * 4096)
    before = await read(log, A0, 0)
    broker.delete_topics("A")
    for _ in range(4):
        broker.delete_oldest_file()
    for _ in range(2):
        await poll_later(log, clock)
    with pytest.raises(OutOfRange, match="gone"):
        await log.references(A0, QueueOffset(0), messages_max=1)
    await poll_later(log, clock)
    seen = log.queue(A0)
    assert seen is not None
    assert 0 < seen.min_offset < seen.max_offset == 100
    assert await read(log, A0, seen.min_offset) == before[seen.min_offset :]


@pytest.mark.parametrize("is_seen_away", [False, True])
@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("messages", [1, 99, 100, 101, 150])
async def test_a_queue_that_is_made_again_shows_what_lies_above_the_old_end(
    broker: FakeBroker,
    clock: ManualClock,
    logs: Logs,
    *,
    messages: int,
    is_mapped: bool,
    is_seen_away: bool,
) -> None:
    broker.put_many("A", 0, [b"old"] * 100)
    broker.put("B", 0)
    log = await follow(broker, clock, logs, files_mapped_max=512 if is_mapped else 1)
    await log.poll()
    if is_mapped:
        await read(log, A0, 0)
    broker.delete_topics("A")
    if is_seen_away:
        await poll_later(log, clock)
    broker.put_many("A", 0, [b"new%d" % number for number in range(messages)])
    for _ in range(3):
        await poll_later(log, clock)
    told = log.queue(A0)
    assert told is not None
    assert told.deleted == DeletedQueue(QueueOffset(0), QueueOffset(100), is_made_again=True)
    assert (told.min_offset, told.max_offset) == (100, max(100, messages))
    for number in range(messages, 160):
        broker.put("A", 0, b"new%d" % number)
    for _ in range(3):
        await poll_later(log, clock)
    assert bodies(await read(log, A0, 100)) == [(n, b"new%d" % n) for n in range(100, 160)]
    assert mapped_and_deleted(broker.directory) == []
    assert "below the old end are not tiered, which is 100 in A/0" in log.statistics.findings[-1]


async def test_no_message_of_the_new_queue_is_given_for_an_offset_of_the_old_one(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    broker.put_many("A", 0, [b"old"] * 100)
    log = await follow(broker, clock, logs, files_mapped_max=1, scan_s_max=3600.0)
    await log.poll()
    broker.delete_topics("A")
    broker.put_many("A", 0, [b"new"] * 150)
    with pytest.raises(OutOfRange, match="deleted"):
        await log.references(A0, QueueOffset(60), messages_max=10)
    await log.poll()  # looks at the queue, for its records came, and not at the directories
    told = log.queue(A0)
    assert told is not None
    assert told.deleted == DeletedQueue(QueueOffset(0), QueueOffset(100), is_made_again=True)
    await poll_later(log, clock)
    assert bodies(await read(log, A0, 100)) == [(n, b"new") for n in range(100, 150)]


@pytest.mark.parametrize("is_found", [False, True])
def test_a_reader_beside_the_look_that_finds_the_new_queue_gets_none_of_its_messages(
    broker: FakeBroker, *, is_found: bool
) -> None:
    broker.put_many("A", 0, [b"old"] * 100)
    layout = open_layout(broker.directory, HotLogOptions())
    directories = QueueDirectories(layout, lambda _: False)
    statistics, mapped = ScanStatistics(), MappedFiles(1, 1 << 20)
    commit_log = FollowedLog(mapped, layout.commit_logs, HotLogOptions(), statistics)
    queues = FollowedQueues(commit_log, mapped, directories, statistics, threading.Lock())

    def look() -> None:
        commit_log.scan(lambda: 0)
        queues.scan(has_grown=True)

    look()
    queues.publish(queues.poll(PollTime()))
    broker.delete_topics("A")
    broker.put_many("A", 0, [b"new"] * 150)
    if is_found:
        look()  # and nothing is published yet
    with pytest.raises(OutOfRange):
        queues.references(A0, QueueOffset(75), 20)
    mapped.close()
    commit_log.files.close()


async def test_with_pins_the_old_queue_is_read_to_its_end_before_the_new_one(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    broker.put_many("A", 0, [b"old%d" % number for number in range(100)])
    log = await follow_pinned(broker, clock, logs)
    await log.release(A0, QueueOffset(60))
    broker.delete_topics("A")
    broker.put_many("A", 0, [b"new%d" % number for number in range(150)])
    await poll_later(log, clock)
    assert log.queue(A0) == HotQueue(A0, QueueOffset(60), QueueOffset(100))
    assert bodies(await read(log, A0, 60)) == [(n, b"old%d" % n) for n in range(60, 100)]
    await log.release(A0, QueueOffset(100))
    for _ in range(2):
        await poll_later(log, clock)
    told = log.queue(A0)
    assert told is not None
    assert told.deleted == DeletedQueue(QueueOffset(60), QueueOffset(100), is_made_again=True)
    assert bodies(await read(log, A0, 100)) == [(n, b"new%d" % n) for n in range(100, 150)]


async def test_a_queue_that_is_deleted_twice_ends_where_its_last_one_did(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    log = await follow_pinned(broker, clock, logs)
    for number, end in enumerate((100, 150, 120, 200)):
        broker.put_many("A", 0, [b"%d" % number] * end)
        await poll_later(log, clock)
        await poll_later(log, clock)
        told = log.queue(A0)
        assert told is not None
        rows = await read(log, A0, told.min_offset)
        assert {body for _, body, _ in rows} <= {b"%d" % number}
        await log.release(A0, told.max_offset)
        broker.delete_topics("A")
        await poll_later(log, clock)
    # Each later incarnation gave messages to offsets that the one before had.
    assert log.queue(A0) == replace(gone(A0, 150, 200), hidden=100 + 120 + 150)


@pytest.mark.parametrize("which", ["A", "A/0"])
async def test_a_queue_whose_directory_is_away_for_a_while_is_the_same_one(
    broker: FakeBroker, clock: ManualClock, logs: Logs, which: str
) -> None:
    write(broker, 100)
    log = await follow(broker, clock, logs)
    await log.poll()
    before = await read(log, A0, 0)
    path = broker.directory / "consumequeue" / which
    path.rename(broker.directory / "away")
    await poll_later(log, clock)
    assert log.queue(A0) == gone(A0, 0, 100)
    (broker.directory / "away").rename(path)
    for _ in range(2):
        await poll_later(log, clock)
    assert log.queue(A0) == HotQueue(A0, QueueOffset(0), QueueOffset(100))
    assert await read(log, A0, 0) == before


async def test_queues_whose_common_directory_is_away_are_not_deleted(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    write(broker, 100)
    log = await follow(broker, clock, logs)
    for _ in range(2):
        await poll_later(log, clock)
    directory, away = broker.directory / "consumequeue", broker.directory / "away"
    directory.rename(away)
    assert await poll_later(log, clock) == {}
    directory.mkdir()  # such as the place that a volume is mounted on
    for _ in range(3):
        assert await poll_later(log, clock) == {}
    directory.rmdir()
    away.rename(directory)
    write(broker, 10)
    assert await poll_later(log, clock) == {A0: (0, 110), B0: (0, 110)}


async def test_an_empty_directory_of_a_deleted_queue_tells_nothing_yet(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    write(broker, 100)
    log = await follow(broker, clock, logs)
    await log.poll()
    broker.delete_topics("A")
    await poll_later(log, clock)
    broker.put_unit(A0, 0, ConsumeQueueUnit(0, 0, 0))
    for _ in range(2):
        assert await poll_later(log, clock) == {}
    assert log.queue(A0) == gone(A0, 0, 100)


@pytest.mark.parametrize(
    ("topics", "has_pins"),
    [
        (5, True),
        (10, False),
        pytest.param(50, True, marks=pytest.mark.slow),
        pytest.param(200, True, marks=pytest.mark.nightly),
    ],
)
async def test_many_deleted_queues_cost_no_look_and_hold_no_pin(
    tmp_path: Path, clock: ManualClock, logs: Logs, topics: int, *, has_pins: bool
) -> None:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=1 << 12, consume_queue_bytes=400)
    names = [f"T{number:03}" for number in range(topics)]
    queues = [QueueId(name, queue_id) for name in names for queue_id in range(10)]
    for name in names:
        broker.fill(name, range(10), messages=30, body_bytes=20)
    broker.put("B", 0)
    log = await (follow_pinned if has_pins else follow)(broker, clock, logs)
    await poll_later(log, clock)
    for queue in queues:
        await log.release(queue, QueueOffset(1))
    await log.release(B0, QueueOffset(1))
    broker.delete_topics(*names)
    await clock.advance(10.0)
    assert len(await log.poll()) == len(queues)
    for queue in queues if has_pins else []:
        assert [offset for offset, _, _ in await read(log, queue, 1)] == [1, 2]
        await log.release(queue, QueueOffset(3))
    await clock.advance(10.0)
    assert len(await log.poll()) == (len(queues) if has_pins else 0)
    looks = log.statistics.queue_looks
    for _ in range(3):
        await clock.advance(10.0)
        assert await log.poll() == []
    assert log.statistics.queue_looks - looks == 3, "B alone"
    if has_pins:
        assert len(pinned(broker)) == 2
    (finding,) = log.statistics.findings
    assert f"{topics} topics, such as T000, were deleted" in finding


@pytest.mark.parametrize("position", [1 << 40, 8_000])
async def test_units_that_turn_into_noise_are_damage_and_no_deletion(
    broker: FakeBroker, clock: ManualClock, logs: Logs, position: int
) -> None:
    broker.put_many("A", 0, [b"old"] * 50)
    log = await follow(broker, clock, logs)
    await log.poll()
    noise = ConsumeQueueUnit(position, 200, 0).encode()
    (file, *_) = sorted((broker.directory / "consumequeue/A/0").iterdir())
    with file.open("r+b") as units:
        units.write(noise * 50)
    broker.put_many("A", 0, [b"more"] * 5)
    await poll_later(log, clock)
    for _ in range(3):
        with suppress(OutOfRange):
            await log.references(A0, QueueOffset(0), messages_max=10)
        await poll_later(log, clock)
    told = log.queue(A0)
    assert told is not None
    assert told.deleted is None
    assert not any("deleted" in finding for finding in log.statistics.findings)
    assert len(await log.references(A0, QueueOffset(0), messages_max=10)) == 1, "bad comes alone"
