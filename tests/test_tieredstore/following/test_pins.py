"""Messages that a broker deletes before they are tiered stay readable through pins."""

import shutil
import tempfile
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from provider.errors import Denied, OutOfRange, Unavailable
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import broker, clock, logs, poll_later
from tests.support.pinned import follow_pinned, pinned, read, write
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.log.followed_log import Pins
from tieredstore.following.options import HotLogOptions

A0, B0 = QueueId("A", 0), QueueId("B", 0)


__all__ = ["broker", "clock", "logs"]  # fixtures


async def test_files_that_the_broker_deletes_stay_readable_through_their_pins(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    before = await read(log, A0, 0)
    for _ in range(4):
        broker.delete_oldest_file()
    await poll_later(log, clock)
    assert log.statistics.pinned_bytes == 4 * 4096
    seen = log.queue(A0)
    assert seen is not None
    assert (seen.min_offset, seen.max_offset) == (0, 100)
    assert await read(log, A0, 0) == before


async def test_units_of_deleted_consume_queue_files_are_rebuilt_after_a_restart(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    before = await read(log, A0, 0)
    await log.close()
    for _ in range(5):
        broker.delete_oldest_file()
    assert int(broker.queue_files(A0)[0].name) > 0  # units went, too
    again = await follow_pinned(broker, clock, logs)
    seen = again.queue(A0)
    assert seen is not None
    assert (seen.min_offset, seen.max_offset) == (0, 100)
    assert await read(again, A0, 0) == before
    assert await read(again, A0, 33) == before[33:]


async def test_pins_go_once_everything_in_them_is_tiered(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    files = len(pinned(broker))
    assert files == broker.position // 4096 + 1
    await log.release(A0, QueueOffset(100))
    await poll_later(log, clock)
    assert len(pinned(broker)) == files  # B is not tiered
    await log.release(B0, QueueOffset(50))
    await poll_later(log, clock)
    assert 2 < len(pinned(broker)) < files
    await log.release(B0, QueueOffset(100))
    await poll_later(log, clock)
    assert len(pinned(broker)) == 2  # the newest and one before it
    assert log.statistics.pins_dropped_untiered == 0


async def test_over_the_bound_the_oldest_pins_go_and_a_finding_says_so(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs, bytes_max=2 * 4096)
    for _ in range(4):
        broker.delete_oldest_file()
    await poll_later(log, clock)
    await poll_later(log, clock)
    assert log.statistics.pinned_bytes == 2 * 4096
    assert log.statistics.pins_dropped_untiered == 2
    assert len(log.statistics.findings) == 2
    seen = log.queue(A0)
    assert seen is not None
    assert seen.min_offset > 0
    with pytest.raises(OutOfRange):
        await log.references(A0, QueueOffset(seen.min_offset - 1), messages_max=1)
    assert [row[0] for row in await read(log, A0, seen.min_offset)] == list(
        range(seen.min_offset, 100)
    )


async def test_pins_of_an_earlier_run_are_dropped_when_they_were_tiered(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    await log.close()
    for _ in range(3):
        broker.delete_oldest_file()
    again = await follow_pinned(broker, clock, logs)
    assert again.statistics.pinned_bytes == 3 * 4096
    for queue in (A0, B0):
        await again.release(queue, QueueOffset(100))
    await poll_later(again, clock)
    assert again.statistics.pinned_bytes == 0


async def test_a_file_that_was_replaced_between_two_runs_is_pinned_again(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 50)
    await (await follow_pinned(broker, clock, logs)).close()
    path = broker.log_path(broker.position)
    copy = path.read_bytes()
    path.unlink()
    path.write_bytes(copy)
    await follow_pinned(broker, clock, logs)
    pin = broker.directory.parent / "pins" / "commitlog" / path.name
    assert pin.stat().st_ino == path.stat().st_ino


async def test_a_commit_log_that_is_away_for_a_while_costs_no_pin_and_no_message(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    before = await read(log, A0, 0)
    for _ in range(4):
        broker.delete_oldest_file()
    await log.release(A0, QueueOffset(5))  # in the middle of a file that only its pin keeps
    await log.release(B0, QueueOffset(5))
    await poll_later(log, clock)
    kept = pinned(broker)
    directory, away = broker.directory / "commitlog", broker.directory.parent / "away"
    directory.rename(away)
    for _ in range(2):
        await clock.advance(1.0)
        with pytest.raises(Unavailable, match="moved or deleted"):
            await log.poll()
    assert pinned(broker) == kept
    assert await read(log, A0, 5) == before[5:]
    away.rename(directory)
    await poll_later(log, clock)
    assert pinned(broker) == kept
    assert await read(log, A0, 5) == before[5:]


async def test_pins_inside_the_brokers_directory_are_refused(
    broker: FakeBroker, clock: ManualClock
) -> None:
    options = HotLogOptions(pin_path=str(broker.directory / "pins"))
    with pytest.raises(Denied, match="beside"):
        await RocketMqHotLog.open(
            broker.directory, options=options, clock=clock, cluster="c", broker="b"
        )
    assert not (broker.directory / "pins").exists()


def test_pins_on_another_volume_are_refused(broker: FakeBroker) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:  # a volume of its own on Linux
        assert Path(elsewhere).stat().st_dev != broker.directory.stat().st_dev
        with pytest.raises(Denied, match="volume"):
            Pins([Path(elsewhere)], [broker.directory / "commitlog"], 1 << 30)


async def test_two_followers_of_one_pin_directory_do_not_stop_each_other(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    pins = broker.directory.parent / "pins"
    options = HotLogOptions(pin_path=str(pins))
    pair = [
        await RocketMqHotLog.open(
            broker.directory, options=options, clock=clock, cluster="c", broker="b"
        )
        for _ in range(2)
    ]
    logs.extend(pair)
    broker.put("A", 0)
    for log in pair:  # both looked into the empty directory before either made a link
        await log.poll()
    assert pinned(broker) == ["00000000000000000000"]
    assert [await read(log, A0, 0) for log in pair] == [[(0, b"body", 0)]] * 2


async def test_units_that_went_between_two_scans_are_rebuilt_at_once(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [bytes(150)] * 20)  # fills a ConsumeQueue file
    log = await follow_pinned(broker, clock, logs)
    broker.put_many("A", 0, [bytes(150)] * 30)
    broker.delete_oldest_file()
    broker.delete_oldest_file()
    assert len(broker.queue_files(A0)) == 2
    await log.poll()  # no time has passed, so the directories are not looked at
    seen = log.queue(A0)
    assert seen is not None
    assert (seen.min_offset, seen.max_offset) == (0, 50)
    assert [offset for offset, _, _ in await read(log, A0, 0)] == list(range(50))


async def test_units_that_went_while_the_log_was_quiet_are_rebuilt_when_they_are_read(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    """Directories of known queues are looked at when the log grows, and it does not."""
    broker.put_many("A", 0, [bytes(150)] * 50)
    log = await follow_pinned(broker, clock, logs)
    for _ in range(2):
        await poll_later(log, clock)
    broker.delete_oldest_file()
    broker.delete_oldest_file()
    assert len(broker.queue_files(A0)) == 2
    for _ in range(2):
        await poll_later(log, clock)
    assert [offset for offset, _, _ in await read(log, A0, 0)] == list(range(50))


async def test_units_are_made_again_of_a_file_that_grew_since_it_was_read_for_a_floor(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    """The floor is looked for where the queue's first file has just gone, up to the log's end."""
    broker.put_many("A", 0, [bytes(150)] * 50)
    log = await follow_pinned(broker, clock, logs)
    await poll_later(log, clock)
    broker.delete_oldest_file()
    broker.delete_oldest_file()
    broker.put_many("A", 0, [bytes(150)])
    for _ in range(3):
        await poll_later(log, clock)
    broker.delete_oldest_file()
    await poll_later(log, clock)
    broker.put_many("A", 0, [bytes(150)] * 30)
    for _ in range(2):
        await poll_later(log, clock)
    broker.delete_oldest_file()
    broker.put_many("A", 0, [bytes(150)])
    for _ in range(2):
        await poll_later(log, clock)
    assert [offset for offset, _, _ in await read(log, A0, 0)] == list(range(82))


@pytest.mark.parametrize("what", ["pins", "pins/commitlog"])
async def test_a_pin_directory_that_is_removed_is_made_again_and_pins_what_is_there(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], what: str
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    before, kept = await read(log, A0, 0), pinned(broker)
    shutil.rmtree(broker.directory.parent / what)
    await poll_later(log, clock)
    assert pinned(broker) == kept
    (finding,) = log.statistics.findings
    assert "was removed" in finding
    assert "nothing is lost" in finding
    broker.delete_oldest_file()
    await poll_later(log, clock)
    assert await read(log, A0, 0) == before
    assert len(log.statistics.findings) == 1


async def test_a_pin_directory_that_is_removed_with_the_only_copies_is_a_loss_and_a_finding(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    for _ in range(2):
        broker.delete_oldest_file()
    await poll_later(log, clock)
    shutil.rmtree(broker.directory.parent / "pins")
    await poll_later(log, clock)
    (finding,) = log.statistics.findings
    assert "8192 bytes that only pins kept are gone" in finding
    await poll_later(log, clock)
    seen = log.queue(A0)
    assert seen is not None
    assert broker.unit("A", 0, seen.min_offset).position >= broker.min_position
    assert [offset for offset, _, _ in await read(log, A0, seen.min_offset)][-1] == 99


async def test_a_pin_that_is_removed_is_made_again(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 100)
    log = await follow_pinned(broker, clock, logs)
    kept = pinned(broker)
    (broker.directory.parent / "pins" / "commitlog" / kept[1]).unlink()
    for _ in range(2):
        await poll_later(log, clock)
    assert pinned(broker) == kept


async def test_a_file_in_the_place_of_the_pin_directory_is_said_and_waited_for(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    write(broker, 10)
    log = await follow_pinned(broker, clock, logs)
    kept = pinned(broker)
    directory = broker.directory.parent / "pins" / "commitlog"
    shutil.rmtree(directory)
    directory.write_text("no directory")
    for _ in range(2):
        await clock.advance(1.0)
        with pytest.raises(Unavailable, match="removed"):
            await log.poll()
    directory.unlink()
    await poll_later(log, clock)
    assert pinned(broker) == kept
