"""Tier opened for reading: queues, messages, key queries, segments, findings."""

import asyncio
import mmap
import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Self

from container.errors import Finding
from container.index.layout import KeyItems
from container.index.sealed import OpenIndex
from container.lookup.find import KnownCoverage, OpenFileItems, find_messages
from container.lookup.query import (
    BEGIN_OF_TIME_MS,
    END_OF_TIME_MS,
    SCAN_BYTES_MAX,
    KeyQuery,
    LookupLimits,
    QueryResult,
    Unsealed,
)
from container.metadata.records import CopyState
from container.names.queue_id import QueueId, named_queue
from container.queue.positions import Boundary, TimeRules
from container.queue.segments import TieredSegment, TieredSegments
from container.tier_view import TierReader
from fetcher.fetcher import (
    TRANSFER_BYTES_MAX,
    FetcherStatistics,
    TieredMessageFetcher,
    from_newest_tier,
)
from fetcher.result import FetchResult
from provider.clock import Clock, SystemClock
from provider.disk_cache.use import cache_use, each_past_caches
from provider.errors import Closed, Corrupt, NotFound, StoreError
from provider.names import is_regular_file
from provider.stores.throttled import TransferLimits
from tieredstore.config.effective import Config
from tieredstore.message import Message
from tieredstore.metrics.summary import QueueSummaries, QueueSummary, absence_text, topics_html
from tieredstore.reader.arrow import RecordBatch, Schema, import_arrow
from tieredstore.reader.cursor import (
    Moment,
    OnDamage,
    OnGap,
    QueueCursor,
    Wanted,
    by_store_time,
    moment_ms,
    one_by_one,
    queue_by_queue,
)
from tieredstore.session.places import directory_of, local_directory
from tieredstore.session.reader import AS_ARGUMENTS, existing_tier, open_reader, read_bytes


@dataclass(frozen=True, slots=True)
class OpenedTier:
    """Resources that are open while the block of a tier runs."""

    config: Config
    """With the cluster and broker that were found."""
    reader: TierReader
    fetcher: TieredMessageFetcher
    known: KnownCoverage = field(default_factory=KnownCoverage)
    """Coverage of the index files, as far as queries by key have learned it."""


async def opened_tier(
    stack: AsyncExitStack,
    config: Config,
    *,
    java_metadata: Path | None,
    damaged: bool,
    clock: Clock,
) -> OpenedTier:
    """Load the metadata and begin to serve; `stack` closes it. Raises as `ReadableTier`."""
    raw = None if java_metadata is None else await asyncio.to_thread(read_bytes, java_metadata)
    reader = await stack.enter_async_context(
        open_reader(config, raw, java_path=str(java_metadata), damaged=damaged)
    )
    fetcher = TieredMessageFetcher(reader, options=config.fetcher, clock=clock)
    await stack.enter_async_context(fetcher)
    return OpenedTier(config, reader, fetcher)


SETTLE_S = 2.0
"""Seconds that `check` waits before it reports bytes beyond the published ends as unpublished."""


async def findings_of(
    reader: TierReader,
    is_java: bool,  # noqa: FBT001 - internal
    clock: Clock,
    progress: Callable[[int], None],
    bodies: bool,  # noqa: FBT001 - as above
    *,
    contents: bool = True,
) -> AsyncGenerator[Finding]:
    """Yield the findings of `ReadableTier.check`; arguments and errors as there.

    With `contents` False, findings that only the bytes of messages and index files show are left
    out.
    """
    from container.check.tier import check_tier  # noqa: PLC0415 - a seventh of what a reader loads

    damage = reader.damage
    if damage is not None:
        detail = f"{damage.reason}; later entries cannot be checked"
        yield Finding("journal", damage.path, damage.position, detail)
    for queue, error in reader.queue_damage.items():
        detail = f"{error.reason} ({error.path}), so not all of the queue can be served"
        yield Finding("java-queue", str(queue), 0, detail)
    async for finding in check_tier(
        reader,
        journal=not is_java,
        bodies=bodies,
        contents=contents,
        progress=progress,
        clock=None if is_java else clock,
        settle_s=SETTLE_S,
    ):
        yield finding


