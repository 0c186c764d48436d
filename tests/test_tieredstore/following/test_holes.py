"""A queue one of whose ConsumeQueue files is empty, missing or foreign: never silent."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from container.record.properties import tag_hash
from dispatcher.ports import HotQueueState, Wanted, records_of_queue
from provider.errors import OutOfRange
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, broker, clock, follow, logs, poll_later
from tieredstore.following.directory.layout import scan_run
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.log.commit_log import CommitLogFiles, table_of
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.queues.files import MADE_BYTES_MAX, ConsumeQueueFiles, RebuildBudget
from tieredstore.following.queues.tail import ConsumeQueueTail, PollTime

__all__ = ["broker", "clock", "logs"]  # fixtures

A0, A1 = QueueId("A", 0), QueueId("A", 1)
FILE_UNITS = 20


@pytest.fixture
def filled(broker: FakeBroker) -> FakeBroker:
    """Five files of 20 units, the last one with 10."""
    for number in range(90):
        broker.put("A", 0, str(number).encode(), tags=f"Tag{number % 3}")
    return broker


@pytest.mark.parametrize(("empty", "from_unit"), [(0, 0), (0, 7), (1, 7), (3, 7)])
async def test_a_file_that_becomes_zeros_stops_its_queue_with_a_sentence(
    filled: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    empty: int,
    from_unit: int,
) -> None:
    filled.put("A", 1)
    path = filled.queue_files(A0)[empty]
    whole = path.read_bytes()
    path.write_bytes(whole[: from_unit * 20] + bytes(400 - from_unit * 20))
    log = await follow(filled, clock, logs)
    seen = {seen.id: seen for seen in await log.poll()}
    end = empty * FILE_UNITS + from_unit
    assert (seen[A0].max_offset, seen[A0].state) == (end, HotQueueState.DAMAGED)
    place = f"{path} at {from_unit * 20}" if from_unit else f"{path}"
    assert f"({place})" in seen[A0].detail
    assert str(end) in seen[A0].detail
    assert seen[A1].state is HotQueueState.READY
    assert await bodies(log, A0, 0, end) == end
    assert await poll_later(log, clock) == {}
    path.write_bytes(whole)
    assert await poll_later(log, clock) == {A0: (0, 90)}
    known = log.queue(A0)
    assert known is not None
    assert known.state is HotQueueState.READY


async def test_a_hole_that_is_there_only_after_the_queue_was_passed_stops_it_where_it_stands(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [b"x"] * 10)
    log = await follow(broker, clock, logs)
    await log.poll()
    broker.put_many("A", 0, [b"x"] * 40)
    raw = broker.queue_files(A0)[0].read_bytes()
    broker.queue_files(A0)[0].write_bytes(raw[:200] + bytes(200))
    assert await poll_later(log, clock) == {A0: (0, 10)}
    known = log.queue(A0)
    assert known is not None
    assert known.state is HotQueueState.DAMAGED


async def tags_and_bodies(log: RocketMqHotLog, start: int) -> list[tuple[bytes, int]]:
    known = log.queue(A0)
    assert known is not None
    found: list[tuple[bytes, int]] = []
    while start + len(found) < known.max_offset:
        at = QueueOffset(start + len(found))
        units = await log.references(A0, at, messages_max=13)
        batch = await records_of_queue(log, Wanted(A0, at, units))
        for row in range(len(batch)):
            raw = batch.data[batch.starts[row] :][: batch.sizes[row]].tobytes()
            message = StoredMessage.decode(raw, path="batch", position=0)
            assert message.queue_offset == at + row
            found.append((message.body, int(batch.tag_hashes[row])))
    return found


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def fill_with_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


WRITTEN = [(str(n).encode(), tag_hash(f"Tag{n % 3}")) for n in range(90)]


@pytest.mark.parametrize("files", [(1,), (2, 3), (1, 3)])
@pytest.mark.parametrize("take", [remove, empty, fill_with_zeros])
async def test_units_of_missing_files_are_made_from_the_commit_log(
    filled: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    take: Callable[[Path], None],
    files: tuple[int, ...],
) -> None:
    paths = filled.queue_files(A0)
    for number in files:
        take(paths[number])
    log = await follow(filled, clock, logs)
    (seen,) = await log.poll()
    assert (seen.min_offset, seen.max_offset, seen.state) == (0, 90, HotQueueState.READY)
    assert await tags_and_bodies(log, 0) == WRITTEN
    assert await tags_and_bodies(log, 33) == WRITTEN[33:]
    said = log.statistics.findings
    assert [
        [path in one and "were rebuilt" in one for path in map(str, paths)] for one in said
    ] == [[place == number for place in range(5)] for number in files]
    await log.release(A0, QueueOffset(90))
    await poll_later(log, clock)
    filled.put("A", 0)
    assert [range_[1] for range_ in (await poll_later(log, clock)).values()] == [91]
    assert await bodies(log, A0, 85, 91) == 6
    assert len(log.statistics.findings) == len(files)


async def test_a_file_full_of_zeros_is_believed_again_once_it_is_whole(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    path = filled.queue_files(A0)[2]
    whole = path.read_bytes()
    fill_with_zeros(path)
    log = await follow(filled, clock, logs)
    await log.poll()
    assert log.statistics.made_bytes == 400
    path.write_bytes(whole[:200] + bytes(200))  # half of it is back
    assert await poll_later(log, clock) == {}
    assert await tags_and_bodies(log, 0) == WRITTEN
    assert log.statistics.made_bytes == 400
    path.write_bytes(whole)
    assert await poll_later(log, clock) == {}
    assert log.statistics.made_bytes == 0
    assert await tags_and_bodies(log, 0) == WRITTEN


async def test_a_file_that_is_filled_with_zeros_under_a_reader_is_made_for_it(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    log = await follow(filled, clock, logs)
    await log.poll()
    fill_with_zeros(filled.queue_files(A0)[2])
    assert await tags_and_bodies(log, 0) == WRITTEN
    assert await tags_and_bodies(log, 47) == WRITTEN[47:]


async def test_a_file_full_of_zeros_whose_records_are_damaged_stops_its_queue_and_is_named(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    path = filled.queue_files(A0)[1]
    filled.damage(filled.unit("A", 0, 20).position, bytes(8))
    fill_with_zeros(path)
    log = await follow(filled, clock, logs)
    (seen,) = await log.poll()
    assert (seen.min_offset, seen.max_offset, seen.state) == (0, 20, HotQueueState.DAMAGED)
    assert str(path) in seen.detail
    (finding,) = log.statistics.findings
    assert "holds no record at position" in finding


@pytest.mark.parametrize("take", [remove, empty])
async def test_a_missing_file_whose_records_are_damaged_stops_its_queue_and_is_named(
    filled: FakeBroker,
    clock: ManualClock,
    logs: list[RocketMqHotLog],
    take: Callable[[Path], None],
) -> None:
    path = filled.queue_files(A0)[1]
    raw = path.read_bytes()
    filled.damage(filled.unit("A", 0, 20).position, bytes(8))
    take(path)
    log = await follow(filled, clock, logs)
    (seen,) = await log.poll()
    assert (seen.min_offset, seen.max_offset, seen.state) == (0, 20, HotQueueState.DAMAGED)
    assert str(path) in seen.detail
    assert "missing or empty" in seen.detail
    assert await bodies(log, A0, 0, 20) == 20
    path.write_bytes(raw)  # in place, or anew
    assert (await poll_later(log, clock))[A0][1] == 90


async def test_a_missing_file_is_made_up_to_the_first_record_that_is_damaged(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    path = filled.queue_files(A0)[1]
    filled.damage(filled.unit("A", 0, 25).position, bytes(8))
    path.unlink()
    log = await follow(filled, clock, logs)
    (seen,) = await log.poll()
    assert (seen.min_offset, seen.max_offset, seen.state) == (0, 25, HotQueueState.DAMAGED)
    assert str(path) in seen.detail
    assert await bodies(log, A0, 0, 25) == 25


async def test_a_file_that_goes_missing_under_a_reader_is_made_for_it(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    log = await follow(filled, clock, logs, files_mapped_max=1)
    await log.poll()
    filled.queue_files(A0)[2].unlink()
    assert await tags_and_bodies(log, 0) == WRITTEN
    assert await tags_and_bodies(log, 47) == WRITTEN[47:]


async def test_a_file_that_goes_missing_under_a_reader_and_cannot_be_made_is_said(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    log = await follow(filled, clock, logs, files_mapped_max=1)
    await log.poll()
    path = filled.queue_files(A0)[2]
    filled.damage(filled.unit("A", 0, 40).position, bytes(8))
    path.unlink()
    await log.release(A0, QueueOffset(41))
    with pytest.raises(OutOfRange):
        await log.references(A0, QueueOffset(40), messages_max=1)
    assert list(await log.poll()) == []  # it is not to be tiered
    with pytest.raises(OutOfRange):
        await log.references(A0, QueueOffset(42), messages_max=1)
    (seen,) = await log.poll()
    assert seen.state is HotQueueState.DAMAGED
    assert str(path) in seen.detail


async def test_a_queue_that_the_broker_deleted_past_begins_again_after_that(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [bytes(150)] * 20)
    log = await follow(broker, clock, logs)
    await log.poll()
    broker.put_many("A", 0, [bytes(150)] * 80)
    for _ in range(4):
        broker.delete_oldest_file()
    first = int(broker.queue_files(A0)[0].name) // 20
    assert first > 20
    ((low, high),) = (await poll_later(log, clock)).values()
    assert first <= low < 100
    assert high == 100
    assert broker.unit("A", 0, low).position >= broker.min_position
    assert await bodies(log, A0, low, 100) == 100 - low


async def test_files_that_the_broker_deleted_around_a_forgotten_one_are_a_gap(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [bytes(150)] * 100)
    path = broker.queue_files(A0)[0]
    raw = path.read_bytes()
    for _ in range(4):
        broker.delete_oldest_file()
    assert int(broker.queue_files(A0)[0].name) // 20 > 20
    path.write_bytes(raw)
    log = await follow(broker, clock, logs)
    (seen,) = await log.poll()
    assert (seen.max_offset, seen.state) == (100, HotQueueState.READY)
    assert broker.unit("A", 0, seen.min_offset).position >= broker.min_position
    assert await bodies(log, A0, seen.min_offset, 100) == 100 - seen.min_offset


@pytest.mark.parametrize(
    "name", ["00000000000000002000", "00000000000000819200", "09000000000000000000"]
)
@pytest.mark.parametrize("raw", [b"text\n", bytes(400), b"\x07" * 400, b"\x07" * 4000, b"x" * 403])
async def test_a_foreign_file_beyond_the_end_hides_nothing_and_is_a_finding(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], name: str, raw: bytes
) -> None:
    path = filled.queue_files(A0)[0].parent / name
    path.write_bytes(raw)
    log = await follow(filled, clock, logs)
    (seen,) = await log.poll()
    assert (seen.min_offset, seen.max_offset, seen.state) == (0, 90, HotQueueState.READY)
    assert await tags_and_bodies(log, 0) == WRITTEN
    filled.put("A", 0)
    assert await poll_later(log, clock) == {A0: (0, 91)}
    if name.endswith("2000") and raw == bytes(400):
        assert log.statistics.findings == []  # it is where the broker's next file goes
    else:
        (finding,) = log.statistics.findings
        assert str(path) in finding
        assert "ignored" in finding


async def test_a_foreign_file_does_not_keep_files_that_are_added_from_being_seen(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    (filled.queue_files(A0)[0].parent / "00000000000000819200").write_bytes(b"\x07" * 400)
    log = await follow(filled, clock, logs)
    await log.poll()
    filled.put_many("A", 0, [b"more"] * 60)
    assert await poll_later(log, clock) == {A0: (0, 150)}
    assert await bodies(log, A0, 0, 150) == 150


async def test_a_copy_of_a_file_under_another_name_is_foreign(
    filled: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    paths = filled.queue_files(A0)
    (paths[0].parent / "00000000000000819200").write_bytes(paths[1].read_bytes())
    (paths[0].parent / "00000000000000000207").write_bytes(paths[1].read_bytes())
    log = await follow(filled, clock, logs)
    (seen,) = await log.poll()
    assert (seen.max_offset, seen.state) == (90, HotQueueState.READY)
    assert len(log.statistics.findings) == 2


async def test_a_queue_none_of_whose_files_has_whole_units_is_a_finding(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put("A", 0)
    (path,) = broker.queue_files(A0)
    os.truncate(path, 107)
    log = await follow(broker, clock, logs)
    await log.poll()
    (finding,) = log.statistics.findings
    assert str(path) in finding


@pytest.mark.parametrize("is_deleted", [False, True])
def test_units_are_made_within_their_bound_and_go_on_once_some_are_tiered(
    filled: FakeBroker, *, is_deleted: bool
) -> None:
    paths = filled.queue_files(A0)
    for number in (1, 2, 3):
        paths[number].unlink()
    files = MappedFiles(8, 1 << 20)
    bound = RebuildBudget(2 * 400 + 399)
    tail = ConsumeQueueTail(A0, ConsumeQueueFiles(files, paths[0].parent, bound))
    log = CommitLogFiles(files, table_of(scan_run(filled.directory / "commitlog"), {}))
    seen = tail.poll(log, PollTime(), lambda: None)
    assert (seen.max_offset, seen.state, bound.taken) == (60, HotQueueState.DAMAGED, 800)
    assert str(paths[3]) in seen.detail
    assert "once those before it are tiered" in seen.detail
    tail.files.release(58)
    if is_deleted:
        paths[0].unlink()  # by the broker, which has no idea of the files behind it
    tail.files.rescan()
    seen = tail.poll(log, PollTime(), lambda: None)
    assert (seen.max_offset, seen.state, bound.taken) == (90, HotQueueState.READY, 800)
    assert seen.min_offset <= 58
    assert tail.files.units(58, 90)["size"].all()
    tail.files.release(90)
    tail.files.rescan()
    assert bound.taken == 0
    files.close()


async def test_made_units_go_with_the_records_that_the_broker_deletes(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    broker.put_many("A", 0, [bytes(150)] * 100)
    paths = broker.queue_files(A0)
    for number in (1, 2):
        paths[number].unlink()
    log = await follow(broker, clock, logs)
    await log.poll()
    assert log.statistics.made_bytes == 800
    paths[0].unlink()
    while broker.min_position <= broker.unit("A", 0, 61).position:
        broker.log_path(broker.min_position).unlink()
        broker.min_position += broker.commit_log_bytes
    for _ in range(2):
        await poll_later(log, clock)
    seen = log.queue(A0)
    assert seen is not None
    assert (seen.max_offset, seen.state) == (100, HotQueueState.READY)
    assert broker.unit("A", 0, seen.min_offset).position >= broker.min_position
    assert await bodies(log, A0, seen.min_offset, 100) == 100 - seen.min_offset
    await log.release(A0, seen.min_offset)  # a gap was recorded up to there
    await poll_later(log, clock)
    assert log.statistics.made_bytes == 0


def test_the_bound_of_made_units_is_the_one_that_the_options_name() -> None:
    assert RebuildBudget().room == MADE_BYTES_MAX == 256 << 20
