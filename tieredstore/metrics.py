"""Names, units and labels of every metric, and the page that a Prometheus server reads.

Metrics that RocketMQ has too bear its names and units. Metrics of the storage are in
`provider/metered.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from container.journal.journal import JournalStatistics
from container.upkeep.upkeep import UpkeepStatistics
from dispatcher.queue_state import QueueState
from dispatcher.statistics import DispatchStatistics
from tieredstore.config.sources import ConfigError
from tieredstore.following.statistics import ScanStatistics

LOOPBACK = "127.0.0.1"
QUEUE_LABELS = ("topic", "queue_id")


class TieringMetrics(Collector):
    """The metrics of tiering, read at each scrape. O(queues)."""

    def __init__(
        self,
        dispatch: Callable[[], DispatchStatistics],
        scan: Callable[[], ScanStatistics],
        journal: Callable[[], JournalStatistics],
        upkeep: Callable[[], UpkeepStatistics],
        messages_lost: Callable[[], int] = lambda: 0,
    ) -> None:
        self._dispatch = dispatch
        self._scan = scan
        self._journal = journal
        self._upkeep = upkeep
        self._messages_lost = messages_lost

    def collect(self) -> Iterable[Metric]:
        """All families of one scrape."""
        statistics = self._dispatch()
        yield from _queue_metrics(statistics)
        yield from _dispatch_metrics(statistics)
        yield _gauge(
            "tieredstore_messages_lost",
            "Messages in gaps of the tier: lost before they could be tiered, whoever tiered then.",
            self._messages_lost(),
        )
        scan = self._scan()
        yield _gauge(
            "tieredstore_pinned_bytes",
            "Bytes of the broker's deleted CommitLog files that only our hard links keep.",
            scan.pinned_bytes,
        )
        yield _counter(
            "tieredstore_pins_dropped_untiered",
            "Pinned files dropped before they were tiered, because pins exceeded their limit.",
            scan.pins_dropped_untiered,
        )
        journal = self._journal()
        yield _counter(
            "tieredstore_journal_entries",
            "Journal entries written by this process.",
            journal.entries,
        )
        yield _gauge(
            "tieredstore_epoch", "Epoch of this process's ownership of the tier.", journal.epoch
        )
        yield from _upkeep_metrics(self._upkeep())


def _queue_metrics(statistics: DispatchStatistics) -> Iterable[Metric]:
    behind = GaugeMetricFamily(
        "rocketmq_tiered_store_dispatch_behind",
        "Messages of the broker's log that are not yet durable in the tier, by queue.",
        labels=QUEUE_LABELS,
    )
    latency = GaugeMetricFamily(
        "rocketmq_tiered_store_dispatch_latency",
        "Age in milliseconds of the oldest message not yet tiered, by queue.",
        labels=QUEUE_LABELS,
    )
    for queue in statistics.queues:
        labels = (queue.queue.topic, str(queue.queue.queue_id))
        behind.add_metric(labels, queue.behind)
        latency.add_metric(labels, queue.oldest_age_s * 1000)
    yield behind
    yield latency
    over = GaugeMetricFamily(
        "tieredstore_queues_over",
        "Queues that are no longer tiered, by state: stopped, refused or damaged.",
        labels=("state",),
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
    yield _counter(
        "tieredstore_dispatch_bytes",
        "Bytes of records and ConsumeQueue units committed to the tier by this process.",
        statistics.bytes,
    )
    yield _counter(
        "tieredstore_gaps",
        "Ranges of lost messages recorded as gaps by this process.",
        statistics.gaps,
    )
    yield _counter(
        "tieredstore_rounds_failed",
        "Commit rounds that failed and were or will be retried.",
        statistics.rounds_failed,
    )
    yield _gauge(
        "tieredstore_bytes_in_flight",
        "Bytes read from the broker's log and not yet committed.",
        statistics.bytes_in_flight,
    )
    yield _gauge(
        "tieredstore_outage",
        "1 while no commit reaches the tier's storage, else 0.",
        statistics.outage,
    )
    failing = bool(statistics.hot_error)
    yield _gauge(
        "tieredstore_hot_log_failing",
        "1 while the broker's store directory cannot be read, else 0.",
        failing,
    )


def _upkeep_metrics(statistics: UpkeepStatistics) -> Iterable[Metric]:
    runs = CounterMetricFamily(
        "tieredstore_upkeep_runs", "Runs of a step of upkeep that ended.", labels=("step",)
    )
    failures = CounterMetricFamily(
        "tieredstore_upkeep_failures", "Runs of a step of upkeep that failed.", labels=("step",)
    )
    failing = GaugeMetricFamily(
        "tieredstore_upkeep_failing", "1 while a step's last run failed.", labels=("step",)
    )
    figures = GaugeMetricFamily(
        "tieredstore_upkeep_figure",
        "What the steps of upkeep did since this owner took the tier, by name.",
        labels=("figure",),
    )
    for name, step in statistics.steps.items():
        runs.add_metric((name,), step.runs)
        failures.add_metric((name,), step.failures)
        failing.add_metric((name,), bool(step.last_error))
    for name, value in statistics.figures.items():
        figures.add_metric((name,), value)
    yield from (runs, failures, failing, figures)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


@asynccontextmanager
async def served_metrics(port: int, registry: CollectorRegistry) -> AsyncGenerator[None]:
    """Serve the registry's page on the loopback address while the block runs; port 0: serve none.

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
