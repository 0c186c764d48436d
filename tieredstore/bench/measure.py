"""Measures tiering one store, and reading the tier back, once; a warm process for all rounds."""

import asyncio
import gc
import mmap
import multiprocessing
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import ParamSpec, Self, TypeVar

import numpy as np

from container.index.options import IndexOptions
from container.names.queue_id import QueueId
from container.options import TierOptions
from container.tier import Tier, TierIdentity
from container.tier_view import TierReader
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.options import DispatchOptions
from fetcher.fetcher import TRANSFER_BYTES_MAX, TieredMessageFetcher
from fetcher.options import FetcherOptions
from fetcher.result import FetchedMessages, FetchStatus
from provider.clock import SystemClock
from provider.posix.store import PosixStore
from provider.stores.in_place_segments import InPlaceDriver
from tieredstore.bench.synthetic_store import SyntheticStore
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.options import HotLogOptions
from tieredstore.lifetime import running
from tieredstore.reader.arrow import import_arrow


@dataclass(slots=True)
class Elapsed:
    """Time and CPU time of a block; zero until it is left."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """User and system time of this process, all its threads included."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Measurement of a metric in a round."""

    metric: str
    messages: int
    """0 for raw limits, which know no messages."""
    bytes: int
    """Bytes of records, and of units if they are written too."""
    seconds: float
    cpu_seconds: float

    @property
    def messages_s(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def bytes_s(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU for each message; 0 if the number of messages is unknown."""
        return 1e6 * self.cpu_seconds / self.messages if self.messages else 0.0


def settle(memory_bytes: int = 0) -> None:
    """Write back every dirty page of the machine, and free garbage, before something is timed.

    Blocks without a bound until the device has all bytes. Otherwise the measured part would share
    the disk with earlier writes. Then touches and frees `memory_bytes` of memory, at most half of
    the free memory: the host of a virtual machine may reclaim memory that is free for some
    seconds, and the next touch of it costs 2 ms of CPU time a MiB (decision 0012). Must not run in
    a process whose memory is measured.
    """
    gc.collect()
    os.sync()
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    np.empty(min(memory_bytes, free_bytes // 2), np.uint8)[:: mmap.PAGESIZE] = 0


@contextmanager
def stopwatch() -> Generator[Elapsed]:
    """Measure a block; yield its result, which is filled in when the block is left."""
    elapsed = Elapsed()
    cpu_started = time.process_time()
    started = time.perf_counter()
    yield elapsed
    elapsed.seconds = time.perf_counter() - started
    elapsed.cpu_seconds = time.process_time() - cpu_started


TIER = "tier"
TIER_INDEXED = "tier_indexed"
CLUSTER = "BenchCluster"
BROKER = "bench-a"
CLIENT_BATCH_MESSAGES = 32
"""Up to so many a call is a client's pull, with RocketMQ's limit in bytes."""
KIB = 1024
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ReadShape:
    """A way to read all messages back."""

    metric: str
    messages_max: int
    """Messages a call, the size of a client's pull or of a program's batch."""
    readers: int = 1
    decodes: bool = False
    """Make a `StoredMessage` of every record and read its offset, time, tags and body; else records
    stay views of the cache."""
    reads_properties: bool = False
    """Of every decoded message, also make the map of all properties."""
    to_arrow: bool = False
    """Make Arrow batches of all columns, as `to_arrow` does."""
    verify: bool = True
    """Compare topics and checksums, as reading does by default."""


READ_SHAPES = (
    ReadShape("read_32_by_1", 32),
    ReadShape("read_32_unverified", 32, verify=False),
    ReadShape("read_1024_by_1", 1_024),
    ReadShape("read_32_by_4", 32, readers=4),
    ReadShape("read_32_decoded", 32, decodes=True),
    ReadShape("read_32_properties", 32, decodes=True, reads_properties=True),
    *([ReadShape("read_4096_arrow", 4_096, to_arrow=True)] if find_spec("pyarrow") else []),
)
"""Without pyarrow, an extra, its row is left out."""


@asynccontextmanager
async def owned_tier(directory: Path, index: IndexOptions | None = None) -> AsyncGenerator[Tier]:
    """Own a new tier in a directory with the default settings. Closed at the end of the block."""
    store = PosixStore(directory)
    clock = SystemClock()
    identity = TierIdentity(CLUSTER, BROKER, "bench")
    segments = InPlaceDriver(
        store, clock=clock, takeover_wait_s_max=TierOptions().takeover_wait_s_max
    )
    tier = await Tier.own(
        store,
        identity,
        segments=segments,
        clock=clock,
        rng=Random(),  # noqa: S311 - no secret
        index=index,
    )
    try:
        async with running([tier.run]):
            yield tier
            await tier.close()
    finally:
        await store.close()


async def measure_tiering(
    store_dir: Path, tier_dir: Path, made: SyntheticStore, *, indexed: bool = False
) -> Figure:
    """From opening the hot log until everything in it is committed, everything at defaults.

    `indexed`: with the keys of all messages, until each key is in a file or in memory.
    """
    clock = SystemClock()
    async with owned_tier(tier_dir, IndexOptions() if indexed else None) as tier:
        hot = await RocketMqHotLog.open(
            store_dir, options=HotLogOptions(), clock=clock, cluster=CLUSTER, broker=BROKER
        )
        try:
            dispatcher = TieredDispatcher(hot, tier, options=DispatchOptions(), clock=clock)
            settle()
            with stopwatch() as elapsed:
                done = await dispatcher.drain()
                await tier.complete_index()
            await dispatcher.close()
        finally:
            await hot.close()
        offsets = sum(queue.next_offset for queue in tier.state.queues.values())
    assert offsets == made.messages, f"{offsets} of {made.messages} messages were tiered"
    metric = TIER_INDEXED if indexed else TIER
    return Figure(metric, done.messages, done.bytes, elapsed.seconds, elapsed.cpu_seconds)


async def measure_reading(tier_dir: Path, made: SyntheticStore, shape: ReadShape) -> Figure:
    """Every queue from its start, one call at a time in each reader."""
    store = PosixStore(tier_dir)
    try:
        tier = await TierReader.open(store)
        counts: list[tuple[int, int]] = []
        clock = SystemClock()
        options = FetcherOptions(verify=shape.verify)
        async with TieredMessageFetcher(tier, options=options, clock=clock) as fetcher:
            settle()
            with stopwatch() as elapsed:
                async with asyncio.TaskGroup() as group:
                    for number in range(shape.readers):
                        group.create_task(
                            _read_all(fetcher, f"bench-{number}", made, shape, counts)
                        )
    finally:
        await store.close()
    messages = sum(count for count, _ in counts)
    assert messages == made.messages * shape.readers, f"{messages} messages were read"
    size = sum(size for _, size in counts)
    return Figure(shape.metric, messages, size, elapsed.seconds, elapsed.cpu_seconds)


async def _read_all(
    fetcher: TieredMessageFetcher,
    group: str,
    made: SyntheticStore,
    shape: ReadShape,
    counts: list[tuple[int, int]],
) -> None:
    count = size = 0
    bytes_max = None if shape.messages_max > CLIENT_BATCH_MESSAGES else TRANSFER_BYTES_MAX
    for queue_id in range(made.queues):
        offset = 0
        while True:
            result = await fetcher.get_message(
                group,
                made.topic,
                queue_id,
                offset,
                messages_max=shape.messages_max,
                bytes_max=bytes_max,
            )
            if result.status is not FetchStatus.FOUND:
                break
            count += len(result.messages)
            size += result.messages.bytes
            offset = result.next_offset
            if shape.decodes:
                _read_fields(result.messages, shape)
            if shape.to_arrow:
                _make_columns(result.messages, QueueId(made.topic, queue_id))
    counts.append((count, size))


def _read_fields(messages: FetchedMessages, shape: ReadShape) -> None:
    for message in messages.decode():
        _ = message.queue_offset, message.store_timestamp, message.tags, message.body
        if shape.reads_properties:
            _ = message.property_map


def _make_columns(messages: FetchedMessages, queue: QueueId) -> None:
    arrow = import_arrow()
    for selection in messages.selections:
        for _ in arrow.batches_of(selection, queue, arrow.SCHEMA, on_damage=None):
            pass


class Worker:
    """A process of its own: its CPU time and its memory are those of tiering and reading alone.

    Leaving the context ends the process. Errors are those of the measured code;
    `concurrent.futures.process.BrokenProcessPool`, a `RuntimeError`, when the process died.
    """

    def __init__(self) -> None:
        # Spawned: a fork would begin with the memory of the process that starts it.
        self._process = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.shutdown()

    def tier(
        self, store_dir: Path, tier_dir: Path, made: SyntheticStore, *, indexed: bool = False
    ) -> Figure:
        """Tier the whole store at `store_dir` into the empty `tier_dir`, everything at defaults.

        `indexed`: with its keys.
        """
        settle(made.memory_bytes)
        return self._call(_tier, store_dir, tier_dir, made, indexed=indexed)

    def read(self, tier_dir: Path, made: SyntheticStore) -> list[Figure]:
        """Read the whole tier once in each of `READ_SHAPES`."""
        figures: list[Figure] = []
        for shape in READ_SHAPES:
            settle(made.memory_bytes)
            figures.append(self._call(_read, tier_dir, made, shape))
        return figures

    def peak_bytes(self) -> int:
        """Resident memory of the process at its highest so far."""
        return self._call(_peak_bytes)

    def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._process.submit(function, *args, **kwargs).result()


def _tier(store_dir: Path, tier_dir: Path, made: SyntheticStore, *, indexed: bool) -> Figure:
    return asyncio.run(measure_tiering(store_dir, tier_dir, made, indexed=indexed))


def _read(tier_dir: Path, made: SyntheticStore, shape: ReadShape) -> Figure:
    return asyncio.run(measure_reading(tier_dir, made, shape))


def _peak_bytes() -> int:
    # Not `ru_maxrss`: it begins with what the parent had when it started this process, and the
    # parent touches memory before each timed part.
    (peak,) = re.findall(
        r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    return int(peak) * KIB
