"""The README's code blocks, run as a reader would run them: in order, in one directory."""

import os
import pty
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

import tieredstore
from tests.support.cli import COMMAND, run, settings
from tests.support.golden import ROCKETMQ_533, unpack, unpacked
from tests.support.patience import HANGS_AFTER_S
from tests.support.shown_blocks import blocks_of, environment_of, ran
from tieredstore.offline.spark.requirements import lacking_java

DATA_TOOLS = ("duckdb", "polars", "pandas", "pyspark", "pyiceberg")
"""Large, so blocks that need one are passed over where it is missing, except in CI."""
SHOWN_BUCKET = "my-bucket"
"""Blocks with it need a server that speaks S3."""
README = Path(__file__).parents[2] / "README.md"


@pytest.mark.s3
@pytest.mark.timeout(HANGS_AFTER_S)
def test_the_readmes_blocks_run_in_order_and_print_what_they_show(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sample = ROCKETMQ_533
    unpack(sample, "closed", tmp_path)
    (tmp_path / "tier").rename(tmp_path / "java-tier")
    (tmp_path / "broker.conf").write_text(sample.broker_conf.read_text())
    blocks = blocks_of(README.read_text())
    assert len(blocks) >= 8
    assert sum(bool(block.shown) for block in blocks) >= 6
    environment = {**environment_of(), "SPARK_LOCAL_IP": "127.0.0.1"}
    for block in blocks:
        if SHOWN_BUCKET in block.text:
            server = request.getfixturevalue("seaweed")
            server.make_bucket(SHOWN_BUCKET)
            environment |= server.environment
        absent = [name for name in DATA_TOOLS if name in block.text and find_spec(name) is None]
        if absent:
            # The wheel is tried without them, so that its environments stay small.
            is_checkout = (README.parent / "tieredstore").is_dir()
            missing = is_checkout and "CI" in os.environ
            assert not missing, f"{absent} are in the groups `data` and `spark`"
            continue
        if "pyspark" in block.text and (sentence := lacking_java()):
            assert "CI" not in os.environ, sentence
            continue
        ran(block, tmp_path, environment, joined=False)


@pytest.mark.slow
def test_the_table_of_messages_is_what_a_terminal_of_80_columns_shows(tmp_path: Path) -> None:
    text = README.read_text()
    (words,) = re.findall(r"^`tieredstore (read .*)`, 80 columns wide:$", text, re.MULTILINE)
    (shown,) = re.findall(r"^```text\n(offset  stored.*?)^```$", text, re.MULTILINE | re.DOTALL)
    tree = unpacked(ROCKETMQ_533)
    given = settings(tree, tmp_path / "tier")
    run(*given, "tier", tree.store)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    command = [*COMMAND, *given, *words.split()]
    subprocess.run(command, stdout=theirs, env=environment, check=True)
    os.close(theirs)
    printed = os.read(ours, 65536).decode().replace("\r\n", "\n")
    os.close(ours)
    assert printed == shown


def test_the_tree_of_folders_is_the_one_that_is_there() -> None:
    """Every folder that the README names exists, and every package and room is named."""
    block = README.read_text().split("## The source")[1].split("```")[1]
    named: set[str] = set()
    parent = ""
    for line in block.splitlines():
        if not line.strip():
            continue
        name = line.split()[0]
        parent = name if not line.startswith(" ") else parent
        named.add(name if name == parent else f"{parent}{name}")
    root = Path(str(tieredstore.__file__)).parents[1]
    rooms = {
        f"{path.parent.relative_to(root)}/"
        for package in ("tieredstore", "dispatcher", "fetcher", "container", "provider")
        for path in (root / package).glob("**/__init__.py")
        if len(path.relative_to(root).parts) <= 3
    }
    assert rooms <= named
    absent = [
        name for name in named if not any((top / name).is_dir() for top in (root, README.parent))
    ]
    assert absent == []
