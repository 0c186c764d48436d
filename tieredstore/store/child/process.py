"""Tier of a store that a process of its own owns: its start, watch, restart, calls and end."""

import asyncio
import logging
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from container.lookup.find import KnownCoverage, find_at_once, find_messages
from container.lookup.query import KeyQuery, QueryResult
from container.names.queue_id import QueueId
from container.tier_view import TierReader
from dispatcher.statistics import DispatchStatistics
from dispatcher.topic_filter import TopicFilter
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import Clock, backoff_s, wait_at_most
from provider.errors import StoreError, Unavailable
from provider.stores.metered import ProviderMetrics
from provider.stores.two_stores import TwoStores
from tieredstore.config.effective import Config, StartWords
from tieredstore.hot.hot_log import HotLog
from tieredstore.lifetime import cause, running
from tieredstore.session.owner import PASSING, Spending
from tieredstore.session.places import meters_of
from tieredstore.session.reader import open_reader
from tieredstore.session.tiering import TieringWatch
from tieredstore.store.child.remote_log import LogPlace, Opening
from tieredstore.store.child.reports import QUEUES_MAX, QueueChanges, Report, ReportedTiering
from tieredstore.store.child.wire import Peer
from tieredstore.store.cold_tier import ColdTier

LOGGER = logging.getLogger("tieredstore.store")
ENDS_S_MIN = 0.01
"""Shortest interval of messages on durable watermarks, in seconds."""
ENDS_PAUSES = 100
"""Least pause between two of them, as a multiple of the time that one takes."""
LOOK_S = 1.0
"""Interval at which transfer limits are compared, in seconds."""
REFRESH_S = 0.1
"""Shortest interval of reads of the tier's newest metadata, in seconds."""
BACKOFF_S_MIN = 0.1
BACKOFF_S_MAX = 10.0
"""Pauses before a restart, in seconds: doubled after each start that failed."""
STEADY_S = 60.0
"""Life of a process, in seconds, after which its end is not a failed start."""
CLOSE_MARGIN_S = 60.0
"""Seconds beyond `tieredStoreShutdownTimeout` after which a process that closes is killed."""
MODULE = "tieredstore.store.child.main"


async def start_process() -> tuple[Process, asyncio.StreamReader, asyncio.StreamWriter]:
    """Start a tiering process; return it and the connection to it.

    It is a new interpreter: nothing of this process is shared but standard error and a socket.

    Raises:
        Unavailable: it cannot be started.
    """
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(filter(None, sys.path))
    try:
        with theirs:
            process = await create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                MODULE,
                str(theirs.fileno()),
                str(os.getpid()),
                stdin=DEVNULL,
                stdout=DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours)
    except OSError as error:
        ours.close()
        reason = f"the tiering process cannot be started: {(error.strerror or '').lower()}"
        raise Unavailable(reason, sys.executable) from error
    except BaseException:
        ours.close()  # a process that was started meanwhile ends by it
        raise
    return process, reader, writer


