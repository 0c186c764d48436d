"""Tiers of several brokers in one place, open for reading together; and `tieredstore.open`."""

import asyncio
import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from heapq import heapify, heappop, heapreplace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self, overload

from container.errors import Finding
from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from provider.clock import Clock
from provider.errors import Closed, StoreError
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.message import Message, OnBrokerFailure, Origin
from tieredstore.metrics.summary import QueueSummary
from tieredstore.reader.arrow import RecordBatch, Schema, import_arrow
from tieredstore.reader.cursor import Moment, OnDamage, OnGap, Wanted, one_by_one
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.reader import existing_tiers

ALL = "*"
"""The pattern of all brokers."""
CHUNK_MESSAGES_MAX = 1024
"""Messages that a merge of brokers gives at once."""


class FoundByKey(NamedTuple):
    """Messages of several brokers with a key, newest or oldest first as queried."""

    messages: Sequence[tuple[Origin, StoredMessage]]
    is_complete: bool
    """Whether there are no others: each broker was searched, without a limit or damage."""
    unsearched: int
    """Unindexed messages that were not read (`scan_bytes_max`)."""
    damage: Sequence[StoreError]
    """Read errors, as in `QueryResult`."""


class ReadableTiers:
    """The tiers of several brokers, open for reading. `tieredstore.open` with `broker="*"`.

    Use `async with`. A topic of RocketMQ lies on several brokers: each message comes with its
    `Origin`. Each broker has a reader of its own, with the memory of one (`tiers`). Brokers are
    opened and read one after another.
    """

    def __init__(
        self,
        load: Callable[[], Config],
        patterns: Sequence[str],
        *,
        damaged: bool = False,
        on_broker_failure: OnBrokerFailure | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is read before the block is entered; then `load` runs in a thread.

        `patterns`: names of brokers and patterns of names. The other arguments are those of `open`.
        """
        self._load = load
        self._patterns = patterns
        self._damaged = damaged
        self._on_failure = on_broker_failure
        self._clock = clock
        self._stack: AsyncExitStack | None = None
        self._tiers: list[ReadableTier] = []
        self._is_partial = False

    async def __aenter__(self) -> Self:
        """Open each broker that fits, one after another.

        Raises:
            ConfigError: a setting is wrong, or a pattern fits no broker; lists the brokers.
            NotFound: there is no tier.
            RuntimeError: it is open already.
            StoreError, OSError: of the first broker that fails; with `on_broker_failure` only if
                all fail.
        """
        if self._stack is not None:
            raise RuntimeError(f"{self!r} is open already")
        configs = await asyncio.to_thread(lambda: existing_tiers(self._load(), self._patterns))
        self._tiers, self._is_partial = [], False
        failures: list[Exception] = []
        async with AsyncExitStack() as stack:
            for config in configs:
                tier = ReadableTier(
                    lambda one=config: one, damaged=self._damaged, clock=self._clock
                )
                try:
                    self._tiers.append(await stack.enter_async_context(tier))
                except (StoreError, OSError) as error:
                    failures.append(error)
                    self._fail(Origin(config.cluster, config.broker), error)
            if not self._tiers:
                raise failures[0]
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close all; later calls raise Closed."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, traceback)

    def __repr__(self) -> str:
        if self._stack is None:
            return "<ReadableTiers: not open>"
        return f"<ReadableTiers {', '.join(f'{one.cluster}/{one.broker}' for one in self._tiers)}>"

    @property
    def tiers(self) -> Sequence[ReadableTier]:
        """A reader of each broker, in the order of cluster and broker."""
        if self._stack is None:
            raise Closed("the tiers are not open: use `async with`", "")
        return tuple(self._tiers)

    async def refresh(self) -> bool:
        """Poll for newer entries of each broker; return whether there were any.

        Raises:
            Unavailable, Corrupt: as `ReadableTier.refresh`, without `on_broker_failure`.
        """
        found = False
        for tier in self.tiers:
            with self._reported(tier):
                found |= await tier.refresh()
        return found

    def topics(self) -> list[str]:
        """The names of all topics of all brokers, in order. O(queues)."""
        return sorted(set(chain.from_iterable(tier.topics() for tier in self.tiers)))

    def queues(self, topic: str | None = None) -> list[tuple[Origin, QueueSummary]]:
        """All queues, or those of a topic, each with its broker. O(queues and segments).

        Raises:
            NotFound: no broker has that topic; names the nearest.
        """
        tiers = self.tiers if topic is None else self._with(topic, None)
        return [(_origin(tier), queue) for tier in tiers for queue in tier.queues(topic)]

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        messages_max: int = 32,
        since: Moment | None = None,
        until: Moment | None = None,
        newest_first: bool = True,
        scan_bytes_max: int | None = None,
    ) -> FoundByKey:
        """The messages of a topic with a key, of all brokers, in one order of store times.

        Arguments and cost for each broker, and errors, as `ReadableTier.query_message`. A broker
        that fails is reported to `on_broker_failure`, and the result is not complete.
        """
        found: list[tuple[Origin, StoredMessage]] = []
        is_complete = not self._is_partial
        unsearched, damage = 0, list[StoreError]()
        for tier in self._with(topic, None):
            answers = False
            with self._reported(tier):
                result = await tier.query_message(
                    topic,
                    key,
                    messages_max=messages_max,
                    since=since,
                    until=until,
                    newest_first=newest_first,
                    scan_bytes_max=scan_bytes_max,
                )
                answers = result.is_complete
                found += [(_origin(tier), message) for message in result.messages]
                unsearched += result.unsearched
                damage += result.damage
            is_complete &= answers
        found.sort(key=lambda pair: pair[1].store_timestamp, reverse=newest_first)
        is_complete &= len(found) <= messages_max
        return FoundByKey(found[:messages_max], is_complete, unsearched, damage)

    def messages(
        self,
        topic: str,
        queue_id: int | None = None,
        *,
        messages_max: int | None = None,
        tags: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        by_time: bool = False,
        on_damage: OnDamage | None = None,
        on_gap: OnGap | None = None,
    ) -> AsyncIterator[tuple[Origin, Message]]:
        """Iterate over a topic of all brokers: `async for origin, message in tiers.messages("T")`.

        Broker after broker, or with `by_time` all in one order of store times, which holds the
        memory of `ReadableTier.messages` for each broker. `queue_id` is a queue of each broker;
        the other arguments and errors are as there. A broker that lacks the topic or the queue is
        passed over. One that fails is reported to `on_broker_failure` and ends there.
        """
        wanted = Wanted.of(None, messages_max, tags, since, until, on_damage, on_gap)
        return one_by_one(self.chunks(topic, queue_id, wanted, by_time=by_time))

    def chunks(
        self, topic: str, queue_id: int | None, wanted: Wanted, *, by_time: bool
    ) -> AsyncIterator[Iterable[tuple[Origin, Message]]]:
        """Iterate over the results of `messages` in chunks. Internal, and may change."""
        tiers = self._with(topic, queue_id)

        def of_tier(tier: ReadableTier, left: int | None) -> AsyncIterator[Iterable[Message]]:
            return tier.chunks(topic, queue_id, replace(wanted, messages_max=left), by_time=by_time)

        if by_time:
            return self._merged(tiers, of_tier, wanted.messages_max)
        return self._in_turn(tiers, of_tier, wanted.messages_max)

    async def _in_turn(
        self, tiers: Sequence[ReadableTier], of_tier: "_Chunks", left: int | None
    ) -> AsyncIterator[Iterable[tuple[Origin, Message]]]:
        for tier in tiers:
            source = _Source(tier, of_tier(tier, left))
            with self._reported(tier):
                async for chunk in source.chunks:
                    yield self._pairs(source, chunk)
                    if source.has_failed:
                        break
            left = None if left is None else left - source.count

    def _pairs(
        self, source: "_Source", chunk: Iterable[Message]
    ) -> Iterator[tuple[Origin, Message]]:
        """The messages of a chunk, which are decoded here: those before a damaged one are given."""
        source.has_failed = True
        with self._reported(source.tier):
            for message in chunk:
                source.count += 1
                yield source.origin, message
            source.has_failed = False

    async def _merged(
        self, tiers: Sequence[ReadableTier], of_tier: "_Chunks", left: int | None
    ) -> AsyncIterator[Iterable[tuple[Origin, Message]]]:
        """The messages of all brokers by store time; of the same time, the first broker's first."""
        sources = [_Source(tier, of_tier(tier, left)) for tier in tiers]
        heads = [
            (source.head.store_timestamp, number)
            for number, source in enumerate(sources)
            if await self._advances(source)
        ]
        heapify(heads)
        chunk: list[tuple[Origin, Message]] = []
        while heads and (left is None or left > 0):
            number = heads[0][1]
            source = sources[number]
            chunk.append((source.origin, source.head))
            left = None if left is None else left - 1
            if len(chunk) == CHUNK_MESSAGES_MAX:
                yield chunk
                chunk = []
            if await self._advances(source):
                heapreplace(heads, (source.head.store_timestamp, number))
            else:
                heappop(heads)
        if chunk:
            yield chunk

    async def _advances(self, source: "_Source") -> bool:
        """Go to the next message of a broker; False at its end, or where it fails."""
        with self._reported(source.tier):
            return await source.advance()
        return False

    async def check(self, *, bodies: bool = False) -> AsyncIterator[tuple[Origin, Finding]]:
        """Iterate over everything that is wrong, broker after broker; see `ReadableTier.check`."""
        for tier in self.tiers:
            with self._reported(tier):
                async for finding in tier.check(bodies=bodies):
                    yield _origin(tier), finding

    def to_arrow(
        self,
        topic: str,
        queue_id: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        messages_max: int | None = None,
        tags: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        on_damage: OnDamage | None = None,
        on_gap: OnGap | None = None,
    ) -> AsyncIterator[RecordBatch]:
        """Iterate over a topic of all brokers as Arrow record batches, broker after broker.

        As `ReadableTier.to_arrow`, with the columns `cluster` and `broker`, by default the first.
        """
        wanted = Wanted.of(None, messages_max, tags, since, until, on_damage, on_gap)
        return self.arrow_batches(topic, queue_id, wanted, columns)[1]

    def arrow_batches(
        self, topic: str, queue_id: int | None, wanted: Wanted, columns: Sequence[str] | None
    ) -> tuple[Schema, AsyncIterator[RecordBatch]]:
        """Return the schema and the batches of `to_arrow`. Internal, and may change."""
        arrow = import_arrow()
        schema = arrow.schema_with_origin(columns)
        own = [name for name in columns or schema.names if name not in arrow.ORIGIN]

        async def batches() -> AsyncIterator[RecordBatch]:
            left = wanted.messages_max
            for tier in self._with(topic, queue_id):
                with self._reported(tier):
                    rest = replace(wanted, messages_max=left)
                    found = tier.arrow_batches(topic, queue_id, rest, own or ["queue_id"])[1]
                    async for batch in found:
                        left = None if left is None else left - batch.num_rows
                        yield arrow.with_origin(batch, schema, tier.cluster, tier.broker)

        return schema, batches()

    def _with(self, topic: str, queue_id: int | None) -> list[ReadableTier]:
        """The readers that have a topic, or a queue of it.

        Raises:
            NotFound: none has it; names the nearest.
        """
        found = [tier for tier in self.tiers if _has(tier, topic, queue_id)]
        if not found:
            first = self.tiers[0]
            first.queues(topic) if queue_id is None else first.queue(topic, queue_id)
        return found

    @contextmanager
    def _reported(self, tier: ReadableTier) -> Generator[None]:
        """Report a failure of a broker in the block, and end the block."""
        try:
            yield
        except Closed:
            raise
        except (StoreError, OSError) as error:
            self._fail(_origin(tier), error)

    def _fail(self, origin: Origin, error: Exception) -> None:
        if self._on_failure is None:
            raise error
        self._is_partial = True
        self._on_failure(*origin, error)


_Chunks = Callable[[ReadableTier, int | None], AsyncIterator[Iterable[Message]]]


class _Source:
    """Broker in a read of several: its chunks, and its present message in a merge."""

    head: Message
    """The present message of a merge; unset before the first `advance`."""

    def __init__(self, tier: ReadableTier, chunks: AsyncIterator[Iterable[Message]]) -> None:
        self.tier = tier
        self.origin = _origin(tier)
        self.chunks = chunks
        self.count = 0
        """Messages that were given."""
        self.has_failed = False
        self._here: Iterator[Message] = iter(())

    async def advance(self) -> bool:
        """Go to the next message; False at the end."""
        while (message := next(self._here, None)) is None:
            chunk = await anext(self.chunks, None)
            if chunk is None:
                return False
            self._here = iter(chunk)
        self.head = message
        return True


def _origin(tier: ReadableTier) -> Origin:
    return Origin(tier.cluster, tier.broker)


def _has(tier: ReadableTier, topic: str, queue_id: int | None) -> bool:
    queues = tier.reader.state.queues
    return queues.has_topic(topic) if queue_id is None else QueueId(topic, queue_id) in queues


@overload
def open(  # noqa: A001 - below
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: Literal["*"] | list[str] | tuple[str, ...],
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    damaged: bool = False,
    on_broker_failure: OnBrokerFailure | None = None,
) -> ReadableTiers: ...


@overload
def open(  # noqa: A001 - below
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    java_metadata: str | os.PathLike[str] | None = None,
    damaged: bool = False,
) -> ReadableTier: ...


def open(  # noqa: A001 - `tieredstore.open`, as in zarr, gzip or rasterio
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | list[str] | tuple[str, ...] | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    java_metadata: str | os.PathLike[str] | None = None,
    damaged: bool = False,
    on_broker_failure: OnBrokerFailure | None = None,
) -> ReadableTier | ReadableTiers:
    """A reader of a broker's tier: `async with tieredstore.open("tier") as tier`.

    With `broker="*"` or a list it is one of several brokers, `ReadableTiers`.

    Reads nothing itself: entering the block reads `conf` and opens the tier, with the errors of
    `ReadableTier.__aenter__` or `ReadableTiers.__aenter__`.

    Args:
        where: the tier's directory, as a path or a `file://` URL; None: `tieredStoreFilePath` of
            `conf` or of the environment.
        cluster: the broker's cluster; not needed where the tier has only one that fits.
        broker: the broker's name; likewise. "*": all brokers of the tier; a list of names and
            patterns, as `["east-?"]`: all that fit.
        conf: a RocketMQ broker's configuration file, used as it is.
        settings: further keys with their values, such as
            `{"tieredStoreCrcCheckEnable": False}`; they win over `conf` and the environment.
        java_metadata: a `tieredStoreMetadata.json`, to read a tier that RocketMQ's own tiered
            store wrote; of one broker.
        damaged: open the whole part of a damaged journal; `damage` has its end.
        on_broker_failure: callback for cluster, broker and error of one of several brokers that
            cannot be read, now or later; the others are. None: the first failure is raised.
    """
    if isinstance(broker, str) and broker != ALL:
        broker_name, patterns = broker, None
    else:
        broker_name, patterns = None, [broker] if isinstance(broker, str) else broker

    def load() -> Config:
        return Config.named(where, cluster, broker_name, conf, settings)

    if patterns is None:
        return ReadableTier(
            load,
            java_metadata=None if java_metadata is None else Path(java_metadata),
            damaged=damaged,
        )
    if java_metadata is not None:
        raise ConfigError("java_metadata is the file of one broker: name the broker")
    return ReadableTiers(load, patterns, damaged=damaged, on_broker_failure=on_broker_failure)
