"""Directories are read when they changed: neither once too little, nor all of them twice."""

import os
import time
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import broker, clock, follow, logs, poll_later
from tieredstore.following.directory.queues import SETTLED_NS, DirectoryWatch
from tieredstore.following.hot_log import RocketMqHotLog

__all__ = ["broker", "clock", "logs"]  # fixtures

HOUR_NS = 3_600_000_000_000
QUEUES = [QueueId("A", number) for number in range(5)]


@pytest.mark.parametrize(
    ("older_ns", "reads"),
    [(SETTLED_NS + 1, 1), (SETTLED_NS, 2), (0, 2), (-HOUR_NS, 2)],
    ids=["settled", "not settled", "now", "to come"],
)
def test_a_directory_is_read_once_more_unless_its_last_change_is_long_past(
    tmp_path: Path, older_ns: int, reads: int
) -> None:
    status = tmp_path.stat()
    now_ns = max(status.st_mtime_ns, status.st_ctime_ns) + older_ns
    watch = DirectoryWatch(lambda: now_ns)
    assert [watch.changed(tmp_path) for _ in range(4)] == [True] * reads + [False] * (4 - reads)
    watch.forget(tmp_path)
    assert watch.changed(tmp_path)


def test_a_change_is_seen_however_old_the_directory_was(tmp_path: Path) -> None:
    watch = DirectoryWatch(lambda: time.time_ns() + HOUR_NS)
    assert [watch.changed(tmp_path) for _ in range(2)] == [True, False]
    (tmp_path / "0").mkdir()
    assert [watch.changed(tmp_path) for _ in range(2)] == [True, False]


class Reads:
    """Directories that were read, and those that cannot be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: list[Path] = []
        self.refused: set[Path] = set()
        scandir = os.scandir

        def counted(path: str | Path) -> object:
            self.of.append(Path(path))
            if Path(path) in self.refused:
                raise PermissionError(13, "injected", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", counted)

    def take(self) -> list[Path]:
        """Those of queues since the last call."""
        taken, self.of = self.of, []
        return [path for path in taken if path.parent.name == "A"]


@pytest.fixture
def reads(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> Reads:
    """A store of five queues that nobody wrote for an hour."""
    for queue in QUEUES:
        broker.put(*queue)
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + HOUR_NS)
    return Reads(monkeypatch)


async def test_growth_costs_no_read_of_directories_that_did_not_change(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], reads: Reads
) -> None:
    log = await follow(broker, clock, logs)
    await log.poll()
    assert len(reads.take()) == len(QUEUES)
    for _ in range(3):
        broker.put(*QUEUES[0])
        assert QUEUES[0] in await poll_later(log, clock)
    assert not reads.take()
    broker.put_many(*QUEUES[1], [b"x"] * 20)  # a second file
    assert (await poll_later(log, clock))[QUEUES[1]] == (0, 21)
    assert {path.name for path in reads.take()} == {"1"}


async def test_a_directory_that_could_not_be_read_when_it_changed_is_read_later(
    broker: FakeBroker, clock: ManualClock, logs: list[RocketMqHotLog], reads: Reads
) -> None:
    log = await follow(broker, clock, logs)
    await log.poll()
    directory = broker.queue_files(QUEUES[2])[0].parent
    reads.refused = {directory}
    broker.put_many(*QUEUES[2], [b"x"] * 20)
    await poll_later(log, clock)
    reads.refused.clear()
    reads.take()
    await poll_later(log, clock)
    assert directory in reads.take()
    seen = log.queue(QUEUES[2])
    assert seen is not None
    assert seen.max_offset == 21
