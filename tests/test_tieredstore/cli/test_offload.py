"""`tieredstore offload`, on the command line: to S3, and what is said of wrong use."""

import json
from pathlib import Path

import pyarrow.dataset
import pytest
from click.testing import CliRunner, Result

from tests.support.cli import complaints
from tests.support.fake_broker import FakeBroker
from tieredstore import offline
from tieredstore.cli.main import cli
from tieredstore.config.effective import Config
from tieredstore.offline.scan.sources import place_of

NAMED = ("-D", "brokerClusterName=C", "-D", "brokerName=broker-a")


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [*NAMED, *map(str, words)])


def good(*words: str | Path) -> str:
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(status: int, *words: str | Path) -> str:
    """The one sentence of a refusal."""
    done = invoke(*words)
    assert done.exit_code == status, done.output
    lines = complaints(done.stderr).splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """A tier with ten messages."""
    broker = FakeBroker(tmp_path / "store")
    for number in range(10):
        broker.put("Orders", 0, b"%d" % number)
    good("--tier", tmp_path / "tier", "tier", broker.directory)
    return tmp_path / "tier"


@pytest.mark.leaves_findings("journal", why="the second store is on S3, which the fixture lacks")
def test_a_directory_is_offloaded_to_s3_and_reads_back(tier: Path, s3_url: str) -> None:
    before = good("--tier", tier, "read", "Orders", "--json")
    both = ("--tier", tier, "-D", f"tieredStoreOffloadPath={s3_url}")
    would = good(*both, "offload", "Orders", "--dry-run", "--json")
    assert good("--tier", tier, "check").endswith("nothing is wrong\n")
    assert good(*both, "offload", "Orders", "--json") == would
    assert '"segments":2' in would.replace(" ", "")
    assert good(*both, "read", "Orders", "--json") == before
    for command in ("check", "audit", "scrub"):
        assert "nothing is wrong" in good(*both, command)
    assert "nothing is to be moved" in good(*both, "offload", "Orders")
    for command in ("check", "audit", "scrub"):
        assert "set tieredStoreOffloadPath" in refused(2, "--tier", tier, command)
    said = refused(2, *both, "metadata", "export", tier.parent / "x.json")
    assert "offloaded to a second one" in said


