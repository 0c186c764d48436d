"""Deleted topics, amid other trouble: what one error or damaged unit may not make of them."""

import os
from itertools import count
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.record.unit import ConsumeQueueUnit
from dispatcher.ports import DeletedQueue, HotQueue, HotQueueState
from provider.errors import Corrupt, NotFound, Unavailable
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import broker, clock, follow, logs, poll_later
from tests.support.pinned import follow_pinned, read, write
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.queues.deletions import Deletions
from tieredstore.following.queues.files import ConsumeQueueFiles
from tieredstore.following.queues.tail import ConsumeQueueTail

A0, B0 = QueueId("A", 0), QueueId("B", 0)
Logs = list[RocketMqHotLog]

__all__ = ["broker", "clock", "logs"]  # fixtures


async def bodies(log: RocketMqHotLog, start: int) -> list[tuple[int, bytes]]:
    """Offset and body of every message of A/0 from `start` on."""
    return [(offset, body) for offset, body, _ in await read(log, A0, start)]


def gone(start: int, end: int) -> HotQueue:
    """What is told of A/0 where nothing of it can be read."""
    deleted = DeletedQueue(QueueOffset(start), QueueOffset(end))
    return HotQueue(A0, deleted.end, deleted.end, deleted=deleted)


@pytest.mark.parametrize("error", [None, PermissionError(), OSError(5, "I/O")])
async def test_a_topic_that_leads_to_nowhere_or_cannot_be_looked_at_is_not_deleted(
    broker: FakeBroker,
    clock: ManualClock,
    logs: Logs,
    monkeypatch: pytest.MonkeyPatch,
    error: OSError | None,
) -> None:
    write(broker, 100)
    topic, volume = broker.directory / "consumequeue/A", broker.directory.parent / "volume"
    topic.rename(volume)
    topic.symlink_to(volume)
    log = await follow(broker, clock, logs)
    await poll_later(log, clock)
    if error is None:
        volume.rename(broker.directory.parent / "away")
    else:
        topic.unlink()  # what the listing of names says, and no look at the name does
        lstat = os.lstat

        def failing(path: Path) -> os.stat_result:
            if topic in Path(path).parents:
                raise error
            return lstat(path)

        monkeypatch.setattr(os, "lstat", failing)
    for _ in range(3):
        await poll_later(log, clock)
    told = log.queue(A0)
    assert told is not None
    assert (told.max_offset, told.deleted) == (100, None)


