"""Message store over the hot log alone, after RocketMQ's DefaultMessageStore."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from container.lookup.query import END_OF_TIME_MS, KeyQuery, QueryResult
from container.names.queue_id import QueueId, named_queue, queue_counts, whole_number
from container.queue.positions import Boundary, TimeRules
from container.record.message import StoredMessage
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from fetcher.result import FetchStatus, refuse_bounds
from fetcher.tag_filter import Subscription, parse_subscription
from provider.clock import Clock, SystemClock, wait_at_most
from provider.errors import Closed, Denied, OutOfRange, StoreError, Unavailable
from tieredstore.hot.encoding import Appended, NewMessage
from tieredstore.hot.hot_log import HotLog, open_hot_log
from tieredstore.hot.log.directory import read_identity
from tieredstore.hot.log.files import is_estimated_resident
from tieredstore.hot.options import HotWriteOptions, ReadLimits, RetentionOptions
from tieredstore.hot.reading import Bounds, Picks
from tieredstore.hot.retention import HoldsBack, Trim
from tieredstore.lifetime import running
from tieredstore.reader.cursor import Moment, whole_ms
from tieredstore.store.by_topic import TopicCalls
from tieredstore.store.iteration import messages_of
from tieredstore.store.key_scan import query_by_scan
from tieredstore.store.protocol import MESSAGES_MAX, GetMessageResult
from tieredstore.store.topic_deletion import deletable, unused


class Arrivals:
    """Waiting readers by queue. A new message costs O(waiters of its queue)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: dict[QueueId, dict[asyncio.Event, int]] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<Arrivals: {len(self)} waiting>"

    def __len__(self) -> int:
        """Number of waiters."""
        return sum(map(len, self._waiters.values()))

    def notify(self, ends: Mapping[QueueId, int]) -> None:
        """Wake the waiters whose message has arrived. `ends` has the new ends of queues."""
        if not self._waiters:
            return
        for queue, end in ends.items():
            waiters = self._waiters.get(queue, {})
            for arrived in [arrived for arrived, offset in waiters.items() if offset < end]:
                arrived.set()

    def close(self) -> None:
        """Wake all waiters. Their `wait` raises Closed."""
        self._closed = True
        for waiters in self._waiters.values():
            for arrived in waiters:
                arrived.set()

    async def wait(self, queue: QueueId, offset: int, seconds: float) -> bool:
        """Wait until `told` reports that `queue` ends above `offset`. False after `seconds`.

        Cancelling removes the waiter.

        Raises:
            Closed: `close` was called.
        """
        arrived = asyncio.Event()
        if not self._closed and seconds > 0:
            self._waiters.setdefault(queue, {})[arrived] = offset
            try:
                await wait_at_most(self._clock, seconds, arrived.wait())
            finally:
                del self._waiters[queue][arrived]
                if not self._waiters[queue]:
                    del self._waiters[queue]
        if self._closed:
            raise Closed("the store was closed", str(queue), offset)
        return arrived.is_set()


