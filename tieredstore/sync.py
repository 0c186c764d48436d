"""The API without `await`, for notebooks and scripts.

```
import tieredstore.sync

with tieredstore.sync.open("tier") as tier:
    for message in tier.messages("G_Orders", 0):
        print(message.offset, message.tags, message.body)
```

Everything runs in an event loop in a thread of its own, from `open` to `close`. So it works beside
a running loop, as in Jupyter, and any thread may call it. In a forked child, each call raises
`Closed`: open in each process, after the fork. `tieredstore.ReadableTier`, `tieredstore.Follower`
and `tieredstore.TieredMessageStore` document meaning, cost and errors of each call.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, overload

import tieredstore
from container.errors import Finding
from tieredstore.message import Message, OnBrokerFailure, Origin
from tieredstore.reader.arrow import RecordBatchReader, import_arrow
from tieredstore.reader.cursor import Moment, OnDamage, OnGap, Wanted
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.reader.readable_tiers import ReadableTiers
from tieredstore.threaded import Threaded, blocking

if TYPE_CHECKING:  # a program that only reads loads no code that writes
    from tieredstore.hot.options import HotWriteOptions, ReadLimits, RetentionOptions
    from tieredstore.store.levels import Level
    from tieredstore.sync_owners import SyncFollower, SyncPosition, SyncStore, SyncStoreReader

__all__ = [
    "SyncFollower",
    "SyncPosition",
    "SyncStore",
    "SyncStoreReader",
    "SyncTier",
    "SyncTiers",
    "follow",
    "open",
    "open_store",
    "read_store",
]


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
) -> "SyncTiers": ...


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
) -> "SyncTier": ...


def open(  # noqa: A001 - as `tieredstore.open`
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | list[str] | tuple[str, ...] | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    java_metadata: str | os.PathLike[str] | None = None,
    damaged: bool = False,
    on_broker_failure: OnBrokerFailure | None = None,
) -> "SyncTier | SyncTiers":
    """Open a tier for reading, at once; arguments and errors as `tieredstore.open`.

    With `broker="*"` or a list those of several brokers. Use it in a `with` block, or call `close`.
    """
    call = cast("Callable[..., ReadableTier | ReadableTiers]", tieredstore.open)  # not one overload
    opened = call(
        where,
        cluster=cluster,
        broker=broker,
        conf=conf,
        settings=settings,
        java_metadata=java_metadata,
        damaged=damaged,
        on_broker_failure=on_broker_failure,
    )
    return SyncTier(opened) if isinstance(opened, ReadableTier) else SyncTiers(opened)


def follow(
    store_dir: str | os.PathLike[str],
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    take_over: bool = False,
    standby: bool = False,
    new_tier: bool = False,
) -> "SyncFollower":
    """Own a tier and open a broker's store, at once; arguments and errors as `tieredstore.follow`.

    Use it in a `with` block, or call `close`.
    """
    from tieredstore.sync_owners import SyncFollower  # noqa: PLC0415 - see the imports above

    return SyncFollower(
        tieredstore.follow(
            store_dir,
            where,
            cluster=cluster,
            broker=broker,
            conf=conf,
            settings=settings,
            take_over=take_over,
            standby=standby,
            new_tier=new_tier,
        )
    )


def open_store(
    directory: str | os.PathLike[str],
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    level: "Level | str | int | None" = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    hot: "HotWriteOptions | None" = None,
    retention: "RetentionOptions | None" = None,
    limits: "ReadLimits | None" = None,
    take_over: bool = False,
    new_tier: bool = False,
    durable: bool = False,
    process: Literal["inline", "own"] | None = None,
) -> "SyncStore":
    """Open a message store with a tier, at once; arguments and errors as `tieredstore.open_store`.

    An append returns before the disk has the message: a power failure may take the last 500 ms, a
    crash of the process nothing. With `durable=True` it returns once the disk has it.

    Use it in a `with` block, or call `close`.
    """
    from tieredstore.sync_owners import SyncStore  # noqa: PLC0415 - likewise

    return SyncStore(
        tieredstore.open_store(
            directory,
            where,
            cluster=cluster,
            broker=broker,
            level=level,
            conf=conf,
            settings=settings,
            hot=hot,
            retention=retention,
            limits=limits,
            take_over=take_over,
            new_tier=new_tier,
            durable=durable,
            process=process,
        )
    )


def read_store(
    directory: str | os.PathLike[str],
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
) -> "SyncStoreReader":
    """Read a store that another process writes; arguments and errors as `tieredstore.read_store`.

    Use it in a `with` block, or call `close`.
    """
    from tieredstore.sync_owners import SyncStoreReader  # noqa: PLC0415 - likewise

    return SyncStoreReader(
        tieredstore.read_store(
            directory, where, cluster=cluster, broker=broker, conf=conf, settings=settings
        )
    )


class SyncTier(Threaded):
    """The tier of one broker, open for reading: `tieredstore.ReadableTier` without `await`."""

    def __init__(self, tier: ReadableTier) -> None:
        """Opens it; see `open`."""
        self._tier = tier
        super().__init__(tier)

    def _repr_html_(self) -> str:
        """Table of the topics, for notebooks."""
        return self._tier._repr_html_()  # pyright: ignore[reportPrivateUsage] - notebooks look for it

    @property
    def cluster(self) -> str:
        """The broker's cluster."""
        return self._tier.cluster

    @property
    def broker(self) -> str:
        """The broker's name."""
        return self._tier.broker

    @property
    def directory(self) -> Path:
        """The directory of the broker's tier.

        Raises:
            ConfigError: the tier is in an object store.
        """
        return self._tier.directory

    @property
    def location(self) -> str:
        """The path or the URL of the broker's tier."""
        return self._tier.location

    refresh = blocking(ReadableTier.refresh)
    topics = blocking(ReadableTier.topics)
    queues = blocking(ReadableTier.queues)
    queue = blocking(ReadableTier.queue)
    get_message = blocking(ReadableTier.get_message)
    offset_by_time = blocking(ReadableTier.offset_by_time)
    earliest_message_time = blocking(ReadableTier.earliest_message_time)

    def messages(
        self,
        topic: str,
        queue_id: int | None = None,
        offset: int | None = None,
        *,
        messages_max: int | None = None,
        tags: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        by_time: bool = False,
        on_damage: OnDamage | None = None,
        on_gap: OnGap | None = None,
    ) -> Iterator[Message]:
        """Iterate over a queue or a topic; arguments and errors as `ReadableTier.messages`.

        The thread is asked once for each fetch, not for each message. A loop may be left early.
        """
        wanted = Wanted.of(offset, messages_max, tags, since, until, on_damage, on_gap)

        return self.each_of(lambda: self._tier.chunks(topic, queue_id, wanted, by_time=by_time))

    def to_arrow(
        self,
        topic: str,
        queue_id: int | None = None,
        offset: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        messages_max: int | None = None,
        tags: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        on_damage: OnDamage | None = None,
        on_gap: OnGap | None = None,
    ) -> RecordBatchReader:
        """A queue or a topic as a `pyarrow.RecordBatchReader`; see `ReadableTier.to_arrow`.

        Each batch is read when it is requested, and one batch is held.
        """
        wanted = Wanted.of(offset, messages_max, tags, since, until, on_damage, on_gap)
        schema, batches = self._running.call(
            self._tier.arrow_batches, topic, queue_id, wanted, columns
        )
        return import_arrow().reader_of(schema, self._each(batches))

    query_message = blocking(ReadableTier.query_message)
    segments = blocking(ReadableTier.segments)

    def check(self, *, bodies: bool = False) -> list[Finding]:
        """Everything that is wrong with the tier; reads every byte once. See `ReadableTier`."""

        async def check() -> list[Finding]:
            return [finding async for finding in self._tier.check(bodies=bodies)]

        return self._running.call(check)

    statistics = blocking(ReadableTier.statistics)


