"""Figures of the process that owns a tier, from its pages at `tieredStoreMetricsPort`."""

from collections.abc import Callable, Iterable
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dispatcher.ports import HALTED
from provider.clock import SystemClock
from tieredstore.config.effective import Config
from tieredstore.config.prices import HOUR_S

ANSWER_S_MAX = 5.0
STARTED = "process_start_time_seconds"
HALTED_STATES = frozenset(state.value for state in HALTED)
FIGURES: dict[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "rocketmq_tiered_store_dispatch_behind": ("messages_behind", sum),
    "rocketmq_tiered_store_dispatch_latency": ("oldest_behind_ms", max),
    "tieredstore_messages_waiting": ("messages_waiting", sum),
    "tieredstore_queues": ("queues_halted", sum),
    "tieredstore_next_commit_seconds": ("next_commit_s", max),
    "tieredstore_last_commit_age_seconds": ("last_commit_age_s", max),
    "tieredstore_outage": ("outage", max),
    "tieredstore_object_store_requests_total": ("requests", sum),
    "tieredstore_object_store_request_cost_total": ("request_cost", sum),
}
"""Name of a figure, and how it is made of the samples of a metric."""


def process_figures(config: Config) -> dict[str, object]:
    """Ask the process of a broker for its figures. Blocks up to twice `ANSWER_S_MAX`.

    Costs a scrape: O(queues) in that process, and here.

    Returns:
        `page`, its URL; `ready`; `reason`, why it is not ready or does not answer; `hours` since
        its start; and those of `FIGURES` that the page has.
    """
    host = "127.0.0.1" if config.metrics_host in {"", "0.0.0.0"} else config.metrics_host  # noqa: S104 - no address to listen at
    page = f"http://{f'[{host}]' if ':' in host else host}:{config.metrics_port}"
    found: dict[str, object] = {"page": page, "ready": False}
    try:
        reason = _answer(f"{page}/readyz").strip()
        found |= {"ready": reason == "ok", "reason": "" if reason == "ok" else reason}
        found |= figures_of(_answer(f"{page}/metrics"), config.cluster, config.broker)
    except (OSError, ValueError) as error:
        inner = error.reason if isinstance(error, URLError) else error
        reason = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(inner)
        found["reason"] = f"it does not answer: {reason.lower()}"
    return found


def figures_of(page: str, cluster: str, broker: str) -> dict[str, float]:
    """Return the figures of one broker in a page of metrics, which may be of several.

    Raises:
        ValueError: a line has not the form of a sample.
    """
    names = (*FIGURES, STARTED)  # the others, most of a page, are not parsed
    lines = "\n".join(line for line in page.split("\n") if line.startswith(names))
    values: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            if _is_counted(sample, cluster, broker):
                values.setdefault(sample.name, []).append(sample.value)
    found = {
        figure: fold(values[metric])
        for metric, (figure, fold) in FIGURES.items()
        if metric in values
    }
    if STARTED in values:
        found["hours"] = (SystemClock().now_ms() / 1000 - max(values[STARTED])) / HOUR_S
    return found


def _is_counted(sample: Sample, cluster: str, broker: str) -> bool:
    labels = sample.labels
    if sample.name == "tieredstore_queues" and labels["state"] not in HALTED_STATES:
        return False
    of = labels.get("cluster", cluster), labels.get("node_id", broker)
    return of == (cluster, broker)


def _answer(url: str) -> str:
    try:
        with urlopen(url, timeout=ANSWER_S_MAX) as answer:  # noqa: S310 - an http URL of ours
            return answer.read().decode()
    except HTTPError as error:  # 503: the body is the reason
        return error.read().decode()
