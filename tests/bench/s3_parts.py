"""The parts that `tests/bench/object_store.py` times, each in a process of its own.

Every part first does the same with a few bytes, so that what is imported, connected and allocated
once is not counted; then opens what it needs (`start`); then moves the bytes. One that moved less
than it should have raises.
"""

import asyncio
import os
import re
import statistics
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from obstore.store import S3Store

import tieredstore
from container.move.offload_plan import Until
from provider.clock import SystemClock
from provider.object.store import RequestKind, RequestMeter
from tieredstore.admin.offload import offload_topic
from tieredstore.bench.measure import stopwatch
from tieredstore.config.effective import Config
from tieredstore.reader.readable_tier import ReadableTier

KIB, MIB = 1 << 10, 1 << 20
OBJECT_BYTES = 8 * MIB
AT_ONCE = 4
QUEUES = 8
TOPIC = "Bench"
BUCKET = "bench"
NAMED: dict[str, Any] = {"cluster": "BenchCluster", "broker": "bench"}
SETTINGS: dict[str, object] = {"messageIndexEnable": False}
READERS, READER_MESSAGES = 200, 256


@dataclass(frozen=True, slots=True)
class Job:
    """What one part is to move."""

    prefix: str
    """Of the names of this round."""
    store: Path
    """Store directory with the messages."""
    warm_store: Path
    """A small one."""
    posix: Path
    """Where this round's tiers on the disk are."""
    messages: int
    bytes: int
    """Bytes of all records, without those that fill no object of the raw side."""
    warm_messages: int

    def place(self, *, is_warm: bool) -> str:
        """URL of the tier on S3, of all messages or of the few."""
        return f"s3://{BUCKET}/{self.prefix}/{'warm' if is_warm else 'tier'}"

    def directory(self, *, is_warm: bool) -> Path:
        """The tier on the disk."""
        return self.posix / ("warm" if is_warm else "tier")

    def second(self, *, is_warm: bool) -> dict[str, object]:
        """Settings that name the second store of the tier on the disk."""
        name = "warm" if is_warm else "tier"
        return {"tieredStoreOffloadPath": f"s3://{BUCKET}/{self.prefix}/second-{name}", **SETTINGS}


@dataclass(slots=True)
class Outcome:
    """What one part took."""

    bytes: int = 0
    """Bytes that were moved."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    """Of the process, all threads, while bytes were moved."""
    start_s: float = 0.0
    start_cpu_s: float = 0.0
    """The same for opening what is written or read."""
    more_bytes: int = 0
    """Resident memory at its highest while bytes were moved, less what there was before."""
    requests: dict[RequestKind, int] | None = None
    """Requests of ours, by kind; None of parts that use the client alone."""
    crowd: dict[str, float] | None = None
    """Of the many readers."""

    @contextmanager
    def start(self) -> Iterator[None]:
        """Time the opening."""
        with stopwatch() as took:
            yield
        self.start_s, self.start_cpu_s = took.seconds, took.cpu_seconds

    @contextmanager
    def transfer(self) -> Iterator[None]:
        """Time the moving of bytes, and watch the memory."""
        before_bytes = resident_bytes("VmRSS")
        forget_peak()
        with stopwatch() as took:
            yield
        self.seconds, self.cpu_s = took.seconds, took.cpu_seconds
        self.more_bytes = resident_bytes("VmHWM") - before_bytes


def forget_peak() -> None:
    """Let `VmHWM` of this process begin at what is resident now.

    `ru_maxrss` would begin with what the parent had when it started this process.
    """
    Path("/proc/self/clear_refs").write_text("5")


def resident_bytes(field: str) -> int:
    """`VmRSS` or `VmHWM` of this process in bytes."""
    said = Path("/proc/self/status").read_text()
    (kib,) = re.findall(rf"^{field}:\s+(\d+) kB$", said, re.MULTILINE)
    return int(kib) * KIB


@contextmanager
def counted_requests() -> Iterator[dict[RequestKind, int]]:
    """Requests of all object stores of this process, by kind."""
    found: dict[RequestKind, int] = {}

    def made(meter: RequestMeter, kind: RequestKind) -> None:
        del meter
        found[kind] = found.get(kind, 0) + 1

    with patch.object(RequestMeter, "made", made):
        yield found


def client_of() -> S3Store:
    """obstore alone, set as our file system sets it: checksums in place of signed payloads."""
    options: dict[str, Any] = {"checksum_algorithm": "CRC64NVME", "unsigned_payload": True}
    return S3Store(
        BUCKET,
        config={"endpoint": os.environ["AWS_ENDPOINT_URL"], **options},  # pyright: ignore[reportArgumentType] - a dict of the same keys
        client_options={"allow_http": True},
    )


async def at_once(works: Sequence[Callable[[], Coroutine[Any, Any, int]]]) -> int:
    """Bytes that all of them moved, `AT_ONCE` at a time."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def run(work: Callable[[], Coroutine[Any, Any, int]]) -> int:
        async with slots:
            return await work()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(work)) for work in works]
    return sum(task.result() for task in tasks)