DIRECTORY = "tiered_index_file"
"""In the broker's store directory, beside `config`."""
SLOTS_KEY = "tieredStoreIndexFileMaxHashSlotNum"


def open_index_files(config: Config, java_metadata: Path) -> Sequence[Unsealed]:
    """Map the index files of `<store>/tiered_index_file`; the metadata is in `<store>/config`.

    A query reads only the pages that it needs. A damaged file is an error of the query, not of
    this call. Few system calls; blocks.
    """
    slots = int(config.settings[SLOTS_KEY].value)
    found: list[OpenIndex] = []
    damaged: list[Unsealed] = []
    for path in _paths(java_metadata):
        try:
            found.append(OpenIndex.of(_mapped(path), slots=slots, path=str(path)))
        except Corrupt as error:
            damaged.append(_Damaged(error))
    return [OpenFileItems(found), *damaged]


class _Damaged(OpenFileItems):
    """A file of which nothing can be used."""

    def __init__(self, error: Corrupt) -> None:
        super().__init__(())
        self._error = error

    def items_of(self, key_hash: int, topic_id: int) -> KeyItems:  # noqa: ARG002 - has none
        raise self._error


def _paths(java_metadata: Path) -> list[Path]:
    """Return the files of the directory; none if it cannot be listed."""
    try:
        found = [*(java_metadata.resolve().parent.parent / DIRECTORY).iterdir()]
    except OSError:
        return []
    return sorted(path for path in found if path.name.isdecimal() and is_regular_file(path))


