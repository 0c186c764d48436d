"""Figures of the process that owns a tier, from its pages at `tieredStoreMetricsPort`."""

import math
from collections.abc import Callable, Iterable
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dispatcher.ports import HALTED
from provider.clock import SystemClock
from tieredstore.config.effective import Config
from tieredstore.config.prices import HOUR_S

ANSWER_S_MAX = 5.0
"""Of a page; and of each wait for more of it."""
PAGE_BYTES_MAX = 256 << 20
"""Some 200,000 queues."""
READ_BYTES = 1 << 20
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
NO_ANSWER = (OSError, ValueError, HTTPException)
"""Errors of `metrics_page` and `figures_of`."""


def process_figures(config: Config) -> dict[str, object]:
    """Ask the process of a broker for its figures. Blocks up to four times `ANSWER_S_MAX`.

    Costs a scrape: O(queues) in that process, and here.

    Returns:
        `page`, its URL; `ready`; `reason`, why it is not ready or does not answer; `hours` since
        its start; and those of `FIGURES` that the page has.
    """
    url = _url_of(config)
    found: dict[str, object] = {"page": url, "ready": False}
    try:
        reason = _readiness(url)
        found |= {"ready": reason == "ok", "reason": "" if reason == "ok" else reason}
        found |= figures_of(metrics_page(config), config.cluster, config.broker)
    except NO_ANSWER as error:
        inner = error.reason if isinstance(error, URLError) else error
        reason = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(inner)
        found["reason"] = f"it does not answer: {reason.lower() or type(inner).__name__}"
    return found


def metrics_page(config: Config) -> str:
    """Return the page of metrics of the process of a broker.

    Blocks up to twice `ANSWER_S_MAX`; holds up to `PAGE_BYTES_MAX`.

    Raises:
        OSError, HTTPException: it does not answer in time, or answers with an error.
        ValueError: the page is larger, or no UTF-8.
    """
    return _answer(f"{_url_of(config)}/metrics")


def figures_of(page: str, cluster: str, broker: str) -> dict[str, float]:
    """Return the figures of one broker in a page of metrics, which may be of several.

    Raises:
        ValueError: a line has not the form of a sample.
    """
    values: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families(_lines_of(page, broker)):
            for sample in family.samples:
                if _is_counted(sample, cluster, broker):
                    values.setdefault(sample.name, []).append(_number_of(sample))
    except (KeyError, IndexError) as error:  # of the parser, for a label without a name or value
        raise ValueError(f"a label is damaged: {error}") from error
    found = {
        figure: fold(values[metric])
        for metric, (figure, fold) in FIGURES.items()
        if metric in values
    }
    if "next_commit_s" in found:  # it tiers, perhaps no queue yet
        found.setdefault("messages_behind", 0.0)
    if STARTED in values:
        found["hours"] = (SystemClock().now_ms() / 1000 - max(values[STARTED])) / HOUR_S
    return found


def _lines_of(page: str, broker: str) -> str:
    """Leave out other metrics and brokers, most of a page, before lines are parsed."""
    names, label = (*FIGURES, STARTED), 'node_id="'
    escaped = broker.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    own = f'{label}{escaped}"'
    lines = (line for line in page.split("\n") if line.startswith(names))
    return "\n".join(line for line in lines if own in line or label not in line)


def _is_counted(sample: Sample, cluster: str, broker: str) -> bool:
    labels = sample.labels
    if sample.name == "tieredstore_queues" and labels.get("state") not in HALTED_STATES:
        return False
    of = labels.get("cluster", cluster), labels.get("node_id", broker)
    return of == (cluster, broker)


def _number_of(sample: Sample) -> float:
    value = float(sample.value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{sample.name} is {value}")
    return value


def _url_of(config: Config) -> str:
    host = "127.0.0.1" if config.metrics_host in {"", "0.0.0.0"} else config.metrics_host  # noqa: S104 - no address to listen at
    return f"http://{f'[{host}]' if ':' in host else host}:{config.metrics_port}"


def _readiness(url: str) -> str:
    """Return `ok`, or the reason that comes with status 503."""
    try:
        return _answer(f"{url}/readyz").strip()
    except HTTPError as error:
        with error:
            return error.read(READ_BYTES).decode().strip()


def _answer(url: str) -> str:
    """Read a page. Raises as `metrics_page`."""
    clock = SystemClock()
    end_s = clock.monotonic_s() + ANSWER_S_MAX
    page = bytearray()
    with urlopen(url, timeout=ANSWER_S_MAX) as answer:  # noqa: S310 - an http URL of ours
        while data := answer.read1(READ_BYTES):
            page += data
            if clock.monotonic_s() > end_s:
                raise TimeoutError(f"the page is not complete after {ANSWER_S_MAX:g} s")
            if len(page) > PAGE_BYTES_MAX:
                raise ValueError(f"the page has more than {PAGE_BYTES_MAX:,} bytes")
    if answer.length:
        raise ValueError("the page is cut off")
    return page.decode()
