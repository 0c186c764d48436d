"""Cold side of a message store: its owned tier, feed, continued queues and status."""

import asyncio
import logging
import shlex
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from container.lookup.find import KnownCoverage, find_messages
from container.lookup.query import KeyQuery, QueryResult
from container.metadata.coverage import count, readable, without
from container.metadata.records import Queue
from container.names.queue_id import QueueId
from container.names.tier_objects import EntryName
from container.record.message import StoredMessage
from container.tier import Tier
from container.tier_view import TierView
from dispatcher.consistency import compare_all, find_common_end, first_record
from dispatcher.options import COMPARED_BYTES_MAX
from dispatcher.ports import HotQueue, Wanted, records_of_queue
from dispatcher.statistics import DispatchStatistics
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import Clock
from provider.errors import Closed, Corrupt, Denied, NotFound, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.following.options import HotLogOptions
from tieredstore.hot.hot_log import HotLog
from tieredstore.hot.hot_log_source import HotLogFeed, WrittenLog, open_feed
from tieredstore.lifetime import running
from tieredstore.process_name import moment_text
from tieredstore.session.identity import (
    memory_of_store,
    refuse_other_store,
    refuse_unnamed,
    remember_store,
)
from tieredstore.session.owner import open_owner, refuse_foreign_files, refuse_overlap
from tieredstore.session.places import directory_of
from tieredstore.session.reader import open_reader
from tieredstore.session.takeover import refuse_living_owner
from tieredstore.session.tiering import (
    OwnTiering,
    OwnTopicValues,
    TieringWatch,
    dispatcher_of,
    owner_tasks,
)
from tieredstore.store.cold_tier import ColdTier

LOGGER = logging.getLogger("tieredstore.store")
CONTINUE_ANSWER_S_MAX = 60.0
"""Longest wait for the metadata of a tier that is opened read-only, in seconds."""
COMPARED_QUEUES_MAX = 1_000
"""Largest number of queues that a writer without ownership of the tier compares in full.

Each costs some 0.2 ms.
"""
UNKNOWN_ENDS = "the next offsets are not known until it answers; try again then"
"""End of the sentence about a hot log with a doubt; see `HotLog.doubt`."""
NAMED_MAX = 4
"""Maximum of queues that a warning names."""
ROTTEN_BITS_MAX = 32
"""Longest run of bits in which a rotten record differs. Two messages differ in both of their times,
which are further apart."""


class Contradiction(Denied):
    """Hot log and tier differ at one offset: repair the tier, or replace the hot log."""


async def continue_at_tier(
    log: WrittenLog,
    feed: HotLogFeed,
    tier: TierView,
    *,
    compared_messages: int,
    compared_queues: int | None = None,
) -> Mapping[QueueId, Queue]:
    """Compare a hot log with its tier, and continue queues that end below the tier at its end.

    Returns the queues that agree with the tier's published messages. Costs `compare_all`. If
    cancelled, some queues may already continue at the tier's end, which is durable. If the log has
    more queues than `compared_queues`, only those that end below the tier are compared; None: all.

    Raises:
        Contradiction: they have different messages at one offset; nothing was changed.
        Unavailable, Denied: one of the two cannot be read or written now.
    """
    compared = {one.id: log.next_offset(one.id) for one in tier.state.queues.bounds()}
    await log.flush()  # the feed has durable messages only
    feed.poll_all()
    surveyed = await feed.survey()
    if compared_queues is not None and len(surveyed) > compared_queues:
        surveyed = [hot for hot in surveyed if _is_below(tier.queue(hot.id), hot)]
    agreeing, differing = await compare_all(feed, tier, surveyed, newest=compared_messages)
    if differing:
        raise Contradiction(await _contradiction(feed, tier, differing), str(log.root))
    ends = {one.id: int(one.next_offset) for one in tier.state.queues.bounds()}
    behind = {queue: end for queue, end in ends.items() if log.next_offset(queue) < end}
    if not behind:
        await _remember_place(log)
        return agreeing
    alone = [await _in_log_alone(log, tier, queue) for queue in sorted(behind)]
    async with feed.without({queue.topic for queue in behind}):
        continued = await log.continue_queues(behind, compared)
    if len(continued) < len(behind):
        raise Unavailable("messages were put while hot log and tier were compared", str(log.root))
    await _remember_place(log)
    LOGGER.warning("%s", _continued_sentence(log, compared, behind, sum(alone)))
    return {queue: one for queue, one in agreeing.items() if queue not in behind}


