"""No test waits for a process by the clock: a loaded machine is slow, not wrong."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.support.patience import (
    BUSY_SHARE,
    STALL_S_MAX,
    Patience,
    communicated,
    completed,
    cpu_s_of,
    wait_until,
    wanted_cpu_s_of,
)

TESTS = Path(__file__).parents[1]
BY_SECONDS = re.compile(
    r"(?<!log)(?<!feed)(?<!go_on)\.wait\((timeout=)?(\d\d|[A-Z_]+_MAX)"
    r"|\.communicate\(.*timeout=|deadline_s = time"
)
WORK_S = 0.1


@pytest.mark.checkout
def test_no_test_gives_a_process_a_deadline() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {match[0]}"
        for path in TESTS.rglob("*.py")
        if path.name not in {"patience.py", "test_waits.py"} and "bench" not in path.parts
        for match in BY_SECONDS.finditer(path.read_text())
    ]
    assert found == []


class World:
    """Time and CPU time that a test sets."""

    def __init__(self, **marks: Callable[[], object]) -> None:
        self.time_s = 1000.0
        self.used_s = 5.0
        self.patience = Patience(
            lambda: "it says nothing",
            pids=[1],
            now_s=lambda: self.time_s,
            cpu_s=lambda _: self.used_s,
            **marks,
        )

    def pass_time(self, seconds: float, *, used_s: float = 0.0) -> None:
        self.time_s += seconds
        self.used_s += used_s
        self.patience.look()


def test_what_moves_may_take_its_time() -> None:
    steps = count()
    world = World(marks=lambda: next(steps))
    for _ in range(5):
        world.pass_time(2 * STALL_S_MAX)


def test_what_stands_still_fails_with_its_sentence() -> None:
    world = World()
    world.pass_time(STALL_S_MAX - 1)
    with pytest.raises(AssertionError, match=r"it says nothing \(nothing moved for 61 s\)"):
        world.pass_time(2)


def test_a_process_that_works_moves_and_one_that_only_polls_does_not() -> None:
    world = World()
    for _ in range(5):
        world.pass_time(STALL_S_MAX, used_s=2 * BUSY_SHARE * STALL_S_MAX)
    with pytest.raises(AssertionError):
        world.pass_time(STALL_S_MAX, used_s=BUSY_SHARE * STALL_S_MAX / 2)


def test_a_process_that_ends_is_a_move_and_what_it_leaves_behind_is_waited_for_once() -> None:
    world = World()
    world.pass_time(STALL_S_MAX + 1, used_s=-world.used_s)
    with pytest.raises(AssertionError):
        world.pass_time(STALL_S_MAX)


def test_the_work_of_children_is_the_work_of_their_parent() -> None:
    command = ["sh", "-c", f'"{sys.executable}" -c "while True: pass" & echo $!; wait']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        try:
            wait_until(lambda: cpu_s_of(shell.pid) > WORK_S, Patience("no child works"))
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_that_waits_for_a_core_does_not_stand_still() -> None:
    busy = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        both: list[int] = []
        for _ in range(2):
            process = stack.enter_context(subprocess.Popen(busy))
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
            both.append(process.pid)
        waits = Patience("nobody waits for the core", pids=both)
        wait_until(lambda: wanted_cpu_s_of(both[0]) - cpu_s_of(both[0]) > WORK_S, waits)


def test_a_process_that_ends_is_told_as_subprocess_tells_it() -> None:
    done = completed([sys.executable, "-c", "import sys; print(1); sys.exit('two')"])
    assert (done.returncode, done.stdout, done.stderr) == (1, "1\n", "two\n")
    with subprocess.Popen(["echo", "a"], stdout=subprocess.PIPE, text=True) as process:
        assert communicated(process)[0] == "a\n"
