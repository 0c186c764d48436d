"""Speed of rebuilds of a tier on S3 beside raw reads: `python -m tests.bench.object_jobs --help`.

A store directory is tiered to a SeaweedFS of this machine, into parts that all queues share. Then
its parts are read raw by obstore, all metadata are made again from the parts alone (`rebuild
--metadata`), and units and index files that were lost are made again (`rebuild`); in turn, in
rounds, in one process and by the local engine. CPU time is that of our processes; the server shares
the cores, so ratios carry over, rates do not. A part that does not meet all messages fails.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import tieredstore
from tests.bench.processes import watched
from tests.bench.rows import Defaults, Goal, Row, goals_beside, keep, refuse_small
from tests.bench.s3_parts import (
    BUCKET,
    NAMED,
    OBJECT_BYTES,
    QUEUES,
    TOPIC,
    at_once,
    client_of,
    counted_requests,
)
from tests.bench.scan_parts import ONE, RAW, TooFew
from tests.bench.scan_speed import BODIES, MIB, PROCESSES, WARM_BYTES, WORKER_BYTES_MAX
from tests.support.seaweedfs import SeaweedFs
from tieredstore.bench.measure import settle
from tieredstore.bench.run import machine_facts, spread
from tieredstore.bench.synthetic_store import SyntheticStore, write_synthetic_store
from tieredstore.config.effective import Config
from tieredstore.offline.jobs.engine import Engine, LocalEngine, OneProcess
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.rebuild_metadata import remake
from tieredstore.offline.jobs.report import RebuildReport

LOCAL = f"local, {PROCESSES}"
READ, REBUILD, RESTORE = "read", "rebuild", "restore"
PARTS = "/@parts/"
METADATA = "/@"
RECORD_BYTES = 230
"""Of a record beside its body, about."""
SHOWN_BYTES = 256 * MIB
"""CPU time is printed for so many."""
KEPT = "offline-objects.json"
BYTES, WARM_UP_ROUNDS, ROUNDS = 512 * MIB, 1, 2
GOALS = [Goal("worker_peak_bytes", "bytes of a worker", most=WORKER_BYTES_MAX)]
"""Of jobs on the local engine."""


@dataclass(frozen=True, slots=True)
class PackedTier:
    """One tier on S3, of which the parts with messages are kept, and all else may be lost."""

    url: str
    messages: int
    bytes: int
    """Of all records."""
    parts: Mapping[str, int]
    """Objects that have messages, and how long they are."""

    @property
    def config(self) -> Config:
        """Its configuration."""
        named = {"brokerClusterName": NAMED["cluster"], "brokerName": NAMED["broker"]}
        return Config.load(settings={"tieredStoreFilePath": self.url, **named})

    def lose(self, *, metadata: bool) -> None:
        """Delete units and index files, and with `metadata` all but the parts with messages."""
        names = sizes_below(self.url).keys() - self.parts.keys()
        if not metadata:
            names = {name for name in names if PARTS in name or METADATA not in name}
        if names:
            client_of().delete(sorted(names))


class Took(NamedTuple):
    """What one run of a part took."""

    seconds: float
    cpu_s: float
    worker_bytes: int
    requests: Mapping[str, int] | None
    """Ours, by kind; None where others than this process make them."""


def sizes_below(url: str) -> dict[str, int]:
    """All objects of a tier, and how long they are."""
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    return {one["path"]: one["size"] for page in client_of().list(f"{prefix}/") for one in page}


async def tiered(directory: Path, url: str, body_bytes: int, size: int) -> PackedTier:
    """A tier with its index of messages of some bytes."""
    messages = size // (body_bytes + RECORD_BYTES)
    store = SyntheticStore(messages=messages, body_bytes=body_bytes, queues=QUEUES, topic=TOPIC)
    written = write_synthetic_store(directory, store)
    async with tieredstore.follow(directory, url, **NAMED) as follower:
        await follower.drain()
        met = follower.statistics().messages
    if met != messages:
        raise TooFew(f"{met:,} of {messages:,} messages were tiered")
    parts = {name: length for name, length in sizes_below(url).items() if PARTS in name}
    return PackedTier(url, messages, written, parts)


def read_raw(parts: Mapping[str, int]) -> int:
    """Read objects in pieces of 8 MiB, four at once, as `raw_read` does; how many bytes."""
    client = client_of()
    pieces = [
        (name, at, min(at + OBJECT_BYTES, size))
        for name, size in parts.items()
        for at in range(0, size, OBJECT_BYTES)
    ]

    async def one(name: str, start: int, end: int) -> int:
        return len(await client.get_range_async(name, start=start, end=end))

    return asyncio.run(at_once([partial(one, *piece) for piece in pieces]))


def made_again(
    job: Callable[[Config, Engine], RebuildReport], tier: PackedTier, engine: Engine
) -> int:
    """Do a rebuild; how many bytes its messages have.

    Raises:
        TooFew: files were not made, messages not met, or damage was.
    """
    report = job(tier.config, engine)
    if report.faults or report.findings or report.messages != tier.messages:
        raise TooFew(f"a rebuild made not all: {report.summary}")
    return tier.bytes


def measured(part: str, tier: PackedTier, engine: Engine | None) -> Took:
    """Do a part once.

    Raises:
        TooFew: it did not meet all messages.
    """
    if part == READ:
        wanted, work = sum(tier.parts.values()), partial(read_raw, tier.parts)
    else:
        assert engine is not None
        tier.lose(metadata=part == REBUILD)
        job = remake if part == REBUILD else restore
        wanted, work = tier.bytes, partial(made_again, job, tier, engine)
    settle()
    with watched() as used, counted_requests() as requests:
        began = time.perf_counter()
        met = work()
        seconds = time.perf_counter() - began
    if met != wanted:
        raise TooFew(f"{part} met {met:,} of {wanted:,} bytes")
    is_one = isinstance(engine, OneProcess)
    worker_bytes = used.worker_bytes if isinstance(engine, LocalEngine) else used.own_bytes
    return Took(seconds, used.cpu_s, worker_bytes, {**requests} if is_one else None)


def measure(directory: Path, size: int, rounds: int) -> list[Row]:
    """A row for each part of each length of bodies. In a process that has no other children."""
    rows: list[Row] = []
    with LocalEngine(PROCESSES, staging=directory) as local:
        engines: dict[str, Engine] = {ONE: OneProcess(), LOCAL: local}
        parts = [(READ, RAW), *((part, by) for by in engines for part in (REBUILD, RESTORE))]
        for body_bytes in BODIES:
            warm, whole = (
                asyncio.run(
                    tiered(
                        directory / f"{body_bytes}-{name}",
                        f"s3://{BUCKET}/{body_bytes}-{name}",
                        body_bytes,
                        count,
                    )
                )
                for name, count in (("warm", WARM_BYTES), ("whole", size))
            )
            found: dict[tuple[str, str], list[Took]] = {part: [] for part in parts}
            for number in range(-WARM_UP_ROUNDS, rounds):
                print(f"{body_bytes} B, round {number + 1}", file=sys.stderr, flush=True)
                for part, by in parts:
                    took = measured(part, warm if number < 0 else whole, engines.get(by))
                    if number >= 0:
                        found[part, by].append(took)
            rows += [
                row_of(part, by, body_bytes, whole, took) for (part, by), took in found.items()
            ]
    return rows


def row_of(part: str, by: str, body_bytes: int, tier: PackedTier, took: Sequence[Took]) -> Row:
    """What is kept of all rounds of a part."""
    size = sum(tier.parts.values()) if part == READ else tier.bytes
    return {
        "metric": part,
        "by": by,
        "body_bytes": body_bytes,
        "messages": tier.messages,
        "bytes": size,
        "bytes_s": spread([size / one.seconds for one in took])._asdict(),
        "cpu_s": spread([one.cpu_s for one in took])._asdict(),
        "worker_peak_bytes": max(one.worker_bytes for one in took),
        "requests": took[-1].requests,
    }


def print_rows(rows: Sequence[Row]) -> None:
    """One line a part, and what all of them share."""
    run = rows[-1]
    print(
        f"{run['bytes'] / MIB:,.0f} MiB of each length of bodies, {run['rounds']} rounds "
        f"after {run['warm_up_rounds']}"
    )
    print(
        f"{'bodies':>6} {'messages':>9} {'job':>8} {'by':>12} {'MB/s':>7} {'of raw':>7}"
        f" {'CPU s/256 MiB':>13} {'worker MiB':>10}  requests; goal"
    )
    raw = 1.0
    for row in rows[:-1]:
        rate, share = row["bytes_s"]["median"], SHOWN_BYTES / row["bytes"]
        if row["metric"] == READ:
            raw = rate
        print(
            f"{row['body_bytes']:>6} {row['messages']:>9,} {row['metric']:>8} {row['by']:>12}"
            f" {rate / 1e6:>7,.0f}"
            f" {rate / raw:>7.2f} {share * row['cpu_s']['median']:>13.2f}"
            f" {row['worker_peak_bytes'] // MIB:>10}  {row['requests'] or ''}"
            f" {goals_beside(row, GOALS if row['by'] == LOCAL else [])}"
        )


def worker(directory: Path, size: int, rounds: int) -> None:
    """Measure in this process, and print the rows."""
    print(json.dumps(measure(directory, size, rounds)))
    sys.stdout.flush()
    os._exit(0)  # obstore's threads abort a process that ends just after a request


def main() -> None:
    """Measure, print, and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=BYTES, help="of each set of messages")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    parser.add_argument("--store-results", type=Path, help="keep a JSON file there")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        worker(given.worker, given.bytes, given.rounds)
    if given.store_results is not None:
        if given.bytes < BYTES:
            parser.error(f"--store-results keeps no result with fewer than {BYTES:,} bytes")
        measured_rounds = Defaults(0, WARM_UP_ROUNDS, given.rounds)
        refuse_small(parser, measured_rounds, Defaults(0, WARM_UP_ROUNDS, ROUNDS))
    with tempfile.TemporaryDirectory(dir=given.directory) as name, SeaweedFs(Path(name)) as server:
        server.make_bucket(BUCKET)
        scratch = Path(name) / "scratch"
        scratch.mkdir()
        sizes = ["--bytes", str(given.bytes), "--rounds", str(given.rounds)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.object_jobs", "--worker", scratch, *sizes],
            env={**os.environ, **server.environment, "XDG_RUNTIME_DIR": str(scratch)},
            stdout=subprocess.PIPE,
            check=True,
        )
    rows: list[Row] = json.loads(done.stdout)
    facts = {"bytes": given.bytes, "warm_up_rounds": WARM_UP_ROUNDS, "rounds": given.rounds}
    rows.append({"metric": "run", **facts, "machine": machine_facts()})
    print_rows(rows)
    if given.store_results is not None:
        keep(rows, given.store_results / KEPT)


if __name__ == "__main__":
    main()
