"""Tiered message store: any message store, and the tier of its messages."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry

from container.lookup.query import END_OF_TIME_MS, KeyQuery, QueryResult
from container.names.queue_id import QueueId, named_queue, whole_number
from container.queue.positions import Boundary, TimeRules
from container.record.message import StoredMessage
from dispatcher.statistics import DispatchStatistics
from dispatcher.topic_filter import TopicFilter, own_topics
from fetcher.result import refuse_bounds
from provider.clock import Clock, SystemClock
from provider.errors import Closed, StoreError, Unavailable
from provider.stores.throttled import TransferLimits
from tieredstore.config.effective import Config
from tieredstore.hot.encoding import Appended, NewMessage
from tieredstore.hot.hot_log import HotLog
from tieredstore.lifetime import running
from tieredstore.metrics.reads import ReadMeter
from tieredstore.reader.cursor import Moment, whole_ms
from tieredstore.session.owner import PASSING, when_usable
from tieredstore.session.places import directory_of, local_directory
from tieredstore.store import topic_deletion
from tieredstore.store.by_topic import TopicCalls
from tieredstore.store.child.process import open_tiering_process
from tieredstore.store.cold_side import (
    UNKNOWN_ENDS,
    ColdSide,
    OpenTier,
    continue_unowned,
    open_cold_side,
    open_configured_tier,
)
from tieredstore.store.cold_tier import ColdTier
from tieredstore.store.iteration import messages_of
from tieredstore.store.levels import Level
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.protocol import MESSAGES_MAX, GetMessageResult, MessageStore
from tieredstore.store.tiered_reads import Request, TieredReads

LOGGER = logging.getLogger("tieredstore.store")


class TierKeeper:
    """Task that opens a tier on demand and keeps it open, for one store block.

    Cancelling a caller that waits for the tier does not stop its opening. The tier is then paused
    until a level uses it, and serves the next caller.

    A tier that does not answer when the store opens is awaited: it is retried, and the hot log
    serves alone meanwhile. This needs a hot log that knows the ends of its queues.
    """

    def __init__(
        self,
        open_cold: Callable[[], AbstractAsyncContextManager[ColdTier]],
        reads: TieredReads,
        *,
        clock: Clock,
        start_s: float,
        doubt: Callable[[], str],
    ) -> None:
        """Set `cold` and `awaited` of `reads` while the tier is open or awaited.

        `start_s`: longest wait for a storage that does not answer, in seconds. 0: an awaited tier
        is retried without end, another one is tried once. `doubt`: returns why the hot log may not
        be used alone, as `HotLog.doubt`.
        """
        self._open_cold = open_cold
        self._reads = reads
        self._clock = clock
        self._start_s = start_s
        self._doubt = doubt
        self._starts = False
        self._waiting: list[asyncio.Future[None]] = []
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self.is_open = asyncio.Event()
        """Set once the tier was opened."""
        self.changing = asyncio.Lock()
        """Held while the level changes, or topics are deleted."""

    def __repr__(self) -> str:
        return f"<TierKeeper of {self._reads.cold!r}, {len(self._waiting)} waiting>"

    async def want(self) -> None:
        """Request the tier and return when it is open.

        Cancelling does not stop the opening.

        Raises:
            ConfigError, StoreError: as `open_cold_side`; the next request tries again.
            Unavailable: it is awaited.
            Closed: the store was closed meanwhile.
        """
        if self._reads.cold is not None:
            return
        if self._reads.awaited is not None:
            raise self._reads.away()
        if self._ended.is_set():
            raise Closed("the store was closed, or another process took its tier", repr(self))
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(opened)
        self._wanted.set()
        await opened

    async def start(self, wanted: Level, *, awaits: bool) -> None:
        """Apply the first level with `change_level`. `awaits`: the tier may be awaited afterwards.

        Raises: as `want`.
        """
        self._starts = awaits
        try:
            await self.change_level(wanted)
        finally:
            self._starts = False

    async def change_level(self, wanted: Level) -> None:
        """Set the level of reads. Pause or resume tiering. Open the tier if the level needs it.

        Raises: as `want`; the level stays as it is.
        """
        async with self.changing:
            if wanted is not Level.DISABLE and self._reads.awaited is None:
                await self.want()
            if (cold := self._reads.cold) is not None:
                (cold.pause if wanted is Level.DISABLE else cold.resume)()
            self._reads.level = wanted

    async def run(self) -> None:
        """Open the tier on request, and keep it open until `end`.

        Raises:
            Fenced: a newer owner took the tier.
            StoreError: as `open_cold_side`, of a tier that was open or awaited.
        """
        try:
            while not self._closing.is_set():
                await self._wanted.wait()
                self._wanted.clear()
                try:
                    await self._own()
                except Exception as error:
                    if self._reads.cold is not None or self._reads.awaited is not None:
                        raise
                    self._tell(error)
        finally:
            self._reads.cold = self._reads.awaited = None
            self._tell(Closed("the store was closed", repr(self)))
            self._ended.set()

    async def end(self) -> None:
        """Close the tier if it is open, after the present backlog was tiered."""
        self._closing.set()
        if self._reads.cold is not None:
            await self._ended.wait()

    async def _own(self) -> None:
        async with AsyncExitStack() as stack:
            self._reads.cold = cold = await self._opened(stack)
            if self._reads.awaited is not None:
                self._reads.awaited = None
                LOGGER.info("the tier answers")
                if self._reads.level is not Level.DISABLE:
                    cold.resume()
            self.is_open.set()
            self._tell(None)
            await self._closing.wait()

    async def _opened(self, stack: AsyncExitStack) -> ColdTier:
        """Open the tier. An awaited tier is retried for as long as it takes."""
        doubt = await asyncio.to_thread(self._doubt) if self._starts else ""
        may_await = self._starts and not doubt

        def may_pass(error: StoreError) -> bool:
            # One that refuses a first attempt has wrong credentials, as a rule.
            is_away = isinstance(error, Unavailable) or self._reads.awaited is not None
            return self._start_s > 0 or is_away

        async def attempt() -> ColdTier:
            nonlocal doubt
            try:
                return await stack.enter_async_context(self._open_cold())
            except PASSING as error:
                if may_await and self._reads.awaited is None and may_pass(error):
                    LOGGER.warning(
                        "the tier does not answer: until it does, offsets continue from the hot "
                        "log alone, and what only the tier has cannot be read"
                    )
                    self._reads.awaited = error
                    self._tell(None)
                elif doubt:
                    LOGGER.warning("%s and its tier does not answer: %s", doubt, UNKNOWN_ENDS)
                    doubt = ""
                raise

        start_s = self._start_s or (math.inf if may_await else 0.0)
        return await when_usable(attempt, clock=self._clock, start_s=start_s, may_pass=may_pass)

    def _tell(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, []
        for opened in waiting:
            if opened.done():
                continue  # its caller was cancelled
            if error is None:
                opened.set_result(None)
            else:
                opened.set_exception(error)


class TieredMessageStore(TopicCalls):
    """`MessageStore` with unlimited history. Use it as `async with store:`.

    Messages go to the inner store, and from the hot log into the tier as soon as they are durable.
    The hot log deletes nothing that the tier lacks. `Level` defines which reads the tier serves. At
    each level a reader gets each message once, also while messages move. If one side cannot be
    read, the other one serves.

    The block owns the tier. If another process takes it, the block ends with `Fenced`. Leaving the
    block tiers the backlog, for at most `tieredStoreShutdownTimeout`.
    """

    def __init__(
        self,
        inner: MessageStore,
        *,
        local: LocalMessageStore,
        config: Config,
        level: Level | str | int | None = None,
        take_over: bool = False,
        open_tier: OpenTier | None = None,
        continues: bool = True,
        clock: Clock | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """Keep the arguments. I/O begins when the block is entered.

        Args:
            inner: the wrapped store: `local`, or plug-ins around it.
            local: the hot log, which the tier is fed from.
            config: names the tier, its cluster and broker, and sets all layers below.
            level: None: `tieredStorageLevel` of `config`. DISABLE opens no tier.
            take_over: take the tier over from a living owner.
            open_tier: opens another tier than the directory that `config` names.
            continues: continue queues that end in the hot log below the tier at the tier's end.
                False for a block that deletes topics and puts nothing.
            clock: None: the machine's.
            registry: counts the requests to the storage; None: a new one.
        """
        self._inner = inner
        self._local = local
        self._config = config
        self._first_level = Level.of(config.level if level is None else level)
        self._clock = clock = clock or SystemClock()
        self.registry = registry or CollectorRegistry()
        self._has_tier = open_tier is not None or config.gives("tieredStoreFilePath")
        self._reads_ends = open_tier is None and self._has_tier and continues
        self._continues = continues
        self._own_topics = own_topics(config.cluster, config.broker)
        local.refuse_topics(self._own_topics)
        self._take_over = take_over
        self._open_tier = open_tier
        topics = TopicFilter(config.cluster, config.broker)
        self.meter = ReadMeter(self.registry, clock)
        """Counts reads of the tier."""
        self._reads = TieredReads(inner, topics, self.meter)
        self._stack: AsyncExitStack | None = None
        self._keeper = self._new_keeper()

    def __repr__(self) -> str:
        state = self._reads.level.name if self._stack is not None else "not open"
        return f"<TieredMessageStore of {self._inner!r}: {state}>"

    async def __aenter__(self) -> Self:
        """Open the inner store, then open or create the tier, unless the level is DISABLE.

        If the tier does not answer, a hot log with messages is used alone: it accepts messages, and
        the tier is retried. A configuration that `serves` gives up after `tieredStoreStartTimeout`,
        and the block ends with `Unavailable`. The block also ends with any permanent error of an
        attempt, such as `Owned` or `Contradiction`.

        Raises:
            InUse: another process writes the hot log, or another store of this process.
            ConfigError, Owned, Denied, Corrupt: as `open_configured_tier`, or as the inner store.
            Unavailable: likewise; of the tier only if the hot log is empty.
            RuntimeError: it is open already.
        """
        if self._stack is not None:
            raise RuntimeError(f"{self!r} is open already")
        self._keeper = self._new_keeper()
        self._local.hold_back(self._holds_back)
        if self._reads_ends and self._first_level is Level.DISABLE:
            self._local.before_use(partial(continue_unowned, self._config, self._clock))
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._inner)
            await stack.enter_async_context(running([self._keeper.run]))
            stack.push_async_callback(self._keeper.end)
            await self._keeper.start(self._first_level, awaits=self._continues)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Make accepted messages durable, tier them, and close the tier, then the inner store.

        Messages that are not tiered in time stay in the hot log, and the next start tiers them.

        Raises:
            Fenced: a newer owner took the tier; names it.
            Unavailable: not all accepted messages are durable.
        """
        stack, self._stack = self._stack, None
        if stack is None:
            return
        await stack.__aexit__(kind, error, trace)

    @property
    def level(self) -> Level:
        """Current level."""
        return self._reads.level

    @property
    def directory(self) -> Path:
        """Local directory of the tier.

        Raises:
            ConfigError: the tier is not in a local directory.
        """
        return local_directory(directory_of(self._config))

    @property
    def location(self) -> str:
        """Location of the tier, as a path or a URL."""
        return str(directory_of(self._config))

    @property
    def limits(self) -> TransferLimits:
        """Transfer limits of an object store, in bytes a second, settable at any time."""
        return self._config.limits

    @property
    def cold(self) -> ColdSide | None:
        """Tier of this block, if this process owns it; None while it is unused. Internal."""
        cold = self._reads.cold
        return cold if isinstance(cold, ColdSide) else None

    @property
    def awaited(self) -> StoreError | None:
        """Error of the last attempt to open an awaited tier; None if the tier is not awaited.

        Until the tier is open, reads of messages that only the tier may have raise `Unavailable`,
        queries are incomplete, and nothing is deleted from the hot log.
        """
        return self._reads.awaited

    async def wait_for_tier(self) -> ColdTier:
        """Return once the tier was opened. Internal."""
        await self._keeper.is_open.wait()
        assert self._reads.cold is not None, "it ends after the block"
        return self._reads.cold

    async def set_level(self, level: Level | str | int) -> None:
        """Change the level, by name or number. Running reads keep theirs.

        DISABLE stops tiering and reads of the tier at once; this process stays the tier's owner.
        The first other level opens the tier. Cancelling leaves the level as it is. A tier that is
        being opened is then opened all the same, and paused.

        Raises:
            ValueError: there is no such level.
            ConfigError, Owned, Denied, Corrupt, Unavailable: the tier cannot be opened, as
                `open_configured_tier`; the level stays as it is.
            Closed: the store is not open.
        """
        self._check_open()
        await self._keeper.change_level(Level.of(level))

    def _new_keeper(self) -> TierKeeper:
        return TierKeeper(
            self._open_cold,
            self._reads,
            clock=self._clock,
            start_s=self._config.start_s,
            doubt=self._doubt,
        )

    def _open_cold(self) -> AbstractAsyncContextManager[ColdTier]:
        """Open the tier in this process or in one of its own. The keeper waits for a storage."""
        config, log, clock = replace(self._config, serves=False), self._local.log, self._clock
        registry, take_over = self.registry, self._take_over
        if self._open_tier is None and self._continues and config.has_tiering_process:
            return open_tiering_process(
                config, log, clock=clock, registry=registry, take_over=take_over
            )
        open_tier = self._open_tier or partial(
            open_configured_tier,
            config,
            log.root,
            clock=clock,
            registry=registry,
            take_over=take_over,
        )
        return open_cold_side(config, log, open_tier, clock=clock, continues=self._continues)

    def _doubt(self) -> str:
        return self._local.log.doubt()

    @property
    def log(self) -> HotLog:
        """See `LocalMessageStore.log`. Internal."""
        self._check_open()
        return self._local.log

    async def put_message(self, message: NewMessage) -> Appended:
        """Append one message. Return once it is as durable as `flushDiskType` requires."""
        self._check_open()
        return await self._inner.put_message(message)

    async def put_messages(
        self, messages: Sequence[NewMessage], *, together: bool = False
    ) -> list[Appended]:
        """Append messages in order, all or none; see `HotLog.append_many`."""
        self._check_open()
        return await self._inner.put_messages(messages, together=together)

    async def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int = MESSAGES_MAX,
        subscription: str | None = None,
        bytes_max: int | None = None,
    ) -> GetMessageResult:
        """Read from `offset` on, from hot log or tier by the level. Statuses are RocketMQ's.

        The bounds are those of both sides together. Bytes 28..35 of a record from the tier are its
        position there.

        Raises:
            Unavailable, Corrupt, Denied: the message at `offset` exists, but no side can read it.
            Closed: the store is not open.
            ValueError: an argument has another type, `messages_max` is not positive, `bytes_max` is
                negative, or the subscription has no tag or is SQL92.
        """
        self._check_open()
        refuse_bounds(offset, messages_max, bytes_max)
        queue = named_queue(topic, queue_id)
        return await self._reads.get(
            Request(group, queue, offset, messages_max, subscription, bytes_max)
        )

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first readable offset of hot log and tier; 0 if the queue does not exist."""
        self._check_open()
        return await self._reads.min_offset(named_queue(topic, queue_id))

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last message; 0 for a queue that does not exist.

        It is the hot log's, or the tier's if that is higher, as after the loss of a hot log.
        """
        self._check_open()
        return (await self._reads.joined(named_queue(topic, queue_id))).max_offset

    async def commit_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last tiered message; 0 without one or an open tier."""
        self._check_open()
        cold = self._reads.cold
        span = None if cold is None else cold.span(named_queue(topic, queue_id))
        return 0 if span is None else span.end

    async def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: Moment,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> int:
        """Return the offset for a time, in hot log and tier together.

        See `LocalMessageStore.offset_by_time`. `rules`: RocketMQ's local store and its tier differ
        in UPPER. 0 for a queue that does not exist. Errors as `get_message`.
        """
        self._check_open()
        queue = named_queue(topic, queue_id)
        moment_ms = whole_ms("timestamp_ms", timestamp_ms)
        return await self._reads.offset_by_time(
            queue, moment_ms, Boundary(boundary), TimeRules(rules)
        )

    async def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of the first readable message; None if there is none.

        Raises:
            Unavailable, Corrupt, Denied, Closed: as `get_message`.
        """
        self._check_open()
        return await self._reads.earliest_time(named_queue(topic, queue_id))

    async def message_store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of one message; None if it does not exist.

        Raises:
            Unavailable, Corrupt, Denied, Closed: as `get_message`.
        """
        self._check_open()
        return await self._reads.store_time(named_queue(topic, queue_id), offset)

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        messages_max: int = MESSAGES_MAX,
        begin_ms: Moment = 0,
        end_ms: Moment = END_OF_TIME_MS,
        newest_first: bool = True,
    ) -> QueryResult:
        """Find messages by key (`KEYS`, `UNIQ_KEY`), stored in `[begin_ms, end_ms]`, each once.

        The tier is searched through its index, as `find_messages`. Messages that the tier lacks are
        read from the hot log. If one side cannot be read, the result is that of the other one and
        incomplete.

        Raises:
            Unavailable, Corrupt, Denied: no side can be read.
            Closed: the store is not open.
            ValueError: a datetime has no time zone, or `messages_max` is negative.
        """
        self._check_open()
        query = KeyQuery(
            topic,
            key,
            whole_number("messages_max", messages_max),
            whole_ms("begin_ms", begin_ms),
            whole_ms("end_ms", end_ms),
            newest_first,
        )
        return await self._reads.query(query)

    async def is_in_store(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the message at `offset` is in the hot log."""
        return await self._inner.is_in_store(topic, queue_id, offset)

    async def is_in_memory(self, topic: str, queue_id: int, offset: int, messages: int = 1) -> bool:
        """Whether the pages of these messages are resident in the hot log."""
        return await self._inner.is_in_memory(topic, queue_id, offset, messages)

    async def wait_for_message(
        self, topic: str, queue_id: int, offset: int, timeout_s: float
    ) -> bool:
        """Wait, without polling, until there is a message at `offset`. False after the timeout.

        True at once if hot log or tier have messages above `offset`.
        """
        if self._reads.is_tiered_above(named_queue(topic, queue_id), offset):
            return True
        return await self._inner.wait_for_message(topic, queue_id, offset, timeout_s)

    def messages(
        self, group: str, topic: str, queue_id: int, start: int = 0
    ) -> AsyncGenerator[StoredMessage, None]:
        """Yield every message from `start` on, then new ones as they arrive. Endless.

        Yields each message once and in order, across the boundary of tier and hot log. Errors as
        `get_message`. To continue after an error, start again after the last message.
        """
        return messages_of(self, group, topic, queue_id, start)

    async def delete_topics(self, topics: Collection[str]) -> None:
        """Delete topics with all their messages, from hot log and tier. Durable on return.

        DISABLE includes the tier, which is opened for it. Tiering is paused meanwhile. Upkeep
        deletes the tier's files, retention those of the hot log. A topic that is created again
        continues above the old end. After a failure or a cancelled call, repeat the call to
        complete the deletion.

        Raises:
            ValueError: one of them is a system topic that does not exist; none is deleted.
            Unavailable, Denied: hot log or tier cannot be written now, or does not answer.
            ConfigError, Owned: the tier cannot be opened; nothing was deleted.
            Fenced, Closed: this process no longer owns the store or the tier.
        """
        topic_deletion.deletable(topics, self._own_topics, topics)  # before the tier opens
        async with self._keeper.changing:
            cold = await self._whole_tier()
            held = topic_deletion.topics_of(self._inner, cold)
            names = topic_deletion.deletable(topics, self._own_topics, held)
            await topic_deletion.delete_topics(names, self._inner, cold)

    async def set_retention(self, topic: str, hours: int | None) -> None:
        """Set a topic's retention in the tier, in hours; see `LocalMessageStore.set_retention`.

        Effective at once if the tier is open, else when it is opened next.

        Raises:
            Fenced: a newer owner has the tier.
            And the errors of `LocalMessageStore.set_retention`.
        """
        self._check_open()
        await self._local.set_retention(topic, hours)
        if self._reads.cold is not None and self._config.upkeep.expires:
            with suppress(Unavailable):  # the next poll of the file tries again
                await self._reads.cold.publish_topics()

    async def clean_unused_topics(self, retained: Collection[str]) -> list[str]:
        """Delete all topics but those in `retained` and system topics; as `delete_topics`."""
        async with self._keeper.changing:
            cold = await self._whole_tier()
            there = topic_deletion.topics_of(self._inner, cold)
            names = topic_deletion.unused(there, retained, self._own_topics)
            await topic_deletion.delete_topics(names, self._inner, cold)
        return names

    async def _whole_tier(self) -> ColdTier | None:
        """Return the tier, which is opened even at DISABLE; None if none is configured."""
        self._check_open()
        if self._has_tier:
            await self._keeper.want()
        return self._reads.cold

    def queue_ids(self, topic: str) -> Sequence[int]:
        """Return the queues of a topic in hot log and tier, ascending. O(queues)."""
        self._check_open()
        return topic_deletion.queue_ids_of(topic, self._inner, self._reads.tier)

    def topics(self) -> Mapping[str, int]:
        """Return topics of hot log and tier, with their queue counts (highest id + 1).

        O(queues).
        """
        self._check_open()
        return topic_deletion.topics_of(self._inner, self._reads.tier)

    def statistics(self) -> Mapping[str, float]:
        """Return current figures by name, of the inner store and of the tier. O(queues)."""
        self._check_open()
        figures = {**self._inner.statistics(), "level": self.level, **self._reads.counts}
        cold = self._reads.cold
        return figures if cold is None else {**figures, **cold.figures()}

    def dispatch_statistics(self) -> DispatchStatistics | None:
        """Return tiering progress by queue, and current failures; None while there is no tier."""
        self._check_open()
        return None if self._reads.cold is None else self._reads.cold.statistics()

    def _holds_back(self, queue: QueueId) -> int | None:
        """Return the start of a queue's backlog, which the hot log must keep; 0 without a tier."""
        return 0 if self._reads.cold is None else self._reads.cold.holds_back(queue)

    def _check_open(self) -> None:
        if self._stack is None:
            raise Closed("the message store is not open: use `async with`", str(self._local.root))