EXAMINED_BYTES_MIN = 16_000
"""Minimum of ConsumeQueue units that a read with a subscription examines, in bytes."""
_LOW_32_BITS = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Wish:
    """Limits and filter of one read."""

    messages_max: int
    bytes_max: int | None
    subscription: Subscription | None
    limits: ReadLimits

    @property
    def examined_max(self) -> int:
        """Maximum of units to examine."""
        if self.subscription is None:
            return self.messages_max
        return max(EXAMINED_BYTES_MIN // UNIT_BYTES, self.messages_max)


def status_by_bounds(offset: int, bounds: Bounds) -> tuple[FetchStatus, int] | None:
    """Return status and next offset if the bounds of a queue decide them; None: read."""
    if bounds.max_offset == 0:
        return FetchStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < bounds.min_offset:
        return FetchStatus.OFFSET_TOO_SMALL, bounds.min_offset
    if offset == bounds.max_offset:
        return FetchStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > bounds.max_offset:
        return FetchStatus.OFFSET_OVERFLOW_BADLY, bounds.max_offset
    return None


def choose_units(
    units: Sequence[ConsumeQueueUnit], offset: int, wish: Wish, *, least: int, end: int
) -> Picks:
    """Choose the units from `offset` on that a read returns, of a CommitLog `[least, end)`. Pure.

    A message with another tags code is skipped. The read ends before a message whose record was
    deleted. If that is the first one, the read returns none and continues after the deleted
    records.
    """
    taken: list[int] = []
    size = 0
    hashes = None
    if wish.subscription is not None:
        hashes = {value & _LOW_32_BITS for value in wish.subscription.hashes}
    for index, unit in enumerate(units):
        if unit.position < least or unit.is_filler:
            if index:
                return Picks(taken, offset + index)
            there = (at for at, one in enumerate(units) if not _is_gone(one, least))
            return Picks(taken, offset + next(there, len(units)), is_removing=True)
        if taken and _is_full(len(taken), size + unit.size, unit.position, end, wish):
            return Picks(taken, offset + index)
        if hashes is not None and unit.tag_hash & _LOW_32_BITS not in hashes:
            continue
        taken.append(index)
        size += unit.size
    return Picks(taken, offset + len(units))


def _is_gone(unit: ConsumeQueueUnit, least: int) -> bool:
    return unit.is_filler or unit.position < least


def _is_full(count: int, size: int, position: int, end: int, wish: Wish) -> bool:
    """Whether one more message, with which there are `size` bytes, exceeds a limit."""
    limits = wish.limits
    if count >= wish.messages_max or (wish.bytes_max is not None and size > wish.bytes_max):
        return True
    if is_estimated_resident(position, end, limits.memory_share):
        return count >= limits.memory_messages_max or size > limits.memory_bytes_max
    return count >= limits.disk_messages_max or size > limits.disk_bytes_max


def status_of(picks: Picks, found: int) -> FetchStatus:
    """Return the status of a read of `found` messages."""
    if found:
        return FetchStatus.FOUND
    if picks.is_removing and not picks.indices:
        return FetchStatus.MESSAGE_WAS_REMOVING
    return FetchStatus.NO_MATCHED_MESSAGE


LOGGER = logging.getLogger("tieredstore.store")
TRIM_INTERVAL_S = 10.0
"""RocketMQ's `cleanResourceInterval`, in seconds."""
HOURS_MAX = 999_999_999
"""Longest retention of a topic, in hours. RocketMQ's attribute has nine digits."""
TRIES = 3
"""Attempts of a read whose messages are deleted while it runs."""


class LocalMessageStore(TopicCalls):
    """Store directory in RocketMQ's format as a `MessageStore`. Use it as `async with store:`.

    Files older than `retention` allows are deleted every `trim_interval_s` seconds. A store around
    this one may hold them back (`hold_back`). A directory with a tier keeps all its files, unless a
    store that tiers is around this one. Call it on the event loop that opened it only.
    """

    def __init__(
        self,
        root: Path,
        *,
        options: HotWriteOptions | None = None,
        retention: RetentionOptions | None = None,
        limits: ReadLimits | None = None,
        trim_interval_s: float = TRIM_INTERVAL_S,
        clock: Clock | None = None,
    ) -> None:
        """Keep the arguments. I/O begins when the block is entered."""
        if trim_interval_s <= 0:
            raise ValueError(f"trim_interval_s is {trim_interval_s}, not above 0")
        self.root = root.absolute()
        self._options = options or HotWriteOptions()
        self._retention = retention or RetentionOptions()
        self._limits = limits or ReadLimits()
        self._trim_interval_s = trim_interval_s
        self._clock = clock or SystemClock()
        self._holds_back: HoldsBack | None = None
        self._waits_for_tier = False
        """Whether the store has a tier that this process does not feed."""
        self._doubt = ""
        """Why next offsets may be unknown here until the tier is asked; "" if they are known."""
        self._before_use: Callable[[HotLog], Awaitable[None]] | None = None
        self._stack: AsyncExitStack | None = None
        self._log: HotLog | None = None
        self._arrivals = Arrivals(self._clock)
        self._trimmed = Trim()
        self._trim_error = ""
        self._counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<LocalMessageStore {self._log or self.root}>"

    async def __aenter__(self) -> Self:
        """Open or create the directory; see `open_hot_log`.

        Raises:
            InUse: another process writes it, or another store of this process.
            Denied, Corrupt, Unavailable: as `open_hot_log`.
            RuntimeError: it is open already.
        """
        if self._stack is not None:
            raise RuntimeError(f"{self!r} is open already")
        async with AsyncExitStack() as stack:
            log = await stack.enter_async_context(
                open_hot_log(self.root, options=self._options, clock=self._clock)
            )
            self._arrivals = Arrivals(self._clock)
            identity = await asyncio.to_thread(read_identity, self.root)
            self._waits_for_tier = identity is not None and identity.has_tier
            if self._before_use is not None:
                await self._before_use(log)
            unasked = self._waits_for_tier and self._before_use is None
            self._doubt = await asyncio.to_thread(log.doubt) if unasked else ""
            log.tell(self._arrivals.notify)
            self._log = log
            await stack.enter_async_context(running([self._trim_forever]))
            stack.callback(self._arrivals.close)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Make accepted messages durable and close.

        Raises:
            Unavailable: not all is durable; the next start recovers as after a crash.
        """
        stack, self._stack = self._stack, None
        if stack is None:
            return
        await stack.__aexit__(kind, error, trace)

    @property
    def log(self) -> HotLog:
        """Hot log of this store: the source that the tier is fed from.

        Raises:
            Closed: it is not open.
        """
        if self._stack is None or self._log is None:
            raise Closed("the message store is not open: use `async with`", str(self.root))
        return self._log

    def hold_back(self, holds_back: HoldsBack) -> None:
        """Set the callback that limits deletion from each queue; see `HotLog.trim`."""
        self._holds_back = holds_back

    def refuse_topics(self, topics: Collection[str]) -> None:
        """Reject messages of these topics. Effective when the store is opened next."""
        taken = self._options.own_topics.union(topics)
        self._options = replace(self._options, own_topics=taken)

    def before_use(self, prepare: Callable[[HotLog], Awaitable[None]] | None) -> None:
        """Set a callback that opening awaits with the log, before any message is accepted."""
        self._before_use = prepare

    async def put_message(self, message: NewMessage) -> Appended:
        """Append one message; see `HotLog.append_many` for costs and errors.

        Raises:
            Denied: the directory is a copy, and its tier is not named: decision 0067.
        """
        if self._doubt:
            self._refuse_unasked()
        log = self.log
        return log.append_at_once(message) or (await log.append_many([message]))[0]

    async def put_messages(
        self, messages: Sequence[NewMessage], *, together: bool = False
    ) -> list[Appended]:
        """Append messages in order, all or none; see `HotLog.append_many`.

        Raises:
            Denied: as `put_message`.
        """
        if self._doubt:
            self._refuse_unasked()
        return await self.log.append_many(messages, together=together)

    def _refuse_unasked(self) -> None:
        """Refuse messages whose offsets the tier may have, until it was asked.

        Raises:
            Denied: says so.
        """
        if not self.log.is_compared:
            raise Denied(
                f"{self._doubt} and its tier, which may have more messages, was not asked: name its"
                " tier (tieredStoreFilePath, --tier)",
                str(self.root),
            )
        self._doubt = ""

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
        """Read from `offset` on. Statuses and next offsets are RocketMQ's.

        Takes one hop to a thread: it reads units, then the wanted records, and verifies each. A
        subscription is matched against the tags codes of units, then against the tags as texts.

        Raises:
            Unavailable, Denied: the files cannot be read; this is never "no message".
            Corrupt: a record is not that of its message.
            Closed: the store is not open.
            ValueError: an argument has another type, `messages_max` is not positive, `bytes_max` is
                negative, or the subscription has no tag or is SQL92.
        """
        del group  # the page cache reads ahead for all groups
        refuse_bounds(offset, messages_max, bytes_max)
        log, queue = self.log, named_queue(topic, queue_id)
        wish = Wish(messages_max, bytes_max, parse_subscription(subscription), self._limits)
        for _ in range(TRIES):
            if not log.has(queue):
                return GetMessageResult(FetchStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
            bounds = await log.bounds(queue)
            answer = status_by_bounds(offset, bounds)
            if answer is not None:
                return GetMessageResult(*answer, *bounds)
            try:
                found = await self._read(queue, offset, wish)
            except OutOfRange:
                continue  # deleted meanwhile: the bounds have changed
            if found is None or found[0].is_removing:
                await log.settled()
                if await log.bounds(queue) != bounds:
                    continue  # likewise; a tier may have the deleted messages
            if found is None:  # no ConsumeQueue file has the offset
                following = min(log.next_file_offset(offset), bounds.max_offset)
                return GetMessageResult(FetchStatus.OFFSET_FOUND_NULL, following, *bounds)
            picks, messages = found
            self._counts["messages_out"] += len(messages)
            status = status_of(picks, len(messages))
            return GetMessageResult(status, picks.next_offset, *bounds, messages)
        raise Unavailable("messages are deleted faster than they are read", str(queue), offset)

    async def _read(
        self, queue: QueueId, offset: int, wish: Wish
    ) -> tuple[Picks, list[StoredMessage]] | None:
        found = await self.log.pick(
            queue,
            offset,
            wish.examined_max,
            lambda units, least, end: choose_units(units, offset, wish, least=least, end=end),
        )
        if found is None:
            return None
        picks, messages = found
        if wish.subscription is not None:
            tags = wish.subscription.tags
            messages = [message for message in messages if message.tags in tags]
        return picks, messages

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first readable offset; 0 for a queue that does not exist."""
        return (await self.log.bounds(named_queue(topic, queue_id))).min_offset

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last message; 0 for a queue that does not exist."""
        return self.log.end_offset(named_queue(topic, queue_id))

    async def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: Moment,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> int:
        """Return the offset for a time, by RocketMQ's rules; see `HotLog.offset_by_time`.

        LOWER: the first message stored then or later, or the queue's end. UPPER: the last message
        stored then or earlier, or the queue's first offset; `rules` change it. 0 for a queue that
        does not exist. A boundary or rules may be a text, such as "UPPER". Errors as `get_message`.
        """
        queue = named_queue(topic, queue_id)
        moment_ms = whole_ms("timestamp_ms", timestamp_ms)
        return await self.log.offset_by_time(queue, moment_ms, Boundary(boundary), TimeRules(rules))

    async def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of the first readable message; None if there is none.

        Raises:
            Unavailable, Corrupt, Denied, Closed: as `get_message`.
        """
        for _ in range(TRIES):
            first, end = await self.log.bounds(named_queue(topic, queue_id))
            if first == end:
                return None
            found = await self.message_store_time(topic, queue_id, first)
            if found is not None:
                return found
        raise Unavailable("messages are deleted faster than they are read", topic)

    async def message_store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of one message; None if it does not exist.

        Raises:
            Unavailable, Corrupt, Denied, Closed: as `get_message`.
        """
        found = await self.log.message_store_time(named_queue(topic, queue_id), offset)
        if found is None and await self.is_in_store(topic, queue_id, offset):
            await self.log.settled()
            found = await self.log.message_store_time(named_queue(topic, queue_id), offset)
            if found is None and await self.is_in_store(topic, queue_id, offset):
                raise Unavailable("a file of the hot log is missing", f"{topic}/{queue_id}", offset)
        return found

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

        There is no index: the call reads up to 256 MiB of the topic's messages of that time. A
        damaged message is skipped, and the result is incomplete.

        Raises:
            Unavailable, Denied, Closed: as `get_message`.
            ValueError: a datetime has no time zone, or `messages_max` is negative.
        """
        query = KeyQuery(
            topic,
            key,
            whole_number("messages_max", messages_max),
            whole_ms("begin_ms", begin_ms),
            whole_ms("end_ms", end_ms),
            newest_first,
        )
        if not key or query.messages_max < 1:
            return QueryResult((), is_complete=True)
        return await query_by_scan(self, query)

    async def is_in_store(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the message at `offset` can be read here.

        RocketMQ returns true for any offset until files are deleted. This store returns true for
        existing offsets only.
        """
        first, end = await self.log.bounds(named_queue(topic, queue_id))
        return first <= offset < end

    async def is_in_memory(self, topic: str, queue_id: int, offset: int, messages: int = 1) -> bool:
        """Whether these messages' pages are resident (`mincore`); False if the first is missing.

        If fewer messages exist than asked for, the existing ones count. See `log/files.py`.

        Raises:
            Unavailable, Denied, Closed: as `get_message`.
        """
        return await self.log.is_resident(
            named_queue(topic, queue_id),
            offset,
            messages,
            estimated_share=self._limits.memory_share,
        )

    async def wait_for_message(
        self, topic: str, queue_id: int, offset: int, timeout_s: float
    ) -> bool:
        """Wait, without polling, for a message at `offset`. False after the timeout.

        True at once if there are messages above `offset`, even if the message itself was deleted.

        Raises:
            Closed: the store is not open, or was closed meanwhile.
        """
        queue = named_queue(topic, queue_id)
        if self.log.end_offset(queue) > offset:
            return True
        return await self._arrivals.wait(queue, offset, timeout_s)

    def messages(
        self, group: str, topic: str, queue_id: int, start: int = 0
    ) -> AsyncGenerator[StoredMessage, None]:
        """Yield every message from `start` on, then new ones as they arrive. Endless.

        Errors as `get_message`.
        """
        return messages_of(self, group, topic, queue_id, start)

    async def delete_topics(self, topics: Collection[str]) -> None:
        """Delete topics; see `HotLog.delete_topics`.

        Raises:
            ValueError: one of them is a system topic that does not exist; none is deleted.
            And what `HotLog.delete_topics` raises.
        """
        await self.log.delete_topics(deletable(topics, held=self.topics()))

    async def set_retention(self, topic: str, hours: int | None) -> None:
        """Set the retention of a topic in the tier, in hours; None: the tier's default.

        Writes `reserve.time` to `config/topics.json`, where RocketMQ's tools set it. Durable on
        return.

        Raises:
            ValueError: `hours` is no whole number from 1 to 10^9 - 1.
            NotFound: the topic has no message yet.
            Unavailable, Denied: the store cannot be written now.
            Closed: the store is not open.
        """
        if hours is not None and not 1 <= whole_number("hours", hours) <= HOURS_MAX:
            raise ValueError(f"hours is {hours}, not within 1 to {HOURS_MAX}")
        await self.log.set_retention(topic, hours)

    async def clean_unused_topics(self, retained: Collection[str]) -> list[str]:
        """Delete topics that are neither in `retained` nor system topics. Return their names."""
        names = unused(self.topics(), retained)
        await self.delete_topics(names)
        return names

    def topics(self) -> Mapping[str, int]:
        """Return topics that have or had messages, or continue their tier, with queue counts.

        A count is the highest queue id + 1. O(queues).
        """
        return queue_counts(self.log.queues())

    def queue_ids(self, topic: str) -> Sequence[int]:
        """Return the queues of a topic as `topics`, ascending. O(queues)."""
        return [queue_id for name, queue_id in self.log.queues() if name == topic]

    def statistics(self) -> Mapping[str, float]:
        """Return current figures by name. O(queues)."""
        log = self.log
        return {
            "hot_queues": len(log.queues()),
            "hot_log_bytes": log.log_bytes,
            "hot_messages_out": self._counts["messages_out"],
            "hot_files_deleted": self._counts["files_deleted"],
            "hot_files_held_back": self._trimmed.held_back,
            "hot_files_deleted_untiered": self._counts["files_dropped"],
            "waiting": len(self._arrivals),
        }

    async def trim(self) -> Trim:
        """Run one round of retention: delete the files that are due.

        Raises:
            Unavailable, Denied: a file cannot be read or deleted; a later call continues.
            Closed: the store is not open.
        """
        holds_back = self._holds_back
        if holds_back is None:  # the backlog of the tier is unknown here
            holds_back = _all if self._waits_for_tier else _nothing
        trimmed = await self.log.trim(holds_back, self._retention)
        self._trimmed = trimmed
        self._counts["files_deleted"] += len(trimmed.files)
        self._counts["files_dropped"] += trimmed.dropped
        if trimmed.dropped:
            LOGGER.error(
                "the disk is full: %d CommitLog files went that are not in the tier",
                trimmed.dropped,
            )
        return trimmed

    async def _trim_forever(self) -> None:
        while True:
            await self._clock.sleep(self._trim_interval_s)
            try:
                await self.trim()
            except StoreError as error:
                if str(error) != self._trim_error:
                    LOGGER.warning("old files of the hot log cannot be deleted: %s", error)
                self._trim_error = str(error)
            else:
                self._trim_error = ""


def _all(_: QueueId) -> int | None:
    return 0


def _nothing(_: QueueId) -> int | None:
    return None
