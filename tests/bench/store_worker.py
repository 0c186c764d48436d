"""Our message store as one side of a comparison: one process for all rounds, so that it is warm."""

import asyncio
import multiprocessing
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ParamSpec, Self, TypeVar

from container.record.properties import encode_properties
from dispatcher.ports import QueueState
from tieredstore.bench.measure import BROKER, CLUSTER, Figure, settle, stopwatch
from tieredstore.bench.synthetic_store import SyntheticStore
from tieredstore.config.effective import Config
from tieredstore.hot.encoding import NewMessage
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.tiered import TieredMessageStore

WARM_UP_PROBES = 200
PROBES = 1000
PACED_MESSAGES_S = 2_000
PACED_MESSAGES = 4_000
P = ParamSpec("P")
R = TypeVar("R")
WAYS = ("", "_tiering", "_own")
"""Endings of metrics: without a tier, tiering in the same process, and in one of its own."""


@dataclass(frozen=True)
class StoreFigure(Figure):
    """One measurement of a store."""

    p50_us: float = 0.0
    """Of single calls, where these were timed."""
    p99_us: float = 0.0


class StoreWorker:
    """A process whose CPU time is that of the store alone. Leaving the context ends it."""

    def __init__(self) -> None:
        self._process = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.shutdown()

    def put(self, root: Path, made: SyntheticStore, batch: int, way: str) -> StoreFigure:
        """Put all messages into a new store at `root` by one task, so many a call.

        The CPU time is that of this process, without a tiering process.
        """
        return self._measured(_put, root, made, batch, way)

    def put_paced(self, root: Path, made: SyntheticStore, way: str) -> StoreFigure:
        """Put single messages at an even pace; `p99_us` is what matters."""
        return self._measured(_put_paced, root, made, way)

    def put_and_tier(self, root: Path, made: SyntheticStore, batch: int) -> StoreFigure:
        """Put all messages into a new store, until they are in its tier, with keys indexed."""
        return self._measured(_put_and_tier, root, made, batch)

    def query(self, root: Path, made: SyntheticStore) -> StoreFigure:
        """Look for random keys in the store at `root`, one after the other."""
        return self._measured(_query, root, made)

    def offset_by_time(self, root: Path, made: SyntheticStore) -> StoreFigure:
        """Look for random moments of the time in which the store at `root` was filled."""
        return self._measured(_offset_by_time, root, made)

    def restart(self, root: Path, made: SyntheticStore) -> list[StoreFigure]:
        """Open the store at `root` that was closed; and until each queue is compared with it."""
        return self._measured(_restart, root, made)

    def _measured(
        self, work: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return self._process.submit(_run, work, *args, **kwargs).result()


def _run(work: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R:
    return asyncio.run(work(*args, **kwargs))


def _messages(made: SyntheticStore) -> list[NewMessage]:
    """What `Bench.java` puts, properties in their stored form as they come from a client."""
    bodies = [Random(number).randbytes(made.body_bytes) for number in range(16)]
    now_ms = time.time_ns() // 1_000_000
    return [
        NewMessage(
            made.topic,
            number % made.queues,
            bodies[number % len(bodies)],
            encode_properties(
                {
                    "KEYS": f"order-{number}",
                    "UNIQ_KEY": _unique(number),
                    "TAGS": "TagB" if number & 1 else "TagA",
                    "seq": str(number),
                }
            ),
            born_timestamp=now_ms,
            born_host=("127.0.0.1", 40_000),
        )
        for number in range(made.messages)
    ]


def _unique(number: int) -> str:
    return f"7F0000010B2A18B4AAC2{number:012X}"


@asynccontextmanager
async def _opened(root: Path, way: str = "_tiering") -> AsyncGenerator[TieredMessageStore]:
    settings = {
        "brokerClusterName": CLUSTER,
        "brokerName": BROKER,
        "storePathRootDir": str(root / "store"),
        "tieredStoreFilePath": str(root / "tier"),
        "tieredStoreProcess": "own" if way == "_own" else "inline",
    }
    config = Config.load(settings=settings, environment={})
    local = LocalMessageStore(config.store_dir, options=config.hot_write)
    level = "FORCE" if way else "DISABLE"
    async with TieredMessageStore(local, local=local, config=config, level=level) as store:
        yield store


async def _put_all(
    store: TieredMessageStore, messages: Sequence[NewMessage], batch: int
) -> list[float]:
    """Seconds of each call."""
    seconds: list[float] = []
    calls: Iterator[Awaitable[object]]
    if batch == 1:
        calls = (store.put_message(message) for message in messages)
    else:
        calls = (store.put_messages(some) for some in _batches(messages, batch))
    for call in calls:
        started = time.perf_counter()
        await call
        seconds.append(time.perf_counter() - started)
    return seconds


def _batches(messages: Sequence[NewMessage], batch: int) -> Iterator[Sequence[NewMessage]]:
    return (messages[at : at + batch] for at in range(0, len(messages), batch))


async def _put(root: Path, made: SyntheticStore, batch: int, way: str) -> StoreFigure:
    messages = _messages(made)
    async with _opened(root, way) as store:
        settle(made.memory_bytes)
        with stopwatch() as elapsed:
            calls = await _put_all(store, messages, batch)
        size = int(store.statistics()["hot_log_bytes"])
    return StoreFigure(
        f"put_{batch}{way}",
        made.messages,
        size,
        elapsed.seconds,
        elapsed.cpu_seconds,
        *_percentiles(calls),
    )


async def _put_paced(root: Path, made: SyntheticStore, way: str) -> StoreFigure:
    messages = _messages(made)[:PACED_MESSAGES]
    calls: list[float] = []
    async with _opened(root, way) as store:
        settle(made.memory_bytes)
        with stopwatch() as elapsed:
            due = time.perf_counter()
            for message in messages:
                due += 1 / PACED_MESSAGES_S
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                started = time.perf_counter()
                await store.put_message(message)
                calls.append(time.perf_counter() - started)
    return StoreFigure(
        f"put_paced{way}",
        len(messages),
        0,
        elapsed.seconds,
        elapsed.cpu_seconds,
        *_percentiles(calls),
    )


async def _put_and_tier(root: Path, made: SyntheticStore, batch: int) -> StoreFigure:
    messages = _messages(made)
    async with _opened(root) as store:
        settle(made.memory_bytes)
        with stopwatch() as elapsed:
            await _put_all(store, messages, batch)
            assert store.cold is not None, "its level is not DISABLE"
            await store.cold.tier_now()
            await store.cold.tier.complete_index()
        for queue_id in range(made.queues):
            end = len(range(queue_id, made.messages, made.queues))
            assert await store.commit_offset(made.topic, queue_id) == end, "all is tiered"
        size = int(store.statistics()["tier_bytes"])
    return StoreFigure(
        f"put_and_tier_{batch}", made.messages, size, elapsed.seconds, elapsed.cpu_seconds
    )


async def _probed(
    metric: str, root: Path, made: SyntheticStore, probe: "Callable[[TieredMessageStore], Prober]"
) -> StoreFigure:
    async with _opened(root) as store:
        one = probe(store)
        await one.prepare(made)
        await _timed(one, WARM_UP_PROBES)
        settle(made.memory_bytes)
        with stopwatch() as elapsed:
            calls = await _timed(one, PROBES)
    return StoreFigure(
        metric, PROBES, 0, elapsed.seconds, elapsed.cpu_seconds, *_percentiles(calls)
    )


class Prober(ABC):
    """Asks a store for random things."""

    def __init__(self, store: TieredMessageStore) -> None:
        self._store = store
        self._rng = Random(7)
        self._numbers = range(0)
        self._queues = 1
        self._topic = ""
        self._span_ms = (0, 0)

    async def prepare(self, made: SyntheticStore) -> None:
        """Find out what there is to ask for."""
        self._numbers, self._queues, self._topic = range(made.messages), made.queues, made.topic
        first = await self._store.earliest_message_time(made.topic, 0)
        lasts = [
            await self._store.message_store_time(
                made.topic, queue, len(range(queue, made.messages, made.queues)) - 1
            )
            for queue in range(made.queues)
        ]
        assert first is not None
        self._span_ms = (first, min(last for last in lasts if last is not None))

    @abstractmethod
    async def ask(self) -> None:
        """One question."""


class KeyProber(Prober):
    """Asks for keys, by turns of a user's and of a client's."""

    async def ask(self) -> None:
        number = self._rng.choice(self._numbers)
        key = f"order-{number}" if self._rng.random() < 0.5 else _unique(number)
        found = await self._store.query_message(self._topic, key)
        assert found.messages, key


class TimeProber(Prober):
    """Asks for moments between the first message and the last of all queues."""

    async def ask(self) -> None:
        queue = self._rng.choice(self._numbers) % self._queues
        await self._store.offset_by_time(self._topic, queue, self._rng.randint(*self._span_ms))


async def _timed(prober: Prober, probes: int) -> list[float]:
    seconds: list[float] = []
    for _ in range(probes):
        started = time.perf_counter()
        await prober.ask()
        seconds.append(time.perf_counter() - started)
    return seconds


async def _query(root: Path, made: SyntheticStore) -> StoreFigure:
    return await _probed("query", root, made, KeyProber)


async def _offset_by_time(root: Path, made: SyntheticStore) -> StoreFigure:
    return await _probed("offset_by_time", root, made, TimeProber)


async def _restart(root: Path, made: SyntheticStore) -> list[StoreFigure]:
    settle(made.memory_bytes)
    cpu_started, started = time.process_time(), time.perf_counter()
    figures: list[StoreFigure] = []

    def note(metric: str) -> None:
        seconds = time.perf_counter() - started
        cpu_seconds = time.process_time() - cpu_started
        figures.append(StoreFigure(metric, made.messages, 0, seconds, cpu_seconds))

    async with _opened(root) as store:
        note("restart")
        while True:
            now = store.dispatch_statistics()
            unsettled = made.queues if now is None else made.queues - len(now.queues)
            if now is not None:
                unsettled += sum(one.state is QueueState.UNSETTLED for one in now.queues)
            if not unsettled:
                break
            await asyncio.sleep(0.001)
        note("restart_settled")
    return figures


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return 1e6 * statistics.median(seconds), 1e6 * cuts[98]
