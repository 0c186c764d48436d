"""What commands say on standard error: text or JSON lines, from a level on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run
from tests.support.fake_broker import FakeBroker


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A command that tiers a store, and warns of a directory in it that is no queue's."""
    broker = FakeBroker(tmp_path / "store")
    broker.put("Orders", 0)
    (broker.directory / "consumequeue" / "Orders" / "stranger").mkdir()
    given = ["-D", "brokerName=b", "-D", f"tieredStoreFilePath={tmp_path / 'tier'}"]
    return [*given, "tier", str(broker.directory)]


def levels(lines: list[str]) -> list[str]:
    pattern = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ ([A-Z]+) +\S.*"
    found = [re.fullmatch(pattern, line) for line in lines]
    assert all(found), lines
    return [one[1] for one in found if one is not None]


def test_text_is_a_line_with_time_and_level(words: list[str]) -> None:
    said = levels(run(*words).err.splitlines())
    assert set(said) == {"INFO", "WARNING"}


def test_json_is_an_object_a_line_with_the_same_sentences(words: list[str]) -> None:
    rows: list[dict[str, Any]] = [
        json.loads(line) for line in run("--log-format", "json", *words).err.splitlines()
    ]
    assert {row["level"] for row in rows} == {"INFO", "WARNING"}
    for row in rows:
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["time"])
        assert row["logger"].startswith("tieredstore")
        assert row["message"]
    (warning,) = [row["message"] for row in rows if row["level"] == "WARNING"]
    assert "stranger" in warning


def test_less_than_the_level_is_not_said(words: list[str]) -> None:
    assert set(levels(run("--log-level", "warning", *words).err.splitlines())) == {"WARNING"}
    assert run("--log-level", "error", *words).err == ""


@pytest.mark.parametrize("form", [["--log-format", "json"], ["--log-format=json"]])
def test_the_last_sentence_is_json_too_with_the_status(form: list[str], tmp_path: Path) -> None:
    ended = run(*form, "--tier", tmp_path / "none", "topics", status=1)
    (line,) = ended.err.splitlines()
    row = json.loads(line)
    assert (row["level"], row["exit_status"]) == ("ERROR", 1)
    assert "no such directory" in row["message"]


def test_a_name_from_outside_breaks_no_line(words: list[str], tmp_path: Path) -> None:
    (
        tmp_path / "store" / "consumequeue" / "Orders" / "two\n2026-01-01T00:00:00Z ERROR   no"
    ).mkdir()
    assert "ERROR" not in levels(run(*words).err.splitlines())