class SyncTiers(Threaded):
    """The tiers of several brokers: `tieredstore.ReadableTiers` without `await`."""

    def __init__(self, tiers: ReadableTiers) -> None:
        """Opens them; see `open`."""
        self._tiers = tiers
        super().__init__(tiers)

    @property
    def brokers(self) -> list[Origin]:
        """The brokers that are read, in order."""
        return [Origin(tier.cluster, tier.broker) for tier in self._tiers.tiers]

    refresh = blocking(ReadableTiers.refresh)
    topics = blocking(ReadableTiers.topics)
    queues = blocking(ReadableTiers.queues)
    query_message = blocking(ReadableTiers.query_message)

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
    ) -> Iterator[tuple[Origin, Message]]:
        """Iterate over a topic; arguments and errors as `ReadableTiers.messages`."""
        wanted = Wanted.of(None, messages_max, tags, since, until, on_damage, on_gap)
        return self.each_of(lambda: self._tiers.chunks(topic, queue_id, wanted, by_time=by_time))

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
    ) -> RecordBatchReader:
        """A topic as a `pyarrow.RecordBatchReader`; see `ReadableTiers.to_arrow`."""
        wanted = Wanted.of(None, messages_max, tags, since, until, on_damage, on_gap)
        schema, batches = self._running.call(
            self._tiers.arrow_batches, topic, queue_id, wanted, columns
        )
        return import_arrow().reader_of(schema, self._each(batches))

    def check(self, *, bodies: bool = False) -> list[tuple[Origin, Finding]]:
        """Everything that is wrong with the tiers; see `ReadableTiers.check`."""

        async def check() -> list[tuple[Origin, Finding]]:
            return [found async for found in self._tiers.check(bodies=bodies)]

        return self._running.call(check)


def __getattr__(name: str) -> object:
    """Load the class of a store or a follower when it is first used."""
    if name not in {"SyncFollower", "SyncPosition", "SyncStore", "SyncStoreReader"}:
        raise AttributeError(f"module 'tieredstore.sync' has no attribute {name!r}")
    return getattr(import_module("tieredstore.sync_owners"), name)