async def continue_unowned(config: Config, clock: Clock, log: HotLog) -> None:
    """Run `continue_at_tier` for a writer that does not own the configured tier.

    If the tier does not answer, or the location is empty or another tier's, a log with messages
    continues at its own ends, with a warning. The broker's identity is stored in the store
    directory.

    Raises:
        ConfigError: the store is another broker's.
        Contradiction: as `continue_at_tier`.
        Unavailable: the tier does not answer, and the log is empty or a copy.
    """
    await asyncio.to_thread(refuse_other_store, config, log.root)
    await _ask_tier(config, clock, log)
    await asyncio.to_thread(remember_store, config, log.root)


async def _ask_tier(config: Config, clock: Clock, log: HotLog) -> None:
    memory = await asyncio.to_thread(memory_of_store, config, log.root)
    opening = open_feed(log, clock=clock, cluster=config.cluster, broker=config.broker)
    is_open = False
    try:
        await asyncio.to_thread(memory.refuse_empty)
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(CONTINUE_ANSWER_S_MAX):
                tier = await stack.enter_async_context(open_reader(config))
                await memory.refuse_other(tier.store, tier.state.broker)
            is_open = True
            feed = await stack.enter_async_context(opening)
            newest = config.dispatch.compared_messages_max
            await continue_at_tier(
                log, feed, tier, compared_messages=newest, compared_queues=COMPARED_QUEUES_MAX
            )
    except Contradiction:
        raise
    except (StoreError, ConfigError, TimeoutError) as error:
        why = str(error) or f"no answer within {CONTINUE_ANSWER_S_MAX:g} s"
        doubt = await asyncio.to_thread(log.doubt)
        if isinstance(error, NotFound) and not (is_open or memory.has_tier):
            why = await asyncio.to_thread(_remains_of_tier, config)
            if not why:  # nothing was tiered yet
                if log.is_new or not doubt:
                    await _remember_place(log)
                return
        if doubt:
            reason = f"{doubt} and its tier does not answer ({why}): {UNKNOWN_ENDS}"
            raise Unavailable(reason, str(log.root)) from error
        LOGGER.warning("the tier does not answer, offsets continue from the hot log alone: %s", why)


def _remains_of_tier(config: Config) -> str:
    """Return why a place without a journal is not that of a tier to begin; "" if it may be."""
    try:
        refuse_foreign_files(config, directory_of(config))
    except (StoreError, ConfigError) as error:
        return str(error)
    return ""


async def _remember_place(log: WrittenLog) -> None:
    try:
        await log.remember_place()
    except Closed:
        raise
    except (StoreError, OSError) as error:  # then a later start counts as that of a copy
        LOGGER.warning("it cannot be recorded that hot log and tier were compared: %s", error)


def _is_below(tiered: Queue | None, hot: HotQueue) -> bool:
    return tiered is not None and hot.max_offset < tiered.next_offset


async def _in_log_alone(log: WrittenLog, tier: TierView, queue: QueueId) -> int:
    """Return the number of a queue's messages in the hot log that its tier expired or never had."""
    record = tier.state.queues.get(queue)
    return count(without([await log.bounds(queue)], readable(record) if record else ()))


def _continued_sentence(
    log: WrittenLog, had: Mapping[QueueId, int], behind: Mapping[QueueId, int], alone: int
) -> str:
    named = [
        f"{queue} ended at offset {had[queue]} and continues at {behind[queue]}"
        for queue in sorted(behind)[:NAMED_MAX]
    ]
    more = len(behind) - len(named)
    rest = f", and {more} more queues" if more else ""
    ending = "nothing is lost"
    if alone:
        ending = (
            f"but not {alone} of this copy, which it expired or never took: they are not read any"
            " more, and their records stay until the CommitLog expires"
        )
    return (
        f"the hot log {log.root} ends below its tier, as an older copy or after a lost disk does: "
        f"{'; '.join(named)}{rest}; the tier has the messages in between, {ending}"
    )


