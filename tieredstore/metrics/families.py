"""Names, units and labels of every metric of a follower, made of the values of one moment.

Metrics that RocketMQ has too bear its names, units and labels. Metrics of the storage are in
`provider/stores/metered.py`. `docs/operating.md` explains each of them to operators.
"""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from container.journal.journal import JournalStatistics
from container.metadata.records import Queue
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.upkeep.upkeep import UpkeepStatistics
from dispatcher.ports import HALTED, QueueState
from dispatcher.statistics import DispatchStatistics, QueueStatistics
from fetcher.fetcher import FetcherStatistics
from provider.errors import Closed
from tieredstore.following.statistics import ScanStatistics
from tieredstore.metrics.summary import lost_of, time_range_of


@dataclass(frozen=True, slots=True)
class Moment:
    """Sample of a follower, taken on its event loop. Its values do not change afterwards."""

    now_ms: int
    """Unix time."""
    dispatch: DispatchStatistics
    scan: ScanStatistics
    journal: JournalStatistics
    is_owner: bool
    """Whether the tier is still ours, as far as we know: until the end of an orderly close."""
    upkeep: UpkeepStatistics
    queues: Mapping[QueueId, Queue]
    """Published metadata of each queue."""
    garbage_objects: int
    """Objects that nothing refers to and that wait for their deletion."""
    fetch: FetcherStatistics | None = None
    """Statistics of readers of the tier; None for a process without readers."""
    ends: bool = False
    """Whether the journal was closed in an orderly way."""


QUEUES_NAMED_MAX = 100
"""Queues in trouble that are named; `tieredstore_queues` counts all of them."""
ROCKETMQ_PREFIX = "rocketmq_"
ROCKETMQ_LABELS = {"node_type": "broker", "storage_type": "tiered", "storage_medium": "posix"}
"""Labels of RocketMQ's own tiered store metrics besides cluster and node_id."""
COMMIT_LOG, CONSUME_QUEUE = (kind.name.lower() for kind in FLAT_FILES)


