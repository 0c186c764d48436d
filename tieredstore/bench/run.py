"""Runs of the benchmark: all rounds, and their results."""

import os
import platform
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tieredstore.bench.measure import READ_SHAPES, TIER, Figure, Worker, settle, stopwatch
from tieredstore.bench.synthetic_store import SyntheticStore, write_synthetic_store

RAW_WRITE, RAW_READ = "raw_write", "raw_read"
PIECE_BYTES = 4 << 20


def raw_limits(directory: Path, total_bytes: int) -> Iterator[Figure]:
    """Write a fresh file of about `total_bytes`, read it back, remove it.

    Written in pieces of 4 MiB, each followed by fdatasync; read in pieces of 4 MiB into one
    buffer, mostly from the page cache, as our own reads in the same run are.
    """
    path = directory / "raw-limit"
    count = max(1, total_bytes // PIECE_BYTES)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    try:
        yield _raw_write(descriptor, count)
        yield _raw_read(descriptor, count)
    finally:
        os.close(descriptor)
        path.unlink()


def _raw_write(descriptor: int, count: int) -> Figure:
    piece = os.urandom(PIECE_BYTES)
    settle(count * PIECE_BYTES)
    with stopwatch() as elapsed:
        for number in range(count):
            os.pwrite(descriptor, piece, number * PIECE_BYTES)
            os.fdatasync(descriptor)
    return Figure(RAW_WRITE, 0, count * PIECE_BYTES, elapsed.seconds, elapsed.cpu_seconds)


def _raw_read(descriptor: int, count: int) -> Figure:
    buffer = bytearray(PIECE_BYTES)
    with stopwatch() as elapsed:
        for number in range(count):
            os.preadv(descriptor, [buffer], number * PIECE_BYTES)
    return Figure(RAW_READ, 0, count * PIECE_BYTES, elapsed.seconds, elapsed.cpu_seconds)


_WORDS = {
    RAW_WRITE: "raw write, synced",
    TIER: "tiering",
    RAW_READ: "raw read, cached",
    "read_32_by_1": "read, 32 a call",
    "read_32_unverified": "read, 32, headers only",
    "read_1024_by_1": "read, 1,024 a call",
    "read_32_by_4": "read, 32, 4 readers",
    "read_32_decoded": "read and decode, 32",
    "read_32_properties": "and all properties",
    "read_4096_arrow": "read into Arrow, 4,096",
}
RAW_OF = {TIER: RAW_WRITE, **{shape.metric: RAW_READ for shape in READ_SHAPES}}
METRICS = {
    metric: words for metric, words in _WORDS.items() if metric in {*RAW_OF, *RAW_OF.values()}
}
"""Every metric in the order of the table, with its words. Raw limits move 4 MiB at a time."""
LIBRARIES = ("numpy", "google-crc32c")
RAW_BYTES_MAX = 512 << 20


class Spread(NamedTuple):
    """The median of the rounds, and the least and the most."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MetricSpread:
    """Spread of a metric over all timed rounds."""

    metric: str
    messages_s: Spread | None
    """None for raw limits, which know no messages."""
    bytes_s: Spread
    cpu_us: Spread | None
    """Microseconds of CPU a message, all threads of the process; None for raw limits."""
    cpu_s: Spread
    """Seconds of CPU in a round, all threads of the process."""
    to_raw: float | None
    """Medians of bytes a second against the raw limit of the same direction."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Result of a run."""

    made: SyntheticStore
    warm_up_rounds: int
    rounds: int
    lines: tuple[MetricSpread, ...]
    peak_bytes_tiering: int
    """Resident memory of the whole process at its highest, before anything was read."""


def run_bench(
    directory: Path,
    made: SyntheticStore,
    *,
    warm_up_rounds: int,
    rounds: int,
    on_step: Callable[[str], None],
) -> BenchResult:
    """Make a store in the empty `directory`, and measure it `rounds` times after the warm-up.

    Each round measures the raw limits, then tiering, then reading, in one process for all rounds;
    everything is written back to the device before each of them (`settle`). Needs some four times
    the store's bytes of disk. Leaves files in `directory`.

    Raises:
        RuntimeError: the measured process died.
    """
    figures: list[Figure] = []
    peak_bytes = 0
    on_step("making a store")
    size = write_synthetic_store(directory / "store", made)
    with Worker() as worker:
        for number in range(-warm_up_rounds, rounds):
            name = f"round {number + 1} of {rounds}" if number >= 0 else "warming up"
            on_step(f"{name}: raw limits")
            found = [*raw_limits(directory, min(size, RAW_BYTES_MAX))]
            on_step(f"{name}: tiering and reading")
            found.append(worker.tier(directory / "store", directory / "tier", made))
            peak_bytes = peak_bytes or worker.peak_bytes()
            found += worker.read(directory / "tier", made)
            shutil.rmtree(directory / "tier")
            if number >= 0:
                figures += found
    return BenchResult(made, warm_up_rounds, rounds, lines_of(figures), peak_bytes)


def lines_of(figures: Iterable[Figure]) -> tuple[MetricSpread, ...]:
    """A line for every metric of `METRICS`, from the figures of all timed rounds in any order."""
    rounds: dict[str, list[Figure]] = {metric: [] for metric in METRICS}
    for figure in figures:
        rounds[figure.metric].append(figure)
    return tuple(_line(metric, rounds) for metric in METRICS)


def _line(metric: str, rounds: dict[str, list[Figure]]) -> MetricSpread:
    mine = rounds[metric]
    knows_messages = mine[0].messages > 0
    bytes_s = spread([figure.bytes_s for figure in mine])
    raw = [figure.bytes_s for figure in rounds[RAW_OF[metric]]] if metric in RAW_OF else None
    return MetricSpread(
        metric,
        spread([figure.messages_s for figure in mine]) if knows_messages else None,
        bytes_s,
        spread([figure.cpu_us for figure in mine]) if knows_messages else None,
        spread([figure.cpu_seconds for figure in mine]),
        bytes_s.median / spread(raw).median if raw else None,
    )


def spread(values: Sequence[float]) -> Spread:
    """The median of at least one value, the least and the most."""
    return Spread(statistics.median(values), min(values), max(values))


def machine_facts() -> dict[str, object]:
    """Return the facts of this machine that the figures depend on, without names and paths."""
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
    """Return a row for each metric, then a row about the run: `--json` and stored results."""
    rows: list[dict[str, object]] = []
    for line in result.lines:
        row: dict[str, object] = {"metric": line.metric}
        for name in ("messages_s", "bytes_s", "cpu_us", "cpu_s"):
            values: Spread | None = getattr(line, name)
            row[name] = None if values is None else values._asdict()
        rows.append({**row, "to_raw": line.to_raw})
    run: dict[str, object] = {
        "metric": "run",
        "peak_bytes_tiering": result.peak_bytes_tiering,
        "warm_up_rounds": result.warm_up_rounds,
        "rounds": result.rounds,
        "store": asdict(result.made),
        "machine": machine_facts(),
    }
    return [*rows, run]
