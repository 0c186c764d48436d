"""Waiting for real processes: as long as they get on, however slow the machine is.

A deadline in seconds says how fast a machine must be, and a loaded one is not. What is waited for
here may take as long as it likes while something moves, and fails soon after nothing does.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, AnyStr

STALL_S_MAX = 60.0
"""How long nothing may move."""
HANGS_AFTER_S = 1800.0
"""For `pytest.mark.timeout` of tests that wait for processes: when a stall was not noticed."""
BUSY_SHARE = 0.05
"""Of a core. A follower that only polls uses less than 0.02."""
LOOK_S = 0.05
COMMUNICATE_S = 1.0
_TICKS_S = os.sysconf("SC_CLK_TCK")

Sentence = str | Callable[[], str]


def cpu_s_of(pid: int) -> float:
    """CPU time that a process and all its children have used; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
        children = [int(child) for task in tasks for child in task.read_text().split()]
    except OSError:
        return 0.0
    used = sum(map(int, text.rpartition(")")[2].split()[11:15])) / _TICKS_S
    return used + sum(map(cpu_s_of, children))


def wanted_cpu_s_of(pid: int) -> float:
    """CPU time of a process and all its children, and how long their threads waited for a core.

    What is starved by a loaded machine has work to do: it does not stand still.
    """
    waited_ns = 0
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):  # it has ended
            waited_ns += int((task / "schedstat").read_text().split()[1])
            children += map(int, (task / "children").read_text().split())
    own = cpu_s_of(pid) - sum(map(cpu_s_of, children))
    return own + waited_ns / 1e9 + sum(map(wanted_cpu_s_of, children))


class Patience:
    """One wait: `look` now and then; it fails if nothing moved for `STALL_S_MAX` seconds.

    Something moved if `marks()` is another value than before, or if the processes `pids` used or
    waited for more than `BUSY_SHARE` of a core since the last move, or if one of them or of their
    children ended: its CPU time is no longer counted then, and its children get as long again.
    """

    def __init__(
        self,
        otherwise: Sentence,
        *,
        marks: Callable[[], object] = lambda: None,
        pids: Iterable[int] = (),
        now_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[int], float] = wanted_cpu_s_of,
    ) -> None:
        """`otherwise` is what a failure says; `now_s` and `cpu_s` tell time and CPU time."""
        self._otherwise = otherwise
        self._marks = marks
        self._pids = tuple(pids)
        self._now_s = now_s
        self._cpu_s_of = cpu_s
        self._move()

    def look(self) -> None:
        """Fail if nothing has moved for too long."""
        if self._marks() != self._seen:
            self._move()
            return
        still_s = self._now_s() - self._moved_s
        if still_s < STALL_S_MAX:
            return
        used_s = self._cpu_s() - self._used_s
        if used_s < 0 or used_s > BUSY_SHARE * still_s:
            self._move()
            return
        text = self._otherwise if isinstance(self._otherwise, str) else self._otherwise()
        raise AssertionError(f"{text} (nothing moved for {still_s:.0f} s)")

    def _move(self) -> None:
        self._moved_s = self._now_s()
        self._seen = self._marks()
        self._used_s = self._cpu_s()

    def _cpu_s(self) -> float:
        return sum(map(self._cpu_s_of, self._pids))


async def until(reached: Callable[[], bool], patience: Patience) -> None:
    """Wait until something is so."""
    while not reached():
        patience.look()
        await asyncio.sleep(LOOK_S)


def wait_until(reached: Callable[[], bool], patience: Patience, look_s: float = LOOK_S) -> None:
    """The same without an event loop."""
    while not reached():
        patience.look()
        time.sleep(look_s)


def communicated(
    process: "subprocess.Popen[AnyStr]",
    otherwise: Sentence = "",
    servers: Iterable[int] = (),
    marks: Callable[[], object] = lambda: None,
) -> "tuple[AnyStr, AnyStr]":
    """`process.communicate()`: what a process printed until it ended; `servers` work for it.

    `marks`: its value changes while the process gets on, though it uses no CPU time.
    """
    words = otherwise or f"{process.args!r} does not end"
    patience = Patience(words, marks=marks, pids=[process.pid, *servers])
    while True:
        try:
            return process.communicate(timeout=COMMUNICATE_S)
        except subprocess.TimeoutExpired:
            patience.look()


def ended(process: "subprocess.Popen[AnyStr]", otherwise: Sentence = "") -> int:
    """`process.wait()`: the exit status, once the process has ended."""
    words = otherwise or f"{process.args!r} does not end"
    patience = Patience(words, pids=[process.pid])
    while True:
        try:
            return process.wait(COMMUNICATE_S)
        except subprocess.TimeoutExpired:
            patience.look()


def completed(
    command: Sequence[str | Path],
    *,
    servers: Iterable[int] = (),
    marks: Callable[[], object] = lambda: None,
    **more: Any,
) -> "subprocess.CompletedProcess[str]":
    """`subprocess.run(command, capture_output=True, text=True)`, whatever the exit status.

    `servers`: processes that the command may wait for as long as they work.
    `marks`: its value changes while the command gets on, though it uses no CPU time.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    ) as process:
        try:
            out, err = communicated(process, servers=servers, marks=marks)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


class Background:
    """A process that a test starts, kills and starts again."""

    process: "subprocess.Popen[bytes] | None" = None

    def kill(self) -> None:
        """Ends it as a power failure would, but for the page cache."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
