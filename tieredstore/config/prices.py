"""Bills of an object store: a price table, and estimates for the configured limits. Pure."""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from provider.names import is_there
from provider.object.store import REQUEST_KINDS, RequestKind, RequestMeter
from tieredstore.config.sources import ConfigError

TABLE_NAME: Final = "object_store_prices.toml"
HOUR_S: Final = 3600
MONTH_S: Final = 30 * 24 * 3600
GIB: Final = 1 << 30
ROUND_PUTS: Final = 2
"""Of a round: its part, and the entry of the journal that publishes it."""
SNAPSHOT_PUTS: Final = 2
"""Requests of a snapshot: its own, and those that upkeep writes with it."""
READ_BYTES: Final = 4 << 20
"""Of a GET of a long sequential read, about: `tests/test_cost` counts 300 for a GiB."""


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
    """Of an object that an offload makes in the second store."""


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
    idle: dict[RequestKind, float] = {
        "PUT": 1 / limits.heartbeat_s,
        "DELETE": 1 / limits.heartbeat_s,
    }
    if limits.owner_check_s:
        idle["LIST"] = 1 / limits.owner_check_s
    aged = 1 / limits.round_age_s if limits.round_age_s else 0.0
    found = [_estimate("idle", idle, 0, 0, prices)]
    if aged:
        found.append(_estimate("busy, by age", _tiering(aged, limits), 0, 0, prices))
    if upload := limits.upload_bytes_per_s:
        rounds = max(aged, upload / limits.round_bytes)
        found.append(_estimate("uploading all it may", _tiering(rounds, limits), upload, 0, prices))
    if download := limits.download_bytes_per_s:
        found.append(_downloading(download, prices))
    return found


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
