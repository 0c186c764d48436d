"""Status of a tier: owner, contents and losses, and the figures of its process."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from container.journal.heartbeat import LOOKS_PER_LEASE, last_moment_ms, last_sign
from container.metadata.state import TierState
from container.metadata.tables import QueueTable
from provider.clock import SystemClock
from tieredstore.config.effective import Config
from tieredstore.config.prices import HOUR_S, MONTH_S, Load, forecast
from tieredstore.metrics.summary import QueueSummary, QueueTotals, counted
from tieredstore.process_name import ProcessLife, ProcessName, process_words
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.places import directory_of
from tieredstore.session.takeover import process_life
from tieredstore.texts import count_text, size_text, time_text

NONE, LIVES, ENDED, GONE, SILENT = "none", "lives", "ended", "gone", "silent"
SILENT_S = 90.0
"""Silence after which an owner of unknown interval counts as silent: the default lease."""
ANSWER_S_MAX = 5.0
SHOWN = {
    "tieredstore_messages_waiting": "messages_waiting",
    "tieredstore_last_commit_age_seconds": "last_commit_age_s",
    "tieredstore_outage": "outage",
}
"""Samples of the metrics page, and their names here."""
SUMMED = {
    "tieredstore_object_store_requests_total": "requests",
    "tieredstore_object_store_request_cost_total": "request_cost",
}
"""Likewise, added up over their labels."""


@dataclass(frozen=True, slots=True)
class TierStatus:
    """State of a broker's tier. Times are Unix ms."""

    cluster: str
    broker: str
    location: str
    epoch: int
    owner: str
    """Its process, for people."""
    owner_state: str
    owner_version: str
    last_sign_ms: int | None
    """Time of the newest journal entry or sign of life, by the storage's clock."""
    queues: int
    messages: int
    lost: int
    commit_log_bytes: int
    first_timestamp: int | None
    """Store timestamp of the oldest message."""
    last_timestamp: int | None
    """Store timestamp of the newest message."""
    stored_bytes: int
    """As `Contents.stored_bytes`."""
    garbage_objects: int
    process: Mapping[str, object] | None
    """Readiness and figures of the process at `tieredStoreMetricsPort`; None without the key."""
    cost: Mapping[str, object] | None
    """Bill of the object store; None for a tier in a directory."""

    @property
    def is_well(self) -> bool:
        """Whether an owner lives or has ended cleanly, and its process is ready."""
        is_ready = self.process is None or bool(self.process["ready"])
        return self.owner_state in {NONE, LIVES, ENDED} and is_ready


class Contents(NamedTuple):
    """The queues and bytes of a tier at one journal entry."""

    queues: list[QueueSummary]
    """In order of topic and queue."""
    totals: QueueTotals
    stored_bytes: int
    """Bytes of all objects that are in use: logs, queues and index files."""


async def contents_of(state: TierState) -> Contents:
    """Sum up all queues, in a thread: some 70 us for each."""
    index_bytes = sum(file.size for file in state.index_files.values())
    return await asyncio.to_thread(_summed, state.queues.copy(), index_bytes)


def _summed(table: QueueTable, stored_bytes: int) -> Contents:
    queues: list[QueueSummary] = []
    for _, queue in sorted(table.items()):
        queues.append(QueueSummary.of(queue))
        stored_bytes += sum(ref.bytes for ref in queue.manifests)
        stored_bytes += sum(one.size for one in (*queue.commit_log, *queue.consume_queue))
    return Contents(queues, QueueTotals.of(queues), stored_bytes)


async def tier_status(
    tier: ReadableTier, config: Config, contents: Contents | None = None
) -> TierStatus:
    """Sum up a tier that `config` names, and ask the process at `tieredStoreMetricsPort`.

    `contents`: those of the tier, if they are known.
    """
    where = directory_of(config)
    state = tier.reader.state
    broker, seen_ms = state.broker, await last_moment_ms(tier.reader.store)
    sign = await last_sign(tier.reader.store)
    has_ended = sign is not None and sign[0].epoch == broker.epoch and sign[0].number is None
    owner_state = NONE
    if broker.epoch:
        life = await asyncio.to_thread(process_life, where, broker.owner)
        owner_state = ENDED if has_ended else state_of(broker.owner, life, seen_ms)
    said = ProcessName.parse(broker.owner)
    if contents is None:
        contents = await contents_of(state)
    totals = contents.totals
    first, last = totals.first_timestamp, totals.last_timestamp
    process = await asyncio.to_thread(_process, config) if config.metrics_port else None
    span_s = max(60.0, ((last or 0) - (first or 0)) / 1000)
    load = Load(totals.bytes / span_s, span_s, max(1, totals.queues))
    return TierStatus(
        cluster=tier.cluster,
        broker=tier.broker,
        location=str(where),
        epoch=broker.epoch,
        owner=process_words(broker.owner) if broker.epoch else "",
        owner_state=owner_state,
        owner_version="" if said is None else said.version,
        last_sign_ms=seen_ms,
        queues=totals.queues,
        messages=totals.messages,
        lost=totals.lost,
        commit_log_bytes=totals.bytes,
        first_timestamp=first,
        last_timestamp=last,
        stored_bytes=contents.stored_bytes,
        garbage_objects=len(state.tombstones),
        process=process,
        cost=await asyncio.to_thread(_cost, config, load, process or {}),
    )