async def test_a_queue_that_is_back_and_cannot_be_read_yet_is_told_once_it_can_be(
    broker: FakeBroker, clock: ManualClock, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(broker, 100)
    log = await follow(broker, clock, logs)
    await log.poll()
    path, away = broker.directory / "consumequeue/A", broker.directory / "away"
    path.rename(away)
    await poll_later(log, clock)
    away.rename(path)
    with monkeypatch.context() as patch:

        def failing(*_: object) -> HotQueue:
            raise NotFound("just gone", str(path))

        patch.setattr(ConsumeQueueTail, "_look", failing)
        assert await poll_later(log, clock) == {}
    await poll_later(log, clock)
    assert log.queue(A0) == HotQueue(A0, QueueOffset(0), QueueOffset(100))


@pytest.mark.parametrize("is_seen_away", [False, True])
@pytest.mark.parametrize(("messages", "length"), [(150, 0), (150, 30), (15, 30)])
async def test_a_new_queue_whose_first_file_is_cut_off_is_said_and_followed_once_it_is_whole(
    broker: FakeBroker,
    clock: ManualClock,
    logs: Logs,
    *,
    messages: int,
    length: int,
    is_seen_away: bool,
) -> None:
    """Whose it is cannot be told from the rest, so that nothing of it may be tiered yet."""
    broker.put_many("A", 0, [b"old"] * 10)
    broker.put("B", 0)
    log = await follow(broker, clock, logs)
    await log.poll()
    broker.delete_topics("A")
    if is_seen_away:
        await poll_later(log, clock)
    broker.put_many("A", 0, [b"new"] * messages)
    (file, *_) = broker.queue_files(A0)
    whole = file.read_bytes()
    file.write_bytes(whole[:length] or b"\0")
    for _ in range(3):
        await poll_later(log, clock)
    told = log.queue(A0)
    assert told is not None
    assert told.max_offset == 10
    assert told.state in {HotQueueState.UNREADABLE, HotQueueState.DAMAGED}
    assert str(file) in told.detail
    file.write_bytes(whole)
    for _ in range(3):
        await poll_later(log, clock)
    told = log.queue(A0)
    assert told is not None
    assert told.deleted == DeletedQueue(QueueOffset(0), QueueOffset(10), is_made_again=True)
    assert await bodies(log, 10) == [(n, b"new") for n in range(10, messages)]


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_restart_goes_on_with_what_waits_of_a_deleted_queue(
    broker: FakeBroker, clock: ManualClock, logs: Logs, *, is_made_again: bool
) -> None:
    """Its ConsumeQueue is gone: what the tier has and the pins keep must find one another."""
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    before = await read(log, A0, 0)
    await log.release(A0, QueueOffset(30))
    await log.release(B0, QueueOffset(100))
    broker.delete_topics("A")
    await poll_later(log, clock)
    assert await read(log, A0, 30) == before[30:]
    await log.release(A0, QueueOffset(40))
    await log.close()
    for _ in range(3):
        broker.delete_oldest_file()
    if is_made_again:
        broker.put_many("A", 0, [b"new"] * 120)
    again = await follow_pinned(broker, clock, logs)
    seen = again.queue(A0)
    assert seen is not None
    assert (seen.min_offset, seen.max_offset, seen.deleted) == (30, 100, None)
    assert await read(again, A0, 40) == before[40:]
    assert any("60 messages" in one or "70 messages" in one for one in again.statistics.findings)
    await again.release(A0, QueueOffset(100))
    for _ in range(3):
        await poll_later(again, clock)
    if is_made_again:
        assert await bodies(again, 100) == [(n, b"new") for n in range(100, 120)]
    else:
        assert again.queue(A0) == gone(30, 100)
    assert not (broker.directory.parent / "pins/deleted_queues.json").exists()
    await again.close()
    third = await follow_pinned(broker, clock, logs)
    assert (third.queue(A0) is None) != is_made_again


async def test_a_restart_says_what_waited_of_a_deleted_queue_and_is_gone(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    await log.release(A0, QueueOffset(30))
    broker.delete_topics("A")
    await poll_later(log, clock)
    await log.close()
    last = broker.unit("B", 0, 99).position
    while broker.min_position + broker.commit_log_bytes <= last:
        broker.delete_oldest_file()
    broker.put_many("B", 0, [bytes(300)] * 30)
    broker.delete_oldest_file()
    for pin in (broker.directory.parent / "pins/commitlog").iterdir():
        pin.unlink()
    again = await follow_pinned(broker, clock, logs)
    await poll_later(again, clock)
    assert again.queue(A0) == gone(30, 100)


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"store": 1}', b'{"store": "/x", "queues": []}']
)
async def test_a_note_of_another_store_or_a_damaged_one_is_none(
    broker: FakeBroker, clock: ManualClock, logs: Logs, raw: bytes
) -> None:
    write(broker, 10)
    note = broker.directory.parent / "pins/deleted_queues.json"
    note.parent.mkdir()
    note.write_bytes(raw)
    log = await follow_pinned(broker, clock, logs)
    assert log.queue(A0) == HotQueue(A0, QueueOffset(0), QueueOffset(10))


@pytest.mark.parametrize("has_pins", [False, True])
async def test_what_lay_behind_damage_of_a_deleted_queue_is_said(
    broker: FakeBroker, clock: ManualClock, logs: Logs, *, has_pins: bool
) -> None:
    write(broker, 30)
    broker.put_unit(A0, 22, ConsumeQueueUnit(0, 0, 0))
    log = await (follow_pinned if has_pins else follow)(broker, clock, logs)
    for _ in range(2):
        await poll_later(log, clock)
    assert getattr(log.queue(A0), "state", None) is HotQueueState.DAMAGED
    broker.delete_topics("A")
    await poll_later(log, clock)
    assert any("damaged or unreadable from offset 22 on when" in s for s in log.statistics.findings)


