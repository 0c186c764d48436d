"""Runs the command line: in this process, or as a user does in one of its own."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from click.testing import CliRunner, Result

from tests.support.golden import GoldenTree
from tests.support.patience import completed
from tieredstore.cli import signals
from tieredstore.cli.main import cli

T = TypeVar("T")
COMMAND = [sys.executable, "-m", "tieredstore"]


def complaints(err: str) -> str:
    """What was said on standard error, without the lines that tell how things go."""
    return "".join(line for line in err.splitlines(keepends=True) if "Z INFO    " not in line)


def invoke(tier: Path | str, *words: str | Path, status: int = 0) -> Result:
    """A command on a tier, in this process; fails if it ends with another status."""
    result = CliRunner().invoke(cli, ["-D", f"tieredStoreFilePath={tier}", *map(str, words)])
    assert result.exit_code == status, result.output
    return result


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def complaints(self) -> str:
        """What was said on standard error, without the lines that tell how things go."""
        return complaints(self.err)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What `--json` printed."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments: str | Path, status: int | None = 0) -> Done:
    """Run `tieredstore ARGUMENTS` in this process, which saves the half second of a start.

    Fails the test unless the command ends with `status` (None: any).
    """
    words = list(map(str, arguments))
    ended = in_place_of_a_loop(lambda: CliRunner().invoke(cli, words))
    result = Done(ended.exit_code, ended.stdout, ended.stderr)
    assert status is None or result.status == status, result
    return result


def in_place_of_a_loop(call: Callable[[], T]) -> T:
    """Call it here, or in a thread where an event loop runs: a command has one of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    # Signals belong to the first thread.
    with patch.object(signals, "ENDING", ()), ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def run_process(*arguments: str | Path, status: int | None = 0) -> Done:
    """Run `tieredstore ARGUMENTS` in a process of its own, for what a process alone shows."""
    done = completed([*COMMAND, *map(str, arguments)], stdin=subprocess.DEVNULL)
    result = Done(done.returncode, done.stdout, done.stderr)
    assert status is None or result.status == status, result
    return result


def settings(tree: GoldenTree, tier: Path | str) -> list[str]:
    """The options that name a golden broker's sizes, and `tier` as the tier's place."""
    golden = tree.golden
    values = {
        "brokerClusterName": golden.cluster,
        "brokerName": golden.broker,
        "tieredStoreFilePath": str(tier),
        "tieredStoreCommitLogMaxSize": golden.commit_log_segment_bytes,
        "tieredStoreConsumeQueueMaxSize": golden.consume_queue_segment_bytes,
    }
    return [part for key, value in values.items() for part in ("-D", f"{key}={value}")]
