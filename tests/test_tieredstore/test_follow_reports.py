"""What `tier --follow` says while it runs, on standard error and in its metrics."""

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.journal import JournalStatistics
from dispatcher.statistics import DispatchStatistics
from tests.support.cli import COMMAND, run
from tests.support.fake_broker import FakeBroker
from tieredstore.hot.scan_statistics import ScanStatistics
from tieredstore.metrics import TieringMetrics


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store", consume_queue_bytes=400)
    broker.put("A", 0)
    return broker


def options(tmp_path: Path) -> list[str]:
    return [
        *("-D", "brokerName=broker-a", "-D", "brokerClusterName=Cluster"),
        *("-D", f"tieredStoreFilePath={tmp_path / 'tier'}"),
    ]


@pytest.fixture
def follower(broker: FakeBroker, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [*COMMAND, *options(tmp_path), "tier", str(broker.directory), "--follow"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list((tmp_path / "tier").glob("*/*/A/0/*/*")):
        assert process.poll() is None, process.communicate()
        os.sched_yield()
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.mark.slow
def test_a_store_that_cannot_be_read_is_said_once_and_again_when_it_changes(
    follower: "subprocess.Popen[str]", broker: FakeBroker
) -> None:
    log, away = broker.directory / "commitlog", broker.directory.parent / "away"
    for _ in range(2):
        log.rename(away)
        said = line_of(follower)
        assert said.startswith("tieredstore: the store cannot be read at present: ")
        assert str(log) in said
        away.rename(log)
        (log.parent / "consumequeue" / "A" / f"n{_}").mkdir()  # said by the first poll that works
        assert f"n{_}" in line_of(follower)
    follower.send_signal(signal.SIGTERM)
    _, err = follower.communicate(timeout=30)
    assert (follower.returncode, err) == (0, "")


def test_findings_are_said_once_by_a_run_without_following(
    broker: FakeBroker, tmp_path: Path
) -> None:
    stranger = broker.directory / "consumequeue" / "A" / "0" / "00000000000000819200"
    stranger.write_bytes(b"\7" * 400)
    said = run(*options(tmp_path), "tier", broker.directory).err
    assert said.count(stranger.name) == 1
    assert "is ignored" in said


@pytest.mark.parametrize(("error", "value"), [("", 0), ("not allowed: path=x", 1)])
def test_a_gauge_tells_that_the_hot_log_fails(error: str, value: int) -> None:
    counts = {field.name: 0 for field in dataclasses.fields(DispatchStatistics)}
    known = {"queues": (), "outage": False, "last_error": error, "hot_error": error}
    statistics = DispatchStatistics(**{**counts, **known})  # pyright: ignore[reportArgumentType] - by name

    def journal() -> JournalStatistics:
        raise AssertionError("nothing of the journal is wanted")

    families = TieringMetrics(lambda: statistics, ScanStatistics, journal).collect()
    gauge = next(family for family in families if family.name == "tieredstore_hot_log_failing")
    assert [sample.value for sample in gauge.samples] == [value]