async def _contradiction(
    feed: HotLogFeed, tier: TierView, differing: Mapping[QueueId, QueueOffset]
) -> str:
    """Describe a contradiction: queue, offset, both messages, and the commands that resolve it."""
    queue = min(differing)
    offset = differing[queue]
    with suppress(Corrupt, OutOfRange):  # then the offset of the comparison is named
        offset = await find_common_end(feed, tier, queue) or offset
    hot, hot_words = await _described(_hot_record(feed, queue, offset))
    tiered, tiered_words = await _described(_tiered_record(tier, queue, offset))
    more = f", and {len(differing) - 1} more queues differ" if len(differing) > 1 else ""
    one = f" {shlex.quote(queue.topic)} {queue.queue_id}" if len(differing) == 1 else ""
    if _is_one_message(hot, tiered):  # bytes that no checksum of a record covers
        more += " (one copy is damaged: `tieredstore check` says so if it is the tier's)"
    return (
        f"the hot log contradicts its tier: at offset {offset} of {queue} the hot log has "
        f"{hot_words} and the tier {tiered_words}{more}: `tieredstore repair{one} --cut-to-hot` "
        f"keeps the hot log's and unpublishes the tier's from there on; to keep the tier's, move "
        f"the hot log away"
    )


async def _described(reading: Awaitable[bytes]) -> tuple[bytes, str]:
    """Return a record, and its description; empty if it cannot be read, and why."""
    try:
        record = await reading
        return record, _message_words(record)
    except StoreError as error:
        return b"", f"one that cannot be read ({error.reason})"


def _is_one_message(hot: bytes, tiered: bytes) -> bool:
    """Whether two records differ as a message and its rotten copy do. Pure."""
    differing = int.from_bytes(hot) ^ int.from_bytes(tiered)
    run_bits = differing.bit_length() - (differing & -differing).bit_length()
    return len(hot) == len(tiered) > 0 and run_bits < ROTTEN_BITS_MAX


async def _hot_record(feed: HotLogFeed, queue: QueueId, offset: QueueOffset) -> bytes:
    units = await feed.references(queue, offset, messages_max=1)
    return first_record(await records_of_queue(feed, Wanted(queue, offset, units[:1])))


async def _tiered_record(tier: TierView, queue: QueueId, offset: QueueOffset) -> bytes:
    found = await tier.messages_at(queue, [offset], bytes_max=COMPARED_BYTES_MAX, history=True)
    return cast("bytes", found[0])


def _message_words(record: bytes) -> str:
    message = StoredMessage.decode(record, path="", position=0)
    keys = message.property_map.get("KEYS", "")
    keyed = f", keys {keys!r}" if keys else ""
    stored = moment_text(message.store_timestamp)
    return f"a message of {len(message.body)} bytes stored at {stored}{keyed}"


ResultT = TypeVar("ResultT")

OUTAGE_LOOK_S = 1.0
"""Interval of the polls of whether the tier can be written, in seconds."""
ANSWER_S_MAX = 30.0
"""Longest wait of a deletion for each answer of the tier, in seconds."""
OpenTier = Callable[[], AbstractAsyncContextManager[Tier]]
"""Function that opens a tier as its owner. Its journal is not written yet."""


