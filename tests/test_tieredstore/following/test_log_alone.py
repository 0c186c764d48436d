"""A store whose ConsumeQueues lie in RocksDB is followed from its CommitLog alone."""

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from provider.errors import OutOfRange
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, follow, poll_later
from tests.support.log_alone import A0, A1, B0, broker, clock, ends, logs, resumed, rocks
from tests.support.without_queues import hide_queues
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.log_reader.log_scan import LastRecord, Remembered

__all__ = ["broker", "clock", "logs", "rocks"]


async def test_its_queues_are_found_and_followed(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for number in range(50):
        rocks.put("A", number % 2, bytes(number * 9), tags="T")
    rocks.put("SELF_TEST_TOPIC", 0)
    log = await follow(rocks, clock, logs)
    seen = {queue.id: (queue.min_offset, queue.max_offset) for queue in await log.poll()}
    assert seen == {A0: (0, 25), A1: (0, 25)}
    assert log.statistics.excluded_topics == 1
    for queue in (A0, A1):
        assert await bodies(log, queue, 0, 25) == 25
        units = await log.references(queue, QueueOffset(0), messages_max=99)
        written = b"".join(path.read_bytes() for path in rocks.queue_files(queue))
        assert units.tobytes() == written[: units.nbytes]
    assert list(await log.poll()) == []
    rocks.put("B", 0)
    rocks.put("A", 1)
    assert {queue.id for queue in await log.poll()} == {B0, A1}
    assert (ends(log, B0), ends(log, A1)) == ((0, 1), (0, 26))


async def test_all_of_the_log_is_read_before_the_first_poll_ends(
    rocks: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a tier that has more than a part of the log would seem to be ahead of it."""
    for _ in range(200):
        rocks.put("A", 0, bytes(100))
    monkeypatch.setattr("tieredstore.following.log_reader.log_scan.WINDOW_BYTES_MIN", 512)
    monkeypatch.setattr("tieredstore.following.log_reader.logged_queues.STEP_BYTES", 1000)
    log = await follow(rocks, clock, logs)
    assert [(seen.min_offset, seen.max_offset) for seen in await log.poll()] == [(0, 200)]
    for _ in range(100):
        rocks.put("A", 0, bytes(100))
    assert [seen.max_offset for seen in await log.poll()] == [300]


async def test_growth_is_noticed_without_units(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    rocks.put("A", 0)
    log = await follow(rocks, clock, logs)
    await log.poll()
    await clock.advance(10.0)
    await log.poll()
    rocks.put("A", 0)
    began_s = clock.monotonic_s()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(log.wait(60.0))
        while not waiting.done():
            await clock.advance(0.05)
            await asyncio.sleep(0.001)
    assert clock.monotonic_s() - began_s < 1.0
    assert [seen.max_offset for seen in await log.poll()] == [2]


@pytest.mark.parametrize("tiered", range(0, 41, 4))
async def test_a_restart_reads_only_what_lies_above_what_was_tiered(
    tiered: int, rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for number in range(80):
        rocks.put("A", number % 2, bytes(number))
    log = await follow(rocks, clock, logs)
    await log.poll()
    await log.release(A0, QueueOffset(40))
    await log.release(A1, QueueOffset(tiered))
    said = await log.remembered()
    for _ in range(3):
        rocks.put("B", 0)
    again = await resumed(rocks, clock, logs, said)
    assert ends(again, B0) == (0, 3)
    if tiered < 40:
        assert ends(again, A1) == (tiered, 40)
        assert await bodies(again, A1, tiered, 40) == 40 - tiered
        assert ends(again, A0)[0] > tiered - 1  # what lies below was not read again
    else:
        assert again.queue(A1) is None


async def test_nothing_is_remembered_before_the_log_was_read(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    rocks.put("A", 0)
    log = await follow(rocks, clock, logs)
    assert await log.remembered() is None
    await log.poll()
    assert await log.remembered() is not None


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'{"position": 40}', b'{"position": "x", "record": 3}']
)
def test_what_is_no_position_counts_as_none(raw: bytes) -> None:
    assert Remembered.decode(raw) is None


@pytest.mark.parametrize("last", [None, LastRecord(3, b"head")])
def test_a_position_is_read_as_it_was_written(last: LastRecord | None) -> None:
    said = Remembered(2**62, last)
    assert Remembered.decode(said.encode()) == said


async def test_messages_that_the_broker_deleted_are_below_the_queues_beginning(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    for number in range(100):
        rocks.put("A", 0, bytes(100))
        if number < 3:
            rocks.put("B", 0)
    log = await follow(rocks, clock, logs)
    await log.poll()
    low = 0
    while rocks.unit("A", 0, low).position < rocks.log_path(0).stat().st_size:
        low += 1
    rocks.log_path(0).unlink()
    rocks.min_position += rocks.commit_log_bytes
    await poll_later(log, clock)
    assert ends(log, A0) == (low, 100)
    assert ends(log, B0) == (3, 3)
    with pytest.raises(OutOfRange):
        await log.references(A0, QueueOffset(low - 1), messages_max=1)
    assert await bodies(log, A0, low, 100) == 100 - low
    again = await follow(rocks, clock, logs)
    await again.poll()
    assert ends(again, A0) == (low, 100)
    assert again.queue(B0) is None


async def test_pins_keep_what_is_not_tiered(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], tmp_path: Path
) -> None:
    for _ in range(100):
        rocks.put("A", 0, bytes(100))
    log = await follow(rocks, clock, logs, pin_path=str(tmp_path / "pins"))
    await log.poll()
    rocks.log_path(0).unlink()
    rocks.min_position += rocks.commit_log_bytes
    await poll_later(log, clock)
    assert ends(log, A0) == (0, 100)
    assert await bodies(log, A0, 0, 100) == 100
    await log.release(A0, QueueOffset(100))
    await poll_later(log, clock)
    await poll_later(log, clock)
    pins = list((tmp_path / "pins").rglob("0*"))
    assert [int(path.name) for path in pins] == [rocks.position // 4096 * 4096]


async def test_reading_ahead_is_told_and_changes_nothing_for_the_first_poll(
    rocks: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever waits for messages to land has less patience than a long log may need."""
    monkeypatch.setattr("tieredstore.following.log_reader.logged_queues.STEP_BYTES", 5000)
    monkeypatch.setattr("tieredstore.following.hot_log.REPORT_EVERY_S", 0.0)
    caplog.set_level("INFO", "tieredstore.following")
    for _ in range(200):
        rocks.put("A", 0, bytes(100))
    log = await follow(rocks, clock, logs)
    await log.read_ahead()
    assert len(caplog.records) > 2
    assert "bytes" in caplog.text
    assert [(seen.min_offset, seen.max_offset) for seen in await log.poll()] == [(0, 200)]


@pytest.mark.slow
async def test_memory_does_not_grow_with_what_is_not_tiered(
    tmp_path: Path,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for the database, which is bounded by itself, and for what a queue takes."""
    big = FakeBroker(tmp_path / "big", commit_log_bytes=1 << 22)
    hide_queues(big.directory)
    monkeypatch.setattr("tieredstore.following.log_reader.logged_queues.STEP_BYTES", 1 << 17)
    monkeypatch.setattr("tieredstore.following.log_reader.log_scan.WINDOW_BYTES", 1 << 16)

    async def peak_after(messages: int) -> int:
        big.fill("T", range(2), messages, 20)
        log = await follow(big, clock, logs)
        tracemalloc.start()
        try:
            await log.poll()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    first = await peak_after(4_000)  # more than a step
    second = await peak_after(36_000)  # whose units alone are 720 kB
    assert second < first + 200_000, (first, second)


@pytest.mark.slow
async def test_each_of_many_queues_takes_little(
    tmp_path: Path, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    many = FakeBroker(tmp_path / "many", commit_log_bytes=1 << 22)
    hide_queues(many.directory)
    (many.directory / "consumequeue").rename(many.directory / "consumequeue_rocksdb")
    for number in range(3000):
        many.put(f"Topic{number}", 0)
    tracemalloc.start()
    try:
        log = await follow(many, clock, logs)
        assert len(await log.poll()) == 3000
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 3000 * 2000
    assert log.statistics.made_bytes < 3000 * 100


async def test_units_of_tiered_messages_are_forgotten_but_for_the_newest(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    log = await follow(rocks, clock, logs)
    for _ in range(40):
        for number in range(50):
            rocks.put("A", number % 2)
        await log.poll()
        await log.release(A0, QueueOffset(ends(log, A0)[1]))
        await log.release(A1, QueueOffset(ends(log, A1)[1]))
    rocks.put("A", 0)
    await log.poll()
    assert ends(log, A0)[1] == 1001
    assert 1001 - 64 - 25 <= ends(log, A0)[0] <= 1001 - 64
    assert await bodies(log, A0, *ends(log, A0)) == 1001 - ends(log, A0)[0]
    with pytest.raises(OutOfRange):
        await log.references(A0, QueueOffset(0), messages_max=1)
    assert log.statistics.made_bytes <= 5 * 4096


async def test_light_weight_queues_that_a_message_serves_besides_its_own_are_left_out(
    rocks: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    """A broker names them `%LMQ%...`, and such topics are never tiered."""
    for number in range(3):
        served = {
            "INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b",
            "INNER_MULTI_QUEUE_OFFSET": f"{number},7",
        }
        rocks.put("A", 0, properties=served)
    rocks.put("%LMQ%a", 0)
    log = await follow(rocks, clock, logs)
    assert [(seen.id, seen.max_offset) for seen in await log.poll()] == [(A0, 3)]
    assert await bodies(log, A0, 0, 3) == 3
    assert log.statistics.excluded_topics == 1