@pytest.mark.leaves_findings("journal", why="nobody tells the fixture of the second store")
def test_units_in_the_first_store_come_back_beside_offloaded_ones(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    for number in range(10):
        broker.put("Orders", 0, b"%d" % number)
        broker.put("Others", 0, b"%d" % number)
    tier = tmp_path / "tier"
    both = ("--tier", tier, "-D", f"tieredStoreOffloadPath={tmp_path}/second")
    good(*both, "tier", broker.directory)
    good(*both, "offload", "Orders")
    (lost,) = tier.glob("*/*/*Others/0/CONSUME_QUEUE/*")
    sound = lost.read_bytes()
    lost.unlink()
    good(*both, "rebuild", "--processes", "1")
    assert lost.read_bytes() == sound
    assert "nothing is wrong" in good(*both, "check")
    assert "nothing is wrong" in good(*both, "audit", "--processes", "1")


def test_wrong_use_is_one_sentence_each(tier: Path, tmp_path: Path) -> None:
    one = ("--tier", tier)
    assert "the place of the second store is not set" in refused(2, *one, "offload", "Orders")
    inside = (*one, "-D", f"tieredStoreOffloadPath={tier}/x")
    assert "lie inside one another" in refused(2, *inside, "offload", "Orders")
    for place in (str(tier), f"file://{tier}", str(tier.parent)):
        same = (*one, "-D", f"tieredStoreOffloadPath={place}")
        assert "lie inside one another" in refused(2, *same, "offload", "Orders")
    link = tmp_path / "link"
    link.symlink_to(tier)
    linked = (*one, "-D", f"tieredStoreOffloadPath={link}/below")
    assert "lie inside one another" in refused(2, *linked, "offload", "Orders")
    link.unlink()
    good("--tier", tmp_path / "other", "tier", tmp_path / "store")
    others = (*one, "-D", f"tieredStoreOffloadPath={tmp_path}/other")
    assert "a tier lies in " in refused(2, *others, "offload", "Orders")
    assert good("--tier", tmp_path / "other", "check").endswith("nothing is wrong\n")
    both = (*one, "-D", f"tieredStoreOffloadPath={tmp_path}/second")
    assert "the tier has nothing of Nope" in refused(1, *both, "offload", "Nope")
    assert "is no time" in refused(2, *both, "offload", "Orders", "--until", "soon")
    said = refused(2, *both, "rebuild", "--metadata")
    assert "what was offloaded would be missing" in said
    file = tmp_path / "file"
    file.write_bytes(b"")
    blocked = (*one, "-D", f"tieredStoreOffloadPath={file}")
    assert str(file) in refused(2, *blocked, "offload", "Orders")
    assert good(*one, "check").endswith("nothing is wrong\n")


@pytest.mark.leaves_findings("journal", why="nobody tells the fixture of the second store")
def test_another_second_store_is_a_sentence_with_both_places(tier: Path, tmp_path: Path) -> None:
    second, other = tmp_path / "x" / "second", tmp_path / "x" / "other"
    right = ("--tier", tier, "-D", f"tieredStoreOffloadPath={second}")
    before = good(*right, "read", "Orders", "--json")
    good(*right, "offload", "Orders")
    wrong = ("--tier", tier, "-D", f"tieredStoreOffloadPath={other}")
    store = tmp_path / "store"
    commands: list[tuple[str | Path, ...]] = [
        ("topics",),
        ("read", "Orders"),
        ("check",),
        ("scrub",),
        ("audit",),
        ("offload", "Orders"),
        ("delete-topic", "Orders"),
        ("tier", store),
        ("export", tmp_path / "rows"),
        ("rebuild",),
    ]
    for words in commands:
        said = refused(2, *wrong, *words)
        assert f"the second store at {other} is not that of this tier" in said, words
        assert f"offloaded to {second}: set tieredStoreOffloadPath to that" in said, words
    nothing = ("--tier", tier)
    assert f"set tieredStoreOffloadPath={second}" in refused(2, *nothing, "check")
    moved = second.rename(other)  # a copy of what lies there may be elsewhere
    assert good(*wrong, "read", "Orders", "--json") == before
    assert "nothing is wrong" in good(*wrong, "check")
    assert "nothing of this tier" in refused(2, *right, "check")
    moved.rename(second)
    assert good(*right, "read", "Orders", "--json") == before


@pytest.mark.leaves_findings("journal", why="nobody tells the fixture of the second store")
def test_a_relative_place_is_the_same_from_everywhere(
    tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good("--tier", "tier", "-D", "tieredStoreOffloadPath=second", "offload", "Orders")
    whole = ("--tier", tier, "-D", f"tieredStoreOffloadPath={tmp_path}/second")
    for words in (("check",), ("audit",)):
        assert "nothing is wrong" in good(*whole, *words)
    config = Config.load(
        settings={"tieredStoreFilePath": "tier", "tieredStoreOffloadPath": "second"}
    )
    assert dict(place_of(config).settings)["tieredStoreOffloadPath"] == f"{tmp_path}/second"


@pytest.mark.leaves_findings("journal", why="nobody tells the fixture of the second store")
def test_every_command_reads_two_stores_as_one(tier: Path, tmp_path: Path) -> None:
    second = {"tieredStoreOffloadPath": str(tmp_path / "second")}
    both = ("--tier", tier, "-D", f"tieredStoreOffloadPath={second['tieredStoreOffloadPath']}")
    both = (*both, "-D", "tieredStoreOffloadDeletionLag=0")
    topics = good(*both, "topics", "--json")
    plain = good(*both, "segments", "Orders", "--json").splitlines()
    assert {json.loads(row)["store"] for row in plain} == {"first"}
    good(*both, "offload", "Orders")
    assert good(*both, "topics", "--json") == topics
    rows = [json.loads(row) for row in good(*both, "segments", "Orders", "--json").splitlines()]
    assert [(row["store"], row["state"]) for row in rows] == [("second", "COPY_FINISHED")] * 2
    assert good(*both, "segments", "Orders").count("offloaded") == 2
    assert good(*both, "segments", "--state", "COPY_FINISHED", "Orders").count("offloaded") == 2
    for words in (["check", "--bodies"], ["audit", "--bodies"], ["scrub"]):
        assert "nothing is wrong" in good(*both, *words), words
    got = offline.dataset(tier, "Orders", columns=["body"], settings=second).read_all()
    assert got["body"].to_pylist() == [b"%d" % number for number in range(10)]
    good(*both, "export", tmp_path / "rows")
    exported = pyarrow.dataset.dataset(tmp_path / "rows", format="parquet").to_table()
    assert sorted(exported["body"].to_pylist()) == got["body"].to_pylist()
    broker = FakeBroker(tmp_path / "longer")
    for body in (*(b"%d" % number for number in range(10)), b"more"):
        broker.put("Orders", 0, body)
    good(*both, "tier", broker.directory)
    assert "more" in good(*both, "read", "Orders", "0", "--offset", "10")
    assert "nothing is wrong" in good(*both, "check")
    good(*both, "delete-topic", "--tier-only", "Orders")
    assert "nothing is wrong" in good(*both, "check")
    assert good(*both, "topics", "--json") == ""
