"""Where the output goes: pipes that close, full devices, narrow terminals, other encodings."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from tests.support.cli import COMMAND, settings
from tests.support.golden import ROCKETMQ_533, unpack, unpacked
from tests.support.on_terminal import on_terminal
from tieredstore.cli.main import cli
from tieredstore.cli.message_printer import fitted, message_columns


def options(tier: Path) -> list[str]:
    return settings(unpacked(ROCKETMQ_533), tier)


@pytest.mark.process
def test_a_closed_pipe_is_no_error(golden_tier: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *options(golden_tier), "read", "G_Orders", "0", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.process
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "words", [["topics", "--json"], ["read", "G_Orders", "0", "--max", "9"]], ids=" ".join
)
def test_closed_standard_streams_are_no_error(
    golden_tier: Path, closed: str, words: list[str]
) -> None:
    program = f'"$@" {closed}'
    done = subprocess.run(
        ["bash", "-c", program, "bash", *COMMAND, *options(golden_tier), *words],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.process
@pytest.mark.parametrize(
    "words", ["topics --json", "topics", "read G_Orders", "config --json", "--help"]
)
def test_a_full_device_behind_the_output_is_said(golden_tier: Path, words: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *options(golden_tier), *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    sentence = "the file system is full; free space to continue (standard output): try again"
    assert done.stderr == f"tieredstore: {sentence}\n"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.leaves_findings("object-missing", "unreadable", why="a segment's file is removed")
def test_findings_that_nobody_reads_still_count(tmp_path: Path) -> None:
    tree = unpack(ROCKETMQ_533, "closed", tmp_path)
    given = settings(tree, tmp_path / "ours")
    assert CliRunner().invoke(cli, [*given, "tier", str(tree.store)]).exit_code == 0
    next((tmp_path / "ours").glob("*/*/G_Orders/0/COMMIT_LOG/*")).unlink()
    for words in (["check"], ["check", "--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [*COMMAND, *given, *words], stdout=writer, stderr=subprocess.PIPE, check=False
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.process
@pytest.mark.parametrize("to", ["2>/dev/full", "2>&-"])
def test_a_sentence_that_cannot_be_said_leaves_the_status(tmp_path: Path, to: str) -> None:
    command = ["bash", "-c", f'"$@" {to}', "bash", *COMMAND]
    assert subprocess.run([*command, "nothing"], check=False).returncode == 2
    missing = [*command, *options(tmp_path / "none"), "topics"]
    assert subprocess.run(missing, check=False).returncode == 1


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
@pytest.mark.parametrize(
    "words",
    [["topics"], ["segments", "G_Orders"], ["read", "G_Orders", "0", "--max", "30"]],
    ids=" ".join,
)
def test_a_terminal_of_any_width_shows_every_number_whole(
    golden_tier: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], width: int
) -> None:
    on_terminal(monkeypatch, width)
    result = CliRunner().invoke(cli, [*options(golden_tier), *words])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    if width >= 40:
        assert max(map(cell_len, lines)) <= width
    wanted = {"topics": "341.6 KiB", "segments": "262,100", "read": "29"}[words[0]]
    assert any(wanted in line for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_an_empty_tier_says_so(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    given = options(tmp_path / "tier")
    runner = CliRunner()
    assert runner.invoke(cli, [*given, "tier", str(tmp_path / "store")]).exit_code == 0
    assert runner.invoke(cli, [*given, "topics"]).stdout == "the tier holds no queue yet\n"
    assert runner.invoke(cli, [*given, "segments"]).stdout == "there is no segment yet\n"
    assert runner.invoke(cli, [*given, "topics", "--json"]).stdout == ""


def test_what_is_cut_bears_a_sign_of_it() -> None:
    assert fitted("abcdef", 6) == "abcdef"
    assert fitted("abcdefg", 6) == "abcde\u2026"
    assert fitted("\u8ba2\u5355\u8ba2\u5355", 6) == "\u8ba2\u5355 \u2026"
    assert fitted("ab", 4) == "ab  "
    assert fitted("ab", 0) == ""


@pytest.mark.parametrize("digest", [False, True])
@pytest.mark.parametrize("max_offset", [0, 10**7, 2**63 - 1])
@pytest.mark.parametrize("width", [1, 30, 60, 80, 100, 140, 400])
def test_columns_fill_the_terminal_and_never_more(
    width: int, max_offset: int, *, digest: bool
) -> None:
    columns = message_columns(width, max_offset, digest=digest)
    cells = [
        "7",
        f"{max(max_offset - 1, 0):,}",
        "2026-11-21 12:00:00",
        "4,259,840",
        *["x" * 500] * 3,
    ]
    line = columns.line(cells)
    assert line.lstrip().startswith(cells[1])
    if cell_len(line) > width:
        assert columns.shown == (1, 4, 6), "what cannot be left out does not fit"
    if width >= 400:
        assert line.endswith("x\u2026")
        assert cell_len(line) == width
