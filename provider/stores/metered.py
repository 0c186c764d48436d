"""Store that counts requests, bytes and seconds of each store and verb."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric

from provider.clock import Clock
from provider.errors import StoreError
from provider.object_store import (
    Buffer,
    ForwardingStore,
    ObjectStore,
    ReadNow,
    Result,
    read_now_of,
)
from provider.ranges import ByteRange
from provider.stores.two_stores import FIRST_STORE

_SECONDS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_MILLISECONDS: Final = (1, 3, 5, 7, 10, 100, 200, 400, 600, 800, 1000, 1500, 3000)
_SIZES: Final = (1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20, 32 << 20, 50 << 20, 100 << 20)
_OPERATIONS: Final = {"create": "write", "append": "write", "read": "read", "read_many": "read"}


class _Samples(NamedTuple):
    requests: Counter
    seconds: Histogram
    latency: Histogram | None


class ProviderMetrics:
    """Metrics of a tier's stores. One instance for each metrics registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.before_scrape: list[Callable[[], None]] = []
        """Functions that bring the metrics up to date."""
        registry.register(self)  # first: a registry collects in the order of registration
        self.requests = Counter(
            "tieredstore_provider_requests",
            "Finished calls to the tier's storage, by store, verb and outcome.",
            ["store", "verb", "outcome"],
            registry=registry,
        )
        self.bytes = Counter(
            "tieredstore_provider_bytes",
            "Bytes read from or written to the tier's storage by successful calls, by store and "
            "verb.",
            ["store", "verb"],
            registry=registry,
        )
        self.sizes = {
            operation: Histogram(
                f"rocketmq_tiered_store_provider_{name}_bytes",
                f"Bytes of one successful call that {operation}s.",
                buckets=_SIZES,
                registry=registry,
            )
            for operation, name in (("write", "upload"), ("read", "download"))
        }
        self.latency = Histogram(
            "rocketmq_tiered_store_provider_rpc_latency",
            "Duration of calls that read or write in milliseconds.",
            ["operation", "success"],
            buckets=_MILLISECONDS,
            registry=registry,
        )
        self.seconds = Histogram(
            "tieredstore_provider_seconds",
            "Duration of calls to the tier's storage in seconds, by store and verb.",
            ["store", "verb"],
            buckets=_SECONDS,
            registry=registry,
        )

    def collect(self) -> Iterable[Metric]:
        """Bring the metrics up to date, for the registry. There are no others."""
        for update in self.before_scrape:
            update()
        return ()


class MeteredStore(ForwardingStore):
    """Wrapper that counts calls and changes nothing else. Costs about 3 us a call.

    Metrics: `tieredstore_provider_requests_total{store, verb, outcome}`, whose outcome is "ok",
    "cancelled", "failed" or the class of a `StoreError` in lower case;
    `tieredstore_provider_bytes_total{store, verb}`; and the histogram
    `tieredstore_provider_seconds{store, verb}`. Calls that transfer bytes are also counted under
    RocketMQ's names, with its units, labels and buckets, over all stores together. `close` is not
    counted. Reads at once (`ReadNow`) are counted as "read", with their bytes, when the metrics are
    read. They are not timed: they wait for nothing.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        clock: Clock,
        metrics: ProviderMetrics | None = None,
        store: str = FIRST_STORE,
    ) -> None:
        """Wrap `inner`.

        `metrics` are shared by all stores of a tier; None: metrics of its own. `store` is the label
        of this store.
        """
        super().__init__(inner)
        self._clock = clock
        self._metrics = metrics or ProviderMetrics(CollectorRegistry())
        self._store = store
        self._samples: dict[tuple[str, str], _Samples] = {}
        self._moved_bytes: dict[str, Counter] = {}
        self._reads_now = self._bytes_now = 0
        """Reads at once, and their bytes, that no metric has yet: a plain number costs 0.05 us, a
        counter of Prometheus 0.5 us and its histogram 1 us."""
        self._metrics.before_scrape.append(self._count_reads_now)

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`."""
        found = await super().read(name, wanted)
        self._moved("read", len(found))
        return found

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`."""
        found = await super().read_many(wanted)
        self._moved("read_many", sum(map(len, found)))
        return found

    @property
    def read_now(self) -> ReadNow | None:
        """`ReadNow` of the wrapped store, counted. A read costs 0.2 us more."""
        read_now = read_now_of(self.inner)
        if read_now is None:
            return None

        def counted(name: str, start: int, length: int, *, follows: bool = False) -> Buffer | None:
            found = read_now(name, start, length, follows=follows)
            if found is not None:
                self._reads_now += 1
                self._bytes_now += length
            return found

        return counted

    def _count_reads_now(self) -> None:
        """Count the reads at once since the last call."""
        reads, size_bytes, self._reads_now, self._bytes_now = self._reads_now, self._bytes_now, 0, 0
        if reads:
            self._samples_of("read", "ok").requests.inc(reads)
            self._bytes_of("read").inc(size_bytes)

    async def _call(
        self,
        verb: str,
        names: Sequence[str],
        effect: Callable[[], Awaitable[Result]],
        size_bytes: int = 0,
    ) -> Result:
        """Count one call with its outcome."""
        outcome = "failed"
        started_s = self._clock.monotonic_s()
        try:
            result = await super()._call(verb, names, effect, size_bytes)
        except StoreError as error:
            outcome = type(error).__name__.lower()
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        else:
            outcome = "ok"
            if size_bytes:
                self._moved(verb, size_bytes)
            return result
        finally:
            took_s = self._clock.monotonic_s() - started_s
            requests, seconds, latency = self._samples_of(verb, outcome)
            requests.inc()
            seconds.observe(took_s)
            if latency is not None:
                latency.observe(took_s * 1000)

    def _samples_of(self, verb: str, outcome: str) -> _Samples:
        """Return the metrics of a verb and outcome, cached: a lookup by name costs 1 us each."""
        found = self._samples.get((verb, outcome))
        if found is None:
            metrics, operation = self._metrics, _OPERATIONS.get(verb)
            succeeded = str(outcome == "ok").lower()
            found = _Samples(
                metrics.requests.labels(self._store, verb, outcome),
                metrics.seconds.labels(self._store, verb),
                None if operation is None else metrics.latency.labels(operation, succeeded),
            )
            self._samples[verb, outcome] = found
        return found

    def _bytes_of(self, verb: str) -> Counter:
        if verb not in self._moved_bytes:
            self._moved_bytes[verb] = self._metrics.bytes.labels(self._store, verb)
        return self._moved_bytes[verb]

    def _moved(self, verb: str, size_bytes: int) -> None:
        """Count the bytes of a successful call."""
        self._bytes_of(verb).inc(size_bytes)
        self._metrics.sizes[_OPERATIONS[verb]].observe(size_bytes)
