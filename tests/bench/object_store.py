"""Measures a tier on S3 beside its client alone: `python -m tests.bench.object_store --help`.

The same bytes are written and read by obstore as objects of 8 MiB, four requests at once, and by
tiering and reading a store directory of as many bytes; in turn, each part in a process of its own,
against a SeaweedFS on this machine. CPU time is that of our process, all threads; the server
shares the cores, so ratios carry over, rates do not. 200 readers at different places show memory.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from obstore.store import S3Store

import tieredstore
from tests.support.seaweedfs import SeaweedFs
from tieredstore.bench.run import machine_facts, spread
from tieredstore.bench.synthetic_store import SyntheticStore, write_synthetic_store

MIB = 1 << 20
OBJECT_BYTES = 8 * MIB
AT_ONCE = 4
QUEUES = 8
BUCKET = "bench"
NAMED: dict[str, Any] = {"cluster": "BenchCluster", "broker": "bench"}
SETTINGS = {"messageIndexEnable": False}
READERS, READER_MESSAGES = 200, 256
PARTS = ("raw_write", "tier", "raw_read", "read")
KIB = 1024

Result = dict[str, float]


def client_of() -> S3Store:
    """obstore alone, set as our file system sets it: checksums in place of signed payloads."""
    options: dict[str, Any] = {"checksum_algorithm": "CRC64NVME", "unsigned_payload": True}
    return S3Store(
        BUCKET,
        config={"endpoint": os.environ["AWS_ENDPOINT_URL"], **options},  # pyright: ignore[reportArgumentType] - a dict of the same keys
        client_options={"allow_http": True},
    )


async def _at_once(works: Sequence[Callable[[], Coroutine[Any, Any, object]]]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def run(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        async with slots:
            await work()

    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(run(work))


async def raw_write(prefix: str, store: Path, size_bytes: int) -> float:
    """Store as many bytes as objects; returns the seconds it took."""
    client, body = client_of(), os.urandom(OBJECT_BYTES)

    def put(number: int) -> Callable[[], Coroutine[Any, Any, object]]:
        name = f"{prefix}/raw/{number}"
        return lambda: client.put_async(name, body, mode="create", use_multipart=False)

    began_s = time.monotonic()
    await _at_once([put(number) for number in range(size_bytes // OBJECT_BYTES)])
    return time.monotonic() - began_s


async def raw_read(prefix: str, store: Path, size_bytes: int) -> float:
    """Read those objects."""
    client = client_of()

    def get(number: int) -> Callable[[], Coroutine[Any, Any, object]]:
        name = f"{prefix}/raw/{number}"
        return lambda: client.get_range_async(name, start=0, end=OBJECT_BYTES)

    began_s = time.monotonic()
    await _at_once([get(number) for number in range(size_bytes // OBJECT_BYTES)])
    return time.monotonic() - began_s


async def tier(prefix: str, store: Path, size_bytes: int) -> float:
    """Tier the store directory."""
    place = f"s3://{BUCKET}/{prefix}/tier"
    async with tieredstore.follow(store, place, settings=SETTINGS, **NAMED) as follower:
        began_s = time.monotonic()
        await follower.drain()
        return time.monotonic() - began_s


async def read(prefix: str, store: Path, size_bytes: int) -> float:
    """Read every queue from its start, one reader a queue, 1,024 messages a call."""
    async with tieredstore.open(f"s3://{BUCKET}/{prefix}/tier", **NAMED) as tier:

        async def reader(queue_id: int) -> None:
            at = 0
            while True:
                found = await tier.get_message(
                    "g", "Bench", queue_id, at, messages_max=1024, bytes_max=None
                )
                if found.next_offset == at:
                    return
                at = found.next_offset

        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for queue_id in range(QUEUES):
                group.create_task(reader(queue_id))
        return time.monotonic() - began_s


async def readers(prefix: str, store: Path, size_bytes: int) -> float:
    """200 readers of groups of their own, each from another place; seconds of the slowest."""
    async with tieredstore.open(f"s3://{BUCKET}/{prefix}/tier", **NAMED) as tier:
        each = tier.queue("Bench", 0).max_offset

        async def reader(number: int) -> None:
            at, left = each * number // READERS, READER_MESSAGES
            while left > 0:
                queue = number % QUEUES
                found = await tier.get_message(f"g{number}", "Bench", queue, at, bytes_max=None)
                if found.next_offset == at:
                    return
                left -= len(found.messages)
                at = found.next_offset

        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(READERS):
                group.create_task(reader(number))
        return time.monotonic() - began_s


def worker(part: str, prefix: str, store: Path, size_bytes: int) -> None:
    """Measure one part in this process and print it."""
    work = {"readers": readers, **{name: globals()[name] for name in PARTS}}[part]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    before = os.times()
    seconds = asyncio.run(work(prefix, store, size_bytes))
    after = os.times()
    cpu_s = after.user + after.system - before.user - before.system
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) * KIB
    rate = size_bytes / seconds
    print(json.dumps({"bytes_s": rate, "cpu_s": cpu_s, "seconds": seconds, "peak_bytes": peak}))
    sys.stdout.flush()
    os._exit(0)  # obstore's threads abort a process that ends just after a request


def measured(part: str, prefix: str, store: Path, size_bytes: int, env: dict[str, str]) -> Result:
    """One part in a process of its own."""
    words = ["--worker", part, prefix, str(store), str(size_bytes)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.object_store", *words],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def measure(directory: Path, body_bytes: int, size_bytes: int, rounds: int) -> list[dict[str, Any]]:
    """Rows: each part, the two ratios, the readers, and what was measured."""
    found: dict[str, list[Result]] = {part: [] for part in PARTS}
    made = SyntheticStore(
        messages=size_bytes // body_bytes, body_bytes=body_bytes, queues=QUEUES, topic="Bench"
    )
    store = directory / "store"
    size_bytes = write_synthetic_store(store, made) // OBJECT_BYTES * OBJECT_BYTES
    os.sync()
    with SeaweedFs(directory / "server") as server:
        server.make_bucket(BUCKET)
        env = {**server.environment, "XDG_RUNTIME_DIR": str(directory)}
        for number in range(-1, rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            order = PARTS if number % 2 else (PARTS[1], PARTS[0], PARTS[3], PARTS[2])
            for part in order:
                figure = measured(part, f"r{number}", store, size_bytes, env)
                if number >= 0:
                    found[part].append(figure)
        crowd = measured("readers", f"r{rounds - 1}", store, size_bytes, env)
    rows: list[dict[str, Any]] = [
        {"metric": part, **_spreads(figures)} for part, figures in found.items()
    ]
    for ours, raw in ((1, 0), (3, 2)):
        rows[ours]["to_raw"] = rows[ours]["bytes_s"]["median"] / rows[raw]["bytes_s"]["median"]
        rows[ours]["cpu_to_raw"] = rows[ours]["cpu_s"]["median"] / rows[raw]["cpu_s"]["median"]
    about = {"body_bytes": body_bytes, "bytes": size_bytes, "queues": QUEUES, "rounds": rounds}
    crowd_row = {"metric": "readers", "readers": READERS, **crowd}
    return [*rows, crowd_row, {"metric": "run", **about, "machine": machine_facts()}]


def _spreads(figures: Sequence[Result]) -> dict[str, Any]:
    return {
        name: spread([figure[name] for figure in figures])._asdict()
        for name in ("bytes_s", "cpu_s", "peak_bytes")
    }


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """One line a part."""
    for row in rows[: len(PARTS)]:
        rate, cpu_s = row["bytes_s"]["median"] / MIB, row["cpu_s"]["median"]
        ratio = ""
        if "to_raw" in row:
            ratio = f", {row['to_raw']:.2f} of raw, {row['cpu_to_raw']:.2f} times its CPU"
        print(f"{row['metric']}: {rate:,.0f} MiB/s, {cpu_s:.2f} s CPU{ratio}")
    crowd = rows[len(PARTS)]
    print(f"{READERS} readers: {crowd['seconds']:.1f} s, {crowd['peak_bytes'] / MIB:,.0f} MiB more")


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and keep the rows."""
    if arguments[:1] == ["--worker"]:
        part, prefix, store, size_bytes = arguments[1:]
        worker(part, prefix, Path(store), int(size_bytes))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body-bytes", type=int, default=16 << 10)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    parser.add_argument("--store-results", type=Path, help="keep a JSON file there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        rows = measure(Path(name), options.body_bytes, options.mib * MIB, options.rounds)
    print_rows(rows)
    if options.store_results is not None:
        kept = options.store_results / f"s3-{options.body_bytes}-bytes.json"
        kept.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
