"""`repair --hot-log`: shows damage, asks, and keeps what is sound."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.cli import Done
from tests.support.hot_store import new_message
from tests.test_tieredstore.hot.test_repair import files_of, rot, written
from tieredstore.cli.main import cli

COMMAND = ("repair", "--hot-log")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    written(tmp_path / "store")
    return tmp_path / "store"


def run(root: Path, *arguments: str, status: int = 0) -> Done:
    options = ["mappedFileSizeCommitLog=4096", "mappedFileSizeConsumeQueue=200"]
    given = [word for option in (f"storePathRootDir={root}", *options) for word in ("-D", option)]
    result = CliRunner().invoke(cli, [*given, *arguments])
    assert result.exit_code == status, result.output
    return Done(result.exit_code, result.stdout, result.stderr)


def test_damage_is_shown_and_nothing_is_changed_without_the_word(root: Path) -> None:
    rot(root, new_message(30).body)
    before = files_of(root)
    done = run(root, *COMMAND, "--dry-run", status=1)
    assert "hold no sound record; lost: A/0 offset 15" in done.out
    asked = run(root, *COMMAND, status=2)
    assert "lost: A/0 offset 15" in asked.err
    assert "use --yes" in asked.err
    assert files_of(root) == before
    (row,) = run(root, *COMMAND, "--dry-run", "--json", status=1).rows
    assert (row["bytes"] > 90, row["kept"], row["is_missing"]) == (True, [], False)
    assert row["lost"] == [{"topic": "A", "queue_id": 0, "first_offset": 15, "next_offset": 16}]


def test_the_word_repairs_and_names_the_kept_files(root: Path) -> None:
    rot(root, new_message(30).body)
    done = run(root, *COMMAND, "--yes")
    (kept,) = (root / "truncated").iterdir()
    assert f"the bytes are kept in {kept}" in done.out
    assert "not damaged" in run(root, *COMMAND).out
    assert run(root, "put", "A", "new").out.split() == ["A", "0", "30"]


def test_a_place_without_a_store_is_wrong_use(tmp_path: Path) -> None:
    assert "there is no hot log here" in run(tmp_path / "none", *COMMAND, status=2).err
    assert not (tmp_path / "none").exists()
