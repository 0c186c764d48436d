"""Memory of workers where messages have many keys: `python -m tests.bench.many_keys --help`.

One segment of messages of 10 bytes with 1, 8 and 64 short keys, besides the unique one, is rebuilt
(`rebuild --metadata`) and audited by one process and on Spark, with splits as they are by default
and in one piece. A worker process that holds more than 400 MB ends the run.
"""

import argparse
import gc
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.processes import watched
from tests.bench.rows import Goal, Row, goals_beside, keep
from tests.bench.scan_data import config_of, remove_made, write_logs
from tests.bench.scan_parts import SPARK, TooFew, rebuild
from tests.bench.scan_speed import MIB, WORKER_BYTES_MAX, TooMuch, engines_in
from tieredstore.bench.run import machine_facts
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import Engine
from tieredstore.offline.scan.planning import SPLIT_BYTES

BODY_BYTES = 10
KEYS = (1, 8, 64)
WHOLE = 1 << 40
"""Split size of those that are in one piece."""
REBUILD, AUDIT = "rebuild", "audit"
KEPT = "offline-many-keys.json"

GOALS = [Goal("worker_peak_bytes", "bytes of a worker", most=WORKER_BYTES_MAX)]


def measure(directory: Path, size: int, keys: Sequence[int]) -> list[Row]:
    """A row for each job, engine, split size and number of keys."""
    rows: list[Row] = []
    with engines_in(directory) as engines:
        chosen = {by: engine for by, engine in engines.items() if by[-1] == "1" or SPARK in by}
        for count in keys:
            root = directory / "logs"
            messages = write_logs(root, BODY_BYTES, size, count, queues=1, segment_bytes=size)
            rows += _rows(root, messages, count, chosen)
            shutil.rmtree(root)
    return rows


def _rows(root: Path, messages: int, keys: int, engines: Mapping[str, Engine]) -> list[Row]:
    rows: list[Row] = []
    for by, engine in engines.items():
        for split_bytes in (SPLIT_BYTES, WHOLE):
            remove_made(root)
            for job in (REBUILD, AUDIT):
                print(f"{keys} keys, {by}, {job}", file=sys.stderr, flush=True)
                gc.collect()
                with watched() as used:
                    began = time.perf_counter()
                    met, items = _done(job, root, engine, split_bytes)
                    seconds = time.perf_counter() - began
                if met != messages:
                    raise TooFew(f"{job} met {met:,} of {messages:,} messages")
                if used.worker_bytes > WORKER_BYTES_MAX:
                    raise TooMuch(f"a worker held {used.worker_bytes:,} bytes: {job} by {by}")
                rows.append({
                    "metric": job,
                    "by": by,
                    "keys": keys,
                    "split_bytes": split_bytes,
                    "messages": messages,
                    "items": items,
                    "seconds": seconds,
                    "cpu_s": used.cpu_s,
                    "worker_peak_bytes": used.worker_bytes,
                })  # fmt: skip
    return rows


def _done(job: str, root: Path, engine: Engine, split_bytes: int) -> tuple[int, int]:
    """Do a job; how many messages and index items it met."""
    if job == REBUILD:
        return rebuild(root, engine, split_bytes), 0
    report = audit(config_of(root), engine, split_bytes=split_bytes)
    if report.findings:
        raise TooFew(f"an audit found {report.findings[0]}")
    return report.counts["messages"], report.counts["index_items"]


def main() -> None:
    """Measure, print, and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=1024 * MIB, help="of the segment")
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS)
    parser.add_argument("--directory", type=Path, help="where 4 times as many bytes have room")
    parser.add_argument("--store-results", type=Path, help="keep a JSON file there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        rows = measure(Path(name), given.bytes, given.keys)
    messages = ", ".join(f"{one:,}" for one in sorted({row["messages"] for row in rows}))
    print(f"{given.bytes / MIB:,.0f} MiB, {messages} messages, 1 round after none")
    for row in rows:
        split = "whole" if row["split_bytes"] == WHOLE else f"{row['split_bytes'] // MIB} MiB"
        print(
            f"{row['keys']:>3} keys {row['metric']:>8} {row['by']:>15} {split:>8}"
            f" {row['worker_peak_bytes'] / 1e6:>5.0f} MB {row['cpu_s']:>7.2f} s CPU"
            f" {row['items']:>12,} items; {goals_beside(row, GOALS)}"
        )
    if given.store_results is not None:
        facts = {"bytes": given.bytes, "warm_up_rounds": 0, "rounds": 1}
        run = {"metric": "run", **facts, "machine": machine_facts()}
        keep([*rows, run], given.store_results / KEPT)


if __name__ == "__main__":
    main()
