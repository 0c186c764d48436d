"""The code blocks of a page, and what the page says that they print.

A `text` block below a code block is its output: a line `...` stands for any lines, `...` inside a
line for any text, and a last line `(exit status 1)` for how the commands end.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.support.patience import completed
from tieredstore.offline.spark.session import lacking_java

BUCKET = "my-bucket"
"""Blocks with it need a server that speaks S3."""
MODULES = {
    "duckdb": "duckdb",
    "polars": "polars",
    "pandas": "pandas",
    "pyspark": "pyspark",
    "pyiceberg": "pyiceberg",
    "--iceberg": "pyiceberg",
    "to_arrow(": "pyarrow",
}
"""Words of a block, and the module that such a block needs: large ones, which the environments in
which the wheel is tried lack."""

PROGRESS = "▕"
"""In the bar that DuckDB draws while a query takes more than two seconds, as on a busy machine."""
_BLOCK = re.compile(
    r"^```(bash|python)\n(.*?)^```\n(?:```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
_STATUS = re.compile(r"^\(exit status (\d+)\)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One block: what is run, and what it is said to print ("": anything)."""

    language: str
    text: str
    shown: str
    status: int


def blocks_of(page: str) -> list[Block]:
    """The blocks that can be run, in order."""
    found: list[Block] = []
    for language, text, output in _BLOCK.findall(page):
        status = _STATUS.search(output)
        shown = _STATUS.sub("", output)
        found.append(Block(language, text, shown, int(status[1]) if status else 0))
    return found


def runs_here(block: Block) -> bool:
    """Whether this machine has what the block needs. A checkout in CI must have all of it."""
    absent = [name for word, name in MODULES.items() if word in block.text and not find_spec(name)]
    root = Path(__file__).parents[2]
    must = (root / "tieredstore").is_dir() and "CI" in os.environ
    if absent:
        assert not must, f"{absent} are in the groups `data` and `spark`"
        return False
    sentence = lacking_java() if "pyspark" in block.text else None
    assert not (sentence and "CI" in os.environ), sentence
    return not sentence


def ran(block: Block, directory: Path, environment: Mapping[str, str], *, joined: bool) -> None:
    """Run a block; fails if it ends or prints otherwise than shown.

    `joined`: standard error is shown, too, where it was printed.
    """
    words = [sys.executable, "-c", block.text]
    if block.language == "bash":
        merge = "exec 2>&1\n" if joined else ""
        words = ["bash", "-euo", "pipefail", "-c", f"{merge}{block.text}"]
    done = completed(words, cwd=directory, env=environment)
    assert done.returncode == block.status, f"{block.text}\n{done.stdout}\n{done.stderr}"
    if block.shown:
        lines = (line for line in done.stdout.splitlines() if PROGRESS not in line)
        said = [line.rstrip() for line in lines if line.strip()]
        printed = "".join(f"{line}\n" for line in said)
        assert re.fullmatch(pattern_of(block.shown), printed), f"{block.text}\n{printed}"


def pattern_of(shown: str) -> str:
    """What matches the shown output, blanks at the ends of lines and empty lines apart."""
    lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
    return "".join(
        r"(?:.*\n)*?"
        if line.strip() == "..."
        else ".*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in lines
    )


def environment_of(*first: Path) -> dict[str, str]:
    """Ours, with the installed command on the path behind the directories `first`."""
    path = os.pathsep.join((*map(str, first), str(Path(sys.executable).parent), os.environ["PATH"]))
    return {**os.environ, "PATH": path, "COLUMNS": "80"}
