"""Queries by key: a part of the face of an open tier."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from container.lookup.find import find_messages
from container.lookup.query import (
    BEGIN_OF_TIME_MS,
    END_OF_TIME_MS,
    SCAN_BYTES_MAX,
    KeyQuery,
    LookupLimits,
    QueryResult,
    Unsealed,
)
from container.tier_reader import TierReader
from provider.disk_cache.use import cache_use
from tieredstore.reading.java_index import open_index_files
from tieredstore.reading.opened import OpenedTier
from tieredstore.reading.wanted import Moment, moment_ms
from tieredstore.summary import QueueSummary


class KeyQueries(ABC):
    """What `ReadableTier` says of keys; all but `query_message` is its own."""

    _java_metadata: Path | None

    @property
    @abstractmethod
    def reader(self) -> TierReader:
        """The tier below."""

    @property
    @abstractmethod
    def is_java(self) -> bool:
        """Whether RocketMQ's own tiered store wrote it."""

    @abstractmethod
    def queues(self, topic: str | None = None) -> list[QueueSummary]:
        """All queues, or those of a topic, in order."""

    @abstractmethod
    def _opened(self) -> OpenedTier: ...

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
    ) -> QueryResult:
        """The messages of a topic with a key: one of their `KEYS`, or the `UNIQ_KEY`.

        Costs two requests for each index file that may have it, and one for each record. Messages
        that no index has yet are read, the newest first, up to `scan_bytes_max`.

        Args:
            topic: the topic.
            key: the whole key, as the producer gave it.
            messages_max: messages at most.
            since: only what was stored at this time or later; as `messages`.
            until: only what was stored before this time.
            newest_first: order by store time; the first `messages_max` in that order.
            scan_bytes_max: of messages that no index has; None: 256 MiB, or none in a tier that
                RocketMQ's own store wrote, whose index files do not say what they have.

        Raises:
            NotFound: the tier has no such topic; names the nearest.
            ValueError: a datetime has no time zone.
            Unavailable, OutOfRange: as `get_message`.
        """
        if not any(queue.topic == topic for queue in self.reader.state.queues):
            self.queues(topic)  # says so
        query = KeyQuery(
            topic,
            key,
            messages_max,
            BEGIN_OF_TIME_MS if since is None else moment_ms(since),
            END_OF_TIME_MS if until is None else moment_ms(until) - 1,
            newest_first,
        )
        is_unsaid = scan_bytes_max is None and self.is_java
        if scan_bytes_max is None:
            scan_bytes_max = 0 if self.is_java else SCAN_BYTES_MAX
        limits = LookupLimits(scan_bytes_max=scan_bytes_max)
        opened, path = self._opened(), self._java_metadata
        unsealed: Sequence[Unsealed] = ()
        if path is not None:
            unsealed = await asyncio.to_thread(open_index_files, opened.config, path)

        async def look() -> QueryResult:
            return await find_messages(
                opened.reader, query, unsealed=unsealed, limits=limits, known=opened.known
            )

        with cache_use() as use:
            found = await look()
            if found.damage and use.was_used:
                use.is_past = True  # perhaps a cache alone is damaged
                found = await look()
        return found._replace(unsearched=0) if is_unsaid else found
