"""Metrics of reads of a tier, with RocketMQ's names, units, labels and buckets."""

from collections.abc import Awaitable
from typing import Final, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from provider.clock import Clock

_MILLISECONDS: Final = (1, 3, 5, 7, 10, 100, 200, 400, 600, 800, 1000, 1500, 3000)
CALLERS_MAX: Final = 1_000
"""Pairs of topic and group that have samples of their own; the others share those of `OTHERS`."""
OTHERS: Final = ""

AnswerT = TypeVar("AnswerT")


class Caller(NamedTuple):
    """Operation, topic and consumer group of a read."""

    operation: str
    """RocketMQ's name for the call, such as `get_message`."""
    topic: str
    group: str = OTHERS
    """The consumer group of `get_message`."""


class ReadMeter:
    """Counts reads of a tier. One per metrics registry.

    Only calls that the tier serves or fails are timed: reads of the hot log cost it nothing.
    """

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._callers: set[tuple[str, str]] = set()
        self._timed: dict[Caller, Histogram] = {}
        self._latency = Histogram(
            "rocketmq_tiered_store_api_latency",
            "Duration of calls that the tier served in milliseconds.",
            ["operation", "topic", "group"],
            buckets=_MILLISECONDS,
            registry=registry,
        )
        self._messages_out = Counter(
            "rocketmq_tiered_store_messages_out",
            "Messages that the tier gave to readers.",
            ["topic", "group"],
            registry=registry,
        )
        self._fallbacks = Counter(
            "rocketmq_tiered_store_get_message_fallback",
            "Reads that the hot log served because the tier could not.",
            ["operation", "topic", "group"],
            registry=registry,
        )

    async def timed(self, caller: Caller, work: Awaitable[AnswerT]) -> AnswerT:
        """Await `work` and record its duration; return or raise its result. Costs about 3 us."""
        started_s = self._clock.monotonic_s()
        try:
            return await work
        finally:
            took_ms = (self._clock.monotonic_s() - started_s) * 1_000
            bounded = self._bounded(caller)
            samples = self._timed.get(bounded)
            if samples is None:
                samples = self._timed[bounded] = self._latency.labels(*bounded)
            samples.observe(took_ms)

    def gave(self, caller: Caller, messages: int) -> None:
        """So many messages went from the tier to a reader."""
        _, topic, group = self._bounded(caller)
        self._messages_out.labels(topic, group).inc(messages)

    def fell_back(self, caller: Caller) -> None:
        """Count a read that the hot log served after the tier failed."""
        self._fallbacks.labels(*self._bounded(caller)).inc()

    def _bounded(self, caller: Caller) -> Caller:
        """Return the caller, or a common label if there are too many: clients choose groups."""
        pair = caller.topic, caller.group
        if pair not in self._callers:
            if len(self._callers) >= CALLERS_MAX:
                return Caller(caller.operation, OTHERS, OTHERS)
            self._callers.add(pair)
        return caller
