"""Units made from a CommitLog are those that the broker wrote into its ConsumeQueues."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from container.names.queue_id import QueueId
from container.record.unit import UNIT_BYTES, UNIT_DTYPE
from dispatcher.topic_filter import SYSTEM_TOPICS
from provider.errors import Closed
from tests.support.fake_broker import FakeBroker
from tests.support.golden import GOLDEN_TREES, GoldenTree, tree_name, unpacked
from tieredstore.following.directory.layout import scan_run
from tieredstore.following.log.commit_log import CommitLogFiles, table_of
from tieredstore.following.log.confirmation import Confirmed
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.log.record_units import QueueRun
from tieredstore.following.log_reader.log_scan import FollowScan

A0 = QueueId("A", 0)
SCHEDULED = next(topic for topic in SYSTEM_TOPICS if topic.startswith("SCHEDULE_TOPIC_"))
"""Never tiered; its units have times in place of hashes."""


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path / "store", commit_log_bytes=4096, consume_queue_bytes=400)


def log_of(store: Path) -> CommitLogFiles:
    return CommitLogFiles(MappedFiles(8, 1 << 20), table_of(scan_run(store / "commitlog"), {}))


def all_runs(
    scan: FollowScan, log: CommitLogFiles, *, bytes_max: int = 1, confirmed: int | None = None
) -> list[QueueRun]:
    """What is read in pieces of some length, until nothing more can be read."""
    runs: list[QueueRun] = []
    while True:
        limit = None if confirmed is None else Confirmed(confirmed)
        piece = scan.read(log, limit, bytes_max=bytes_max)
        scan.accept(piece)
        runs += piece.runs
        if piece.is_all:
            return runs


def by_queue(runs: list[QueueRun]) -> dict[QueueId, list[QueueRun]]:
    found: dict[QueueId, list[QueueRun]] = defaultdict(list)
    for run in runs:
        found[run.queue].append(run)
    return found


def units_of(runs: list[QueueRun]) -> bytes:
    """The units of a queue's runs, which follow one another."""
    at = runs[0].first
    for run in runs:
        assert run.first == at
        at = run.end
    return b"".join(run.units.tobytes() for run in runs)


@pytest.fixture(params=GOLDEN_TREES, ids=tree_name)
def tree(request: pytest.FixtureRequest) -> GoldenTree:
    return unpacked(*request.param)


