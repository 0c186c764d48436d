"""Status of a tier: owner, contents and losses, and the figures of its process."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from container.journal.heartbeat import LOOKS_PER_LEASE, last_moment_ms, last_sign
from container.metadata.state import TierState
from container.metadata.tables import QueueTable
from provider.clock import SystemClock
from tieredstore.config.effective import Config
from tieredstore.config.prices import HOUR_S, MONTH_S, Load, forecast
from tieredstore.metrics.summary import QueueSummary, QueueTotals, counted
from tieredstore.process_name import ProcessLife, ProcessName, process_words
from tieredstore.reader.process_page import process_figures
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.places import directory_of
from tieredstore.session.takeover import process_life
from tieredstore.texts import size_text, time_text

NONE, LIVES, ENDED, GONE, SILENT = "none", "lives", "ended", "gone", "silent"
SILENT_S = 90.0
"""Silence after which an owner of unknown interval counts as silent: the default lease."""


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
    process = await asyncio.to_thread(process_figures, config) if config.metrics_port else None
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
    is_ready, reason = process["ready"], process.get("reason")
    parts = [f"{process['page']}: {'ready' if is_ready else reason}"]
    if is_ready and reason:
        parts.append(f"its metrics are not known: {reason}")

    def figure(name: str) -> float | None:
        value = process.get(name)
        return value if isinstance(value, float) else None

    if behind := figure("messages_behind"):
        age = _age_text(int(figure("oldest_behind_ms") or 0))
        parts.append(f"{counted(int(behind), 'message')} behind, the oldest for {age}")
    elif behind is not None:
        parts.append("no message behind")
    if waiting := figure("messages_waiting"):
        parts.append(f"{counted(int(waiting), 'message')} may not be tiered yet")
    if halted := figure("queues_halted"):
        parts.append(f"{counted(int(halted), 'queue')} stopped, damaged or refused")
    if figure("outage"):
        parts.append("no commit reaches the storage")
    if (next_s := figure("next_commit_s") or 0) >= 1:
        parts.append(f"next commit in {next_s:.0f} s")
    if (age_s := figure("last_commit_age_s")) is not None:
        parts.append(f"last commit {_age_text(int(age_s * 1000))} ago")
    return "; ".join(parts)


def _age_text(age_ms: int) -> str:
    """`12 s`, `3 min`, `5 h`, `40 d`."""
    seconds = max(0, age_ms) // 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