def _mapped(path: Path) -> bytes | memoryview:
    """Map a file; pages are read on access."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # no file any more, or an empty one
        raise Corrupt(f"the open index file cannot be read: {error}", str(path)) from error
    return memoryview(mapped)


class ReadableTier:
    """The tier of one broker, open for reading. `tieredstore.open` makes it: use `async with`.

    Needs no broker and no ownership, and never writes. Any number of readers may read a tier while
    it is written. Later messages become visible by `refresh`.
    """

    def __init__(
        self,
        load: Callable[[], Config],
        *,
        java_metadata: Path | None = None,
        damaged: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is read before the block is entered; then `load` runs in a thread.

        The other arguments are those of `tieredstore.open`.
        """
        self._load = load
        self._java_metadata = java_metadata
        self._damaged = damaged
        self._clock = clock or SystemClock()
        self._stack: AsyncExitStack | None = None
        self._open: OpenedTier | None = None

    async def __aenter__(self) -> Self:
        """Load the metadata: one snapshot and the journal entries after it.

        Raises:
            NotFound: there is no tier.
            ConfigError: a setting is wrong, the URL is of an unknown kind, or the tier is of
                another broker or of several; the sentence lists them.
            Corrupt: the metadata is damaged; `damaged=True` opens the part that is whole.
            RuntimeError: it is open already.
            Denied, Unavailable: the storage refuses or does not answer.
        """
        if self._stack is not None:
            raise RuntimeError(f"{self!r} is open already")
        config = await asyncio.to_thread(lambda: existing_tier(self._load(), AS_ARGUMENTS))
        async with AsyncExitStack() as stack:
            self._open = await opened_tier(
                stack,
                config,
                java_metadata=self._java_metadata,
                damaged=self._damaged,
                clock=self._clock,
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the reads under way and close the storage; later calls raise Closed."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, traceback)

    def __del__(self) -> None:
        if self._stack is not None:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        if self._stack is None or self._open is None:
            return "<ReadableTier: not open>"
        queues = len(self._open.reader.state.queues)
        return f"<ReadableTier {self.cluster}/{self.broker}: {queues} queues>"

    def _repr_html_(self) -> str:
        """Table of the topics, for notebooks."""
        title = escape(repr(self).strip("<>"))
        return f"<p>{title}</p>" + ("" if self._open is None else topics_html(self.queues()))

    @property
    def cluster(self) -> str:
        """The broker's cluster."""
        return self._opened().config.cluster

    @property
    def broker(self) -> str:
        """The broker's name."""
        return self._opened().config.broker

    @property
    def directory(self) -> Path:
        """The directory of the broker's tier.

        Raises:
            ConfigError: the tier is in an object store.
        """
        return local_directory(directory_of(self._opened().config))

    @property
    def location(self) -> str:
        """The path or the URL of the broker's tier."""
        return str(directory_of(self._opened().config))

    @property
    def limits(self) -> TransferLimits:
        """Bytes a second from an object store: set them at any time."""
        return self._opened().config.limits

    @property
    def is_java(self) -> bool:
        """Whether RocketMQ's own tiered store wrote it, so that it has no journal."""
        return self._java_metadata is not None

    @property
    def damage(self) -> Corrupt | None:
        """The damage of the journal when it was opened; None unless opened with `damaged=True`."""
        return self.reader.damage

    @property
    def queue_damage(self) -> Mapping[QueueId, StoreError]:
        """Why queues are served only in part or not at all, of a tier that RocketMQ's store wrote.

        Damage that opening it does not meet is not here; `check` finds all.
        """
        return self.reader.queue_damage

    @property
    def reader(self) -> TierReader:
        """The tier below this one: metadata, segments, bytes. Internal, and may change."""
        return self._opened().reader

    @property
    def fetcher(self) -> TieredMessageFetcher:
        """Fetcher of `get_message`: read-ahead and its cache."""
        return self._opened().fetcher

    async def refresh(self) -> bool:
        """Poll for newer entries; return whether there were any. One request if there are none.

        Raises:
            Unavailable: the storage does not answer.
            Corrupt: the journal is damaged.
        """
        return await self.reader.refresh()

    def topics(self) -> list[str]:
        """The names of all topics that have a queue, in order. O(queues)."""
        return sorted({queue.topic for queue in self.reader.state.queues})

    def queues(self, topic: str | None = None) -> list[QueueSummary]:
        """All queues, or those of a topic, in order. O(queues and segments), no request.

        Raises:
            NotFound: the tier has no such topic; names the nearest.
        """
        found = QueueSummaries(
            QueueSummary.of(queue)
            for name, queue in sorted(self.reader.state.queues.items())
            if topic in (None, name.topic)
        )
        if topic is not None and not found:
            raise self._absent(topic, None)
        return found

    def queue(self, topic: str, queue_id: int) -> QueueSummary:
        """Return the summary of a queue. O(segments), no request.

        Raises:
            NotFound: the tier has no such queue; names the nearest.
            Corrupt, OutOfRange, Denied: nothing of the queue can be served (`queue_damage`).
        """
        found = self.reader.queue(named_queue(topic, queue_id))
        if found is None:
            raise self.queue_damage.get(QueueId(topic, queue_id)) or self._absent(topic, queue_id)
        return QueueSummary.of(found)

    async def get_message(
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
        return await self.fetcher.get_message(
            group,
            topic,
            queue_id,
            offset,
            messages_max=messages_max,
            subscription=subscription,
            bytes_max=bytes_max,
            exact_tags=exact_tags,
        )

    async def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        moment: Moment,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> int:
        """Find the queue offset at a time: a datetime with its time zone, or Unix ms.

        See `TieredMessageFetcher.offset_by_time`.

        Raises:
            NotFound: the tier has no such queue; names the nearest.
            ValueError: the datetime has no time zone.
            Unavailable, Corrupt, OutOfRange, Closed: as `get_message`.
        """
        self.queue(topic, queue_id)
        at_ms = moment_ms(moment)
        found = await self.fetcher.offset_by_time(
            named_queue(topic, queue_id), at_ms, boundary, rules
        )
        if found is None:
            raise self._absent(topic, queue_id)
        return found

    async def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Store time of a queue's first message, Unix ms; None if it has none.

        Two small requests, or none if it is cached; errors as `offset_by_time`.
        """
        self.queue(topic, queue_id)
        return await self.fetcher.earliest_message_time(named_queue(topic, queue_id))

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
                RocketMQ's own store wrote, whose index files have no coverage.

        Raises:
            NotFound: the tier has no such topic; names the nearest.
            ValueError: a datetime has no time zone, or `messages_max` is negative.
            Unavailable, OutOfRange: as `get_message`.
        """
        if not self.reader.state.queues.has_topic(topic):
            raise self._absent(topic, None)
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

        async def search() -> QueryResult:
            return await find_messages(
                opened.reader, query, unsealed=unsealed, limits=limits, known=opened.known
            )

        with cache_use() as use:
            found = await search()
            if found.damage and use.was_used:
                use.is_past = True  # perhaps a cache alone is damaged
                found = await search()
        return found._replace(unsearched=0) if is_unsaid else found

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
    ) -> AsyncIterator[Message]:
        """Iterate over a queue or a topic: `async for message in tier.messages("T", 0)`.

        Reads ahead; holds one fetch at a time (`readAheadMessageSizeThreshold`), with `by_time`
        32 MiB in all, or 16 KiB a queue if that is more.

        Args:
            topic: the topic.
            queue_id: its queue; None: all, one after another.
            offset: queue offset to begin at, in the one queue that is named; None: the oldest.
            messages_max: messages at most; None: to the end.
            tags: only these, as `TagA || TagB`, compared as texts; None or `*`: all.
            since: only what was stored at this time or later: a datetime with its time zone, or
                Unix ms; as `offset_by_time` finds it in each queue.
            until: only what was stored before this time.
            by_time: all queues in one order of store times, in place of queue after queue.
            on_damage: called with queue, offset and error of a damaged message, which is then
                skipped; None: the error is raised. With `tags`, it reads every message, because a
                damaged unit has no reliable tag.
            on_gap: called with queue and gap of lost messages that are skipped.

        Raises:
            NotFound: the tier has no such topic or queue, or, at the first step, `offset` lies
                beyond its end.
            ValueError: `tags` has no tag or is an SQL92 expression, a datetime has no time zone,
                `messages_max` is negative, or `offset` is given without `queue_id`.
            Unavailable, Corrupt, OutOfRange, Closed: while iterating; as `get_message`.
        """
        wanted = Wanted.of(offset, messages_max, tags, since, until, on_damage, on_gap)
        return one_by_one(self.chunks(topic, queue_id, wanted, by_time=by_time))

    def chunks(
        self, topic: str, queue_id: int | None, wanted: Wanted, *, by_time: bool
    ) -> AsyncIterator[Iterable[Message]]:
        """Iterate over the results of `messages` in chunks. Internal, and may change."""
        queues = self._queues_of(topic, queue_id, wanted)
        return (by_store_time if by_time else queue_by_queue)(self._cursor, queues, wanted)

    def results(
        self,
        topic: str,
        queue_id: int,
        offset: int | None = None,
        *,
        messages_max: int | None = None,
        tags: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        on_damage: OnDamage | None = None,
        on_gap: OnGap | None = None,
    ) -> QueueCursor:
        """Iterate over a queue fetch by fetch, records undecoded: for programs that need the rate.

        Arguments and errors as `messages`. A step holds one fetch.
        """
        self.queue(topic, queue_id)
        wanted = Wanted.of(offset, messages_max, tags, since, until, on_damage, on_gap)
        return self._cursor(named_queue(topic, queue_id), wanted, None)

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
    ) -> AsyncIterator[RecordBatch]:
        """Iterate over a queue or a topic as Arrow record batches, bodies decompressed.

        A batch is what one fetch gave, up to 4,096 messages; holds one fetch and one batch. About
        1.3 us a message beside the reading; needs the extra `tieredstore[arrow]`.

        `columns`: names as in `read --json`, in this order; None: topic, queue_id, queue_offset,
        store_timestamp, born_timestamp, msg_id, tags, keys, properties (a map), body (binary),
        born_host, store_host, flag, sys_flag, reconsume_times, prepared_transaction_offset,
        body_crc, store_size, offset_msg_id and tier_physical_offset. The other arguments are those
        of `messages`.

        Raises:
            ImportError: Arrow is not installed.
            ValueError: there is no such column; and as `messages`, as are the others.
        """
        wanted = Wanted.of(offset, messages_max, tags, since, until, on_damage, on_gap)
        return self.arrow_batches(topic, queue_id, wanted, columns)[1]

    def arrow_batches(
        self, topic: str, queue_id: int | None, wanted: Wanted, columns: Sequence[str] | None
    ) -> tuple[Schema, AsyncIterator[RecordBatch]]:
        """Return the schema and the batches of `to_arrow`. Internal, and may change."""
        arrow = import_arrow()
        schema = arrow.schema_of(columns)
        queues = self._queues_of(topic, queue_id, wanted)
        return schema, arrow.record_batches(self._cursor, queues, wanted, schema)

    async def segments(
        self, topic: str, queue_id: int, states: Collection[CopyState] | None = None
    ) -> list[TieredSegment]:
        """The segments of a queue in these states; None: in any.

        Ordered by flat file and base. Published segments are COPY_FINISHED. DELETE_STARTED are
        unpublished files that wait for their deletion. One request for each uncached manifest.

        Raises:
            NotFound: the tier has no such queue; names the nearest.
            BytesMissing, Corrupt, Unavailable: of a manifest.
        """
        queue = QueueId(topic, queue_id)
        return await from_newest_tier(
            self.reader, queue, lambda: self._lookup(topic, queue_id).listed(states)
        )

    async def segment_at(self, topic: str, queue_id: int, offset: int) -> TieredSegment | None:
        """The CommitLog segment that has a message; None if the message is not tiered, or was lost.

        No request if the newest metadata suffice, else a few for manifests. Errors as `segments`.
        """
        queue = QueueId(topic, queue_id)
        return await from_newest_tier(
            self.reader, queue, lambda: self._lookup(topic, queue_id).at(offset)
        )

    async def check(
        self, *, bodies: bool = False, progress: Callable[[int], None] = lambda _: None
    ) -> AsyncIterator[Finding]:
        """Iterate over everything that is wrong, never stopping at the first finding.

        Compares metadata and bytes in both directions. Reads every byte once from the storage
        itself, past all caches. `bodies` decompresses bodies, too. `progress` receives the bytes of
        CommitLogs checked since the last call. A commit under way has 2 seconds to publish bytes
        beyond a published end; later they are a finding.

        Raises:
            Unavailable: the storage does not answer, so nothing was verified.
        """
        found = findings_of(self.reader, self.is_java, self._clock, progress, bodies)
        async for finding in each_past_caches(found):
            yield finding

    def statistics(self) -> FetcherStatistics:
        """Return the cost of reading so far and the sizes of the caches. O(readers)."""
        return self.fetcher.statistics()

    def _opened(self) -> OpenedTier:
        if self._stack is None or self._open is None:
            raise Closed("the tier is not open: use `async with`", "")
        return self._open

    def _lookup(self, topic: str, queue_id: int) -> TieredSegments:
        self.queue(topic, queue_id)
        found = self.reader.segments(QueueId(topic, queue_id))
        if found is None:
            raise NotFound("the tier has no such queue", f"{topic}/{queue_id}")
        return found

    def _queues_of(self, topic: str, queue_id: int | None, wanted: Wanted) -> list[QueueId]:
        """The queues to be read."""
        if queue_id is not None:
            return [QueueId(topic, self.queue(topic, queue_id).queue_id)]
        if wanted.offset is not None:
            raise ValueError("an offset counts in one queue: name the queue")
        return [QueueId(topic, one.queue_id) for one in self.queues(topic)]

    def _cursor(self, queue: QueueId, wanted: Wanted, bytes_max: int | None) -> QueueCursor:
        source = self.reader.container(queue)
        if source is None:
            raise self._absent(*queue)
        run_bytes_max = self._opened().config.fetcher.run_bytes_max
        return QueueCursor(self.fetcher, source, wanted, bytes_max=bytes_max or run_bytes_max)

    def _absent(self, topic: str, queue_id: int | None) -> NotFound:
        """The error for a topic or a queue that the tier does not have."""
        queues = self.reader.state.queues
        return NotFound(absence_text(topic, queue_id, queues), self.location)
