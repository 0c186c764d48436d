"""CPU time and memory of this process and all below it, from `/proc`: workers and Java machines."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

TICKS_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
JAVA = "java"
# Of the fields behind the name in `/proc/PID/stat`.
PARENT_AT, TIMES_AT, TIMES_END = 1, 11, 15


class Life(NamedTuple):
    """What a process is and has used."""

    pid: int
    name: str
    parent: int
    ticks: int
    """User and system time, that of its children that ended included."""


class Used:
    """What a block used; zeros until it is left."""

    cpu_s: float = 0.0
    """User and system time of this process and all below it."""
    worker_bytes: int = 0
    """Resident memory at its highest of the Python process below this one that held the most."""
    own_bytes: int = 0
    """The same of this process."""
    java_bytes: int = 0
    """The same of a Java machine that did something meanwhile."""


@contextmanager
def watched() -> Iterator[Used]:
    """Tell what was used meanwhile. Processes that do nothing meanwhile are not looked at."""
    before = family()
    for life in before.values():
        with suppress(OSError):  # it ended
            # Peaks begin at what is resident now.
            (PROC / str(life.pid) / "clear_refs").write_text("5")
    used = Used()
    yield used
    after = family()
    ticks = sum(life.ticks for life in after.values())
    used.cpu_s = (ticks - sum(life.ticks for life in before.values())) / TICKS_S
    used.own_bytes = peak_bytes(os.getpid())
    for life in after.values():
        if life.pid == os.getpid() or before.get(life.pid) == life:
            continue
        peak = peak_bytes(life.pid)
        if life.name == JAVA:
            used.java_bytes = max(used.java_bytes, peak)
        else:
            used.worker_bytes = max(used.worker_bytes, peak)


def family() -> dict[int, Life]:
    """This process and all that are below it."""
    all_of = {life.pid: life for life in _lives()}
    mine = {os.getpid()}
    grown = True
    while grown:
        more = {life.pid for life in all_of.values() if life.parent in mine} - mine
        mine |= more
        grown = bool(more)
    return {pid: all_of[pid] for pid in mine}


def peak_bytes(pid: int) -> int:
    """`VmHWM` of a process; 0 if it has ended."""
    with suppress(OSError):
        text = (PROC / str(pid) / "status").read_text()
        if found := re.search(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE):
            return int(found[1]) << 10
    return 0


def _lives() -> Iterator[Life]:
    for place in PROC.glob("[0-9]*"):
        with suppress(OSError):  # it ended
            head, _, tail = (place / "stat").read_text().rpartition(") ")
            fields = tail.split()
            ticks = sum(map(int, fields[TIMES_AT:TIMES_END]))
            yield Life(int(place.name), head.partition("(")[2], int(fields[PARENT_AT]), ticks)
