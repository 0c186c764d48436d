"""`query`: messages by key, of our tiers and of RocketMQ's own."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tieredstore.sync
from tests.support.cli import invoke, settings
from tests.support.fake_broker import FIRST_STORE_TIMESTAMP, FakeBroker
from tests.support.golden import ROCKETMQ_533, expected, unpacked
from tieredstore.cli.main import cli

MESSAGES = 12


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages over two queues in turn, one a second; read only."""
    root = tmp_path_factory.mktemp("query")
    broker = FakeBroker(root / "store")
    for number in range(MESSAGES):
        broker.now_ms = FIRST_STORE_TIMESTAMP + 1000 * number
        broker.put("T", number % 2, b"%d" % number, keys=f"k-{number}  all 漢{number % 3}")
    invoke(root / "tier", "tier", broker.directory, "-D", "brokerName=b")
    return root / "tier"


def rows(tier: Path, *words: str, status: int = 0) -> list[dict[str, Any]]:
    done = invoke(tier, "query", *words, "--json", status=status)
    return [json.loads(line) for line in done.stdout.splitlines()]


def bodies(tier: Path, *words: str, status: int = 0) -> list[int]:
    return [int(row["body"]) for row in rows(tier, *words, status=status)]


def test_a_key_finds_its_messages_the_newest_first(tier: Path) -> None:
    assert bodies(tier, "T", "k-7") == [7]
    assert bodies(tier, "T", "漢1") == [10, 7, 4, 1]
    assert bodies(tier, "T", "漢1", "--oldest-first") == [1, 4, 7, 10]
    assert bodies(tier, "T", "all") == list(range(MESSAGES))[::-1]
    assert bodies(tier, "T", "k-7  all", status=1) == []
    assert bodies(tier, "T", "k-", status=1) == []


def test_times_are_exact_from_the_first_to_before_the_second(tier: Path) -> None:
    def at(second: float) -> str:
        return str(FIRST_STORE_TIMESTAMP + int(1000 * second))

    assert bodies(tier, "T", "all", "--since", at(3), "--until", at(6)) == [5, 4, 3]
    assert bodies(tier, "T", "all", "--since", at(3.001), "--until", at(5.001)) == [5, 4]
    assert bodies(tier, "T", "all", "--since", at(99), status=1) == []


def test_more_than_asked_for_are_said(tier: Path) -> None:
    assert bodies(tier, "T", "all", "--max", "3") == [11, 10, 9]
    assert "there may be more" in invoke(tier, "query", "T", "all", "--max", "3").stderr
    assert "there may be more" not in invoke(tier, "query", "T", "all", "--max", "12").stderr
    none = invoke(tier, "query", "T", "nobody", status=1)
    assert (none.stdout, "no message of T has the key nobody" in none.stderr) == ("", True)


def test_bad_use_is_one_sentence(tier: Path) -> None:
    assert "an empty text is no key" in invoke(tier, "query", "T", " ", status=2).stderr
    assert "there are T" in invoke(tier, "query", "t", "k", status=1).stderr
    late = invoke(
        tier, "query", "T", "k", "--since", "2024-01-02", "--until", "2024-01-01", status=2
    )
    assert "--until is not later than --since" in late.stderr


def test_from_python_without_await(tier: Path) -> None:
    with tieredstore.sync.open(tier) as opened:
        found = opened.query_message("T", "all", messages_max=2)
        assert [one.body for one in found.messages] == [b"11", b"10"]
        assert not found.is_complete
        unread = opened.query_message("T", "all", scan_bytes_max=0)
        assert unread.unsearched == MESSAGES - len(unread.messages) or unread.is_complete


@pytest.mark.parametrize("kind", ["closed", "running"])
def test_a_tier_that_rocketmq_wrote_has_its_index_files(kind: str) -> None:
    tree = unpacked(ROCKETMQ_533, kind)
    row = next(row for row in expected(ROCKETMQ_533, "queries") if len(row["found"]) == 2)
    words = [
        "query",
        row["topic"],
        row["key"],
        "--json",
        "--java-metadata",
        str(tree.java_metadata),
    ]
    conf = ["--conf", str(ROCKETMQ_533.broker_conf)]
    result = CliRunner().invoke(cli, [*settings(tree, tree.tier), *conf, *words])
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted([one["queue_id"], one["queue_offset"]] for one in found) == row["found"]
    if kind == "running":  # which needs the number of slots
        result = CliRunner().invoke(cli, [*settings(tree, tree.tier), *words])
        assert result.exit_code == 1
        assert "no index file of 5000000 slots" in result.stderr