async def _raw(
    job: Job, one: Callable[[S3Store, str, int], Coroutine[Any, Any, int]], found: Outcome
) -> None:
    """Do `one` thing with each object of the raw side."""
    with found.start():
        client = client_of()
    for number in range(AT_ONCE):
        await one(client, f"{job.prefix}/warm-raw/{number}", number)
    with found.transfer():
        found.bytes = await at_once(
            [
                lambda number=number: one(client, f"{job.prefix}/raw/{number}", number)
                for number in range(job.bytes // OBJECT_BYTES)
            ]
        )


async def raw_write(job: Job, found: Outcome) -> None:
    """Store as many bytes as objects, out of memory."""
    body = os.urandom(OBJECT_BYTES)

    async def put(client: S3Store, name: str, number: int) -> int:
        del number
        await client.put_async(name, body, mode="create", use_multipart=False)
        return len(body)

    await _raw(job, put, found)


async def raw_copy(job: Job, found: Outcome) -> None:
    """Store the CommitLog's bytes as objects, without a look at them."""
    log = os.open(job.store / "commitlog" / f"{0:020d}", os.O_RDONLY)

    async def put(client: S3Store, name: str, number: int) -> int:
        body = await asyncio.to_thread(os.pread, log, OBJECT_BYTES, number * OBJECT_BYTES)
        name = name.replace("raw/", "copy/")
        await client.put_async(name, body, mode="create", use_multipart=False)
        return len(body)

    await _raw(job, put, found)
    os.close(log)


async def raw_read(job: Job, found: Outcome) -> None:
    """Read what `raw_write` stored."""

    async def get(client: S3Store, name: str, number: int) -> int:
        del number
        return len(await client.get_range_async(name, start=0, end=OBJECT_BYTES))

    await _raw(job, get, found)


async def tier(job: Job, found: Outcome) -> None:
    """Tier the store directory."""
    await _tiered(job.warm_store, job.place(is_warm=True), job.warm_messages, Outcome())
    await _tiered(job.store, job.place(is_warm=False), job.messages, found)


async def to_disk(job: Job, found: Outcome) -> None:
    """Tier it into a directory, from which `offload` moves it."""
    for is_warm, store, messages in (
        (True, job.warm_store, job.warm_messages),
        (False, job.store, job.messages),
    ):
        place = job.directory(is_warm=is_warm)
        await _tiered(store, str(place), messages, Outcome() if is_warm else found)


async def _tiered(store: Path, place: str, messages: int, found: Outcome) -> None:
    follower = tieredstore.follow(store, place, settings=SETTINGS, **NAMED)
    with found.start():
        await follower.__aenter__()
    try:
        with found.transfer():
            await follower.drain()
        done = follower.statistics()
    finally:
        await follower.__aexit__(None, None, None)
    assert done.messages == messages, f"{done.messages} of {messages} messages were tiered"
    found.bytes = done.bytes


async def read(job: Job, found: Outcome) -> None:
    """Read every queue from its start, one reader a queue, 1,024 messages a call."""
    for is_warm in (True, False):
        tier = tieredstore.open(job.place(is_warm=is_warm), **NAMED)
        await _read_all(tier, job, Outcome() if is_warm else found, is_warm=is_warm)


async def read_offloaded(job: Job, found: Outcome) -> None:
    """The same with the tier that was offloaded: its journal is on the disk."""
    for is_warm in (True, False):
        settings = job.second(is_warm=is_warm)
        tier = tieredstore.open(job.directory(is_warm=is_warm), settings=settings, **NAMED)
        await _read_all(tier, job, Outcome() if is_warm else found, is_warm=is_warm)


async def _read_all(tier: ReadableTier, job: Job, found: Outcome, *, is_warm: bool) -> None:
    async def reader(queue_id: int) -> tuple[int, int]:
        at = messages = moved = 0
        while True:
            part = await tier.get_message(
                "g", TOPIC, queue_id, at, messages_max=1024, bytes_max=None
            )
            if part.next_offset == at:
                return messages, moved
            at, messages = part.next_offset, messages + len(part.messages)
            moved += part.messages.bytes

    with found.start():
        await tier.__aenter__()
    try:
        with found.transfer():
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(reader(number)) for number in range(QUEUES)]
    finally:
        await tier.__aexit__(None, None, None)
    messages, found.bytes = map(sum, zip(*(task.result() for task in tasks), strict=True))
    wanted = job.warm_messages if is_warm else job.messages
    assert messages == wanted, f"{messages} of {wanted} messages were read"