class TieringProcess(ColdTier):
    """Tier that a process of its own owns. See `open_tiering_process`.

    `supervise` runs the process and replaces it when it ends. Reads go to a reader of this process.
    """

    def __init__(
        self,
        config: Config,
        log: HotLog,
        clock: Clock,
        *,
        take_over: bool,
    ) -> None:
        self._config = config
        self._log = log
        self._clock = clock
        self._take_over = take_over
        self._topics = TopicFilter(config.cluster, config.broker)
        self._is_paused = True
        self._connection: Peer | None = None
        """Connection to the present process."""
        self._peer: Peer | None = None
        """The same, once that process has opened the tier."""
        self._process: Process | None = None
        self._sent: dict[QueueId, int] = {}
        """Durable watermarks that the present process knows."""
        self._limits = 0, 0
        """Transfer limits that it knows."""
        self._released: dict[QueueId, int] = {}
        self._new: dict[QueueId, int] = {}
        """Offsets that are released once the reader of this process has them."""
        self._has_new = asyncio.Event()
        self._delete: Callable[[], Awaitable[None]] | None = None
        self._reader: TierReader | None = None
        self._ended_by: Exception | None = None
        """Error that ended the tier of the present process."""
        self._closes = asyncio.Event()
        self._over = asyncio.Event()
        self.is_open = asyncio.Event()
        """Set once a process opened the tier."""
        self.restarts = 0
        """Number of processes that replaced another one."""
        self.reported = ReportedTiering(lambda: self.tier.state, clock)
        """Statistics, as reported."""

    def __repr__(self) -> str:
        return f"<TieringProcess {self.pid or 'not running'}, restarted {self.restarts} times>"

    @property
    def pid(self) -> int:
        """Number of the process; 0 while none has opened the tier."""
        return 0 if self._process is None or self._peer is None else self._process.pid

    @property
    def tier(self) -> TierReader:
        """Reader of this process. It lags behind the owner by some 0.1 s."""
        assert self._reader is not None, "it is opened before the tier is used"
        return self._reader

    async def open_reader(self, stack: AsyncExitStack, registry: CollectorRegistry) -> None:
        """Open the reader. `registry` counts its requests. Errors as `open_reader`."""
        opening = open_reader(self._config, metrics=ProviderMetrics(registry))
        self._reader = await stack.enter_async_context(opening)
        store = self._reader.store
        if isinstance(store, TwoStores) and (meters := meters_of(store)):
            prices = await asyncio.to_thread(lambda: self._config.prices)
            registry.register(Spending(meters, prices))
        self.fetcher = TieredMessageFetcher(
            self._reader, options=self._config.fetcher, clock=self._clock
        )
        await stack.enter_async_context(self.fetcher)

    async def supervise(self) -> None:
        """Run a process, and another one whenever it ends, until `close`.

        Raises:
            StoreError, ConfigError: the first one cannot open the tier; or a later one cannot, and
                that does not pass, as when another process owns the tier.
        """
        failures = 0
        try:
            while not self._closes.is_set():
                began_s = self._clock.monotonic_s()
                reason = await self._one_process()
                if self._closes.is_set():
                    return
                is_steady = self._clock.monotonic_s() - began_s >= STEADY_S
                failures = 1 if is_steady else failures + 1
                pause_s = backoff_s(failures, s_min=BACKOFF_S_MIN, s_max=BACKOFF_S_MAX)
                self.reported.trouble = f"{reason}; it is started again"
                LOGGER.error(
                    "%s: messages stay in the hot log until they are tiered; it is started again"
                    " in %g s",
                    reason,
                    pause_s,
                )
                await wait_at_most(self._clock, pause_s, self._closes.wait())
                self.restarts += not self._closes.is_set()
        finally:
            self._over.set()

    async def _one_process(self) -> str:
        """Run a process until it ends. Return why it ended, as a sentence.

        Raises: as `supervise`.
        """
        self._sent, self._ended_by = {}, None
        self._released.clear()
        self._new.clear()
        try:
            process, reader, writer = await start_process()
        except Unavailable as error:
            if not self.is_open.is_set():
                raise
            return error.reason
        self._process = process
        peer = Peer(reader, writer, calls=self._calls(), notes=self._notes())
        self._connection = peer
        failed: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(peer.run())
                operating = group.create_task(self._operate(peer))
                await serving
                operating.cancel()
        except* (StoreError, ValueError) as errors:  # a `ConfigError` is a `ValueError`
            failed = _first(errors)
        finally:
            self._peer = self._connection = None
            with suppress(ProcessLookupError):
                process.kill()
            status = await process.wait()
        failed = self._ended_by or failed
        words = f"the tiering process {process.pid} ended"
        if failed is None or (peer.is_over and isinstance(failed, Unavailable) and not failed.path):
            failed = Unavailable(f"{words} with status {status}", str(self._log.root))
        is_first = not self.is_open.is_set()
        if is_first or not isinstance(failed, PASSING):
            raise failed
        return failed.reason if failed.reason.startswith(words) else f"{words}: {failed}"

    async def _operate(self, peer: Peer) -> None:
        """Open the tier, then send watermarks and limits. Endless."""
        config = self._config
        if self.is_open.is_set():  # words of a start hold for the first process alone
            config = replace(config, start=StartWords())
        await self._send_ends(peer)
        limits = config.limits
        self._limits = limits.upload_bytes_per_s, limits.download_bytes_per_s
        log = self._log
        opening = Opening(
            config,
            LogPlace(log.root, log.commit_log, log.identities),
            self._is_paused,
            self._take_over and not self.is_open.is_set(),
            *self._limits,
            logging.getLogger("tieredstore").getEffectiveLevel(),
        )
        paused = self._is_paused
        self.reported.begin()
        await peer.call("open", opening)
        self.reported.trouble = ""
        self._peer = peer
        if self.is_open.is_set():
            LOGGER.info("the tiering process %d tiers again", self.pid)
        if paused is not self._is_paused:  # it changed meanwhile
            peer.note("pause", self._is_paused)
        self.is_open.set()
        while True:
            await wait_at_most(self._clock, LOOK_S, log.news.wait())
            log.news.clear()
            began_s = self._clock.monotonic_s()
            await self._send_ends(peer)
            now = limits.upload_bytes_per_s, limits.download_bytes_per_s
            if now != self._limits:
                self._limits = now
                peer.note("limits", *now)
            took_s = self._clock.monotonic_s() - began_s
            await self._clock.sleep(max(ENDS_S_MIN, took_s * ENDS_PAUSES))

    async def _send_ends(self, peer: Peer) -> None:
        """Send the durable watermarks that rose. O(queues), some 50 ns each."""
        sent, durable = self._sent, self._log.durable_offsets()
        if not sent:
            continued = {queue: self._log.next_offset(queue) for queue in self._log.queues()}
            durable = {**continued, **durable}
        new = [(queue, end) for queue, end in durable.items() if sent.get(queue) != end]
        for at in range(0, len(new), QUEUES_MAX):
            part = dict(new[at : at + QUEUES_MAX])
            sent.update(part)
            peer.note("ends", part)
            await peer.drained()

    def _calls(self) -> Mapping[str, Callable[..., Awaitable[object]]]:
        log = self._log

        async def flush() -> None:
            await log.flush()
            if self._connection is not None:
                await self._send_ends(self._connection)

        async def delete_hot() -> None:
            assert self._delete is not None, "it is part of `delete_topics`"
            await self._delete()

        return {
            "flush": flush,
            "bounds": log.bounds,
            "continue_queues": log.continue_queues,
            "remember_place": log.remember_place,
            "delete_hot": delete_hot,
        }

    def _notes(self) -> Mapping[str, Callable[..., None]]:
        return {
            "released": self._take_released,
            "report": self._take_report,
            "log": _log,
            "ended": self._take_end,
        }

    def _take_released(self, released: Mapping[QueueId, int]) -> None:
        self._new.update(released)
        self._has_new.set()

    def _take_report(self, part: QueueChanges | Report) -> None:
        self.reported.take(part)
        if isinstance(part, Report):
            known = -1 if self._reader is None else self._reader.state.sequence
            if part.ownership.journal.sequence > known:
                self._has_new.set()

    def _take_end(self, error: Exception) -> None:
        self._ended_by = error

    async def follow(self) -> None:
        """Read the tier's newest metadata after each publication. Endless.

        Messages are released to retention after this process has seen them in the tier.
        """
        while True:
            await self._has_new.wait()
            self._has_new.clear()
            await self._refresh()
            await self._clock.sleep(REFRESH_S)

    async def _refresh(self) -> None:
        """Read the newest metadata, then release what is in it. A failure is met again later."""
        released, self._new = self._new, {}
        try:
            await self.tier.refresh()
        except StoreError as error:
            self._new = {**released, **self._new}
            self._has_new.set()
            LOGGER.debug("the tier's newest metadata cannot be read now: %s", error)
        else:
            self._released.update(released)

    async def _call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - as the function's
        """Call a function of the process, then learn what it published.

        Raises:
            Unavailable: no process runs now, or it ended meanwhile.
        """
        if self._peer is None:
            reason = self.reported.trouble or "the tiering process is started"
            raise Unavailable(reason, str(self._log.root))
        found = await self._peer.call(name, *arguments)
        await self._refresh()
        return found

    @property
    def is_paused(self) -> bool:
        """See `ColdTier`."""
        return self._is_paused

    def resume(self) -> None:
        """See `ColdTier`."""
        self._is_paused = False
        if self._peer is not None:
            self._peer.note("pause", False)  # noqa: FBT003 - of a note

    def pause(self) -> None:
        """See `ColdTier`."""
        self._is_paused = True
        if self._peer is not None:
            self._peer.note("pause", True)  # noqa: FBT003 - of a note

    def watch(self, clock: Clock) -> TieringWatch:
        """See `ColdTier`."""
        return TieringWatch(self.reported, clock, fetcher=self.fetcher)

    def statistics(self) -> DispatchStatistics:
        """See `ColdTier`. As of the last report, at most about a second ago."""
        return self.reported.dispatch()

    def holds_back(self, queue: QueueId) -> int | None:
        """See `ColdTier`."""
        return None if self._topics.excludes(queue.topic) else self._released.get(queue, 0)

    async def find(self, query: KeyQuery, known: KnownCoverage) -> QueryResult:
        """See `ColdTier`.

        Answers at once where index files have all keys. Else the owner knows keys that are in no
        file yet. Without it, these messages are read.
        """
        found = await find_at_once(self.tier, query, known)
        if found is not None:
            return found
        peer = self._peer
        if peer is not None:
            try:
                return await peer.call("find", query)
            except Unavailable:
                if not peer.is_over:
                    raise
        return await find_messages(self.tier, query, known=known)

    async def publish_topics(self) -> None:
        """See `ColdTier`."""
        await self._call("publish_topics")

    async def delete_topics(
        self, topics: Collection[str], delete: Callable[[], Awaitable[None]]
    ) -> None:
        """See `ColdTier`. One call at a time."""
        self._delete = delete
        try:
            await self._call("delete_topics", topics)
        finally:
            self._delete = None

    async def close(self) -> None:
        """Tier the rest of the backlog, close the tier, and wait for the end of the process.

        Takes at most `CLOSE_MARGIN_S` longer than `tieredStoreShutdownTimeout`; then the process is
        killed. Messages that are not tiered stay in the hot log, and the next start tiers them.

        Raises:
            StoreError: as the end of `open_cold_side`.
        """
        self._closes.set()
        peer = self._peer
        if peer is None:
            LOGGER.error("no tiering process runs: the next start tiers what waits")
            return
        seconds = self._config.dispatch.close_s_max + CLOSE_MARGIN_S
        try:
            async with asyncio.timeout(seconds):
                await self._call("close")
                await self._over.wait()
        except TimeoutError:
            LOGGER.error(  # noqa: TRY400 - the sentence says it all
                "the tiering process %d does not end in %g s and is killed: the next start tiers"
                " what waits",
                self.pid,
                seconds,
            )
        except Unavailable as error:
            if not peer.is_over or error.path:
                raise
            LOGGER.error(  # noqa: TRY400 - likewise
                "the tiering process ended while it closed: the next start tiers what waits"
            )


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    found = cause(errors)
    assert isinstance(found, Exception), "of a group of them"
    return found


