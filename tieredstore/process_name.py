"""How a process is named that owns a tier or writes a store: host, number, and since when."""

import os
import re
import socket
from datetime import UTC, datetime

from provider.clock import Clock

_NAME = re.compile(r"(?P<host>.+):(?P<pid>[0-9]+)(?: since (?P<since>\S+))?")


def process_name(clock: Clock) -> str:
    """Host, number and time of this process: `host:17 since 2026-11-21T12:00:00Z`."""
    return f"{socket.gethostname()}:{os.getpid()} since {moment_text(clock.now_ms())}"


def moment_text(moment_ms: int) -> str:
    """A moment, Unix ms, as names of processes have it."""
    return f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def process_words(name: str) -> str:
    """The same for people; versions before wrote no time."""
    found = _NAME.fullmatch(name)
    if found is None:
        return name or "an unnamed process"
    since = f" (since {found['since']})" if found["since"] else ""
    return f"process {found['pid']} on {found['host']}{since}"


def is_of_this_host(name: str) -> bool:
    """Whether a process ran under the name that this host has now."""
    found = _NAME.fullmatch(name)
    return found is not None and found["host"] == socket.gethostname()
