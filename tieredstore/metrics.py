"""Names, units and labels of every metric, and the page that a Prometheus server reads.

RocketMQ's names where it has the metric (with the unit that the name says); the storage's own
metrics are in `provider/metered.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from container.journal.journal import JournalStatistics
from dispatcher.queue_progress import QueueState
from dispatcher.statistics import DispatchStatistics
from tieredstore.config.sources import ConfigError
from tieredstore.following.statistics import ScanStatistics

LOOPBACK = "127.0.0.1"
QUEUE_LABELS = ("topic", "queue_id")


class TieringMetrics(Collector):
    """What tiering tells, read anew at each scrape. O(queues)."""

    def __init__(
        self,
        dispatch: Callable[[], DispatchStatistics],
        scan: Callable[[], ScanStatistics],
        journal: Callable[[], JournalStatistics],
    ) -> None:
        self._dispatch = dispatch
        self._scan = scan
        self._journal = journal

    def collect(self) -> Iterable[Metric]:
        """All families of one scrape."""
        statistics = self._dispatch()
        yield from _queue_metrics(statistics)
        yield from _dispatch_metrics(statistics)
        scan = self._scan()
        yield _gauge("tieredstore_pinned_bytes", "Bytes that only pins keep.", scan.pinned_bytes)
        yield _counter(
            "tieredstore_pins_dropped_untiered",
            "Pinned files given up before they were tiered, for want of room.",
            scan.pins_dropped_untiered,
        )
        journal = self._journal()
        yield _counter("tieredstore_journal_entries", "Journal entries written.", journal.entries)
        yield _gauge("tieredstore_epoch", "Epoch of the tier's owner.", journal.epoch)


def _queue_metrics(statistics: DispatchStatistics) -> Iterable[Metric]:
    behind = GaugeMetricFamily(
        "rocketmq_tiered_store_dispatch_behind",
        "Messages of the hot log that are not in the tier.",
        labels=QUEUE_LABELS,
    )
    latency = GaugeMetricFamily(
        "rocketmq_tiered_store_dispatch_latency",
        "Milliseconds that the first of them has been waiting.",
        labels=QUEUE_LABELS,
    )
    for queue in statistics.queues:
        labels = (queue.queue.topic, str(queue.queue.queue_id))
        behind.add_metric(labels, queue.behind)
        latency.add_metric(labels, queue.oldest_age_s * 1000)
    yield behind
    yield latency
    over = GaugeMetricFamily(
        "tieredstore_queues_over", "Queues that are not tiered any further.", labels=("state",)
    )
    for state in (QueueState.STOPPED, QueueState.REFUSED, QueueState.DAMAGED):
        over.add_metric((state.value,), sum(q.state is state for q in statistics.halted))
    yield over


def _dispatch_metrics(statistics: DispatchStatistics) -> Iterable[Metric]:
    yield _counter(
        "rocketmq_tiered_store_messages_dispatch",
        "Messages committed to the tier by this process.",
        statistics.messages,
    )
    yield _counter("tieredstore_dispatch_bytes", "Bytes committed.", statistics.bytes)
    yield _counter("tieredstore_gaps", "Gaps recorded: messages lost.", statistics.gaps)
    yield _counter("tieredstore_rounds_failed", "Rounds that failed.", statistics.rounds_failed)
    yield _gauge(
        "tieredstore_bytes_in_flight",
        "Bytes read and not yet committed.",
        statistics.bytes_in_flight,
    )
    yield _gauge("tieredstore_outage", "1 while nothing reaches the tier.", statistics.outage)
    failing = bool(statistics.hot_error)
    yield _gauge("tieredstore_hot_log_failing", "1 while the store cannot be read.", failing)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


@asynccontextmanager
async def served_metrics(port: int, registry: CollectorRegistry) -> AsyncGenerator[None]:
    """Serve the registry's page on the loopback address while the block runs; not at port 0.

    Raises:
        ConfigError: the port is taken or not allowed.
    """
    if not port:
        yield
        return
    try:
        server, thread = start_http_server(port, addr=LOOPBACK, registry=registry)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise ConfigError(f"tieredStoreMetricsPort={port} cannot be served: {reason}") from error
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)
