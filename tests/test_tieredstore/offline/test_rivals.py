"""Two whole runs of one job at once, as processes: one has done it, and nothing is half done."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from provider.posix.staged_files import STAGING_NAME
from tests.support.cli import COMMAND, run
from tests.support.golden import GoldenTree
from tests.support.patience import HANGS_AFTER_S, Patience, communicated, wait_until
from tests.test_tieredstore.offline.test_export import files_of
from tests.test_tieredstore.offline.test_rebuild import (
    all_of,
    broker_of,
    options_of,
    remove_derived,
    remove_metadata,
)
from tieredstore.cli.streams import OWNED, UNAVAILABLE, WRONG_USE
from tieredstore.offline.export.ledger import LEDGER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(HANGS_AFTER_S)]

METADATA = "--metadata"
BY_NIGHT = pytest.mark.nightly
"""By day, each kind of job meets a rival in one way, and each way is met."""
Refusal = tuple[int, str]
"""Exit status and words."""
REFUSALS: dict[str, Refusal] = {
    "rebuild": (UNAVAILABLE, "another rebuild of this tier is under way"),
    METADATA: (UNAVAILABLE, "another rebuild of this tier is under way"),
    "export": (OWNED, "another process writes this export"),
}
TOO_LATE: dict[str, Refusal] = {
    METADATA: (WRONG_USE, "has a journal, which is not replaced"),
    "export": (OWNED, "has written this export meanwhile"),
}
"""Of one that comes when the other has ended; `rebuild` finds nothing to do, which is well."""
Words = Sequence[str | Path]


@pytest.fixture
def tier(sound: tuple[GoldenTree, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound[1], tmp_path / "tier"))


@contextmanager
def started(words: Words) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def rivals(words: Words, is_under_way: Callable[[], bool] | None) -> tuple[int, int, str]:
    """Two runs: both end statuses, the lower first, and what the refused one said.

    The first stands still as soon as it `is_under_way`, until the second has ended; None: both
    start at once, and whoever is faster is first.
    """
    with ExitStack() as stack:
        one = stack.enter_context(started(words))
        if is_under_way is not None:
            waiting = Patience("no run is under way", pids=[one.pid])
            wait_until(is_under_way, waiting, look_s=0.001)
            os.kill(one.pid, signal.SIGSTOP)
        two = stack.enter_context(started(words))
        said = {two: communicated(two)[1]}
        if is_under_way is not None:
            os.kill(one.pid, signal.SIGCONT)
        said[one] = communicated(one)[1]
        first, second = sorted((one, two), key=lambda process: process.returncode)
        return first.returncode, second.returncode, said[second]


def is_one_run(words: Words, kind: str, is_under_way: Callable[[], bool] | None) -> None:
    first, second, said = rivals(words, is_under_way)
    assert first == 0
    assert "Traceback" not in said
    if is_under_way is not None or second or kind == METADATA:
        expected = [REFUSALS[kind], *([TOO_LATE[kind]] if kind in TOO_LATE else [])]
        allowed = expected[:1] if is_under_way is not None else expected
        assert any(second == status and sentence in said for status, sentence in allowed), said


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "meets"),
    [
        pytest.param("rebuild", True, id="rebuild, one stands still", marks=BY_NIGHT),
        pytest.param("rebuild", False, id="rebuild, both at once"),
        pytest.param(METADATA, True, id="metadata, one stands still"),
        pytest.param(METADATA, False, id="metadata, both at once", marks=BY_NIGHT),
    ],
)
def test_of_two_rebuilds_one_wins_or_both_give_the_same(
    sound: tuple[GoldenTree, Path], tier: Path, kind: str, *, meets: bool
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    before = all_of(broker)
    remove_derived(broker)
    words = [*options_of(tree, tier), "rebuild", "--processes", "1"]
    if kind == METADATA:
        remove_metadata(broker)
        words.append(METADATA)
    staging = broker / STAGING_NAME
    is_one_run(words, kind, staging.is_dir if meets else None)
    after = all_of(broker)
    assert not any("tmp-" in name for name in after)
    if kind != METADATA:
        assert after == before
        return
    units = {name: raw for name, raw in before.items() if "/CONSUME_QUEUE/" in name}
    assert {name: after[name] for name in units} == units
    assert "nothing is wrong" in run(*options_of(tree, tier), "check").out


@pytest.mark.process
@pytest.mark.parametrize(
    "meets",
    [
        pytest.param(True, id="one stands still"),
        pytest.param(False, id="both at once", marks=BY_NIGHT),
    ],
)
def test_of_two_exports_one_wins_or_both_give_the_same(
    sound: tuple[GoldenTree, Path], tmp_path: Path, *, meets: bool
) -> None:
    tree, root = sound
    wanted, made = tmp_path / "wanted", tmp_path / "made"
    words = [*options_of(tree, root), "export", "--processes", "1"]
    run(*words, wanted)
    # The directory of the ledger is there before its lock is held; this file is written under it.
    locked = made / LEDGER / "export.json"
    is_one_run([*words, made], "export", locked.is_file if meets else None)
    assert files_of(made) == files_of(wanted)