async def offload(job: Job, found: Outcome) -> None:
    """Move a tier from the disk to S3: what `tieredstore offload` does, all of it timed."""
    for is_warm, outcome in ((True, Outcome()), (False, found)):
        place = {"tieredStoreFilePath": str(job.directory(is_warm=is_warm)), **_NAMES}
        config = Config.load(settings={**place, **job.second(is_warm=is_warm)})
        with outcome.transfer():
            moved = await offload_topic(
                config, TOPIC, Until(), clock=SystemClock(), take_over=False
            )
        assert len(moved) == QUEUES, f"of {len(moved)} of {QUEUES} queues something was moved"
        assert not any(one.errors for one in moved), f"{moved}"
        outcome.bytes = sum(one.bytes for one in moved)


_NAMES = {"brokerClusterName": NAMED["cluster"], "brokerName": NAMED["broker"]}


async def readers(job: Job, found: Outcome) -> None:
    """200 readers of groups of their own, each from another place, with default settings."""
    tier = tieredstore.open(job.place(is_warm=False), **NAMED)
    with found.start():
        await tier.__aenter__()
    last = tier.queue(TOPIC, 0).max_offset - READER_MESSAGES
    assert last > 0, "a reader's messages are fewer than a queue has"
    call_s: list[float] = []
    held_bytes = in_flight_bytes = 0

    async def reader(number: int) -> tuple[float, int]:
        nonlocal held_bytes, in_flight_bytes
        at, left, moved = last * number // READERS, READER_MESSAGES, 0
        while left > 0:
            called_s = time.monotonic()
            part = await tier.get_message(
                f"g{number}", TOPIC, number % QUEUES, at, messages_max=32, bytes_max=None
            )
            call_s.append(time.monotonic() - called_s)
            assert part.messages, f"reader {number} found nothing at {at}"
            left, at = left - len(part.messages), part.next_offset
            moved += part.messages.bytes
            seen = tier.statistics()
            held_bytes = max(held_bytes, seen.bytes_held)
            in_flight_bytes = max(in_flight_bytes, seen.bytes_in_flight)
        return time.monotonic() - began_s, moved

    with found.transfer():
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(reader(number)) for number in range(READERS)]
    took_s, moved = zip(*(task.result() for task in tasks), strict=True)
    options = Config.load().fetcher
    found.bytes = sum(moved)
    found.crowd = {
        "readers": READERS,
        "messages_each": READER_MESSAGES,
        "reader_s_median": statistics.median(took_s),
        "reader_s_max": max(took_s),
        "call_s_median": statistics.median(call_s),
        "call_s_max": max(call_s),
        "held_bytes": held_bytes,
        "in_flight_bytes": in_flight_bytes,
        "in_flight_bytes_max": options.bytes_in_flight_max,
        "memory_bytes_max": options.memory_bytes_max,
    }
    await tier.__aexit__(None, None, None)


PARTS: dict[str, Callable[[Job, Outcome], Coroutine[Any, Any, None]]] = {
    "raw_write": raw_write,
    "raw_copy": raw_copy,
    "tier": tier,
    "raw_read": raw_read,
    "read": read,
    "to_disk": to_disk,
    "offload": offload,
    "read_offloaded": read_offloaded,
    "readers": readers,
}


def measure_part(part: str, job: Job) -> dict[str, Any]:
    """Do one part in this process.

    Raises:
        AssertionError: it moved fewer bytes than it should have.
    """
    found = Outcome()
    with counted_requests() as requests:
        asyncio.run(PARTS[part](job, found))
    if not part.startswith("raw"):
        found.requests = requests
    least = job.bytes if part != "readers" else 1
    assert found.bytes >= least, f"{part} moved {found.bytes} of {least} bytes"
    return asdict(found)
