"""What `tier --follow` says while it runs, on standard error and in its metrics."""

import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import QueueState
from dispatcher.statistics import DispatchStatistics, QueueStatistics
from provider.ranges import QueueOffset
from tests.support.cli import COMMAND, complaints, run
from tests.support.fake_broker import FakeBroker
from tests.support.patience import communicated, ended
from tieredstore.cli.tier_run import _so_far, hindrance_of


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
    for line in process.stderr:
        if " this process owns the tier " not in line and ": from the store " not in line:
            return line
    return ""


@pytest.mark.process
@pytest.mark.slow
def test_a_store_that_cannot_be_read_is_said_once_and_again_when_it_changes(
    follower: "subprocess.Popen[str]", broker: FakeBroker
) -> None:
    log, away = broker.directory / "commitlog", broker.directory.parent / "away"
    for _ in range(2):
        log.rename(away)
        said = line_of(follower)
        assert " ERROR   the store cannot be read at present: " in said
        assert str(log) in said
        away.rename(log)
        assert "the store can be read again" in line_of(follower)
        (log.parent / "consumequeue" / "A" / f"n{_}").mkdir()  # said by the first poll that works
        assert f"n{_}" in line_of(follower)
    follower.send_signal(signal.SIGTERM)
    _, err = communicated(follower)
    assert (follower.returncode, complaints(err)) == (0, "")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("is_late", [False, True], ids=["up to date", "behind"])
def test_a_stop_while_the_tier_is_away_says_how_far_behind_it_is(
    broker: FakeBroker, tmp_path: Path, *, is_late: bool
) -> None:
    given = [*options(tmp_path), "-D", "tieredStoreShutdownTimeout=1000"]
    command = [*COMMAND, *given, "tier", str(broker.directory), "--follow", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not any(row["commit_offset"] for row in tiered(given)):
        assert process.poll() is None, process.communicate()
    (tier := tmp_path / "tier").rename(tmp_path / "away")
    if is_late:
        for _ in range(7):
            broker.put("A", 0)
    process.send_signal(signal.SIGTERM)
    out, err = communicated(process)
    (tmp_path / "away").rename(tier)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["behind"] for row in rows] == [7 * is_late]
    if not is_late:
        assert (process.returncode, complaints(err)) == (0, "")
        return
    assert process.returncode == 3
    sentence = err.splitlines()[-1]
    assert sentence.startswith("tieredstore: 7 messages of 1 queue are not in the tier: ")
    assert "unmounted, moved or replaced" in sentence
    assert "start again" in sentence
    assert run(*given, "tier", broker.directory).complaints == ""
    assert [row["commit_offset"] for row in tiered(given)] == [8]


def tiered(given: list[str]) -> list[dict[str, Any]]:
    """What `topics` shows; nothing while there is no tier."""
    return run(*given, "topics", "--json", status=None).rows


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("gone", ["full", "closed"])
def test_standard_error_that_takes_nothing_does_not_end_a_follower(
    broker: FakeBroker, tmp_path: Path, gone: str
) -> None:
    (broker.directory / "consumequeue" / "A" / "stranger").mkdir()
    reader, writer = os.pipe()
    os.close(reader)
    command = [*COMMAND, *options(tmp_path), "tier", str(broker.directory), "--follow"]
    with Path("/dev/full").open("wb") as full:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=full if gone == "full" else writer
        )
    os.close(writer)
    while not any(row["commit_offset"] for row in tiered(options(tmp_path))):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0


def statistics(*queues: QueueStatistics, **known: object) -> DispatchStatistics:
    """A dispatcher's statistics with zeros and nothing where the test says nothing."""
    counts = {field.name: 0 for field in dataclasses.fields(DispatchStatistics)}
    texts = {
        "outage": False,
        "started": True,
        "last_error": "",
        "hot_error": "",
        "messages_by_topic": {},
    }
    return DispatchStatistics(**{**counts, **texts, "queues": queues, "restless": queues, **known})  # pyright: ignore[reportArgumentType] - by name


def queue(behind: int, state: QueueState = QueueState.READY, failures: int = 0) -> QueueStatistics:
    done, reason = QueueOffset(10), "why" * (failures > 0)
    return QueueStatistics(QueueId("T", behind), state, reason, done, done, behind, 0.0, failures)


@pytest.mark.parametrize(
    ("found", "silent", "words"),
    [
        (statistics(queue(0)), True, ""),
        (statistics(queue(5)), False, ""),  # a broker that goes on, or a backlog
        (statistics(queue(5)), True, "5 messages of 1 queue are not in the tier: no answer"),
        (statistics(queue(5, QueueState.STOPPED)), True, ""),  # said on its own, with its reason
        (statistics(queue(0), outage=True, last_error="x"), False, ""),
        (
            statistics(queue(5), queue(1500), outage=True, last_error="x"),
            False,
            "1,505 messages of 2 queues are not in the tier: x",
        ),
        (
            statistics(queue(5), queue(1, failures=2), last_error="x"),
            False,
            "6 messages of 2 queues are not in the tier: why",
        ),
        (statistics(hot_error="gone"), False, "cannot be read: gone"),
    ],
)
def test_only_storage_is_a_hindrance_at_the_end(
    found: DispatchStatistics, *, silent: bool, words: str
) -> None:
    sentence = hindrance_of(found, silent=silent)
    assert sentence.endswith(words)
    assert bool(sentence) == bool(words)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (statistics(), "tiered 0 messages"),  # the store is empty, or was not looked at yet
        (statistics(queue(0), messages=7), "tiered 7 messages, none is waiting"),
        (statistics(queue(5)), "tiered 0 messages, 5 still waiting; the next start continues"),
    ],
)
def test_how_far_a_run_came_is_said_as_far_as_it_is_known(
    found: DispatchStatistics, words: str
) -> None:
    said = _so_far(found)
    assert said.startswith(words)
    assert ("waiting" in said) == bool(found.queues)


def test_findings_are_said_once_by_a_run_without_following(
    broker: FakeBroker, tmp_path: Path
) -> None:
    stranger = broker.directory / "consumequeue" / "A" / "0" / "00000000000000819200"
    stranger.write_bytes(b"\7" * 400)
    said = run(*options(tmp_path), "tier", broker.directory).err
    assert said.count(stranger.name) == 1
    assert "is ignored" in said
