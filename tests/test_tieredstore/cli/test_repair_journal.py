"""A damaged journal: what is before the damage is served, and `repair --journal-to` lifts it."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from container.journal.frame import Frame
from provider.posix.store import PosixStore
from provider.stores.in_place_segments import LOCK_NAME
from tests.support.cli import Done, settings
from tests.support.golden import ROCKETMQ_533, GoldenTree, expected, unpacked
from tieredstore.cli.main import cli


def run(*arguments: str | Path, status: int = 0) -> Done:
    """As a process of its own would, but quick."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return Done(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="module")
def tree() -> GoldenTree:
    return unpacked(ROCKETMQ_533)


@pytest.fixture
def given(tree: GoldenTree, tmp_path: Path) -> list[str]:
    """Of a tier whose newest entry is damaged."""
    options = [*settings(tree, tmp_path / "tier"), "-D", "tieredStoreGroupCommitCount=10"]
    run(*options, "tier", tree.store)
    damage_newest(tmp_path / "tier")
    return options


def entries(tier: Path) -> list[Path]:
    return sorted(tier.glob("*/*/@journal/*"))


def damage_newest(tier: Path) -> None:
    newest = entries(tier)[-1]
    raw = bytearray(newest.read_bytes())
    raw[Frame.SIZE + 3] ^= 1
    newest.write_bytes(raw)


def kept(tier: Path) -> str:
    return str(int(entries(tier)[-1].name) - 1)


WHY = "the newest entry is damaged"
FINDINGS = ("journal", "entry-damaged", "unpublished")


@pytest.mark.leaves_findings(*FINDINGS, why=WHY)
def test_d7_reading_commands_serve_the_part_that_is_whole_and_say_so(
    given: list[str], tmp_path: Path
) -> None:
    damaged = entries(tmp_path / "tier")[-1].name
    topics = run(*given, "topics", "--json", status=1)
    assert sum(row["commit_offset"] for row in topics.rows) > 2_000
    assert f"@journal/{damaged}" in topics.err
    assert "later entries are not served" in topics.err
    assert f"`tieredstore repair --journal-to {int(damaged) - 1}`" in topics.err
    row = next(row for row in topics.rows if row["commit_offset"] > 0)
    words = ("read", row["topic"], str(row["queue_id"]), "--json")
    assert len(run(*given, *words, status=1).rows) == row["commit_offset"] - row["min_offset"]
    assert run(*given, "segments", "--json", status=1).rows
    assert "--journal-to" in run(*given, "metadata", "export", tmp_path / "x", status=1).err
    assert not (tmp_path / "x").exists()


@pytest.mark.leaves_findings(*FINDINGS, why=WHY)
def test_d7_a_cut_of_the_journal_is_refused_where_it_could_lose_something(
    given: list[str], tree: GoldenTree, tmp_path: Path
) -> None:
    tier = tmp_path / "tier"
    assert "--journal-to" in run(*given, "tier", tree.store, status=1).err
    words = (*given, "repair", "--journal-to")
    said = run(*words, "2", "--yes", status=2).err
    assert f"use --journal-to {kept(tier)}" in said
    before = sorted(path for path in tier.rglob("*") if path.is_file())
    said = run(*words, kept(tier), status=2).err
    assert "1 entry after" in said
    assert "the content of 1 entry of them is unknown" in said
    assert "use --yes" in said
    owner = PosixStore(entries(tier)[0].parent.parent)
    try:
        assert asyncio.run(owner.register(LOCK_NAME))
        assert f"use --journal-to {kept(tier)}" in run(*words, "2", "--yes", status=2).err
        assert "leave it running" in run(*words, kept(tier), "--yes", status=2).err
    finally:
        asyncio.run(owner.close())
    assert sorted(path for path in tier.rglob("*") if path.is_file()) == before


def test_d7_a_cut_of_the_journal_on_an_explicit_word_lets_tiering_go_on(
    given: list[str], tree: GoldenTree, tmp_path: Path
) -> None:
    tier = tmp_path / "tier"
    (row,) = run(*given, "repair", "--journal-to", kept(tier), "--yes", "--json").rows
    assert (row["kept"], row["given_up"], row["unreadable"]) == (int(kept(tier)), 1, 1)
    again = run(*given, "repair", "--journal-to", kept(tier), "--yes", status=1)
    assert "nothing is to be cut" in again.err
    run(*given, "tier", tree.store)
    assert run(*given, "check", "--json").rows == []
    told = run(*given, "topics", "--json").rows
    ends = {(row["topic"], row["queue_id"]): row["commit_offset"] for row in told}
    wanted: dict[tuple[str, int], int] = {}
    for message in expected(ROCKETMQ_533, "messages"):
        queue = (message["topic"], message["queue_id"])
        wanted[queue] = max(wanted.get(queue, 0), message["queue_offset"] + 1)
    assert ends == wanted
