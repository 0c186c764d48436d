"""`export --follow` exports what is new, run after run, each message once, and ends whole."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from provider.errors import Unavailable
from tests.support.cli import COMMAND, Done, run
from tests.support.fake_broker import FIRST_STORE_TIMESTAMP, FakeBroker
from tests.test_tieredstore.cli.test_brokers_option import MESSAGES, tier_of_three
from tests.test_tieredstore.offline.test_export import Growing, planned, table_of
from tieredstore.cli.commands import export as command
from tieredstore.cli.signals import ECHO_S, EndRequest
from tieredstore.offline.export.export_directory import LEDGER
from tieredstore.offline.jobs.engine import OneProcess


class Waiting:
    """Has the test's own work done between two runs, in place of time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def follow(
        self, *words: str | Path, between: Sequence[Callable[[], object]], status: int = 0
    ) -> Done:
        left = list(between)

        def wait(_: object, seconds: float) -> bool:
            assert seconds == 60
            if not left:
                return True
            left.pop(0)()
            return False

        with self._patch.context() as patched:
            patched.setattr(EndRequest, "wait", wait)
            return run(*words, "--follow", "--processes", "1", status=status)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(monkeypatch)


def bodies(directory: Path) -> list[bytes]:
    return sorted(table_of(directory)["body"].to_pylist(), key=int)


def test_each_run_adds_what_is_new_and_a_restart_continues(
    tmp_path: Path, waiting: Waiting
) -> None:
    growing, out = Growing(tmp_path), tmp_path / "out"
    growing.grow(4)
    words = ("--tier", growing.tier, "export", out)
    runs = [lambda: growing.grow(3), lambda: None, lambda: growing.grow(2)]
    first = waiting.follow(*words, between=runs)
    assert bodies(out) == growing.bodies
    assert first.out.count(" T ") == 3, "a run without news prints nothing"
    growing.grow(5)
    waiting.follow(*words, between=[lambda: growing.grow(1)])
    assert bodies(out) == growing.bodies
    assert run(*words).out == "there is nothing new to export\n"


def test_a_second_follower_of_a_directory_is_refused(tmp_path: Path, waiting: Waiting) -> None:
    growing, out = Growing(tmp_path), tmp_path / "out"
    growing.grow(4)
    words = ("--tier", growing.tier, "export", out)

    def rival() -> None:
        growing.grow(2)
        for more in (["--follow"], []):
            refused = run(*words, "--processes", "1", *more, status=4)
            assert "another process writes this export: wait until it has ended" in refused.err

    waiting.follow(*words, between=[rival, lambda: growing.grow(1)])
    assert bodies(out) == growing.bodies


def test_the_writer_of_a_stolen_ledger_ends(tmp_path: Path, waiting: Waiting) -> None:
    """As on a file system without locks that all hosts see."""
    growing, out = Growing(tmp_path), tmp_path / "out"
    growing.grow(4)

    def steal() -> None:
        growing.grow(2)
        (out / LEDGER / "lock").unlink()
        planned(growing.tier, out).run(OneProcess())
        growing.grow(2)

    words = ("--tier", growing.tier, "export", out)
    ended = waiting.follow(*words, between=[steal, lambda: None], status=4)
    assert "another process has exported meanwhile: let only one follow" in ended.err
    assert bodies(out) == growing.bodies[:6]


def test_all_brokers_are_followed_and_a_new_one_joins(tmp_path: Path, waiting: Waiting) -> None:
    tier, out = tier_of_three(tmp_path), tmp_path / "out"

    def grow() -> None:
        broker = FakeBroker(tmp_path / "north", now_ms=FIRST_STORE_TIMESTAMP)
        broker.put("Orders", 0, b"of a fourth")
        run("--tier", tier, "-D", "brokerClusterName=C", "-D", "brokerName=north-1", "tier",
            broker.directory)  # fmt: skip

    words = ("--tier", tier, "export", out, "--broker", "*", "--topic", "Orders")
    done = waiting.follow(*words, between=[lambda: None, grow])
    assert done.out.count(" of cluster C\n") == len(MESSAGES) + 1
    assert table_of(out).num_rows == sum(MESSAGES.values()) + 1


