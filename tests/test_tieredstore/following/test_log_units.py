"""Units that are made from a CommitLog file, which is read in windows of any length."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from container.record.batch import encode_units
from container.record.header import TRANSACTION_PREPARED, BlankRecord
from container.record.unit import Units
from container.record.verification import walk_records
from provider.errors import Closed, OutOfRange
from tests.support.fake_broker import FakeBroker
from tieredstore.following.directory.layout import scan_run
from tieredstore.following.log.commit_log import CommitLogFiles, table_of
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.log.record_units import UnitColumns, units_in
from tieredstore.following.log_reader.logged_queues import WaitingUnits

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


def units_at(first: int, count: int) -> Units:
    """Units that tell which offset they are of."""
    offsets = np.arange(first, first + count)
    return encode_units(offsets * 100, np.full(count, 100), offsets)


@given(
    lengths=st.lists(st.integers(1, 2500), min_size=1, max_size=6),
    start=st.integers(0, 5000),
    count=st.integers(1, 5000),
    dropped=st.integers(0, 5000),
)
def test_what_is_kept_is_found_and_only_whole_runs_are_dropped(
    lengths: list[int], start: int, count: int, dropped: int
) -> None:
    kept = WaitingUnits()
    end = sum(lengths)
    at = 0
    for length in lengths:
        kept.add([(1, at, units_at(at, length)), (2, at, units_at(at, 1))])
        at += length
    found = kept.units(1, start, start + count)
    assert found["tag_hash"].tolist() == list(range(start, min(end, start + count)))
    kept.drop_below(1, dropped)
    found = kept.units(1, dropped, dropped + count)
    assert found["tag_hash"].tolist() == list(range(dropped, min(end, dropped + count)))
    kept.drop(1)
    assert len(kept.units(1, 0, end)) == 0
    assert kept.units(2, 0, 9)["tag_hash"].tolist()[:1] == [0]
    kept.close()


def test_units_end_at_a_hole() -> None:
    kept = WaitingUnits()
    kept.add([(1, 0, units_at(0, 3)), (1, 5, units_at(5, 3))])
    assert kept.units(1, 1, 8)["tag_hash"].tolist() == [1, 2]
    assert len(kept.units(1, 3, 8)) == 0
    assert kept.units(1, 5, 8)["tag_hash"].tolist() == [5, 6, 7]
    kept.close()


def nameless_files() -> dict[int, int]:
    """Descriptors of deleted files, and the files' lengths."""
    found: dict[int, int] = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            if " (deleted)" in str(path.readlink()):
                found[int(path.name)] = os.fstat(int(path.name)).st_size
        except OSError:
            continue  # that of the listing itself
    return found


def test_what_the_cache_does_not_hold_lies_in_a_file_without_a_name() -> None:
    before = nameless_files()
    kept = WaitingUnits(cache_bytes_max=256 << 10)
    kept.add((1, first, units_at(first, 1000)) for first in range(0, 200_000, 1000))
    assert kept.bytes >= 4_000_000
    lengths = [length for fd, length in nameless_files().items() if fd not in before]
    assert sum(lengths) >= kept.bytes - (1 << 20)
    assert kept.units(1, 123_456, 123_459)["tag_hash"].tolist() == [123_456, 123_457, 123_458]
    kept.close()
    assert nameless_files() == before


def test_a_disk_that_is_full_is_one_sentence() -> None:
    kept = WaitingUnits()
    kept._db.execute("PRAGMA max_page_count=8")  # pyright: ignore[reportPrivateUsage] - a full disk
    with pytest.raises(Closed, match=r"full.*TMPDIR"):
        kept.add((1, first, units_at(first, 1000)) for first in range(0, 100_000, 1000))
    kept.close()
