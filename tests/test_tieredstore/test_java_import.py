"""A Java tier made ours when its store died between a log's bytes and their units."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli

TORN = b"\x00\x00\x00\x61\xda\xa3\x20\xa7 the first half of a record"


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path / "store")


def run(tier: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    named = ("brokerClusterName=c", "brokerName=b", f"tieredStoreFilePath={tier}")
    options = [word for setting in named for word in ("-D", setting)]
    result = CliRunner().invoke(cli, [*options, *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def java_tier(tier: Path, store: Path, metadata: Path) -> Path:
    """The tree and metadata that the Java store leaves for `store`; the broker's directory."""
    run(tier, "tier", store)
    run(tier, "metadata", "export", metadata)
    (directory,) = tier.glob("*/b")
    for ours in directory.glob("@*"):
        if ours.is_dir():
            shutil.rmtree(ours)
        else:
            ours.unlink()
    return directory


@pytest.mark.parametrize("whole", [0, 1], ids=["torn", "whole-and-torn"])
def test_log_bytes_without_units_are_no_part_of_it_and_the_next_commit_takes_their_place(
    broker: FakeBroker, tmp_path: Path, whole: int
) -> None:
    broker.put_many("A", 0, [b"%04d" % number for number in range(100)])
    metadata = tmp_path / "java.json"
    directory = java_tier(tmp_path / "tier", broker.directory, metadata)
    (log,) = (directory / "A" / "0" / "COMMIT_LOG").iterdir()
    raw = log.read_bytes()
    record_bytes = len(raw) // 100
    log.write_bytes(raw + whole * raw[-record_bytes:] + TORN)

    (imported,) = run(tmp_path / "tier", "metadata", "import", metadata)
    assert (imported["messages"], imported["commit_log_bytes"]) == (100, len(raw))
    assert run(tmp_path / "tier", "check") == []
    broker.put_many("A", 0, [b"%04d" % number for number in range(100, 150)])
    run(tmp_path / "tier", "tier", broker.directory)
    assert run(tmp_path / "tier", "check") == []
    found = run(tmp_path / "tier", "read", "A", "0", "--max", "1000")
    assert [row["body"] for row in found] == [f"{number:04d}" for number in range(150)]
    assert found[-1]["tier_physical_offset"] == 149 * record_bytes
    run(tmp_path / "tier", "metadata", "export", tmp_path / "again.json")
