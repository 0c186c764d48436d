"""Names of processes that own a tier or write a store, and whether such a process still runs.

An owner's name is one text, in the fence entry and in each sign of life:
`host:17 since 2026-11-21T12:00:00Z;boot=<boot id>;pidns=<inode>;start=<ticks>;version=...` and
`;beat=30;id=<hex>`.
Programs before decision 0051 wrote it up to the first `;`, and print the whole as it is.
"""

import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from random import Random
from typing import Self

from provider.clock import Clock
from tieredstore.version import VERSION

_NAME = re.compile(
    r"(?P<host>.+):(?P<pid>[0-9]+)(?: since (?P<since>[^\s;]+)(?P<more>(?:;[a-z]+=[^\s;]*)*))?"
)
ID_BYTES = 8
_PROC = Path("/proc")
_THREADS_FIELD = 17
_START_FIELD = 19
"""Of number of threads and start time, counted from the state, in `/proc/<pid>/stat`; see proc(5).
"""


class ProcessLife(Enum):
    """Life of a process, as far as this host can observe it."""

    LIVES = "lives"
    GONE = "gone"
    UNKNOWN = "unknown"
    """It ran on another host, before the last boot, or in another PID namespace."""


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A parsed name. Fields unknown to the older version that wrote it are empty or 0."""

    host: str
    pid: int
    since: str = ""
    boot: str = ""
    """The kernel's boot id."""
    pid_namespace: str = ""
    start: str = ""
    """Start time of the process in clock ticks after the boot."""
    version: str = ""
    beat_s: float = 0.0
    """Longest interval between two signs of life, in seconds."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The parts of a name; None if it is none."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        more = dict(one.split("=", 1) for one in (found["more"] or "").split(";")[1:])
        beat_s = 0.0
        with suppress(ValueError):
            beat_s = float(more.get("beat", "0"))
        return cls(
            found["host"],
            int(found["pid"]),
            found["since"] or "",
            more.get("boot", ""),
            more.get("pidns", ""),
            more.get("start", ""),
            more.get("version", ""),
            beat_s,
        )

    @property
    def is_detailed(self) -> bool:
        """Whether it has enough to find the process on its own host."""
        return bool(self.boot and self.pid_namespace and self.start)

    @property
    def is_here(self) -> bool:
        """Whether it ran where this process runs: same host, boot and PID namespace."""
        here = (socket.gethostname(), boot_id(), _pid_namespace())
        return self.is_detailed and here == (self.host, self.boot, self.pid_namespace)

    @property
    def is_ours(self) -> bool:
        """Whether it is this process."""
        return self.is_here and (self.pid, self.start) == (os.getpid(), _start_of("self"))

    def life(self) -> ProcessLife:
        """Whether the process runs. Reads a few files below `/proc`."""
        if not self.is_here:
            return ProcessLife.UNKNOWN
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return ProcessLife.GONE
        except PermissionError:
            pass  # another user's
        if not _proc_is_ours():
            return ProcessLife.UNKNOWN
        fields = _fields_of(str(self.pid))
        if not fields:  # hidden, or it has just ended
            return ProcessLife.UNKNOWN
        # A parent that never reaps, as the first process of many a container, leaves a zombie for
        # ever. One that still has threads may be waiting for a write to the disk.
        is_zombie = fields[0] == "Z" and fields[_THREADS_FIELD] in {"0", "1"}
        return (
            ProcessLife.LIVES
            if fields[_START_FIELD] == self.start and not is_zombie
            else ProcessLife.GONE
        )


def process_name(clock: Clock) -> str:
    """Host, number and time of this process: `host:17 since 2026-11-21T12:00:00Z`."""
    return f"{socket.gethostname()}:{os.getpid()} since {moment_text(clock.now_ms())}"


def owner_name(clock: Clock, *, beat_s: float, rng: Random | None = None) -> str:
    """The name of this process as an owner that shows a sign of life each `beat_s` s. Blocks.

    `rng`: makes a part that distinguishes the tiers of one process.
    """
    more = {
        "boot": boot_id(),
        "pidns": _pid_namespace(),
        "start": _start_of("self"),
        "version": VERSION,
        "beat": f"{beat_s:g}",
        "id": "" if rng is None else rng.randbytes(ID_BYTES).hex(),
    }
    return process_name(clock) + "".join(f";{key}={value}" for key, value in more.items() if value)


def moment_text(moment_ms: int) -> str:
    """A moment, Unix ms, as names of processes have it; the number itself if it is no time."""
    try:
        moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(moment_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def process_words(name: str) -> str:
    """The same for people; versions before wrote no time."""
    found = ProcessName.parse(name)
    if found is None:
        return name or "an unnamed process"
    since = f" (since {found.since})" if found.since else ""
    return f"process {found.pid} on {found.host}{since}"


def is_of_this_host(name: str) -> bool:
    """Whether a process ran under the name that this host has now."""
    found = ProcessName.parse(name)
    return found is not None and found.host == socket.gethostname()


def boot_id() -> str:
    """Return the kernel's boot id; "" if it is unknown."""
    return _text(_PROC / "sys/kernel/random/boot_id")


def _pid_namespace() -> str:
    with suppress(OSError):
        return str((_PROC / "self/ns/pid").stat().st_ino)
    return ""


def _proc_is_ours() -> bool:
    """Whether `/proc` shows the processes of our own PID namespace."""
    with suppress(OSError):
        return (_PROC / "self").readlink().name == str(os.getpid())
    return False


def _start_of(pid: str) -> str:
    """Return the start time of a process; "" if it cannot be read."""
    fields = _fields_of(pid)
    return fields[_START_FIELD] if fields else ""


def _fields_of(pid: str) -> list[str]:
    """Return the fields of `/proc/<pid>/stat` from the state on; [] if it cannot be read."""
    # The name before it may hold spaces and brackets.
    fields = _text(_PROC / pid / "stat").rpartition(")")[2].split()
    return fields if len(fields) > _START_FIELD else []


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""