class ColdSide(ColdTier):
    """Tier that this process owns, with its feed, dispatcher and fetcher. See `open_cold_side`."""

    def __init__(
        self,
        log: WrittenLog,
        feed: HotLogFeed,
        tier: Tier,
        config: Config,
        clock: Clock,
        *,
        agreed: Mapping[QueueId, Queue] | None = None,
    ) -> None:
        """Begin paused. `agreed`: the tier's state of queues already compared with the hot log."""
        self.feed = feed
        self._tier = tier
        self.topic_values = OwnTopicValues(log.root, tier)
        self.fetcher = TieredMessageFetcher(tier, options=config.fetcher, clock=clock)
        self.dispatcher = dispatcher_of(config, feed, tier, clock, agreed)
        self._log = log
        self._uploads = asyncio.Event()
        self._pauses = asyncio.Event()
        self._pauses.set()
        self._rests = asyncio.Event()
        self._rests.set()
        self._is_gone = False
        """Whether the tier was removed while its owner lived."""
        self._ends = False
        """Whether the dispatcher is closing, so that `dispatch_forever` starts no more work."""

    def __repr__(self) -> str:
        return f"<ColdSide {self.tier!r}>"

    @property
    def tier(self) -> Tier:
        """Tier of this process."""
        return self._tier

    def watch(self, clock: Clock) -> TieringWatch:
        """Watch the tiering from now on."""
        tiering = OwnTiering(self.feed, self.tier, self.dispatcher)
        return TieringWatch(tiering, clock, fetcher=self.fetcher)

    def statistics(self) -> DispatchStatistics:
        """Return tiering progress by queue, and current failures. O(queues)."""
        return self.dispatcher.statistics()

    def holds_back(self, queue: QueueId) -> int | None:
        """See `HotLogFeed.holds_back`."""
        return self.feed.holds_back(queue)

    @property
    def is_paused(self) -> bool:
        """Whether tiering is paused. True at the beginning."""
        return not self._uploads.is_set()

    def resume(self) -> None:
        """See `ColdTier.resume`."""
        self._pauses.clear()
        self._uploads.set()

    def pause(self) -> None:
        """See `ColdTier.pause`."""
        self._uploads.clear()
        self._pauses.set()

    async def find(self, query: KeyQuery, known: KnownCoverage) -> QueryResult:
        """Find messages in the tier by key; see `find_messages`."""
        return await find_messages(self.tier, query, unsealed=self.tier.unsealed, known=known)

    async def publish_topics(self) -> None:
        """Publish the topics' values of the hot log in the tier; see `Tier.set_topics`.

        Raises:
            Unavailable: the tier cannot be written now; the next poll of the file tries again.
            Fenced: a newer owner has the tier.
        """
        await self.tier.set_topics(*await self.topic_values.read())

    async def dispatch_forever(self) -> None:
        """Tier the backlog and new messages while tiering is not paused. Endless.

        Raises:
            Fenced: a newer owner has the tier.
        """
        while True:
            await self._uploads.wait()
            self._rests.clear()
            try:
                async with asyncio.TaskGroup() as group:
                    work = group.create_task(self._dispatch())
                    await self._pauses.wait()
                    work.cancel()
            finally:
                self._rests.set()

    async def _dispatch(self) -> None:
        if not self._ends:
            await self.dispatcher.run()

    async def report_outages(self, clock: Clock) -> None:
        """Log the start and the end of each outage of the tier. Polls once a second. Endless."""
        is_out = False
        while True:
            await clock.sleep(OUTAGE_LOOK_S)
            statistics = self.dispatcher.statistics()
            if statistics.outage and not is_out:
                LOGGER.error("nothing reaches the tier at present: %s", statistics.last_error)
            elif is_out and not statistics.outage:
                LOGGER.info("the tier can be written again, tiering continues")
            is_out = statistics.outage

    async def _is_tier_gone(self) -> bool:
        """Whether the newest journal entry of the tier was removed.

        One request, in an outage only.
        """
        if not self.dispatcher.statistics().outage:
            return False
        try:
            await self.tier.store.size(str(EntryName(self.tier.state.sequence)))
        except NotFound:
            return True
        except StoreError:
            return False  # an outage: the next start continues
        return False

    def raise_loss(self) -> None:
        """Report a tier that was removed while its owner lived.

        Raises:
            Unavailable: its journal does not exist. Its history may be lost. The next start tiers
                again all messages of the hot log.
        """
        if self._is_gone:
            reason = (
                "the tier's journal was removed while the store was open: nothing has been tiered "
                "since; mount its volume or bring the tier back; if it is lost for good, begin a "
                "new one with --new-tier (new_tier=True)"
            )
            raise Unavailable(reason, repr(self.tier))

    async def delete_topics(
        self, topics: Collection[str], delete: Callable[[], Awaitable[None]]
    ) -> None:
        """Delete topics from the hot log with `delete`, then from the tier.

        Tiering is paused meanwhile: a batch that was read before would restore messages. After a
        failure half-way, repeat the call to complete it. Level changes wait for this call, so it
        gives up if the tier does not answer one of its steps within `ANSWER_S_MAX`.

        Raises:
            StoreError: of the hot log, or as `Tier.delete_topic`.
        """
        was_paused = self.is_paused
        self.pause()
        try:
            queues = await self._answer(self._settled(topics), "nothing was deleted")
            async with self.feed.without(topics):
                # No queue of such a name begins again below the tier's end.
                await self._log.continue_queues({queue.id: queue.next_offset for queue in queues})
                try:
                    await delete()
                finally:
                    self.dispatcher.forget(topics)
            for topic in sorted(topics):  # also those that were begun and never published
                await self._answer(
                    self.tier.delete_topic(topic),
                    f"{topic} is deleted from the hot log alone: call it again",
                )
        finally:
            if not was_paused:
                self.resume()

    async def _settled(self, topics: Collection[str]) -> Sequence[Queue]:
        """Return the tier's queues of these topics, after uploads in progress are settled."""
        await self._rests.wait()
        known = self.tier.state.queues
        queues = [record for topic in sorted(topics) for record in known.of_topic(topic)]
        for queue in queues:
            await self.tier.settle(queue.id)
        return queues

    async def _answer(self, asked: Awaitable[ResultT], so_far: str) -> ResultT:
        """Await an answer of the tier. `so_far` is a part of the error if there is none.

        Raises:
            Unavailable: no answer within `ANSWER_S_MAX`.
        """
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await asked
        except TimeoutError as error:
            raise Unavailable(f"the tier does not answer; {so_far}", repr(self.tier)) from error

    async def tier_now(self) -> None:
        """Tier all present messages of the hot log, without a timeout. No batch waits for its age.

        Raises:
            StoreError: as `TieredDispatcher.drain`, or the hot log cannot be synced.
        """
        await self._log.flush()
        self.feed.poll_all()
        await self.dispatcher.drain()

    async def commit_rest(self) -> None:
        """Tier the present messages of the hot log, for at most `tieredStoreShutdownTimeout`.

        Raises nothing for messages that could not be tiered: they stay in the hot log, and the next
        start tiers them.
        """
        if self.is_paused:
            return
        with suppress(StoreError):  # closing the log raises the error
            await self._log.flush()
            self.feed.poll_all()
        self._ends = True
        await self.dispatcher.close()
        self._is_gone = await self._is_tier_gone()


