"""A Java tier made ours, when its store died between a log's bytes and their units, or we do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from provider.posix.store import PosixStore
from provider.testing.faulty import Fault, FaultyObjectStore
from tests.support.fake_broker import FakeBroker
from tests.support.java_tier import java_tier
from tieredstore.cli.main import cli
from tieredstore.session import places

TORN = b"\x00\x00\x00\x61\xda\xa3\x20\xa7 the first half of a record"


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path / "store")


def invoke(tier: Path, *arguments: str | Path) -> Result:
    named = ("brokerClusterName=c", "brokerName=b", f"tieredStoreFilePath={tier}")
    options = [word for setting in named for word in ("-D", setting)]
    return CliRunner().invoke(cli, [*options, *map(str, arguments), "--json"])


def run(tier: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    result = invoke(tier, *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


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


class DyingStores:
    """Stores of the commands; the one that owns the tier dies at its n-th request."""

    def __init__(self, call: int) -> None:
        self.made: list[FaultyObjectStore] = []
        self._faults = ((), (Fault("crash_before", calls=(call,)),))

    def __call__(self, *where: Any, **options: Any) -> FaultyObjectStore:
        store = PosixStore(*where, **options)
        self.made.append(FaultyObjectStore(store, faults=self._faults[len(self.made)]))
        return self.made[-1]


def messages_in(tier: Path) -> dict[str, bytes]:
    """The files of segments."""
    found = (path for path in tier.glob("*/b/[!@]*/**/*") if path.is_file())
    return {str(path.relative_to(tier)): path.read_bytes() for path in found}


@pytest.mark.slow
def test_an_import_that_dies_at_any_request_leaves_nobody_the_java_files_to_write_over(
    broker: FakeBroker, tmp_path: Path
) -> None:
    for queue in range(3):
        broker.put_many("A", queue, [b"%04d" % number for number in range(20)])
    metadata, begun = tmp_path / "java.json", tmp_path / "begun"
    java_tier(begun, broker.directory, metadata)
    java = messages_in(begun)
    other = FakeBroker(tmp_path / "other")
    for queue in range(4):
        other.put_many("A", queue, [b"other"] * 5)
    call, refused, stopped = 1, 0, 0
    while True:
        tier = tmp_path / f"tier-{call}"
        shutil.copytree(begun, tier)
        stores = DyingStores(call)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(places, "PosixStore", stores)
            died = invoke(tier, "metadata", "import", metadata).exit_code != 0
        tiered = invoke(tier, "tier", other.directory)
        assert java.items() <= messages_in(tier).items(), (call, tiered.output)
        if tiered.exit_code == 2:
            assert "metadata import" in tiered.stderr
            assert messages_in(tier) == java
            assert len(run(tier, "metadata", "import", metadata)) == 3
            refused += 1
        else:
            assert tiered.exit_code == 1  # three queues differ from what was imported
            stopped += 1
        assert run(tier, "check") == []
        assert len(run(tier, "read", "A", "1")) == 20
        if not died and not stores.made[1].struck:  # a struck sign of life ends no import
            break
        call += 1
    assert refused >= 5
    assert stopped >= 1


def test_metadata_that_makes_no_sense_are_findings_and_change_nothing(
    broker: FakeBroker, tmp_path: Path
) -> None:
    broker.put_many("A", 0, [b"x"] * 10)
    metadata, tier = tmp_path / "java.json", tmp_path / "tier"
    java_tier(tier, broker.directory, metadata)
    whole = metadata.read_text()
    changed = json.loads(whole)
    changed["topicMetadataTable"]["A"]["topicId"] = -1
    metadata.write_text(json.dumps(changed))
    failed = invoke(tier, "metadata", "import", metadata)
    assert failed.exit_code == 1
    assert failed.stderr == (
        "tieredstore: topic id -1 (A): it contradicts itself or what is published, "
        "so nothing was changed\n"
    )
    metadata.write_text(whole)
    assert len(run(tier, "metadata", "import", metadata)) == 1
