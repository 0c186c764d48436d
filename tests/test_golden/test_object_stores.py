"""Golden stores tiered by the command to object stores, and read back line by line by it."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner

from tests.support.cli import complaints, run, settings
from tests.support.fake_broker import FakeBroker
from tests.support.golden import (
    GOLDEN_TREES,
    ROCKETMQ_533,
    GoldenSet,
    expected,
    tree_name,
    unpacked,
)
from tests.support.golden_reads import normal, seen_by_the_client, without
from tests.support.patience import completed
from tieredstore.cli.main import cli


@pytest.fixture
def memory_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """In this process's memory, which nothing else uses."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    fsspec.filesystem("memory").store.clear()
    return f"memory://bucket/{tmp_path.name}"


def rows(*words: str | Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(cli, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    assert complaints(result.stderr) == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


def assert_reads_back(golden: GoldenSet, kind: str, url: str) -> None:
    """Tier a golden store, check it, and compare every line that `read` prints."""
    tree = unpacked(golden, kind)
    options = settings(tree, url)
    rows(*options, "tier", tree.store)
    assert rows(*options, "check", "--bodies") == []
    assert_every_line(golden, options)


def assert_every_line(golden: GoldenSet, options: Sequence[str | Path]) -> None:
    """Compare every line that `read` prints with what the official client read."""
    wanted = [normal(row, golden) for row in expected(golden, "messages")]
    found: list[dict[str, Any]] = []
    for topic in dict.fromkeys(row["topic"] for row in wanted):
        found += map(seen_by_the_client, rows(*options, "read", topic, "--digest"))
    found = [without(row, "properties") | {"properties": row["properties"]} for row in found]
    for row in (*found, *wanted):
        if golden.has_codas:  # they move what is behind them
            row.pop("tier_physical_offset")
        if golden.has_record_crc:  # valid in ours, Java's own are not
            row["properties"] = without(row["properties"], "__CRC32#")
    by_place = {(row["topic"], row["queue_id"], row["queue_offset"]): row for row in wanted}
    assert len(found) == len(by_place)
    for row in found:
        assert row == by_place[row["topic"], row["queue_id"], row["queue_offset"]]


@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
def test_every_line_in_memory(golden: GoldenSet, kind: str, memory_url: str) -> None:
    assert_reads_back(golden, kind, memory_url)


@pytest.mark.slow
def test_every_line_on_s3(s3_url: str) -> None:
    assert_reads_back(ROCKETMQ_533, "closed", s3_url)


@pytest.mark.nightly
@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES[1:], ids=tree_name)
def test_every_line_of_the_others_on_s3(golden: GoldenSet, kind: str, s3_url: str) -> None:
    assert_reads_back(golden, kind, s3_url)


def test_every_command_works_on_s3(s3_url: str, tmp_path: Path) -> None:
    tree = unpacked(ROCKETMQ_533)
    options = settings(tree, s3_url)
    wanted = expected(ROCKETMQ_533, "messages")
    done = run(*options, "tier", tree.store, "--json")  # in a process of its own, as users do
    assert sum(row["messages"] for row in done.rows) == len(wanted)
    anybody = ["--tier", s3_url]
    (broker,) = rows(*anybody, "brokers")
    assert (broker["broker"], broker["messages"]) == (tree.golden.broker, len(wanted))
    assert broker["directory"].startswith(s3_url)
    topics = rows(*anybody, "topics")
    assert [(row["topic"], row["queue_id"]) for row in topics] == list(map(tuple, tree.queues()))
    segments = rows(*anybody, "segments", "G_Orders", "0")
    assert {row["type"] for row in segments} == {"COMMIT_LOG", "CONSUME_QUEUE"}
    assert {row["state"] for row in segments} == {"COPY_FINISHED"}
    found = rows(*anybody, "query", "G_Orders", "order-76")
    orders = [row for row in wanted if row["topic"] == "G_Orders"]
    keyed = [row for row in orders if "order-76" in row["properties"].get("KEYS", "").split()]
    assert len(found) == len(keyed) > 0
    stored_ms = next(
        row["store_timestamp"]
        for row in wanted
        if (row["topic"], row["queue_id"], row["queue_offset"]) == ("G_Keys", 0, 29)
    )
    printed = CliRunner().invoke(cli, [*anybody, "offset-by-time", "G_Keys", "0", str(stored_ms)])
    assert printed.stdout.strip() == "29"
    assert {row["messages_new"] for row in rows(*options, "tier", tree.store)} == {0}
    assert "nothing is wrong" in run(*anybody, "check").out


def test_a_broker_that_lost_its_tail_is_repaired_on_s3(s3_url: str, tmp_path: Path) -> None:
    whole, cut = FakeBroker(tmp_path / "whole"), FakeBroker(tmp_path / "cut")
    for broker, count in ((whole, 10), (cut, 6)):
        for number in range(count):
            broker.put("Orders", 0, b"%d" % number)
    named = ["-D", "brokerClusterName=C", "-D", "brokerName=b", "--tier", s3_url]
    rows(*named, "tier", whole.directory)
    cut.put("Orders", 0, b"another 6")
    stopped = CliRunner().invoke(cli, [*named, "tier", str(cut.directory)])
    assert stopped.exit_code == 1, stopped.output
    repair = [*named, "repair", "--cut-to-hot", "--store", cut.directory, "--yes"]
    assert [row["cut_to"] for row in rows(*repair)] == [6]
    rows(*named, "tier", cut.directory)
    bodies = [row["queue_offset"] for row in rows("--tier", s3_url, "read", "Orders", "0")]
    assert bodies == list(range(7))
    assert rows("--tier", s3_url, "check") == []


@pytest.mark.slow
@pytest.mark.checkout
def test_the_main_job_runs_on_a_server_of_its_own(seaweed: object) -> None:
    """As `make run-s3` does it."""
    del seaweed  # skips it where there is none
    root = Path(__file__).parents[2]
    done = completed([sys.executable, "-m", "tests.support.make_run", "", "s3://", ""], cwd=root)
    assert done.returncode == 0, done.stderr
    assert "SeaweedFS speaks S3 at http://127.0.0.1:" in done.stdout
    assert "3,396 messages, 3.9 MiB: nothing is wrong" in done.stdout
