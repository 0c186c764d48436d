"""No test waits for a process by the clock: a loaded machine is slow, not wrong."""

import os
import re
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from tests.support.patience import Patience, communicated, completed, cpu_s_of, wait_until

TESTS = Path(__file__).parents[1]
BY_SECONDS = re.compile(
    r"(?<!log)(?<!go_on)\.wait\((timeout=)?(\d\d|[A-Z_]+_MAX)"
    r"|\.communicate\(.*timeout=|deadline_s = time"
)
STALL_S = 0.2
HANGS = [sys.executable, "-c", "import signal; signal.pause()"]
WORKS = [sys.executable, "-c", "while True: pass"]


@pytest.mark.checkout
def test_no_test_gives_a_process_a_deadline() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {match[0]}"
        for path in TESTS.rglob("*.py")
        if path.name not in {"patience.py", "test_waits.py"} and "bench" not in path.parts
        for match in BY_SECONDS.finditer(path.read_text())
    ]
    assert found == []


def test_what_moves_may_take_its_time() -> None:
    steps = count()
    patience = Patience("stalled", marks=lambda: next(steps), stall_s_max=0.0)
    wait_until(lambda: next(steps) > 100, patience, 0.0)


def test_what_stands_still_fails_with_its_sentence() -> None:
    with pytest.raises(AssertionError, match=r"it says nothing \(nothing moved for 0 s\)"):
        wait_until(lambda: False, Patience("it says nothing", stall_s_max=STALL_S), 0.01)


def test_a_process_that_works_moves_and_one_that_hangs_does_not() -> None:
    with subprocess.Popen(WORKS) as busy, subprocess.Popen(HANGS) as idle:
        try:
            working = Patience("stalled", pids=[busy.pid], stall_s_max=STALL_S)
            began_s = time.monotonic()
            wait_until(lambda: time.monotonic() - began_s > 3 * STALL_S, working, 0.01)
            hanging = Patience("stalled", pids=[idle.pid], stall_s_max=STALL_S)
            with pytest.raises(AssertionError, match="stalled"):
                wait_until(lambda: False, hanging, 0.01)
        finally:
            busy.kill()
            idle.kill()


def test_the_work_of_children_is_the_work_of_their_parent() -> None:
    command = ["sh", "-c", f'"{sys.executable}" -c "while True: pass" & echo $!; wait']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        try:
            wait_until(lambda: cpu_s_of(shell.pid) > STALL_S, Patience("no child works"))
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_that_ends_is_told_as_subprocess_tells_it() -> None:
    done = completed([sys.executable, "-c", "import sys; print(1); sys.exit('two')"])
    assert (done.returncode, done.stdout, done.stderr) == (1, "1\n", "two\n")
    with subprocess.Popen(["echo", "a"], stdout=subprocess.PIPE, text=True) as process:
        assert communicated(process)[0] == "a\n"
