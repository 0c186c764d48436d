"""Bills of an object store: a price table, estimates for the limits, and a forecast. Pure."""

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from provider.names import is_there
from provider.object.store import REQUEST_KINDS, RequestKind, RequestMeter
from tieredstore.config.sources import ConfigError
from tieredstore.texts import count_text, size_text

TABLE_NAME: Final = "object_store_prices.toml"
HOUR_S: Final = 3600
MONTH_S: Final = 30 * 24 * 3600
GIB: Final = 1 << 30
ROUND_PUTS: Final = 2
"""Of a round: its part, and the entry of the journal that publishes it."""
SNAPSHOT_PUTS: Final = 2
"""Requests of a snapshot: its own, and those that upkeep writes with it."""
MERGE_PUTS: Final = 2
"""Of a merge: the object, and the entry that publishes it."""
MERGE_READ_BYTES: Final = 8 << 20
"""Of the longest request of a merge that reads."""
READ_BYTES: Final = 4 << 20
"""Of a GET of a long sequential read, about: `tests/test_cost` counts 300 for a GiB."""
TOPICS_MAX: Final = 1_000_000
"""Topics of a forecast."""
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?([KMGT]?)(I?)B(?:/S|PS)?", re.IGNORECASE | re.ASCII)
_SPAN = re.compile(r"([1-9]\d{0,5})([hdw])", re.ASCII)


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices of one service, in units of `currency`."""

    name: str
    currency: str
    per_1000: dict[RequestKind, float]
    stored_gib_month: float
    uploaded_gib: float
    downloaded_gib: float

    @classmethod
    def parse(cls, text: str, *, path: str) -> Self:
        """Parse a price table.

        Raises:
            ConfigError: `text` is no price table; names the missing part.
        """
        try:
            found: dict[str, Any] = tomllib.loads(text)
            requests, sizes = found["per_1000_requests"], found["per_gib"]
            table = cls(
                str(found["name"]),
                str(found["currency"]),
                {kind: float(requests[kind]) for kind in REQUEST_KINDS},
                *(float(sizes[one]) for one in ("stored_a_month", "uploaded", "downloaded")),
            )
        except KeyError as error:
            raise ConfigError(f"{path} is no table of prices: it lacks {error}") from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path} is no table of prices: {error}") from error
        numbers = [*table.per_1000.values(), table.stored_gib_month]
        if min(*numbers, table.uploaded_gib, table.downloaded_gib) < 0:
            raise ConfigError(f"{path} is no table of prices: one is negative")
        return table

    @classmethod
    def read(cls, path: str) -> Self:
        """Read the table in a file, or the shipped one for "". Blocks.

        Raises:
            ConfigError: as `parse`, or it cannot be read.
        """
        file = Path(path) if path else shipped_table()
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise ConfigError(f"{file} cannot be read: {reason}") from error
        return cls.parse(text, path=str(file))

    def cost(self, requests: dict[RequestKind, float]) -> float:
        """Of so many requests."""
        return sum(self.per_1000[kind] * number / 1000 for kind, number in requests.items())

    def spent(self, meter: RequestMeter) -> float:
        """Of the requests that a store has made."""
        return self.cost({kind: meter.requests[kind] for kind in REQUEST_KINDS})


def shipped_table() -> Path:
    """The table in `conf/`: a wheel has it beside this module."""
    beside = Path(__file__).with_name(TABLE_NAME)
    return beside if is_there(beside) else Path(__file__).parents[2] / "conf" / TABLE_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings that decide about requests."""

    round_age_s: float
    """Age of a round under a steady flow of messages."""
    round_bytes: int
    """A round is made earlier when so many bytes wait."""
    snapshot_age_s: float
    owner_check_s: float
    """0: the journal is not polled."""
    heartbeat_s: float
    upload_bytes_per_s: int
    """0: no limit."""
    download_bytes_per_s: int
    offload_object_bytes: int = 32 << 20
    """Of an object that an offload makes in the second store, or a merge in the first one."""
    merge_fan: int = 16
    """Small pieces of a queue that a merge makes one of."""
    merge_small_bytes: int = 2 << 20
    """Pieces from here on are not merged."""
    segment_age_s: float = 24 * 3600.0
    """Age at which a segment is closed at the latest: pieces of several are never merged."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Requests of a tier in a state, and their cost."""

    state: str
    requests_per_s: float
    currency_a_month: float