def test_a_storage_that_does_not_answer_is_tried_again() -> None:
    rounds: list[bool | Exception] = [Unavailable("no answer", "x"), True, Unavailable("no", "y")]
    waited: list[float] = []

    def once() -> bool:
        found = rounds.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return not rounds

    with pytest.raises(Unavailable, match="no"):
        command._follow(once, wait, 60)  # pyright: ignore[reportPrivateUsage]
    assert waited == [60] * 3
    rounds += [Unavailable("no", "y"), False, True]
    assert command._follow(once, wait, 60) == 1  # pyright: ignore[reportPrivateUsage]
    rounds += [True]
    assert command._follow(once, wait, 60) == 0  # pyright: ignore[reportPrivateUsage]


def test_what_is_gone_is_reported_once(tmp_path: Path, waiting: Waiting) -> None:
    growing, out = Growing(tmp_path), tmp_path / "out"
    growing.grow(4)
    (part,) = growing.tier.glob("*/b/T/0/COMMIT_LOG/*")
    part.rename(tmp_path / "away")
    ended = waiting.follow(
        "--tier", growing.tier, "export", out, between=[lambda: None] * 3, status=1
    )
    assert ended.err.count("not exported yet: ") == 1
    (tmp_path / "away").rename(part)
    waiting.follow("--tier", growing.tier, "export", out, between=[])
    assert bodies(out) == growing.bodies


def test_a_dry_run_follows_nothing(tmp_path: Path) -> None:
    refused = run("export", tmp_path / "out", "--follow", "--dry-run", status=2)
    assert "--follow writes: give it without --dry-run" in refused.err


def test_the_first_signal_is_a_request_and_an_echo_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    ended: list[int] = []
    monkeypatch.setattr("tieredstore.cli.signals._end_now", ended.append)
    now_s = [10.0]
    with EndRequest() as end:
        monkeypatch.setattr(end, "_now_s", lambda: now_s[0])
        assert not end.wait(0)
        signal.raise_signal(signal.SIGTERM)
        assert end.wait(9), "at once"
        now_s[0] += ECHO_S / 2
        signal.raise_signal(signal.SIGINT)
        assert not ended
        now_s[0] += ECHO_S
        signal.raise_signal(signal.SIGTERM)
        assert ended == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_sigterm_ends_a_waiting_process_with_status_0(tmp_path: Path) -> None:
    growing, out = Growing(tmp_path), tmp_path / "out"
    growing.grow(4)
    words = [*COMMAND, "--tier", str(growing.tier), "export", str(out), "--follow", "--processes",
             "1", "--interval", "1"]  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for count in (4, 3):
            assert any(f" {count} " in line for line in process.stdout if " T " in line)
            growing.grow(3)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    run("--tier", growing.tier, "export", out, "--processes", "1")
    assert bodies(out) == growing.bodies


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.cli import run
from tieredstore.cli import jobs
from tieredstore.cli.signals import EndRequest
from tieredstore.offline.export import export_directory, iceberg_job, iceberg_table, lease
from tieredstore.offline.jobs.engine import OneProcess

left = int(sys.argv[1])
lease.BEAT_S = 0.05  # of the one that was killed before

def counted(kind, name):
    work = getattr(kind, name)
    def call(*given, **more):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        result = work(*given, **more)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(kind, name, call)

class Engine(OneProcess):
    def __init__(self, *_): ...
    def __enter__(self): return self
    def __exit__(self, *_): ...

jobs.LocalEngine = Engine
counted(export_directory._HiddenFile, "complete")
counted(iceberg_job, "write_file")
counted(iceberg_table.ExportTable, "commit")
counted(iceberg_table.ExportTable, "create")
waits = [False, False]
EndRequest.wait = lambda *_: not waits or waits.pop()
run(*sys.argv[2:])
"""


def killed_at(step: int, *words: str | Path) -> bool:
    """Follow for three runs in a process that kills itself at a step; whether it did."""
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(step), *map(str, words)],
        env={**os.environ, "PYTHONPATH": root}, cwd=root, check=False, capture_output=True,
    )  # fmt: skip
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr.decode()
    return done.returncode != 0


@pytest.mark.data
@pytest.mark.nightly
def test_killed_at_every_step_a_follower_goes_on(tmp_path: Path) -> None:
    growing, out = Growing(tmp_path), tmp_path / "out"
    steps = 1
    growing.grow(4)
    while killed_at(steps, "--tier", growing.tier, "export", out, "--follow"):
        found = bodies(out) if any(out.rglob("*.parquet")) else []
        assert len(set(found)) == len(found), f"twice after a kill at step {steps}"
        steps += 1
        growing.grow(3)
    assert steps > 10
    assert bodies(out) == growing.bodies
