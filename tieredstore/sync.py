"""The API without `await`, for notebooks and scripts.

```
import tieredstore.sync

with tieredstore.sync.open("tier") as tier:
    for message in tier.messages("G_Orders", 0):
        print(message.offset, message.tags, message.body)
```

Everything runs in an event loop in a thread of its own, from `open` to `close`. So it works beside
a running loop, as in Jupyter, and any thread may call it. `tieredstore.ReadableTier`,
`tieredstore.Follower` and `tieredstore.TieredMessageStore` document meaning, cost and errors of
each call.
"""

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import tieredstore
from container.check.finding import Finding
from container.lookup.query import QueryResult
from container.queue.segments import TieredSegment
from container.queue.time_index import Boundary, TimeRules
from dispatcher.statistics import DispatchStatistics
from fetcher.fetcher import TRANSFER_BYTES_MAX
from fetcher.result import FetchResult
from fetcher.statistics import FetcherStatistics
from tieredstore.follower import Follower
from tieredstore.message import Message
from tieredstore.metrics.summary import Loss, QueueSummary, TopicSummary
from tieredstore.reader.arrow import RecordBatchReader, import_arrow
from tieredstore.reader.cursor import Moment, OnDamage, OnGap, Wanted
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.threaded import SyncStore, Threaded

__all__ = ["SyncFollower", "SyncStore", "SyncTier", "follow", "open", "open_store"]


def open(  # noqa: A001 - as `tieredstore.open`
    where: str | os.PathLike[str] | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    java_metadata: str | os.PathLike[str] | None = None,
    damaged: bool = False,
) -> "SyncTier":
    """Open a tier for reading, at once; arguments and errors as `tieredstore.open`.

    Use it in a `with` block, or call `close`.
    """
    return SyncTier(
        tieredstore.open(
            where,
            cluster=cluster,
            broker=broker,
            conf=conf,
            settings=settings,
            java_metadata=java_metadata,
            damaged=damaged,
        )
    )


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
    **options: Any,  # noqa: ANN401 - those of `tieredstore.open_store`
) -> "SyncStore":
    """Open a message store with a tier, at once; arguments and errors as `tieredstore.open_store`.

    Use it in a `with` block, or call `close`.
    """
    return SyncStore(tieredstore.open_store(directory, where, **options))


class SyncTier(Threaded):
    """The tier of one broker, open for reading: `tieredstore.ReadableTier` without `await`."""

    def __init__(self, tier: ReadableTier) -> None:
        """Opens it; see `open`."""
        self._tier = tier
        super().__init__(tier)

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

    def refresh(self) -> bool:
        """Poll for newer entries; return whether there were any."""
        return self._running.call(self._tier.refresh)

    def topics(self) -> list[str]:
        """The names of all topics that have a queue, in order."""
        return self._running.call(self._tier.topics)

    def queues(self, topic: str | None = None) -> list[QueueSummary]:
        """All queues, or those of a topic, in order."""
        return self._running.call(self._tier.queues, topic)

    def queue(self, topic: str, queue_id: int) -> QueueSummary:
        """Return the summary of a queue."""
        return self._running.call(self._tier.queue, topic, queue_id)

    def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int = 32,
        subscription: str | None = None,
        bytes_max: int | None = TRANSFER_BYTES_MAX,
        exact_tags: bool = False,
    ) -> FetchResult:
        """Fetch a batch with RocketMQ's statuses; see `TieredMessageFetcher.get_message`."""

        async def fetch() -> FetchResult:
            return await self._tier.get_message(
                group,
                topic,
                queue_id,
                offset,
                messages_max=messages_max,
                subscription=subscription,
                bytes_max=bytes_max,
                exact_tags=exact_tags,
            )

        return self._running.call(fetch)

    def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        moment: Moment,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> int:
        """Find the queue offset at a time; see `ReadableTier.offset_by_time`."""
        return self._running.call(
            self._tier.offset_by_time, topic, queue_id, moment, boundary, rules
        )

    def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Store time of a queue's first message, Unix ms; None if it has none."""
        return self._running.call(self._tier.earliest_message_time, topic, queue_id)

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

        def chunks() -> AsyncIterator[Iterable[Message]]:
            return self._tier.chunks(topic, queue_id, wanted, by_time=by_time)

        return chain.from_iterable(self._each(self._running.call(chunks)))

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

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        messages_max: int = 32,
        since: Moment | None = None,
        until: Moment | None = None,
        newest_first: bool = True,
        scan_bytes_max: int | None = None,
    ) -> QueryResult:
        """The messages of a topic with a key; as `ReadableTier.query_message`."""

        async def query() -> QueryResult:
            return await self._tier.query_message(
                topic,
                key,
                messages_max=messages_max,
                since=since,
                until=until,
                newest_first=newest_first,
                scan_bytes_max=scan_bytes_max,
            )

        return self._running.call(query)

    def segments(self, topic: str, queue_id: int) -> list[TieredSegment]:
        """The segments of a queue, in any state; as `ReadableTier.segments`."""
        return self._running.call(self._tier.segments, topic, queue_id)

    def check(self, *, bodies: bool = False) -> list[Finding]:
        """Everything that is wrong with the tier; reads every byte once. See `ReadableTier`."""

        async def check() -> list[Finding]:
            return [finding async for finding in self._tier.check(bodies=bodies)]

        return self._running.call(check)

    def statistics(self) -> FetcherStatistics:
        """Return the cost of reading so far and the sizes of the caches."""
        return self._running.call(self._tier.statistics)


class SyncFollower(Threaded):
    """Tiers a broker's store directory: `tieredstore.Follower` without `await`."""

    def __init__(self, follower: Follower) -> None:
        """Opens it; see `follow`."""
        self._follower = follower
        super().__init__(follower)

    def drain(self) -> DispatchStatistics:
        """Tier everything that the broker's log has now; returns when it is durable."""
        return self._running.call(self._follower.drain)

    def statistics(self) -> DispatchStatistics:
        """Return progress and present failures of tiering, queue by queue."""
        return self._running.call(self._follower.statistics)

    def losses(self) -> list[Loss]:
        """Messages that were found to be lost while it was open."""
        return self._running.call(self._follower.losses)

    def topics(self) -> list[TopicSummary]:
        """Summarize the tier and the additions of this block, topic by topic."""
        return self._running.call(self._follower.topics)