def estimates(limits: Limits, prices: PriceTable) -> list[Estimate]:
    """Estimate an idle tier, a tier with a low steady flow, and tiers at the limits of bytes.

    Tiering at its limit is counted apart from reading, and reading apart from tiering.
    """
    aged = 1 / limits.round_age_s if limits.round_age_s else 0.0
    found = [_estimate("idle", _idle(limits), 0, 0, prices)]
    if aged:
        found.append(_estimate("busy, by age", _tiering(aged, limits), 0, 0, prices))
    if upload := limits.upload_bytes_per_s:
        rounds = max(aged, upload / limits.round_bytes)
        found.append(_estimate("uploading all it may", _tiering(rounds, limits), upload, 0, prices))
    if download := limits.download_bytes_per_s:
        found.append(_downloading(download, prices))
    return found


def rate_of(text: str) -> float:
    """Bytes a second of a text as `20MB/s`.

    Raises:
        ValueError: it is no rate above 0.
    """
    found = _RATE.fullmatch(text)
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no rate: write 20MB/s, or 500KiB/s")
    return float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2].upper() or " ")


def span_of(text: str) -> float:
    """Seconds of a text as `30d`.

    Raises:
        ValueError: it is no span of time.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no span of time: write 30d, or 12h")
    return int(found[1]) * {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}[found[2]]


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes that brokers write, and the time for which they are kept."""

    bytes_per_s: float
    kept_s: float
    queues: int

    def __str__(self) -> str:
        rate = f"{size_text(round(self.bytes_per_s))}/s"
        return f"{rate}, kept for {self.kept_s / 86_400:g} d, in {self.queues:,} queues"


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a forecast."""

    what: str
    bytes: float
    """Bytes that are stored, or moved in a month."""
    requests_a_month: float
    currency_a_month: float


def forecast(load: Load, limits: Limits, prices: PriceTable) -> list[Item]:
    """Forecast the bill of a month, once as much is stored as is kept.

    The last item is the price of reading everything that is kept, once. Units, keys and metadata
    are left out: some 100 bytes of a message.
    """
    kept = load.bytes_per_s * load.kept_s
    tiering, merging, merged = _idle(limits), dict[RequestKind, float](), 0.0
    if load.bytes_per_s:
        rounds = load.bytes_per_s / limits.round_bytes
        rounds = max(1 / limits.round_age_s if limits.round_age_s else rounds, rounds)
        tiering |= _tiering(rounds, limits)
        merging, merged = _merging(rounds, load, limits)
    moved = merged * (prices.uploaded_gib + prices.downloaded_gib) / GIB
    reads: dict[RequestKind, float] = {"GET": kept / READ_BYTES}
    sent = load.bytes_per_s * prices.uploaded_gib / GIB
    return [
        Item("kept", kept, 0, kept / GIB * prices.stored_gib_month),
        _item("tiering", load.bytes_per_s, tiering, sent, prices),
        _item("merging", merged, merging, moved, prices),
        Item(
            "reading it all once",
            kept,
            reads["GET"],
            prices.cost(reads) + kept / GIB * prices.downloaded_gib,
        ),
    ]


def forecast_rows(items: Sequence[Item]) -> list[tuple[str, str, str, str]]:
    """Return the items of a forecast, and the sum of a month before the last one, as texts."""
    *monthly, reading = items
    total = Item("in all", 0, 0, sum(one.currency_a_month for one in monthly))
    return [
        (
            one.what,
            size_text(round(one.bytes)) if one.bytes else "",
            count_text(round(one.requests_a_month)) if one.requests_a_month else "",
            f"{one.currency_a_month:,.2f}",
        )
        for one in (*monthly, total, reading)
    ]


def forecast_notes(load: Load, limits: Limits, prices: PriceTable) -> list[str]:
    """Return what a reader of a forecast should know besides."""
    notes = [f"by the prices of {prices.name}; keys and metadata are left out"]
    limit = limits.upload_bytes_per_s
    if 0 < limit < load.bytes_per_s:
        allowed = f"objectStoreUploadRateMax allows {size_text(limit)}/s"
        notes.append(f"{allowed}: tiering falls behind")
    return notes


def _item(
    what: str,
    bytes_per_s: float,
    per_s: dict[RequestKind, float],
    moved_per_s: float,
    prices: PriceTable,
) -> Item:
    requests = sum(per_s.values()) * MONTH_S
    return Item(what, bytes_per_s * MONTH_S, requests, (prices.cost(per_s) + moved_per_s) * MONTH_S)


def _merging(rounds: float, load: Load, limits: Limits) -> tuple[dict[RequestKind, float], float]:
    """Requests and rewritten bytes a second: each level of merges reads all bytes, and writes them.

    The last level gathers closed segments.
    """
    gets = puts = merged = 0.0
    objects, pieces = rounds, 1.0
    piece_bytes = load.bytes_per_s / rounds / load.queues
    levels = 1
    while piece_bytes < limits.merge_small_bytes and pieces < rounds * limits.segment_age_s:
        levels += 1
        piece_bytes *= limits.merge_fan
        pieces *= limits.merge_fan
    for _ in range(levels):
        made = max(objects / limits.merge_fan, load.bytes_per_s / limits.offload_object_bytes)
        gets += max(objects, load.bytes_per_s / MERGE_READ_BYTES)
        puts += MERGE_PUTS * made
        merged += load.bytes_per_s
        objects = made
    return {"GET": gets, "PUT": puts}, merged


def offload_estimates(limits: Limits, prices: PriceTable) -> list[Estimate]:
    """Estimate the bill of a second store: idle, at 1 GiB an hour, and at the configured limit.

    Each object costs a request to create it and another to read it back.
    """
    found = [_estimate("idle", {}, 0, 0, prices)]
    found.append(_offloading("offloading a GiB an hour", GIB / HOUR_S, limits, prices))
    if upload := limits.upload_bytes_per_s:
        found.append(_offloading("offloading all it may", upload, limits, prices))
    if download := limits.download_bytes_per_s:
        found.append(_downloading(download, prices))
    return found


def _offloading(state: str, bytes_per_s: float, limits: Limits, prices: PriceTable) -> Estimate:
    objects = bytes_per_s / limits.offload_object_bytes
    return _estimate(state, {"PUT": objects, "GET": objects}, bytes_per_s, bytes_per_s, prices)


def _downloading(bytes_per_s: float, prices: PriceTable) -> Estimate:
    gets: dict[RequestKind, float] = {"GET": bytes_per_s / READ_BYTES}
    return _estimate("downloading all it may", gets, 0, bytes_per_s, prices)


def _idle(limits: Limits) -> dict[RequestKind, float]:
    """Requests of signs of life, and of looks for a newer owner."""
    found: dict[RequestKind, float] = {
        "PUT": 1 / limits.heartbeat_s,
        "DELETE": 1 / limits.heartbeat_s,
    }
    if limits.owner_check_s:
        found["LIST"] = 1 / limits.owner_check_s
    return found


def _tiering(rounds_per_s: float, limits: Limits) -> dict[RequestKind, float]:
    between_s = 1 / rounds_per_s if rounds_per_s else 0.0
    beats = max(0, math.ceil(between_s / limits.heartbeat_s) - 1) * rounds_per_s
    puts = ROUND_PUTS * rounds_per_s + SNAPSHOT_PUTS / limits.snapshot_age_s
    return {"PUT": puts + beats, "DELETE": beats}


def _estimate(
    state: str,
    per_s: dict[RequestKind, float],
    upload: float,
    download: float,
    prices: PriceTable,
) -> Estimate:
    moved = (upload * prices.uploaded_gib + download * prices.downloaded_gib) / GIB
    return Estimate(state, sum(per_s.values()), (prices.cost(per_s) + moved) * MONTH_S)
