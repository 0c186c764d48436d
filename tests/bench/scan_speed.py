"""Speed of offline scans and rebuilds beside raw reads: `python -m tests.bench.scan_speed`.

Makes logs of 100 B, 1 KiB and 16 KiB bodies in four queues. They are read raw into one buffer,
scanned in one process, and scanned and rebuilt (`rebuild --metadata`, from CommitLog files alone)
on the local engine with one and two processes and on Spark, `local[2]`. All in turn, in rounds;
rates are medians. A part that does not meet all messages fails, and so does one of which a worker
process holds too much memory.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.rows import Defaults, Goal, Row, goals_beside, keep, refuse_small
from tests.bench.scan_data import write_logs
from tests.bench.scan_parts import SPARK, Data, Part, Took, engine_of, measured, parts_of
from tests.support.spark_settings import ROOT, spark_environment, spark_options
from tieredstore.bench.measure import settle
from tieredstore.bench.run import machine_facts, spread
from tieredstore.offline.jobs.engine import Engine, LocalEngine
from tieredstore.offline.scan.planning import SPLIT_BYTES

MIB = 1 << 20
BODIES = (100, 1 << 10, 16 << 10)
OTHER_SPLITS: dict[int, Sequence[int]] = dict.fromkeys(BODIES, (8 * MIB, 32 * MIB))
PROCESSES = 2
PARTITIONS = 2 * PROCESSES
"""Of a shuffle, as `docs/spark.md` says."""
WORKER_BYTES_MAX = 400_000_000
WARM_BYTES = 8 * MIB
KEPT = "offline-scan.json"
BYTES = 512 * MIB
ROUNDS = 2
WARM_UP_ROUNDS = 1
GOALS = [Goal("to_scans", "rate to two processes' scan", least=0.5)]
"""Of a rebuild on Spark; the scan is that of tags and keys."""


class TooMuch(Exception):
    """A worker process held more memory than workers may."""


@contextmanager
def engines_in(scratch: Path) -> Iterator[dict[str, Engine]]:
    """All engines by name, the slowest first; one Java machine for everything."""
    # Worker processes import this module, and their memory is measured.
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from tieredstore.offline.spark.engine import SparkEngine  # noqa: PLC0415

    os.environ.update(spark_environment(), PYTHONPATH=str(ROOT))
    builder = SparkSession.builder.master(f"local[{PROCESSES}]").appName("offline")
    options = {**spark_options(scratch), "spark.sql.shuffle.partitions": str(PARTITIONS)}
    for name, value in options.items():
        builder = builder.config(name, value)
    with ExitStack() as stack:
        found: dict[str, Engine] = {
            f"local, {count}": stack.enter_context(LocalEngine(count, staging=scratch))
            for count in range(1, PROCESSES + 1)
        }
        session = builder.getOrCreate()
        stack.callback(session.stop)
        yield {**found, f"{SPARK} local[{PROCESSES}]": SparkEngine(session)}


def measure(directory: Path, size: int, rounds: int) -> list[Row]:
    """A row for each part of each length of bodies, and one of the run."""
    rows: list[Row] = []
    with engines_in(directory) as engines:
        for body_bytes in BODIES:
            parts = parts_of([*engines], body_bytes, SPLIT_BYTES, OTHER_SPLITS)
            warm = made(directory / "warm", body_bytes, WARM_BYTES)
            for part in parts:
                measured(part, warm, engine_of(part, engines))
            shutil.rmtree(warm.root)
            data = made(directory / "logs", body_bytes, size)
            found: dict[Part, list[Took]] = {part: [] for part in parts}
            for number in range(rounds):
                print(f"{body_bytes} B, round {number + 1}", file=sys.stderr, flush=True)
                for part in parts if number % 2 == 0 else parts[::-1]:
                    settle()
                    took = measured(part, data, engine_of(part, engines))
                    if part.by in engines and took.worker_bytes > WORKER_BYTES_MAX:
                        raise TooMuch(f"a worker held {took.worker_bytes:,} bytes: {part}")
                    found[part].append(took)
            rows += compared([row_of(part, data, took) for part, took in found.items()])
            shutil.rmtree(data.root)
    facts = {"metric": "run", "bytes": size, "warm_up_rounds": WARM_UP_ROUNDS, "rounds": rounds}
    facts["machine"] = machine_facts()
    return [*rows, facts]


def compared(rows: list[Row]) -> list[Row]:
    """The rows of one length of bodies, rebuilds on Spark beside the scan by two processes."""
    (scan,) = (
        row["bytes_s"]["median"]
        for row in rows
        if row["by"] == f"local, {PROCESSES}"
        and (row["columns"], row["split_bytes"]) == ("tags and keys", SPLIT_BYTES)
    )
    for row in rows:
        if row["metric"] == "rebuild" and row["by"].startswith(SPARK):
            row["to_scans"] = row["bytes_s"]["median"] / scan
    return rows


def made(root: Path, body_bytes: int, size: int) -> Data:
    """Logs of some bytes below `root`."""
    return Data(root, body_bytes, write_logs(root, body_bytes, size))


def row_of(part: Part, data: Data, took: Sequence[Took]) -> Row:
    """What is kept of all rounds of a part."""
    return {
        "metric": part.job,
        "by": part.by,
        "body_bytes": data.body_bytes,
        "columns": part.columns,
        "split_bytes": part.split_bytes,
        "messages": data.messages,
        "bytes": data.bytes,
        "bytes_s": spread([data.bytes / one.seconds for one in took])._asdict(),
        "cpu_s": spread([one.cpu_s for one in took])._asdict(),
        "worker_peak_bytes": max(one.worker_bytes for one in took),
        "java_peak_bytes": max(one.java_bytes for one in took),
    }


def print_rows(rows: Sequence[Row]) -> None:
    """One line a part."""
    run = rows[-1]
    print(
        f"{run['bytes'] / MIB:,.0f} MiB of each length of bodies, {run['rounds']} rounds "
        f"after {run['warm_up_rounds']}"
    )
    print(
        f"{'bodies':>6} {'job':>8} {'columns':>14} {'by':>15} {'split':>6} {'MB/s':>7} {'CPU s':>6}"
        f" {'worker MiB':>10} {'Java MiB':>8}"
    )
    for row in rows[:-1]:
        print(
            f"{row['body_bytes']:>6} {row['metric']:>8} {row['columns']:>14} {row['by']:>15}"
            f" {row['split_bytes'] // MIB:>6} {row['bytes_s']['median'] / 1e6:>7,.0f}"
            f" {row['cpu_s']['median']:>6.2f} {row['worker_peak_bytes'] // MIB:>10}"
            f" {row['java_peak_bytes'] // MIB or '':>8}"
            f" {goals_beside(row, GOALS if 'to_scans' in row else [])}"
        )


def main() -> None:
    """Measure, print, and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=BYTES, help="of each set of messages")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    parser.add_argument("--store-results", type=Path, help="keep a JSON file there")
    given = parser.parse_args()
    if given.store_results is not None:
        if given.bytes < BYTES:
            parser.error(f"--store-results keeps no result with fewer than {BYTES:,} bytes")
        measured_rounds = Defaults(0, WARM_UP_ROUNDS, given.rounds)
        refuse_small(parser, measured_rounds, Defaults(0, WARM_UP_ROUNDS, ROUNDS))
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        rows = measure(Path(name), given.bytes, given.rounds)
    print_rows(rows)
    if given.store_results is not None:
        keep(rows, given.store_results / KEPT)


if __name__ == "__main__":
    main()
