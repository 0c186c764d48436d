"""A journal that is lost or damaged, from end to end: what each command says, and the way back."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.cli import Done
from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli

MESSAGES = 10
"""Of each of three runs of `tier`."""
SNAPSHOTS = ("-D", "tieredStoreJournalSnapshotCount=1")


class Tier:
    """Two queues, and at least six journal entries: a fence and some commits for each run."""

    def __init__(self, root: Path, *options: str) -> None:
        self.root = root / "tier"
        self.options = options
        self.after: list[int] = []
        """The newest entry after each run."""
        self.broker = FakeBroker(root / "store")
        for _ in range(3):
            for queue in (0, 1):
                self.broker.put_many("A", queue, [b"body"] * MESSAGES)
            self.run("tier", self.broker.directory)
            (self.directory,) = self.root.glob("*/b")
            self.after.append(int(self.entries()[-1].name))

    def run(self, *words: str | Path, status: int = 0) -> Done:
        """As a process of its own would, but quick."""
        given = ("brokerClusterName=c", "brokerName=b", f"tieredStoreFilePath={self.root}")
        options = [word for setting in given for word in ("-D", setting)]
        result = CliRunner().invoke(cli, [*options, *self.options, *map(str, words)])
        assert result.exit_code == status, result.output
        return Done(result.exit_code, result.stdout, result.stderr)

    def entries(self) -> list[Path]:
        return sorted((self.directory / "@journal").iterdir())

    def ends(self, status: int = 0) -> list[int]:
        return [row["commit_offset"] for row in self.run("topics", "--json", status=status).rows]

    def assert_goes_on(self) -> None:
        """Tiering goes on, and nothing is wrong afterwards."""
        self.broker.put_many("A", 0, [b"more"])
        self.run("tier", self.broker.directory)
        assert self.ends() == [3 * MESSAGES + 1, 3 * MESSAGES]
        assert self.run("check", "--json").rows == []


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[60] ^= 1
    path.write_bytes(raw)


def test_a_lost_journal_is_said_by_every_command_and_an_export_brings_the_tier_back(
    tmp_path: Path,
) -> None:
    tier = Tier(tmp_path)
    exported = tmp_path / "exported.json"
    tier.run("metadata", "export", exported)
    shutil.rmtree(tier.directory / "@journal")
    for words in (["topics"], ["check"], ["segments"], ["read", "A", "0"]):
        said = tier.run(*words, status=1)
        assert "the journal of this tier is gone: bring its @journal back" in said.err
        assert said.out == ""
    store = ("--store", tier.broker.directory)
    assert (
        "journal of this tier is gone" in tier.run("repair", "--cut-to-hot", *store, status=1).err
    )
    said = tier.run("repair", "--journal-to", "3", "--yes", status=1).err
    assert "the journal of this tier is gone: bring its @journal back" in said
    assert "bring @journal back" in tier.run("tier", tier.broker.directory, status=2).err
    tier.run("metadata", "import", exported)
    assert tier.ends() == [3 * MESSAGES, 3 * MESSAGES]
    tier.assert_goes_on()


def test_a_journal_that_is_gone_beside_its_snapshots_is_served_in_part_and_can_be_cut(
    tmp_path: Path,
) -> None:
    tier = Tier(tmp_path, *SNAPSHOTS)
    held = max(int(path.name[:20]) for path in (tier.directory / "@snapshot").iterdir())
    shutil.rmtree(tier.directory / "@journal")
    assert tier.ends(status=1) == [3 * MESSAGES, 3 * MESSAGES]
    said = tier.run("check", status=1).err
    assert "the newest journal entries are missing" in said
    assert f"`tieredstore repair --journal-to {held}`" in said
    assert f"--journal-to {held}" in tier.run("tier", tier.broker.directory, status=1).err
    assert f"use --journal-to {held}" in tier.run("repair", "--journal-to", "1", status=2).err
    tier.run("repair", "--journal-to", str(held), "--yes")
    tier.assert_goes_on()


@pytest.mark.leaves_findings("snapshot-damaged", why="the snapshots stay damaged")
@pytest.mark.parametrize("which", [slice(-1, None), slice(None)], ids=["newest", "all"])
def test_damaged_snapshots_cost_nothing_while_the_entries_are_there(
    tmp_path: Path, which: slice
) -> None:
    tier = Tier(tmp_path, *SNAPSHOTS)
    damaged = sorted((tier.directory / "@snapshot").iterdir())[which]
    for path in damaged:
        flip(path)
    assert tier.ends() == [3 * MESSAGES, 3 * MESSAGES]
    found = tier.run("check", "--json", status=1).rows
    assert [row["path"].split("/")[1] for row in found] == [path.name for path in damaged]
    said = tier.run("repair", "--journal-to", "3", "--yes", status=1).err
    assert "nothing is to be cut" in said
    tier.broker.put_many("A", 0, [b"more"])
    tier.run("tier", tier.broker.directory)
    assert tier.ends() == [3 * MESSAGES + 1, 3 * MESSAGES]


@pytest.mark.leaves_findings("entry-damaged", why="the entry stays damaged")
@pytest.mark.parametrize("which", [0, 2, -2], ids=["head", "middle", "before the newest"])
def test_one_damaged_entry_costs_nothing_and_is_found(tmp_path: Path, which: int) -> None:
    tier = Tier(tmp_path)
    flip(tier.entries()[which])
    assert tier.ends() == [3 * MESSAGES, 3 * MESSAGES]
    (found,) = tier.run("check", "--json", status=1).rows
    assert (found["finding"], found["path"]) == (
        "entry-damaged",
        f"@journal/{tier.entries()[which].name}",
    )
    said = tier.run("repair", "--journal-to", "3", "--yes", status=1).err
    assert "the journal is whole: nothing is to be cut" in said
    tier.broker.put_many("A", 0, [b"more"])
    tier.run("tier", tier.broker.directory)
    assert tier.ends() == [3 * MESSAGES + 1, 3 * MESSAGES]


def test_the_damaged_newest_entry_costs_what_it_says_and_a_cut_goes_on_without_it(
    tmp_path: Path,
) -> None:
    tier = Tier(tmp_path)
    flip(tier.entries()[-1])
    left, kept = tier.ends(status=1), str(tier.after[-1] - 1)
    assert 2 * 2 * MESSAGES <= sum(left) < 2 * 3 * MESSAGES
    said = tier.run("repair", "--journal-to", kept, status=2).err
    assert f"1 entry after entry {kept} would be given up" in said
    tier.run("repair", "--journal-to", kept, "--yes")
    assert tier.ends() == left
    tier.assert_goes_on()


def test_two_damaged_neighbours_cost_what_lies_behind_them_and_a_cut_says_what(
    tmp_path: Path,
) -> None:
    tier = Tier(tmp_path)
    kept, last = tier.after[0], tier.after[-1]
    for path in tier.entries()[kept : kept + 2]:
        flip(path)
    assert tier.ends(status=1) == [MESSAGES, MESSAGES]
    said = tier.run("repair", "--journal-to", str(kept), status=2).err.splitlines()
    assert said[0] == f"{last - kept} entries after entry {kept} would be given up"
    assert said[1] == "A/0: 20 messages, offsets 10 to 29, would be unpublished"
    assert said[3] == "the content of 1 entry of them is unknown"
    tier.run("repair", "--journal-to", str(kept), "--yes")
    tier.assert_goes_on()


def test_a_journal_of_which_nothing_is_whole_names_the_way_back(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    exported = tmp_path / "exported.json"
    tier.run("metadata", "export", exported)
    for path in tier.entries()[:2]:
        flip(path)
    for words in (["topics"], ["check"], ["tier", tier.broker.directory]):
        said = tier.run(*words, status=1).err
        assert "move @journal, @snapshot and @boundary aside, and nothing else" in said
        assert "--journal-to" not in said
    said = tier.run("repair", "--journal-to", "1", "--yes", status=1).err
    assert "nothing of the journal is whole: bring @journal and @snapshot back" in said
    (tier.directory / "@journal").rename(tmp_path / "aside")
    tier.run("metadata", "import", exported)
    tier.assert_goes_on()


def test_a_journal_that_may_not_be_read_is_not_taken_for_a_lost_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = Tier(tmp_path)
    journal = str(tier.directory / "@journal")
    real = {name: getattr(os, name) for name in ("scandir", "listdir")}

    def denying(name: str) -> Callable[..., object]:
        def listed(path: str | Path = ".") -> object:
            if str(path).rstrip("/") == journal:
                raise PermissionError(errno.EACCES, "Permission denied", journal)
            return real[name](path)

        return listed

    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(os, name, denying(name))
        for words in (["topics"], ["check"], ["tier", tier.broker.directory]):
            said = tier.run(*words, status=2).err
            assert (
                f"permission denied; change the owner or the mode of the directory ({journal}"
                in said
            )
            assert "journal of ours" not in said


def test_a_directory_that_may_not_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = Tier(tmp_path)
    denied = str(tier.directory / "A" / "1" / "COMMIT_LOG")
    real = os.scandir

    def scandir(path: str | Path = ".") -> object:
        if str(path) == denied:
            raise PermissionError(errno.EACCES, "Permission denied", denied)
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        assert denied in tier.run("check", status=2).err
