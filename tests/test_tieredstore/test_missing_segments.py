"""Published files that are missing or short: one queue's trouble, told by file and remedy."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli

QUEUES = range(3)


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store")
    for queue in QUEUES:
        broker.put_many("A", queue, [b"x"] * 50)
    return broker


def invoke(broker: FakeBroker, *arguments: str | Path, status: int) -> Result:
    options = ["-D", "brokerName=broker-a", "-D", "brokerClusterName=Cluster"]
    options += ["-D", f"tieredStoreFilePath={broker.directory.parent / 'tier'}"]
    result = CliRunner().invoke(cli, [*options, *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


def harm(broker: FakeBroker, kind: str, bytes_left: int | None) -> tuple[Path, bytes]:
    """Damage one file of A/1 as its tier has it; the file, and what it held."""
    (path,) = (broker.directory.parent / "tier").glob(f"*/broker-a/A/1/{kind}/*")
    whole = path.read_bytes()
    if bytes_left is None:
        path.unlink()
    else:
        os.truncate(path, bytes_left)
    return path, whole


def base(path: Path) -> str:
    """A segment's first byte, which its name has behind a hash."""
    return path.name[-20:]


KINDS = pytest.mark.parametrize("kind", ["COMMIT_LOG", "CONSUME_QUEUE"])
LEFT = pytest.mark.parametrize("bytes_left", [None, 0, 100], ids=["gone", "empty", "short"])


@KINDS
@LEFT
def test_tiering_stops_the_queue_alone_and_goes_on_once_the_file_is_back(
    broker: FakeBroker, kind: str, bytes_left: int | None
) -> None:
    invoke(broker, "tier", broker.directory, status=0)
    for queue in QUEUES:
        broker.put_many("A", queue, [b"y"] * 50)
    path, whole = harm(broker, kind, bytes_left)
    (row,) = invoke(broker, "tier", broker.directory, "--json", status=1).stdout.splitlines()
    topic = json.loads(row)
    assert topic["messages"] == 250
    (over,) = topic["over"]
    assert (over["queue_id"], over["state"]) == (1, "stopped")
    assert over["reason"].startswith("published bytes are missing: ")
    assert f"A/1/{kind}/{path.name}" in over["reason"]
    assert "bring the file back" in over["reason"]
    assert "tieredstore check" in over["reason"]
    path.write_bytes(whole)
    (row,) = invoke(broker, "tier", broker.directory, "--json", status=0).stdout.splitlines()
    assert json.loads(row)["messages"] == 300
    invoke(broker, "check", status=0)


@pytest.mark.leaves_findings("object-short", "unreadable", why="a segment's file is cut")
def test_an_older_file_that_was_cut_short_is_found_by_a_check_and_by_a_read_of_it_alone(
    broker: FakeBroker,
) -> None:
    small = ["-D", "tieredStoreCommitLogMaxSize=2000"]
    invoke(broker, *small, "tier", broker.directory, status=0)
    for queue in QUEUES:
        broker.put_many("A", queue, [b"y"] * 50)
    first = min((broker.directory.parent / "tier").glob("*/broker-a/A/1/COMMIT_LOG/*"), key=base)
    os.truncate(first, 1000)
    invoke(broker, *small, "tier", broker.directory, status=0)
    invoke(broker, "read", "A", "1", "--offset", "50", status=0)
    name = f"A/1/COMMIT_LOG/{first.name}"
    assert name in invoke(broker, "read", "A", "1", status=1).stderr
    assert f"object-short: {name} at 1000" in invoke(broker, "check", status=1).stdout


@pytest.mark.leaves_findings(
    "object-missing", "object-short", "unreadable", why="a segment's file is cut or removed"
)
@KINDS
@LEFT
def test_reading_names_the_file_and_what_to_do(
    broker: FakeBroker, kind: str, bytes_left: int | None
) -> None:
    invoke(broker, "tier", broker.directory, status=0)
    path, _ = harm(broker, kind, bytes_left)
    said = invoke(broker, "read", "A", "1", "--offset", "30", status=1).stderr
    assert said.startswith("tieredstore: published bytes are missing: ")
    assert f"A/1/{kind}/{path.name}" in said
    assert said.endswith("bring the file back; `tieredstore check` finds all that is missing\n")
    assert said.count("\n") == 1


@pytest.mark.leaves_findings(
    "object-missing", "object-short", "unreadable", why="a segment's file is cut or removed"
)
def test_what_precedes_missing_bytes_of_a_log_is_still_read(broker: FakeBroker) -> None:
    invoke(broker, "tier", broker.directory, status=0)
    _, whole = harm(broker, "COMMIT_LOG", 0)
    harm(broker, "COMMIT_LOG", None)[0].write_bytes(whole[: len(whole) // 2 + 1])
    found = invoke(broker, "read", "A", "1", "--json", status=1)
    assert [json.loads(row)["queue_offset"] for row in found.stdout.splitlines()] == [*range(25)]


@pytest.mark.leaves_findings(
    "object-missing", "object-short", "unreadable", why="a segment's file is cut or removed"
)
@pytest.mark.parametrize("units", [0, 1, 20, 49])
def test_what_precedes_missing_units_is_still_read_and_then_the_file_is_named(
    broker: FakeBroker, units: int
) -> None:
    invoke(broker, "tier", broker.directory, status=0)
    path, _ = harm(broker, "CONSUME_QUEUE", units * 20 + 7)
    found = invoke(broker, "read", "A", "1", "--json", status=1)
    assert [json.loads(row)["queue_offset"] for row in found.stdout.splitlines()] == [*range(units)]
    assert found.stderr.startswith("tieredstore: published bytes are missing: ")
    assert f"A/1/CONSUME_QUEUE/{path.name}" in found.stderr
