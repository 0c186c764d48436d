"""Units that are made from a CommitLog file, which is read in windows of any length."""

from pathlib import Path

import numpy as np
import pytest

from container.names.queue_id import QueueId
from container.record.header import TRANSACTION_PREPARED, BlankRecord
from container.record.verification import walk_records
from provider.errors import OutOfRange
from tests.support.fake_broker import FakeBroker
from tieredstore.following.directory.layout import scan_run
from tieredstore.following.log.commit_log import CommitLogFiles, table_of
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.log.record_units import UnitColumns, units_in

A0, B1 = QueueId("A", 0), QueueId("B", 1)
WANTED = frozenset({A0, B1})
FILE_BYTES = 4096


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=FILE_BYTES, consume_queue_bytes=400)
    for number in range(30):
        broker.put("A", 0, bytes(number * 7), tags=f"Tag{number}")
        broker.put("B", 1, bytes(3))
        broker.put("C", 1, sys_flag=TRANSACTION_PREPARED, with_unit=False)
        if number == 20:
            broker.put("A", 0, bytes(2000), tags="long")
    return broker


def log_of(broker: FakeBroker) -> CommitLogFiles:
    table = table_of(scan_run(broker.directory / "commitlog"), {})
    return CommitLogFiles(MappedFiles(8, 1 << 20), table)


@pytest.mark.parametrize("window_bytes", [8, 9, 100, 333, 1000, FILE_BYTES, 1 << 20])
def test_units_are_the_brokers_whatever_the_window(broker: FakeBroker, window_bytes: int) -> None:
    log = log_of(broker)
    found: dict[QueueId, list[tuple[int, ...]]] = {A0: [], B1: []}
    for base in sorted(log.table.paths):
        made = units_in(log, base, WANTED, [], window_bytes=window_bytes)
        for queue, (offsets, units) in made.items():
            rows = zip(offsets.tolist(), units.tolist(), strict=True)
            found[queue] += [(offset, *unit) for offset, unit in rows]
    for queue, rows in found.items():
        written = [
            broker.unit(queue.topic, queue.queue_id, offset)
            for offset in range(broker.next_offsets[queue])
        ]
        assert rows == [
            (offset, unit.position, unit.size, unit.tag_hash) for offset, unit in enumerate(written)
        ]
    log.close()


def test_wanted_units_are_those_of_all_that_are_of_wanted_queues(broker: FakeBroker) -> None:
    window = np.fromfile(broker.log_path(0), np.uint8)
    walk = walk_records(window)

    def runs(wanted: frozenset[QueueId] | None) -> list[tuple[QueueId, int, bytes]]:
        columns = UnitColumns.read(window, 0, walk.starts, walk.sizes, wanted)
        return [(run.queue, run.first, run.units.tobytes()) for run in columns.runs()]

    everything = runs(None)
    assert {queue for queue, _, _ in everything} == WANTED
    for wanted in (WANTED, {A0}, {B1}, {QueueId("C", 1)}, set[QueueId]()):
        assert runs(frozenset(wanted)) == [run for run in everything if run[0] in wanted]


@pytest.mark.parametrize("window_bytes", [100, 300, FILE_BYTES])
def test_what_an_older_log_left_in_a_blank_is_no_message(tmp_path: Path, window_bytes: int) -> None:
    """A blank is 8 bytes and a claim: the rest of its place may hold records of before a crash."""
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=FILE_BYTES, consume_queue_bytes=400)
    for _ in range(20):
        broker.put("A", 0, bytes(20))
    second = broker.unit("A", 0, 1).position
    broker.damage(second, BlankRecord(FILE_BYTES - second).encode()[:8])
    log = log_of(broker)
    ((offsets, _),) = units_in(log, 0, WANTED, [], window_bytes=window_bytes).values()
    assert offsets.tolist() == [0]
    log.close()


@pytest.mark.parametrize("window_bytes", [100, 300, FILE_BYTES])
@pytest.mark.parametrize(
    "said",
    [
        b"\x7f\xff\xff\xff",
        b"\0\0\x0f\xff",
        b"\0\0\0\x10",
        b"\xff\xff\xff\xff",
        b"\0\0\1\x2c",
    ],
)
def test_a_record_that_cannot_be_passed_over_costs_itself_alone(
    broker: FakeBroker, window_bytes: int, said: bytes
) -> None:
    """Also where its length leads into the midst of other records."""
    for number in (3, 5):
        broker.damage(broker.unit("A", 0, number).position, said)
    log, findings = log_of(broker), list[str]()
    whole = units_in(log, 0, WANTED, findings)
    (offsets, _) = units_in(log, 0, WANTED, findings, window_bytes=window_bytes)[A0]
    last = int(offsets[-1])
    assert last > 6
    assert offsets.tolist() == [n for n in range(last + 1) if n not in {3, 5}]
    assert whole[A0][0].tolist() == offsets.tolist()
    assert findings[0] == findings[1]
    assert "holds no record at position" in findings[0]
    assert ", nor at 1 more" in findings[0]
    log.close()


def test_nothing_is_searched_for_where_the_log_ends(broker: FakeBroker) -> None:
    """Behind its last record a file may hold anything that is not written yet."""
    last = max(log_of(broker).table.paths)
    broker.damage(broker.position, b"\xff" * 100)
    findings: list[str] = []
    log = log_of(broker)
    assert units_in(log, last, WANTED, findings)
    assert findings == []
    log.close()


@pytest.mark.parametrize("length", [0, 5, 200, 1000])
@pytest.mark.parametrize("window_bytes", [100, FILE_BYTES])
def test_a_truncated_file_has_the_units_of_its_whole_records(
    broker: FakeBroker, length: int, window_bytes: int
) -> None:
    path = broker.log_path(0)
    path.write_bytes(path.read_bytes()[:length])
    (broker.directory / "commitlog" / path.name).touch()
    log = CommitLogFiles(
        MappedFiles(8, 1 << 20), table_of(scan_run(broker.directory / "commitlog"), {0: path})
    )
    found = units_in(log, 0, WANTED, [], window_bytes=window_bytes)
    rows = [unit.tolist() for _, units in found.values() for unit in units]
    assert all(position + size <= length for position, size, _ in rows)
    whole = [
        unit
        for queue in WANTED
        for offset in range(10)
        if (unit := broker.unit(queue.topic, queue.queue_id, offset)).position + unit.size <= length
    ]
    assert len(rows) == len(whole)
    log.close()


def test_a_file_that_is_not_there_is_out_of_range(broker: FakeBroker) -> None:
    log = log_of(broker)
    with pytest.raises(OutOfRange):
        units_in(log, 1 << 30, WANTED, [])
    log.close()
