"""A store that counts what passes through it: requests, bytes and seconds per verb."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from provider.clock import Clock
from provider.errors import StoreError
from provider.object_store import Append, AppendingStore, Buffer, ObjectEntry
from provider.ranges import ByteRange

_SECONDS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


@dataclass(slots=True)
class VerbStatistics:
    """What one verb did so far."""

    requests: int = 0
    """Calls that ended, well or not."""
    failures: int = 0
    """Those that raised, or were cancelled."""
    items: int = 0
    """Objects, ranges or pieces asked for."""
    size_bytes: int = 0
    """Bytes read or written by calls that ended well."""
    seconds: float = 0.0
    """Time spent, summed over calls that may have run side by side."""


@dataclass(frozen=True, slots=True)
class ProviderStatistics:
    """What a `MeteredStore` saw so far; a copy."""

    verbs: dict[str, VerbStatistics] = field(default_factory=dict[str, VerbStatistics])

    @property
    def requests(self) -> int:
        """Calls that ended, over all verbs."""
        return sum(verb.requests for verb in self.verbs.values())


class MeteredStore:
    """Wrap a store; changes nothing. About 5 us a call. One per metrics registry.

    Metrics: `tieredstore_provider_requests_total{verb, outcome}` where the outcome is "ok",
    "cancelled" or a verdict in small letters, `tieredstore_provider_bytes_total{verb}`, and the
    histogram `tieredstore_provider_seconds{verb}`.
    """

    def __init__(
        self, inner: AppendingStore, *, clock: Clock, registry: CollectorRegistry | None = None
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._verbs: dict[str, VerbStatistics] = {}
        registry = registry or CollectorRegistry()
        self._requests = Counter(
            "tieredstore_provider_requests",
            "Calls to the tier's storage that ended.",
            ["verb", "outcome"],
            registry=registry,
        )
        self._bytes = Counter(
            "tieredstore_provider_bytes",
            "Bytes read from or written to the tier's storage.",
            ["verb"],
            registry=registry,
        )
        self._seconds = Histogram(
            "tieredstore_provider_seconds",
            "Duration of calls to the tier's storage.",
            ["verb"],
            buckets=_SECONDS,
            registry=registry,
        )

    def __repr__(self) -> str:
        counts = ", ".join(f"{verb} {held.requests}" for verb, held in sorted(self._verbs.items()))
        return f"<MeteredStore [{counts}]: {self._inner!r}>"

    def statistics(self) -> ProviderStatistics:
        """What passed through so far, by verb; verbs that were never called are left out."""
        return ProviderStatistics(
            {
                verb: VerbStatistics(
                    held.requests, held.failures, held.items, held.size_bytes, held.seconds
                )
                for verb, held in self._verbs.items()
            }
        )

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store a new object; `ObjectStore.create`."""
        with self._metered("create") as call:
            await self._inner.create(name, buffers)
            call.size_bytes = sum(map(len, buffers))

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`."""
        with self._metered("read") as call:
            found = await self._inner.read(name, wanted)
            call.size_bytes = len(found)
            return found

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`."""
        with self._metered("read_many", len(wanted)) as call:
            found = await self._inner.read_many(wanted)
            call.size_bytes = sum(map(len, found))
            return found

    async def size(self, name: str) -> int:
        """The object's length in bytes; `ObjectStore.size`."""
        with self._metered("size"):
            return await self._inner.size(name)

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """Objects by name; `ObjectStore.list`."""
        with self._metered("list") as call:
            found = await self._inner.list(prefix, after=after)
            call.items = len(found)
            return found

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects; `ObjectStore.delete`."""
        with self._metered("delete", len(names)):
            await self._inner.delete(names)

    async def append(self, appends: Sequence[Append]) -> None:
        """Write every piece at its position; `AppendingStore.append`."""
        with self._metered("append", len(appends)) as call:
            await self._inner.append(appends)
            call.size_bytes = sum(len(buffer) for piece in appends for buffer in piece.buffers)

    async def register(self, name: str) -> bool:
        """Register this store as present; `AppendingStore.register`."""
        with self._metered("register"):
            return await self._inner.register(name)

    async def close(self) -> None:
        """Close the store behind; not counted."""
        await self._inner.close()

    @contextmanager
    def _metered(self, verb: str, items: int = 1) -> Generator[VerbStatistics]:
        """Count one call however it ends; its block fills in what it moved."""
        call = VerbStatistics(1, 1, items)
        outcome = "failed"
        started_s = self._clock.monotonic_s()
        try:
            yield call
            outcome, call.failures = "ok", 0
        except StoreError as error:
            outcome = type(error).__name__.lower()
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            call.seconds = self._clock.monotonic_s() - started_s
            self._count(verb, outcome, call)

    def _count(self, verb: str, outcome: str, call: VerbStatistics) -> None:
        held = self._verbs.setdefault(verb, VerbStatistics())
        held.requests += call.requests
        held.failures += call.failures
        held.items += call.items
        held.size_bytes += call.size_bytes
        held.seconds += call.seconds
        self._requests.labels(verb, outcome).inc()
        self._bytes.labels(verb).inc(call.size_bytes)
        self._seconds.labels(verb).observe(call.seconds)
