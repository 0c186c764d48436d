"""`tieredstore status`: owner, contents and losses of a tier, and what its process reports."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import click
from prometheus_client.parser import text_string_to_metric_families

from container.journal.heartbeat import LOOKS_PER_LEASE, last_moment_ms, last_sign
from provider.clock import SystemClock
from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.output import count_text, printable, size_text, time_text, write_json
from tieredstore.cli.reading import brokers_option, with_tiers
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config
from tieredstore.metrics.summary import counted
from tieredstore.process_name import ProcessLife, ProcessName, process_words
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.places import directory_of
from tieredstore.session.takeover import process_life

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
    last_timestamp: int | None
    """Store timestamp of the newest message."""
    garbage_objects: int
    process: Mapping[str, object] | None
    """Readiness and figures of the process at `tieredStoreMetricsPort`; None without the key."""

    @property
    def is_well(self) -> bool:
        """Whether an owner lives or has ended cleanly, and its process is ready."""
        is_ready = self.process is None or bool(self.process["ready"])
        return self.owner_state in {NONE, LIVES, ENDED} and is_ready


@click.command("status")
@brokers_option
@json_option
@pass_invocation
def command(invocation: Invocation, *, brokers: tuple[str, ...], as_json: bool) -> int:
    """Show who owns a tier and whether that process lives, what the tier holds, and what it lost.

    Reads the tier alone, from any host. If the configuration sets tieredStoreMetricsPort, it also
    asks the process there. Exit status 1: the owner's process is gone or silent, or not ready.
    """
    given = invocation.load_config()

    async def look(tier: ReadableTier) -> TierStatus:
        return await _status(tier, given.of_broker(tier.cluster, tier.broker))

    found = [one for _, one in with_tiers(invocation, None, brokers, look)]
    if as_json:
        write_json(map(asdict, found))
    else:
        click.echo("\n\n".join(printable_lines(one, SystemClock().now_ms()) for one in found))
    return 0 if all(one.is_well for one in found) else FINDINGS


async def _status(tier: ReadableTier, config: Config) -> TierStatus:
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
    queues = tier.queues()
    return TierStatus(
        cluster=tier.cluster,
        broker=tier.broker,
        location=str(where),
        epoch=broker.epoch,
        owner=process_words(broker.owner) if broker.epoch else "",
        owner_state=owner_state,
        owner_version="" if said is None else said.version,
        last_sign_ms=seen_ms,
        queues=len(queues),
        messages=sum(queue.messages for queue in queues),
        lost=sum(queue.lost for queue in queues),
        commit_log_bytes=sum(queue.commit_log_bytes for queue in queues),
        last_timestamp=max((one.last_timestamp or 0 for one in queues), default=0) or None,
        garbage_objects=len(state.tombstones),
        process=await asyncio.to_thread(_process, config) if config.metrics_port else None,
    )


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
    try:
        reason = _answer(f"{page}/readyz").strip()
        found |= {"ready": reason == "ok", "reason": "" if reason == "ok" else reason}
        for family in text_string_to_metric_families(_answer(f"{page}/metrics")):
            for sample in family.samples:
                if sample.name in SHOWN:
                    found[SHOWN[sample.name]] = sample.value
    except (OSError, ValueError) as error:
        inner = error.reason if isinstance(error, URLError) else error
        reason = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(inner)
        found["reason"] = f"it does not answer: {reason.lower()}"
    return found


def _answer(url: str) -> str:
    try:
        with urlopen(url, timeout=ANSWER_S_MAX) as answer:  # noqa: S310 - an http URL of ours
            return answer.read().decode()
    except HTTPError as error:  # 503: the body is the reason
        return error.read().decode()


def printable_lines(status: TierStatus, now_ms: int) -> str:
    """The lines for people."""
    newest = time_text(status.last_timestamp)
    rows = [
        ("owner", _owner_text(status, now_ms)),
        (
            "tier",
            f"{counted(status.queues, 'queue')}, {counted(status.messages, 'message')}, "
            f"{size_text(status.commit_log_bytes)}"
            + (f"; newest message of {newest} UTC" if newest else ""),
        ),
        ("lost", counted(status.lost, "message")),
        ("garbage", f"{counted(status.garbage_objects, 'object')} to be deleted"),
    ]
    if status.process is not None:
        rows.append(("process", _process_text(status.process)))
    head = f"{status.broker} of cluster {status.cluster} in {status.location}"
    return "\n".join(printable(line) for line in (head, *(f"  {a:8} {b}" for a, b in rows)))


def _owner_text(status: TierStatus, now_ms: int) -> str:
    if status.owner_state == NONE:
        return "no process has owned it"
    age = "" if status.last_sign_ms is None else _age_text(now_ms - status.last_sign_ms)
    words = {
        LIVES: f"lives, last sign {age} ago",
        ENDED: "has ended cleanly",
        GONE: f"is gone without a clean end, last sign {age} ago: start it again",
        SILENT: f"silent for {age}: start it again, or a standby",
    }
    version = f", tieredstore {status.owner_version}" if status.owner_version else ""
    return f"{status.owner}{version}, epoch {status.epoch}: {words[status.owner_state]}"


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
