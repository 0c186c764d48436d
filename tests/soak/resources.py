"""Memory and descriptors of a process, from /proc, and whether they stay what they were."""

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median

MIB = 1 << 20
WARM_UP_PHASES = 3


@dataclass(frozen=True, slots=True)
class Usage:
    """One look at a process."""

    rss_bytes: int
    anonymous_bytes: int
    """Without mapped files, whose pages the kernel takes back when it likes."""
    descriptors: int
    threads: int


def usage_of(pid: int) -> Usage | None:
    """What a process has now; None if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = dict(line.split(":", 1) for line in lines)
    if "VmRSS" not in fields:  # a zombie
        return None
    sizes = {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon")}
    return Usage(sizes["VmRSS"], sizes["RssAnon"], descriptors, int(fields["Threads"]))


@dataclass(frozen=True, slots=True)
class Slack:
    """How much more than in the warm-up is no growth."""

    memory_bytes: int
    memory_share: float
    descriptors: int

    def findings(self, what: str, phases: list[list[Usage]]) -> list[str]:
        """One sentence for each phase that needed more than the warm-up did. Pure.

        The first `WARM_UP_PHASES` are the warm-up. A phase counts by its peaks.
        """
        curve = [peak_of(looks) for looks in phases]
        warm = peak_of(curve[:WARM_UP_PHASES])
        limit = warm.rss_bytes * (1 + self.memory_share) + self.memory_bytes
        found: list[str] = []
        for number, now in enumerate(curve[WARM_UP_PHASES:], start=WARM_UP_PHASES + 1):
            if now.rss_bytes > limit:
                found.append(
                    f"{what}: {now.rss_bytes / MIB:.0f} MiB in phase {number}, at most "
                    f"{warm.rss_bytes / MIB:.0f} MiB before; {limit / MIB:.0f} are allowed"
                )
            if now.descriptors > warm.descriptors + self.descriptors:
                found.append(
                    f"{what}: {now.descriptors} descriptors in phase {number}, at most "
                    f"{warm.descriptors} before; {self.descriptors} more are allowed"
                )
        return found


def peak_of(looks: list[Usage]) -> Usage:
    """The most of everything."""
    return Usage(
        max(look.rss_bytes for look in looks),
        max(look.anonymous_bytes for look in looks),
        max(look.descriptors for look in looks),
        max(look.threads for look in looks),
    )


def settled(looks: list[Usage]) -> Usage:
    """The median of a phase's second half."""
    half = looks[len(looks) // 2 :]
    return Usage(
        int(median(look.rss_bytes for look in half)),
        int(median(look.anonymous_bytes for look in half)),
        int(median(look.descriptors for look in half)),
        int(median(look.threads for look in half)),
    )
