"""Killed at any moment, a restart finds a sound tier and ends with an undisturbed run's files."""

import hashlib
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import COMMAND, run, settings
from tests.support.golden import ROCKETMQ_533, unpacked

KILLS = 20
# The journal of a run depends on when it was killed; what it says is compared by `check`.
FLAT_FILES = ("COMMIT_LOG", "CONSUME_QUEUE")


def digests(tier: Path) -> dict[str, str]:
    files = [path for kind in FLAT_FILES for path in tier.glob(f"*/*/*/*/{kind}/*")]
    return {
        str(path.relative_to(tier)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def small_steps(options: list[str]) -> list[str]:
    """Batches of a few messages, so that there is much to be killed in between."""
    return [
        *options,
        "-D",
        "tieredStoreGroupCommitCount=7",
        "-D",
        "tieredStoreBytesInFlight=4194304",
    ]


def killed_while_committing(command: list[str], tier: Path, after_entries: int) -> None:
    """Start a command, wait until it has written some journal entries, and kill it."""
    journal = list(tier.glob("*/*/@journal"))
    before = sum(1 for directory in journal for _ in directory.iterdir())
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        while process.poll() is None:
            now = sum(1 for d in tier.glob("*/*/@journal") for _ in d.iterdir())
            if now - before >= after_entries:
                break
            os.sched_yield()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("follow", [[], ["--follow"]], ids=["once", "follow"])
def test_twenty_kills_leave_a_sound_tier_and_the_same_files(
    follow: list[str], tmp_path: Path
) -> None:
    tree = unpacked(ROCKETMQ_533)
    run(*settings(tree, tmp_path / "undisturbed"), "tier", tree.store)
    tier = tmp_path / "tier"
    options = small_steps(settings(tree, tier))
    rng = random.Random(7)
    for _ in range(KILLS):
        command = [*COMMAND, *options, "tier", str(tree.store), *follow]
        killed_while_committing(command, tier, rng.randint(1, 12))
        assert run(*options, "check", "--json").rows == []
    run(*options, "tier", tree.store)
    assert run(*options, "check", "--json").rows == []
    assert digests(tier) == digests(tmp_path / "undisturbed")
