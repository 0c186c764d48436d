"""Measures a tier on S3 beside its client alone: `python -m tests.bench.object_store --help`.

The same bytes are written and read by obstore as objects of 8 MiB, four requests at once, and by
tiering and reading a store directory of as many bytes; in turn, each part in a process of its own,
against a SeaweedFS on this machine. CPU time is that of our process, all threads; the server
shares the cores, so ratios carry over, rates do not. A tier on the disk is offloaded to S3 and read
there, and 200 readers at different places show memory and fairness.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.bench.rows import Defaults, Goal, goals_beside, keep, refuse_small
from tests.bench.s3_parts import BUCKET, MIB, OBJECT_BYTES, QUEUES, TOPIC, Job, measure_part
from tests.support.seaweedfs import SeaweedFs
from tieredstore.bench.measure import settle
from tieredstore.bench.run import machine_facts, spread
from tieredstore.bench.synthetic_store import SyntheticStore, write_synthetic_store

ROUND = (
    ("raw_write", "tier", "raw_copy", "raw_read", "read", "to_disk", "offload", "read_offloaded"),
    ("raw_copy", "tier", "raw_write", "read", "raw_read", "to_disk", "offload", "read_offloaded"),
)
"""The order of one round, and of the next."""
RAW_OF = {
    "tier": "raw_write",
    "read": "raw_read",
    "offload": "raw_write",
    "read_offloaded": "raw_read",
}
GOALS = {
    "read": [Goal("to_raw", "of raw", least=0.8)],
    "read_offloaded": [Goal("cpu_to_read", "CPU to an S3 tier", most=1.1)],
}
WARM_BYTES = 32 * MIB
MIB_MEASURED = 512
ROUNDS = 5
WARM_UP_ROUNDS = 1

Result = dict[str, Any]


def measured(part: str, job: Job, env: dict[str, str]) -> Result:
    """One part in a process of its own; CalledProcessError if it failed or moved too little."""
    settle(3 * job.bytes)
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.object_store", "--worker", part],
        input=json.dumps(asdict(job), default=str).encode(),
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def worker(part: str) -> None:
    """Measure the part of the job on standard input in this process, and print it."""
    fields = json.load(sys.stdin)
    paths = {name: Path(fields[name]) for name in ("store", "warm_store", "posix")}
    print(json.dumps(measure_part(part, Job(**{**fields, **paths}))))
    sys.stdout.flush()
    os._exit(0)  # obstore's threads abort a process that ends just after a request


def measure(directory: Path, body_bytes: int, size_bytes: int, rounds: int) -> list[Result]:
    """Rows: each part with its ratios, the readers, and what was measured."""
    stores = [
        SyntheticStore(
            messages=size // body_bytes, body_bytes=body_bytes, queues=QUEUES, topic=TOPIC
        )
        for size in (size_bytes, WARM_BYTES)
    ]
    whole, warm = stores
    size_bytes = write_synthetic_store(directory / "store", whole) // OBJECT_BYTES * OBJECT_BYTES
    write_synthetic_store(directory / "warm", warm)
    job = Job(
        prefix="",
        store=directory / "store",
        warm_store=directory / "warm",
        posix=directory,
        messages=whole.messages,
        bytes=size_bytes,
        warm_messages=warm.messages,
    )
    found: dict[str, list[Result]] = {part: [] for part in ROUND[0]}
    with SeaweedFs(directory / "server") as server:
        server.make_bucket(BUCKET)
        env = {**server.environment, "XDG_RUNTIME_DIR": str(directory)}
        for number in range(-WARM_UP_ROUNDS, rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            job = replace(job, prefix=f"r{number}", posix=directory / f"posix{number}")
            for part in ROUND[number % 2]:
                figure = measured(part, job, env)
                if number >= 0:
                    found[part].append(figure)
        crowd = measured("readers", job, env)
    rows = [{"metric": part, **_spreads(figures)} for part, figures in found.items()]
    _compare(rows)
    about = {"body_bytes": body_bytes, "bytes": size_bytes, "queues": QUEUES, "rounds": rounds}
    about |= {"messages": whole.messages, "warm_up_rounds": WARM_UP_ROUNDS}
    crowd_row = {"metric": "readers", **crowd}
    return [*rows, crowd_row, {"metric": "run", **about, "machine": machine_facts()}]


def _spreads(figures: Sequence[Result]) -> Result:
    found: Result = {
        name: spread([figure[name] for figure in figures])._asdict()
        for name in ("seconds", "cpu_s", "start_s", "start_cpu_s", "more_bytes")
    }
    rates = [figure["bytes"] / figure["seconds"] for figure in figures]
    return {**found, "bytes_s": spread(rates)._asdict(), "requests": figures[-1]["requests"]}


def _compare(rows: list[Result]) -> None:
    """Add the ratios of medians to rows that have something to be compared with."""
    by_name = {row["metric"]: row for row in rows}
    for ours, raw in RAW_OF.items():
        row = by_name[ours]
        for name, of in (("to_raw", "bytes_s"), ("cpu_to_raw", "cpu_s")):
            row[name] = row[of]["median"] / by_name[raw][of]["median"]
    cpu = [by_name[name]["cpu_s"]["median"] for name in ("read_offloaded", "read")]
    by_name["read_offloaded"]["cpu_to_read"] = cpu[0] / cpu[1]
    row, copy = by_name["tier"], by_name["raw_copy"]
    row["to_raw_copy"] = row["bytes_s"]["median"] / copy["bytes_s"]["median"]
    row["cpu_to_raw_copy"] = row["cpu_s"]["median"] / copy["cpu_s"]["median"]


def print_rows(rows: Sequence[Result]) -> None:
    """One line a part."""
    run = rows[-1]
    print(
        f"{run['messages']:,} messages of {run['body_bytes']:,} B, {run['queues']} queues, "
        f"{run['bytes'] / MIB:,.0f} MiB, {run['rounds']} rounds after "
        f"{run['warm_up_rounds']}"
    )
    for row in rows[:-2]:
        line = f"{row['metric']}: {row['bytes_s']['median'] / MIB:,.0f} MiB/s, "
        line += f"{row['cpu_s']['median']:.2f} s CPU after {row['start_cpu_s']['median']:.2f} s, "
        line += f"{row['more_bytes']['median'] / MIB:,.0f} MiB more"
        if "to_raw" in row:
            line += f", {row['to_raw']:.2f} of raw, {row['cpu_to_raw']:.2f} times its CPU"
        if "to_raw_copy" in row:
            line += f" ({row['to_raw_copy']:.2f} and {row['cpu_to_raw_copy']:.2f} of raw with "
            line += "reading the log)"
        line += f", requests {row['requests']}" if row["requests"] else ""
        goals = goals_beside(row, GOALS.get(row["metric"], []))
        print(f"{line}; goal: {goals}" if goals else line)
    found, crowd = rows[-2], rows[-2]["crowd"]
    slowest = crowd["reader_s_max"] / crowd["reader_s_median"]
    print(
        f"{crowd['readers']} readers: {found['bytes'] / found['seconds'] / MIB:,.0f} MiB/s, the "
        f"slowest {crowd['reader_s_max']:.1f} s, {slowest:.2f} times the median; calls up to "
        f"{crowd['call_s_max']:.2f} s; {found['more_bytes'] / MIB:,.0f} MiB more of "
        f"{crowd['memory_bytes_max'] / MIB:,.0f} allowed; {crowd['in_flight_bytes'] / MIB:,.0f} "
        f"MiB in flight of {crowd['in_flight_bytes_max'] / MIB:,.0f}"
    )


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and keep the rows."""
    if arguments[:1] == ["--worker"]:
        worker(arguments[1])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body-bytes", type=int, default=16 << 10)
    parser.add_argument("--mib", type=int, default=MIB_MEASURED)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    parser.add_argument("--store-results", type=Path, help="keep a JSON file there")
    options = parser.parse_args(arguments)
    if options.store_results is not None:
        counts = (size * MIB // options.body_bytes for size in (options.mib, MIB_MEASURED))
        given, least = (Defaults(count, WARM_UP_ROUNDS, ROUNDS) for count in counts)
        refuse_small(parser, replace(given, rounds=options.rounds), least)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        rows = measure(Path(name), options.body_bytes, options.mib * MIB, options.rounds)
    print_rows(rows)
    if options.store_results is not None:
        kept = options.store_results / f"s3-{options.body_bytes}-bytes.json"
        keep(rows, kept)


if __name__ == "__main__":
    main(sys.argv[1:])