def _log(record: logging.LogRecord) -> None:
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


class TieringProcessMetrics(Collector):
    """Metrics of a tiering process, and the sums of those that both processes count."""

    def __init__(self, side: TieringProcess, own: CollectorRegistry) -> None:
        """`own`: metrics of the reader in this process."""
        self._side = side
        self._own = own
        self._process = CollectorRegistry()
        ProcessCollector("tieredstore_tiering", lambda: side.pid, registry=self._process)

    def collect(self) -> Iterator[Metric]:
        """All families of one scrape."""
        side, last = self._side, self._side.reported.last
        yield GaugeMetricFamily(
            "tieredstore_tiering_process_up",
            "1 while a process owns the tier for this store, 0 while it is started again.",
            value=bool(side.pid),
        )
        yield CounterMetricFamily(
            "tieredstore_tiering_process_restarts",
            "Processes that replaced one which ended before the store did.",
            value=side.restarts,
        )
        yield GaugeMetricFamily(
            "tieredstore_tiering_process_report_age_seconds",
            "Age of the last report of the tiering process. It grows while the process hangs.",
            value=side.reported.age_s,
        )
        yield from self._process.collect()
        yield from summed(chain(last.metrics, self._own.collect()))


def summed(families: Iterable[Metric]) -> Iterator[Metric]:
    """Yield each family once, with the sums of the samples of the same labels. Pure."""
    found: dict[str, Metric] = {}
    sums: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for family in families:
        kept = found.get(family.name)
        if kept is None:
            kept = Metric(family.name, family.documentation, family.type, family.unit)
            found[family.name] = kept
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            if key not in sums:
                kept.samples.append(sample)
            sums[key] += sample.value
    for family in found.values():
        family.samples = [
            sample._replace(value=sums[sample.name, tuple(sorted(sample.labels.items()))])
            for sample in family.samples
        ]
        yield family


@asynccontextmanager
async def open_tiering_process(
    config: Config,
    log: HotLog,
    *,
    clock: Clock,
    registry: CollectorRegistry,
    take_over: bool = False,
) -> AsyncGenerator[TieringProcess]:
    """Have a process own the configured tier for the block, fed from `log`; see `open_cold_side`.

    `registry`: has the metrics of both processes while the block runs.

    Raises:
        Unavailable: no process can be started, or it ended while it opened the tier.
        And the errors of `open_cold_side` and `open_configured_tier`.
    """
    side = TieringProcess(config, log, clock, take_over=take_over)
    own = CollectorRegistry()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running([side.supervise]))
        await side.is_open.wait()
        await side.open_reader(stack, own)
        metrics = TieringProcessMetrics(side, own)
        registry.register(metrics)
        stack.callback(registry.unregister, metrics)
        await stack.enter_async_context(running([side.follow]))
        stack.push_async_callback(side.close)
        yield side
