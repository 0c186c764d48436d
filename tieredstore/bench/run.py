"""All rounds of one run, interleaved, and what they come to."""

import os
import platform
import shutil
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tieredstore.bench.java_store import java_figures
from tieredstore.bench.measure import READ_SHAPES, Figure
from tieredstore.bench.raw_limits import raw_read_bytes_s, raw_write_bytes_s
from tieredstore.bench.round_process import run_round
from tieredstore.bench.synthetic_store import SyntheticStore, write_synthetic_store

RAW_WRITE, RAW_READ, TIER = "raw_write", "raw_read", "tier"
METRICS = {
    RAW_WRITE: "raw write, synced",
    TIER: "tiering",
    RAW_READ: "raw read, cached",
    "read_32_by_1": "read, 32 a call",
    "read_1024_by_1": "read, 1,024 a call",
    "read_32_by_4": "read, 32, 4 readers",
    "read_32_decoded": "read and decode, 32",
}
"""Every metric in the order of the table, with its words. Raw limits move 4 MiB at a time."""
RAW_OF = {TIER: RAW_WRITE, **{shape.metric: RAW_READ for shape in READ_SHAPES}}
JAVA_OF = {"read_1024_by_1": "read_32_by_1", "read_32_decoded": "read_32_by_1"}
"""Figures of the Java store that ours are compared with where it has none of that name: it reads
32 messages a call at most, and its decoding costs next to nothing."""
LIBRARIES = ("numpy", "pyarrow", "crc32c")
RAW_BYTES_MAX = 1 << 30


class Spread(NamedTuple):
    """The median of the rounds, and the least and the most."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """What one metric came to over all rounds."""

    metric: str
    messages_s: Spread | None
    """None for raw limits, which know no messages."""
    bytes_s: Spread
    to_raw: float | None
    """Medians of bytes a second against the raw limit of the same direction."""
    to_java: float | None
    java_messages_s: Spread | None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One run."""

    made: SyntheticStore
    rounds: int
    lines: tuple[Line, ...]
    peak_bytes_tiering: int
    """Highest over the rounds."""
    java: str
    """Which figures of the Java store are there, or why there are none: one sentence."""


def run_bench(
    directory: Path,
    made: SyntheticStore,
    *,
    rounds: int,
    java_lib: Path | None,
    on_step: Callable[[str], None],
) -> BenchResult:
    """Make a store in the empty `directory` and measure it `rounds` times.

    Each round measures the raw limits, ours, and the Java store's where `java_lib` has it.
    Needs some four times the store's bytes of disk. Leaves files in `directory`.

    Raises:
        RuntimeError: a measured process failed.
    """
    ours: dict[str, list[Figure]] = defaultdict(list)
    javas: dict[str, list[Figure]] = defaultdict(list)
    peak_bytes = 0
    on_step("making a store")
    size = write_synthetic_store(directory / "store", made)
    raw_bytes = min(size, RAW_BYTES_MAX)
    for number in range(1, rounds + 1):
        on_step(f"round {number} of {rounds}: raw limits")
        raw_write = raw_write_bytes_s(directory, raw_bytes)
        ours[RAW_WRITE].append(Figure(RAW_WRITE, 0, raw_write))
        ours[RAW_READ].append(Figure(RAW_READ, 0, raw_read_bytes_s(directory)))
        on_step(f"round {number} of {rounds}: tiering and reading")
        found = run_round(directory / "store", directory / "tier", made)
        shutil.rmtree(directory / "tier")
        peak_bytes = max(peak_bytes, found.peak_bytes_tiering)
        for figure in found.figures:
            ours[figure.metric].append(figure)
        if java_lib is not None:
            on_step(f"round {number} of {rounds}: the Java store")
            for _, figure in java_figures(java_lib, directory / "java", made, rounds=1):
                javas[figure.metric].append(figure)
    lines = tuple(_line(metric, ours, javas) for metric in METRICS)
    java = "The Java store was measured in the same rounds."
    if java_lib is None:
        java = "The Java store was not measured: --java-lib names its jars, and a JVM is needed."
    return BenchResult(made, rounds, lines, peak_bytes, java)


def _line(metric: str, ours: dict[str, list[Figure]], javas: dict[str, list[Figure]]) -> Line:
    mine = ours[metric]
    bytes_s = _spread([figure.bytes_s for figure in mine])
    messages_s = _spread([figure.messages_s for figure in mine])
    java = javas.get(JAVA_OF.get(metric, metric))
    java_messages_s = _spread([figure.messages_s for figure in java]) if java else None
    raw = ours[RAW_OF[metric]] if metric in RAW_OF else None
    return Line(
        metric,
        messages_s if metric in RAW_OF else None,
        bytes_s,
        bytes_s.median / _spread([one.bytes_s for one in raw]).median if raw else None,
        messages_s.median / java_messages_s.median if java_messages_s else None,
        java_messages_s,
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def machine_facts() -> dict[str, object]:
    """What the figures depend on; no names and no paths."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release().split("-")[0],
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("tieredstore", *LIBRARIES)},
    }


def as_rows(result: BenchResult) -> list[dict[str, object]]:
    """One object a metric, then one about the run: what `--json` prints and results are kept as."""
    rows: list[dict[str, object]] = []
    for line in result.lines:
        row: dict[str, object] = {"metric": line.metric}
        for name in ("messages_s", "bytes_s", "java_messages_s"):
            spread: Spread | None = getattr(line, name)
            row[name] = None if spread is None else spread._asdict()
        rows.append({**row, "to_raw": line.to_raw, "to_java": line.to_java})
    run: dict[str, object] = {
        "metric": "run",
        "peak_bytes_tiering": result.peak_bytes_tiering,
        "rounds": result.rounds,
        "store": asdict(result.made),
        "java": result.java,
        "machine": machine_facts(),
    }
    return [*rows, run]