def test_they_are_byte_for_byte_those_of_the_golden_files(
    tree: GoldenTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.following.log_reader.log_scan.WINDOW_BYTES_MIN", 4096)
    log = log_of(tree.store)
    found = by_queue(all_runs(FollowScan(), log))
    files: dict[QueueId, bytes] = {}
    for directory in (tree.store / "consumequeue").glob("*/*"):
        raw = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
        files[QueueId(directory.parent.name, int(directory.name))] = raw
    assert found.keys() == {queue for queue, raw in files.items() if any(raw)}
    for queue, runs in found.items():
        raw, made = files[queue], units_of(runs)
        if queue.topic == SCHEDULED:
            for name in ("position", "size"):
                written = np.frombuffer(raw[: len(made)], UNIT_DTYPE)[name]
                assert (np.frombuffer(made, UNIT_DTYPE)[name] == written).all()
            continue
        assert runs[0].first == 0
        assert made == raw[: len(made)]
        assert not any(raw[len(made) :])
    log.close()


@pytest.mark.parametrize("window_bytes", [91, 500, 1 << 20])
@pytest.mark.parametrize("bytes_max", [1, 3000, 1 << 20])
def test_they_are_the_same_whatever_is_read_at_once(
    broker: FakeBroker, window_bytes: int, bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.following.log_reader.log_scan.WINDOW_BYTES_MIN", window_bytes)
    for number in range(60):
        broker.put("A", 0, bytes(number * 11), tags=f"Tag{number}")
        broker.put("B", number % 3, bytes(3))
    log = log_of(broker.directory)
    found = by_queue(all_runs(FollowScan(), log, bytes_max=bytes_max))
    assert found.keys() == broker.next_offsets.keys()
    for queue, runs in found.items():
        written = b"".join(path.read_bytes() for path in broker.queue_files(queue))
        assert units_of(runs) == written[: broker.next_offsets[queue] * UNIT_BYTES]
    log.close()


def test_a_restart_at_any_record_gives_the_rest(broker: FakeBroker) -> None:
    for number in range(40):
        broker.put("A", number % 2, bytes(number * 5), tags="T")
    log = log_of(broker.directory)
    whole = all_runs(FollowScan(), log)
    positions = sorted(int(unit["position"]) for run in whole for unit in run.units)
    assert len(positions) == 40
    for number, position in enumerate(positions):
        rest = all_runs(FollowScan(position), log)
        assert sorted(int(u["position"]) for run in rest for u in run.units) == positions[number:]
    log.close()


def test_a_record_counts_once_all_of_it_is_there(broker: FakeBroker) -> None:
    """The broker copies a record into the file while we look: any part of it may be there."""
    broker.put("A", 0, b"first")
    broker.put("A", 0, b"second", tags="Tag", keys="k")
    unit = broker.unit("A", 0, 1)
    path = broker.log_path(unit.position)
    raw = path.read_bytes()[unit.position : unit.position + unit.size]
    log, scan = log_of(broker.directory), FollowScan()
    for length in range(unit.size):
        broker.damage(unit.position, raw[:length] + bytes(unit.size - length))
        for run in all_runs(scan, log):
            assert (run.first, run.end) == (0, 1), length
        assert scan.position == unit.position
    broker.damage(unit.position, raw)
    (run,) = all_runs(scan, log)
    assert (run.first, run.end) == (1, 2)
    log.close()


def test_a_record_with_a_zero_in_its_properties_counts_once_another_follows(
    broker: FakeBroker,
) -> None:
    broker.put("A", 0, properties={"odd": "a\0b"})
    log, scan = log_of(broker.directory), FollowScan()
    assert all_runs(scan, log) == []
    broker.put("A", 0)
    assert [(run.first, run.end) for run in all_runs(scan, log)] == [(0, 2)]
    log.close()


def test_only_what_is_confirmed_is_read(broker: FakeBroker) -> None:
    for _ in range(30):
        broker.put("A", 0, bytes(300))
    log, scan = log_of(broker.directory), FollowScan()
    for offset in (0, 7, 8, 29):
        unit = broker.unit("A", 0, offset)
        end = unit.position + unit.size
        all_runs(scan, log, confirmed=end - 1)
        assert scan.position <= unit.position
        all_runs(scan, log, confirmed=end)
        assert scan.position == end
    log.close()


def test_a_log_that_lost_its_tail_is_not_read_on(broker: FakeBroker) -> None:
    broker.put("A", 0, b"kept")
    broker.put("A", 0, b"lost")
    log, scan = log_of(broker.directory), FollowScan()
    all_runs(scan, log)
    lost = broker.unit("A", 0, 1)
    broker.crash(lost.size)
    with pytest.raises(Closed, match="lost its tail"):
        scan.read(log, None, bytes_max=1)
    broker.put("B", 0, b"other" * 10)
    with pytest.raises(Closed, match="lost its tail"):
        scan.read(log, None, bytes_max=1)
    log.close()


def test_damage_amid_the_log_is_passed_over_once_a_later_file_has_begun(
    broker: FakeBroker,
) -> None:
    for _ in range(12):
        broker.put("A", 0, bytes(200))
    bad = broker.unit("A", 0, 5)
    broker.damage(bad.position, bytes(8))
    log, scan = log_of(broker.directory), FollowScan()
    assert [(run.first, run.end) for run in all_runs(scan, log)] == [(0, 5)]
    assert scan.position == bad.position
    for _ in range(12):
        broker.put("A", 0, bytes(200))
    log.table = table_of(scan_run(broker.directory / "commitlog"), {})
    piece = scan.read(log, None, bytes_max=1 << 20)
    assert piece.runs[0].first == 6
    assert piece.runs[-1].end == 24
    (finding,) = piece.findings
    assert f"{bad.size} bytes from position {bad.position}" in finding
    log.close()


def test_a_file_that_is_missing_amid_the_log_is_passed_over_and_said(broker: FakeBroker) -> None:
    for _ in range(40):
        broker.put("A", 0, bytes(200))
    missing = sorted((broker.directory / "commitlog").iterdir())[1]
    missing.unlink()
    log, scan = log_of(broker.directory), FollowScan()
    piece = scan.read(log, None, bytes_max=1 << 20)
    assert piece.runs[-1].end == 40
    (finding,) = piece.findings
    assert str(missing) in finding
    assert "is not tiered" in finding
    log.close()


def test_files_that_the_broker_deleted_below_a_pinned_one_are_passed_over_in_silence(
    broker: FakeBroker,
) -> None:
    for _ in range(40):
        broker.put("A", 0, bytes(200))
    files = sorted((broker.directory / "commitlog").iterdir())
    pin = broker.directory / files[0].name
    files[0].rename(pin)
    files[1].unlink()
    run = scan_run(broker.directory / "commitlog")
    log, scan = log_of(broker.directory), FollowScan()
    log.table = table_of(run, {0: pin})
    piece = scan.read(log, None, bytes_max=1 << 20)
    assert (piece.runs[0].first, piece.runs[-1].end) == (0, 40)
    assert piece.findings == []
    log.close()