class LabelledMetrics(Collector):
    """The metrics of several collectors with the same labels on every sample.

    Leaves out when a counter was made (`_created`), which doubles a page and which no query needs.
    """

    def __init__(
        self,
        metrics: Iterable[Collector | CollectorRegistry],
        labels: Mapping[str, str],
        *,
        medium: str = ROCKETMQ_LABELS["storage_medium"],
    ) -> None:
        """`medium`: storage medium in the words of RocketMQ."""
        self._metrics = tuple(metrics)
        self._labels = labels
        self._rocketmq = {**ROCKETMQ_LABELS, "storage_medium": medium}

    def collect(self) -> Iterator[Metric]:
        """All families of one scrape."""
        for family in chain.from_iterable(one.collect() for one in self._metrics):
            theirs = self._rocketmq if family.name.startswith(ROCKETMQ_PREFIX) else {}
            labelled = Metric(family.name, family.documentation, family.type, family.unit)
            labelled.samples = [
                sample._replace(labels={**sample.labels, **theirs, **self._labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield labelled


class Opening(Closed):
    """The tier is being opened, or a standby waits for the end of its owner: all is well."""


class TieringMetrics(Collector):
    """The metrics of tiering, read at each scrape. O(queues and segments)."""

    def __init__(self, sample: Callable[[], Moment], version: str) -> None:
        """`sample` takes the sample, on the thread that serves a scrape."""
        self._sample = sample
        self._version = version

    def collect(self) -> Iterator[Metric]:
        """All families of one scrape; the version alone while `_sample` raises `Opening`."""
        version = {"version": self._version, "python": platform.python_version()}
        yield InfoMetricFamily("tieredstore_build", "Version of tieredstore and Python.", version)
        try:
            moment = self._sample()
        except Opening:
            return
        yield from _behind(moment.dispatch.queues)
        yield from _queue_states(moment.dispatch.queues)
        yield from _dispatched(moment.dispatch)
        yield from _stored(moment)
        yield from _followed(moment)
        yield from _owned(moment)
        yield from _upkept(moment.upkeep)
        if moment.fetch is not None:
            yield from _cached(moment.fetch)


def _behind(queues: Iterable[QueueStatistics]) -> Iterator[Metric]:
    behind = GaugeMetricFamily(
        "rocketmq_tiered_store_dispatch_behind",
        "Messages of the broker's log that are not yet durable in the tier, by queue.",
        labels=("topic", "queue_id", "file_type"),
    )
    latency = GaugeMetricFamily(
        "rocketmq_tiered_store_dispatch_latency",
        "Age in milliseconds of the oldest message not yet tiered, by queue.",
        labels=("topic", "queue_id", "file_type"),
    )
    for queue in queues:
        labels = (queue.queue.topic, str(queue.queue.queue_id), CONSUME_QUEUE)
        behind.add_metric(labels, queue.behind)
        latency.add_metric(labels, queue.oldest_age_s * 1000)
    yield behind
    yield latency


def _queue_states(queues: Iterable[QueueStatistics]) -> Iterator[Metric]:
    counts = Counter(queue.state for queue in queues if not queue.is_gone)
    by_state = GaugeMetricFamily(
        "tieredstore_queues",
        "Queues of the broker by state; those stopped, damaged or refused are not tiered.",
        labels=("state",),
    )
    for state in QueueState:
        by_state.add_metric((state.value,), counts[state])
    yield by_state
    named = GaugeMetricFamily(
        "tieredstore_queue_state",
        f"1 for each queue that is stopped, damaged, refused or failing, for {QUEUES_NAMED_MAX} "
        "of them at most.",
        labels=("topic", "queue_id", "state"),
    )
    troubled = (queue for queue in queues if queue.state in HALTED or queue.failures)
    for queue in islice(troubled, QUEUES_NAMED_MAX):
        state = queue.state.value if queue.state in HALTED else "failing"
        named.add_metric((queue.queue.topic, str(queue.queue.queue_id), state), 1)
    yield named


def _dispatched(statistics: DispatchStatistics) -> Iterator[Metric]:
    messages = CounterMetricFamily(
        "rocketmq_tiered_store_messages_dispatch",
        "Messages committed to the tier by this process, by topic.",
        labels=("topic", "file_type"),
    )
    for topic, count in statistics.messages_by_topic.items():
        messages.add_metric((topic, COMMIT_LOG), count)
    yield messages
    yield _counter(
        "tieredstore_dispatch_bytes",
        "Bytes of records and ConsumeQueue units committed to the tier by this process.",
        statistics.bytes,
    )
    yield _counter("tieredstore_rounds", "Commit rounds that landed.", statistics.rounds)
    yield _counter(
        "tieredstore_rounds_failed",
        "Commit rounds that failed and were or will be retried.",
        statistics.rounds_failed,
    )
    yield _gauge(
        "tieredstore_last_commit_age_seconds",
        "Seconds since a commit landed, or since the start. It grows while nothing is written.",
        statistics.commit_age_s,
    )
    yield _gauge(
        "tieredstore_next_commit_seconds",
        "Seconds until messages that are not tiered are due by age; 0 without them or in a commit.",
        statistics.next_commit_s,
    )
    yield _gauge(
        "tieredstore_bytes_in_flight",
        "Bytes read from the broker's log and not yet committed.",
        statistics.bytes_in_flight,
    )
    yield _gauge(
        "tieredstore_messages_waiting",
        "Messages of the broker's log that may not be tiered yet: unconfirmed, or without records.",
        sum(queue.waiting for queue in statistics.waiting),
    )
    yield _gauge(
        "tieredstore_outage",
        "1 while no commit reaches the tier's storage, else 0.",
        statistics.outage,
    )
    yield _gauge(
        "tieredstore_hot_log_failing",
        "1 while the broker's store directory cannot be read, else 0.",
        bool(statistics.hot_error),
    )
    yield _counter(
        "tieredstore_gaps",
        "Ranges of lost messages recorded as gaps by this process.",
        statistics.gaps,
    )


def _stored(moment: Moment) -> Iterator[Metric]:
    stored = GaugeMetricFamily(
        "rocketmq_storage_size",
        "Bytes in the tier, by topic and kind of file.",
        labels=("topic", "file_type"),
    )
    kept = GaugeMetricFamily(
        "rocketmq_storage_message_reserve_time",
        "Age in milliseconds of the oldest message in the tier, by queue.",
        labels=("topic", "queue_id"),
    )
    sizes: Counter[tuple[str, str]] = Counter()
    for queue_id, queue in moment.queues.items():
        for kind in FLAT_FILES:
            sizes[queue_id.topic, kind.name.lower()] += _bytes_of(queue, kind)
        oldest_ms, _ = time_range_of(queue)
        if oldest_ms is not None:
            labels = (queue_id.topic, str(queue_id.queue_id))
            kept.add_metric(labels, max(0, moment.now_ms - oldest_ms))
    for labels, size in sizes.items():
        stored.add_metric(labels, size)
    yield stored
    yield kept
    yield _gauge(
        "tieredstore_messages_lost",
        "Messages in gaps of the tier, lost before they could be tiered, under any owner; and "
        "messages of recreated topics that this process passed over.",
        sum(map(lost_of, moment.queues.values()))
        + sum(queue.hidden for queue in moment.dispatch.queues),
    )


def _bytes_of(queue: Queue, kind: SegmentType) -> int:
    refs = sum(ref.bytes for ref in queue.manifests if ref.type == kind)
    return refs + sum(segment.size for segment in queue.segments(kind))


def _followed(moment: Moment) -> Iterator[Metric]:
    yield _gauge(
        "tieredstore_pinned_bytes",
        "Bytes of the broker's deleted CommitLog files that only our hard links keep.",
        moment.scan.pinned_bytes,
    )
    yield _counter(
        "tieredstore_bodies_damaged",
        "Messages that rotted on the broker's disk before they were tiered, if that is compared.",
        moment.scan.bodies_damaged,
    )
    yield _counter(
        "tieredstore_pins_dropped_untiered",
        "Pinned files dropped before they were tiered, because pins exceeded their limit.",
        moment.scan.pins_dropped_untiered,
    )


def _owned(moment: Moment) -> Iterator[Metric]:
    yield _counter(
        "tieredstore_journal_entries",
        "Journal entries written by this process.",
        moment.journal.entries,
    )
    yield _gauge(
        "tieredstore_epoch",
        "Epoch of this process's ownership of the tier: how often it was taken until then.",
        moment.journal.epoch,
    )
    yield _gauge(
        "tieredstore_owner",
        "1 while this process owns the tier, until its end; 0 once another one has taken it.",
        moment.is_owner,
    )
    yield _gauge(
        "tieredstore_garbage_objects",
        "Objects that nothing refers to and that wait for their deletion.",
        moment.garbage_objects,
    )


def _cached(fetch: FetcherStatistics) -> Iterator[Metric]:
    prefix = "rocketmq_tiered_store_read_ahead_cache"
    yield _gauge(f"{prefix}_count", "Runs of messages in the cache.", fetch.runs_held)
    yield _gauge(f"{prefix}_bytes", "Bytes that they occupy.", fetch.bytes_held)
    calls = fetch.hits + fetch.misses
    yield _counter(f"{prefix}_access", "Calls of the tier's readers.", calls)
    yield _counter(f"{prefix}_hit", "Those that were answered from the cache alone.", fetch.hits)


def _upkept(statistics: UpkeepStatistics) -> Iterator[Metric]:
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
    expired = statistics.figures.get("expired_messages", 0)
    yield _counter("tieredstore_expired_messages", "Messages that retention has removed.", expired)
    size = statistics.figures.get("expired_bytes", 0)
    yield _counter("tieredstore_expired_bytes", "Bytes of records that retention removed.", size)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