class _Counted(Collector):
    """Collector of an open tier's metrics. One registry may see the tier opened several times."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        return self.registry.collect()


@asynccontextmanager
async def open_configured_tier(
    config: Config,
    store_dir: Path,
    *,
    clock: Clock,
    registry: CollectorRegistry | None = None,
    take_over: bool = False,
) -> AsyncGenerator[Tier]:
    """Open or create the configured tier of `store_dir` as its owner; see `open_owner`.

    Raises:
        ConfigError: no tier is named, or hot log and tier lie inside one another, or the hot log is
            another broker's, or a tier would be created under the host's name.
        Owned: a living process owns the tier; nothing was changed.
        Denied, Corrupt, Unavailable, Fenced: as `open_owner`.
    """
    where = HotLogOptions(commit_log_path=config.hot.commit_log_path)
    await asyncio.to_thread(refuse_overlap, store_dir, where, config.tier_root)
    await asyncio.to_thread(refuse_other_store, config, store_dir)
    await asyncio.to_thread(refuse_unnamed, config, store_dir)
    memory = await asyncio.to_thread(memory_of_store, config, store_dir)
    if not take_over:
        await refuse_living_owner(config, clock=clock)
    counted = _Counted()
    if registry is not None:
        registry.register(counted)
    try:
        async with open_owner(
            config, clock=clock, registry=counted.registry, take_over=take_over, memory=memory
        ) as tier:
            await asyncio.to_thread(remember_store, config, store_dir)
            yield tier
    finally:
        if registry is not None:
            registry.unregister(counted)


@asynccontextmanager
async def open_cold_side(
    config: Config, log: WrittenLog, open_tier: OpenTier, *, clock: Clock, continues: bool = True
) -> AsyncGenerator[ColdSide]:
    """Own a tier and feed it from `log` for the block. Tier the rest of the backlog at its end.

    Queues that end in `log` below the tier continue at the tier's end; see `continue_at_tier`.
    `continues`: False leaves them as they are, for a block that only deletes topics.

    Raises:
        Contradiction: hot log and tier have different messages at one offset.
        Denied, Unavailable: the hot log cannot be read.
        Fenced: at the end of the block: a newer owner took the tier.
        And the errors of `open_tier`.
    """
    async with AsyncExitStack() as stack:
        feed = await stack.enter_async_context(
            open_feed(log, clock=clock, cluster=config.cluster, broker=config.broker)
        )
        tier = await stack.enter_async_context(open_tier())
        agreed: Mapping[QueueId, Queue] = {}
        if continues:
            newest = config.dispatch.compared_messages_max
            agreed = await continue_at_tier(log, feed, tier, compared_messages=newest)
        cold = ColdSide(log, feed, tier, config, clock, agreed=agreed)
        await stack.enter_async_context(cold.fetcher)
        tasks = await owner_tasks(config, tier, clock, cold.topic_values.read)
        tasks += [cold.dispatch_forever, partial(cold.report_outages, clock)]
        await stack.enter_async_context(running(tasks))
        stack.push_async_callback(tier.close)
        stack.push_async_callback(cold.commit_rest)
        yield cold
    cold.raise_loss()