def _cost(config: Config, load: Load, process: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the forecast for the rate of the tier, and the bill of its process so far. Blocks."""
    if not config.in_object_store:
        return None
    prices = config.prices
    kept, *others, _ = forecast(load, config.request_limits, prices)
    found: dict[str, object] = {
        "currency": prices.currency,
        "kept_a_month": kept.currency_a_month,
        "bytes_per_s": load.bytes_per_s,
        "requests_expected_a_month": sum(one.requests_a_month for one in others),
        "requests_a_month": None,
        "expected_a_month": sum(one.currency_a_month for one in others),
        "counted_a_month": None,
    }
    hours, cost = process.get("hours"), process.get("request_cost")
    if isinstance(hours, float) and isinstance(cost, float) and hours:
        months = hours * HOUR_S / MONTH_S
        found["requests_a_month"] = float(str(process["requests"])) / months
        found["counted_a_month"] = cost / months
    return found


def state_of(owner: str, life: ProcessLife, seen_ms: int | None) -> str:
    """Return the state of an owner that left no sign of a clean end; `seen_ms`: its last sign."""
    if life is not ProcessLife.UNKNOWN:
        return LIVES if life is ProcessLife.LIVES else GONE
    said = ProcessName.parse(owner)
    lease_s = LOOKS_PER_LEASE * said.beat_s if said is not None and said.beat_s else SILENT_S
    silent_ms = SystemClock().now_ms() - (seen_ms or 0)
    return LIVES if silent_ms <= lease_s * 1000 else SILENT


def _process(config: Config) -> dict[str, object]:
    """Ask the metrics page of the process. Blocks up to twice `ANSWER_S_MAX`."""
    host = "127.0.0.1" if config.metrics_host in {"", "0.0.0.0"} else config.metrics_host  # noqa: S104 - no address to listen at
    page = f"http://{f'[{host}]' if ':' in host else host}:{config.metrics_port}"
    found: dict[str, object] = {"page": page, "ready": False}
    summed: dict[str, float] = {}
    try:
        reason = _answer(f"{page}/readyz").strip()
        found |= {"ready": reason == "ok", "reason": "" if reason == "ok" else reason}
        for family in text_string_to_metric_families(_answer(f"{page}/metrics")):
            for sample in family.samples:
                if sample.name in SHOWN:
                    found[SHOWN[sample.name]] = sample.value
                if sample.name in SUMMED:
                    name = SUMMED[sample.name]
                    summed[name] = summed.get(name, 0.0) + sample.value
                if sample.name == "process_start_time_seconds":
                    summed["hours"] = (SystemClock().now_ms() / 1000 - sample.value) / HOUR_S
    except (OSError, ValueError) as error:
        inner = error.reason if isinstance(error, URLError) else error
        reason = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(inner)
        found["reason"] = f"it does not answer: {reason.lower()}"
    return found | summed


def _answer(url: str) -> str:
    try:
        with urlopen(url, timeout=ANSWER_S_MAX) as answer:  # noqa: S310 - an http URL of ours
            return answer.read().decode()
    except HTTPError as error:  # 503: the body is the reason
        return error.read().decode()


def status_rows(status: TierStatus, now_ms: int) -> list[tuple[str, str]]:
    """Names and texts of the figures, for people; texts are not escaped."""
    newest = time_text(status.last_timestamp)
    rows = [
        ("owner", _owner_text(status, now_ms)),
        (
            "tier",
            f"{counted(status.queues, 'queue')}, {counted(status.messages, 'message')}, "
            f"{size_text(status.commit_log_bytes)}"
            + (f"; newest message of {newest} UTC" if newest else ""),
        ),
        ("stored", size_text(status.stored_bytes)),
        ("lost", counted(status.lost, "message")),
        ("garbage", f"{counted(status.garbage_objects, 'object')} to be deleted"),
    ]
    if status.process is not None:
        rows.append(("process", _process_text(status.process)))
    if status.cost is not None:
        rows += [("cost", text) for text in _cost_lines(status)]
    return rows


def _owner_text(status: TierStatus, now_ms: int) -> str:
    if status.owner_state == NONE:
        return "no process has owned it"
    age = "" if status.last_sign_ms is None else _age_text(now_ms - status.last_sign_ms)
    last = f", last sign {age} ago" if age else ""
    words = {
        LIVES: f"lives{last}",
        ENDED: "has ended cleanly",
        GONE: f"is gone without a clean end{last}: start it again",
        SILENT: f"silent{f' for {age}' if age else ''}: start it again, or a standby",
    }
    version = f", tieredstore {status.owner_version}" if status.owner_version else ""
    return f"{status.owner}{version}, epoch {status.epoch}: {words[status.owner_state]}"


def _cost_lines(status: TierStatus) -> Iterator[str]:
    """Yield sentences on bytes and on requests."""
    cost = {name: value or 0.0 for name, value in (status.cost or {}).items()}
    currency, size = cost["currency"], size_text(status.commit_log_bytes)
    yield f"{cost['kept_a_month']:,.2f} {currency} a month for the {size} that are kept"
    rate = size_text(round(float(str(cost["bytes_per_s"]))))
    yield (
        f"{cost['expected_a_month']:,.2f} {currency} a month expected for "
        f"{cost['requests_expected_a_month']:,.0f} requests, at {rate}/s"
    )
    if cost["requests_a_month"]:
        yield (
            f"{cost['counted_a_month']:,.2f} {currency} a month for "
            f"{cost['requests_a_month']:,.0f} requests, as its process counted so far"
        )


def _process_text(process: Mapping[str, object]) -> str:
    text = f"{process['page']}: " + ("ready" if process["ready"] else f"{process['reason']}")
    waiting = process.get("messages_waiting")
    if isinstance(waiting, float):
        text += f"; {count_text(int(waiting))} messages may not be tiered yet"
    age_s = process.get("last_commit_age_s")
    if isinstance(age_s, float):
        text += f"; last commit {_age_text(int(age_s * 1000))} ago"
    return text


def _age_text(age_ms: int) -> str:
    """`12 s`, `3 min`, `5 h`, `40 d`."""
    seconds = max(0, age_ms) // 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