async def test_a_queue_that_is_back_cut_off_and_goes_again_is_told_as_deleted(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    broker.put_many("A", 0, [b"old"] * 10)
    broker.put("B", 0)
    log = await follow(broker, clock, logs)
    await log.poll()
    broker.delete_topics("A")
    await poll_later(log, clock)
    broker.put_many("A", 0, [b"new"] * 150)
    (file, *_) = broker.queue_files(A0)
    file.write_bytes(b"\0")
    await poll_later(log, clock)
    broker.delete_topics("A")
    await poll_later(log, clock)
    assert log.queue(A0) == gone(0, 10)


async def test_a_queue_without_a_message_that_was_away_loses_none_when_one_comes(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    broker.put("B", 0)
    broker.put_unit(A0, 20, ConsumeQueueUnit(0, 0, 0))  # in its second file, the first one's gone
    (broker.directory / "consumequeue/A/0" / f"{0:020}").unlink(missing_ok=True)
    log = await follow(broker, clock, logs)
    await poll_later(log, clock)
    path, away = broker.directory / "consumequeue/A", broker.directory / "away"
    path.rename(away)
    await poll_later(log, clock)
    assert log.queue(A0) == gone(20, 20)
    away.rename(path)
    broker.next_offsets[A0] = 20
    broker.put("A", 0, b"next")
    for _ in range(2):
        await poll_later(log, clock)
    assert log.queue(A0) == HotQueue(A0, QueueOffset(20), QueueOffset(21))


async def test_a_new_queue_whose_first_unit_is_damaged_is_still_told_from_the_old_one(
    broker: FakeBroker, clock: ManualClock, logs: Logs
) -> None:
    broker.put_many("A", 0, [b"old"] * 10)
    log = await follow(broker, clock, logs)
    await log.poll()
    broker.delete_topics("A")
    broker.put_many("A", 0, [b"new"] * 15)
    (file, *_) = sorted((broker.directory / "consumequeue/A/0").iterdir())
    with file.open("r+b") as units:
        units.write(ConsumeQueueUnit(1 << 40, 200, 0).encode())
    for _ in range(3):
        await poll_later(log, clock)
    told = log.queue(A0)
    assert told is not None
    assert told.deleted == DeletedQueue(QueueOffset(0), QueueOffset(10), is_made_again=True)
    assert await bodies(log, 10) == [(n, b"new") for n in range(10, 15)]


async def test_what_waits_of_a_second_deleted_queue_is_read_where_the_first_ones_file_was_walked(
    tmp_path: Path, clock: ManualClock, logs: Logs
) -> None:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=1 << 18, consume_queue_bytes=400)
    broker.put_many("A", 0, [b"old"] * 10)
    broker.put_many("B", 0, [b"other"] * 10)
    log = await follow_pinned(broker, clock, logs)
    broker.delete_topics("A", "B")
    await poll_later(log, clock)
    assert await bodies(log, 0) == [(n, b"old") for n in range(10)]
    await log.release(A0, QueueOffset(10))
    await poll_later(log, clock)
    broker.put_many("A", 0, [b"new"] * 15)
    for _ in range(2):
        await poll_later(log, clock)
    await log.release(A0, QueueOffset(11))
    broker.delete_topics("A")
    await poll_later(log, clock)
    assert await bodies(log, 11) == [(n, b"new") for n in range(11, 15)]
    assert log.queue(B0) == HotQueue(B0, QueueOffset(0), QueueOffset(10))


async def test_a_new_queue_that_goes_while_it_is_begun_ends_no_following(
    broker: FakeBroker, clock: ManualClock, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.put_many("A", 0, [b"old"] * 100)
    log = await follow(broker, clock, logs, files_mapped_max=1, scan_s_max=3600.0)
    await log.poll()
    broker.delete_topics("A")
    broker.put_many("A", 0, [b"new"] * 150)
    with monkeypatch.context() as patch:

        def failing(*_: object) -> bool:
            raise NotFound("just gone", "A/0")

        patch.setattr(Deletions, "succeeds", failing)
        with pytest.raises(Unavailable, match="just gone"):
            await log.poll()
    for _ in range(2):
        await poll_later(log, clock)
    told = log.queue(A0)
    assert told is not None
    assert told.deleted == DeletedQueue(QueueOffset(0), QueueOffset(100), is_made_again=True)


@pytest.mark.parametrize("nth", range(6))
async def test_a_file_that_is_cut_off_during_a_look_ends_nothing(
    broker: FakeBroker,
    clock: ManualClock,
    logs: Logs,
    monkeypatch: pytest.MonkeyPatch,
    nth: int,
) -> None:
    write(broker, 10)
    log = await follow(broker, clock, logs)
    await log.poll()
    broker.put("A", 0, b"one more")
    unit, calls = ConsumeQueueFiles.unit, count()

    def cut_off(files: ConsumeQueueFiles, offset: int) -> ConsumeQueueUnit:
        if next(calls) == nth:
            raise Corrupt("the file is cut off", "units", 0)
        return unit(files, offset)

    monkeypatch.setattr(ConsumeQueueFiles, "unit", cut_off)
    for _ in range(3):
        await poll_later(log, clock)
    assert next(calls) > nth, "it was cut off"
    told = log.queue(A0)
    assert told is not None
    assert (told.max_offset, told.state) == (11, HotQueueState.READY)
