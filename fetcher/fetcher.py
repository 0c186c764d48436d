"""Messages of a tier by offset, as RocketMQ's store answers, from a cache that reads ahead."""

import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from container.metadata.records import Gap
from container.names.queue_id import QueueId, named_queue, whole_number
from container.queue.time_index import Boundary, TimeRules
from container.record.batch import store_timestamps
from container.record.unit import UNIT_BYTES
from fetcher.options import FetcherOptions
from fetcher.plan import gap_at, stretch_end
from fetcher.read_ahead import ReadAhead
from fetcher.reads import RunReads
from fetcher.result import (
    FetchedMessages,
    FetchResult,
    FetchStatus,
    Selection,
    offset_status,
    refuse_bounds,
)
from fetcher.run_cache import REPLACEMENT, CachedRun, CacheKey
from fetcher.source import Tier, TierQueue
from fetcher.statistics import FetcherStatistics
from fetcher.tag_filter import Subscription, matching, parse_subscription
from fetcher.time_search import first_message, load_store_timestamp, search_time
from provider.clock import Clock, LoopHold, SystemClock
from provider.disk_cache.use import cache_use
from provider.errors import Closed, Corrupt, OutOfRange, StoreError
from provider.ranges import QueueOffset

ResultT = TypeVar("ResultT")


async def from_newest_tier(
    tier: Tier, queue: QueueId, read: Callable[[], Awaitable[ResultT]]
) -> ResultT:
    """What `read` gives, once more with newer metadata if the tier contradicts ours."""
    generation = _generation(tier, queue)
    with cache_use() as use:
        try:
            return await read()
        except OutOfRange:
            # Retention or a new owner moved what the metadata names.
            await tier.refresh()
        except Corrupt:
            # A cut may have freed a file, which holds other messages by now, or a damaged answer
            # of the storage lies in a cache.
            is_newer = await tier.refresh() or _generation(tier, queue) != generation
            if not is_newer and not use.was_used:
                raise
            use.is_past = use.is_past or use.was_used
        return await read()


def _generation(tier: Tier, queue: QueueId) -> int | None:
    source = tier.container(queue)
    return None if source is None else source.generation


class FetchCursor:
    """Takes messages from `at` on until a limit is met; pure bookkeeping, nothing waits.

    C1  `at <= limit <=` the queue's end. No offset from `limit` on is examined.
    C2  What was taken are messages below `at`, ascending, `messages_max` at most.
    C3  What was taken is below `bytes_max` without its last message. That one may exceed it: sizes
        are compared after adding, as in RocketMQ, so that a large message is delivered.
    """

    def __init__(
        self,
        offset: int,
        end: int,
        *,
        messages_max: int,
        bytes_max: int | None,
        looked_max: int,
        subscription: Subscription | None,
        exact_tags: bool,
    ) -> None:
        """`end`: the queue's. `looked_max`: offsets examined, those in gaps not counted."""
        self.at = offset
        self.limit = min(end, offset + looked_max)
        self.messages_left = messages_max
        self._end = end
        self._bytes_left = bytes_max
        self._subscription = subscription
        self._exact_tags = exact_tags
        self._selections: list[Selection] = []
        self._count = 0
        self._is_full = False

    @property
    def is_done(self) -> bool:
        """Whether a limit was met."""
        return self._is_full or self.at >= self.limit

    @property
    def messages(self) -> FetchedMessages:
        """What was taken so far."""
        return FetchedMessages(tuple(self._selections), self._count)

    @property
    def has_found(self) -> bool:
        """Whether anything was taken."""
        return self._count > 0

    def skip(self, gap: Gap) -> None:
        """Continue after a gap, which `at` lies in."""
        self.limit = min(self._end, self.limit + gap.end - self.at)
        self.at = gap.end

    def take(self, run: CachedRun) -> None:
        """Take what is wanted of a run, which begins at or before `at`.

        Raises:
            Corrupt: the message at `at` has other tags than its unit says.
        """
        until = min(run.end, self.limit)
        if run.has_all and self._subscription is None:
            self._take_slice(run, self.at - run.first, until - run.first)
        else:
            self._take_matching(run, until)

    def check(self) -> None:
        """Assert the invariants; for tests. O(messages taken)."""
        assert self.at <= self.limit <= self._end, f"C1: {self.at}, {self.limit}, {self._end}"
        messages = self.messages
        offsets, sizes = messages.offsets, messages.sizes
        assert len(offsets) == self._count, "C2"
        assert self.messages_left >= 0, "C2"
        assert (np.diff(offsets) > 0).all(), f"C2: {offsets}"
        if self._count:
            assert offsets[-1] < self.at, f"C2: {offsets}, {self.at}"
            assert self._bytes_left is None or self._bytes_left + sizes[-1] > 0, "C3"
        if self.messages_left == 0 or (self._bytes_left is not None and self._bytes_left <= 0):
            assert self.is_done, "C2, C3"

    def _take_slice(self, run: CachedRun, start: int, until: int) -> None:
        stop = min(until, start + self.messages_left)
        if self._bytes_left is not None:
            stop = run.cut(start, stop, self._bytes_left)
        self._add(Selection(run, start, stop), stop - start)
        self.at = run.first + stop
        self._count_bytes(run.size_before[stop] - run.size_before[start])

    def _take_matching(self, run: CachedRun, until: int) -> None:
        start = int(np.searchsorted(run.offsets, self.at))
        stop = int(np.searchsorted(run.offsets, until))
        untrue = run.first_untrue_tag(start, stop)
        if untrue < stop:
            stop, until = untrue, int(run.offsets[untrue])
            if until == self.at:
                path = f"{run.key.queue}/CONSUME_QUEUE"
                raise Corrupt(
                    "the unit has another hash of tags than the record", path, UNIT_BYTES * until
                )
        indices: NDArray[np.int64] = np.arange(start, stop)
        if run.has_all and self._subscription is not None:
            indices = indices[matching(run.tag_hashes[start:stop], self._subscription)]
        if self._exact_tags and self._subscription is not None:
            wanted = self._subscription.tags
            tags = [one.tags for one in run.decode(indices)]
            same = [one in wanted or REPLACEMENT in one for one in tags]
            indices = indices[np.array(same, np.bool_)]
        picked = indices[: self.messages_left]
        if self._bytes_left is not None:
            sums = np.cumsum(run.sizes[picked])
            picked = picked[: int(np.searchsorted(sums, self._bytes_left)) + 1]
        self._add(Selection(run, 0, 0, picked), len(picked))
        self._count_bytes(int(run.sizes[picked].sum()))
        self.at = int(run.offsets[picked[-1]]) + 1 if self._is_full else until

    def _add(self, selection: Selection, count: int) -> None:
        if count:
            self._selections.append(selection)
        self._count += count
        self.messages_left -= count
        self._is_full = self.messages_left <= 0

    def _count_bytes(self, count: int) -> None:
        if self._bytes_left is not None:
            self._bytes_left -= count
            self._is_full |= self._bytes_left <= 0


TRANSFER_BYTES_MAX = 262_144
"""RocketMQ's `maxTransferBytesOnMessageInMemory`."""

_NONE = QueueOffset(0)


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of one call of `get_message`, which has their meanings."""

    group: str
    queue: QueueId
    offset: QueueOffset
    messages_max: int
    bytes_max: int | None
    subscription: Subscription | None
    exact_tags: bool


class TieredMessageFetcher:
    """Reads a tier. Use it as `async with fetcher:`; the block owns every read.

    Results do not depend on what is cached: a call returns the messages from `offset` on until
    `messages_max`, `bytes_max`, `run_messages_max` examined offsets, a gap, or the end is met.
    One that is dropped while it is open warns (`ResourceWarning`).

    What is proven of a message that a call returns, by mode:

    - always: its record has the size, queue number, queue offset and position that it must have.
    - `FetcherOptions.verify` (default): also topic and lengths, and the CRC-32 of the body. With a
      subscription: a message that is passed over has the tags code that was published (CRC-32C of
      the units; a tier of RocketMQ's own store has none), and one whose record is read has the tags
      that its unit says. Compared when a run is read, not again while it is cached. Not proven:
      times, hosts, flags, counters and properties.
    - a tier that verifies extents (`tieredStoreExtentCheckEnable`): every byte is as published.

    `message_timestamp` compares headers only.
    """

    def __init__(
        self, tier: Tier, *, options: FetcherOptions | None = None, clock: Clock | None = None
    ) -> None:
        self._tier = tier
        self._options = options = options or FetcherOptions()
        self._clock = clock or SystemClock()
        self._reads = RunReads(options, self._clock)
        self._read_ahead = ReadAhead(options, self._reads)
        self._hold = LoopHold(self._clock, options.loop_hold_s_max)
        self._hits = 0
        self._misses = 0

    async def __aenter__(self) -> Self:
        """Begin to serve. A fetcher is opened once."""
        await self._reads.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the fetcher; an error of the block is raised as it is."""
        await self.close()

    async def close(self) -> None:
        """Stop the reads and wait for their end; calls that wait for one get `Closed`.

        Idempotent. The end of an `async with` block does it.
        """
        await self._reads.close()

    def __del__(self) -> None:
        if self._reads.is_open:
            warnings.warn(f"not closed: {self!r}", ResourceWarning, source=self, stacklevel=1)

    def __repr__(self) -> str:
        state = "open" if self._reads.is_open else "closed"
        held = self._reads.counts()
        return (
            f"<TieredMessageFetcher {state}: {held['runs_held']} runs of {held['bytes_held']} "
            f"bytes, {held['reads_in_flight']} reads in flight, {len(self._read_ahead)} readers>"
        )

    async def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int,
        subscription: str | None = None,
        bytes_max: int | None = TRANSFER_BYTES_MAX,
        exact_tags: bool = False,
    ) -> FetchResult:
        """Read messages from `offset` on, with RocketMQ's statuses and next offsets.

        Costs no request when the messages are cached, and then does not wait, except to let other
        tasks run once in `loop_hold_s_max`. Else one read of ConsumeQueue units and one round of
        CommitLog ranges for each run that is missing, shared by all calls that want it.

        Inside a gap the status is OFFSET_FOUND_NULL and the next offset is the gap's end. An error
        that is met after messages were found ends the result before it; the next call raises it.

        Args:
            group: name of the reading group; each has its own read-ahead.
            topic: the topic.
            queue_id: its queue.
            offset: queue offset of the first message.
            messages_max: messages returned at most, > 0.
            subscription: tags, as `TagA || TagB`; None, "" or `*` for every message. Decided by
                hash like in RocketMQ's broker, so that a collision lets a foreign tag through.
            bytes_max: ends the result with the message that reaches it; None: no such limit.
            exact_tags: compare tags as texts too; about 1 us for each message whose hash matches.
                Tags that are not UTF-8 cannot be compared so: their hash decides.

        Returns:
            Status, next offset, the queue's bounds, and the messages: `result.messages` has stored
            records as views, `result.messages.decode()` makes `StoredMessage`s of them.

        Raises:
            Unavailable: storage did not answer; this is never "no message".
            Corrupt: the message at the offset reached is damaged, also for the newest metadata;
                names queue and position.
            OutOfRange: metadata and storage disagree, even after a refresh of the metadata.
            Closed: the fetcher is not open.
            ValueError: an argument has another type, `messages_max` is not positive, `bytes_max` is
                negative, or the subscription has no tag or is SQL92.

        Cancelling it does not stop a read that others share.
        """
        queue = named_queue(topic, queue_id)
        wanted = parse_subscription(subscription)
        refuse_bounds(offset, messages_max, bytes_max)
        result = None
        if wanted is None:
            result = self._from_cache(group, queue, offset, messages_max, bytes_max)
        if result is not None:
            self._hits += 1
        else:
            request = _Request(
                group, queue, QueueOffset(offset), messages_max, bytes_max, wanted, exact_tags
            )
            if not self._reads.is_open:
                raise Closed("the fetcher is not open", f"{queue}", offset)
            result = await from_newest_tier(self._tier, queue, lambda: self._from_tier(request))
        if self._hold.is_long():
            await self._clock.sleep(0)
        return result

    async def message_timestamp(self, queue: QueueId, offset: int) -> int | None:
        """Store timestamp in Unix ms of the message at `offset`; None if the tier has none there.

        No request if it is cached, else two small ones.

        Raises:
            Unavailable, Corrupt, OutOfRange: as `get_message`.
        """
        found = await from_newest_tier(self._tier, queue, lambda: self._timestamp(queue, offset))
        if self._hold.is_long():
            await self._clock.sleep(0)
        return found

    async def offset_by_time(
        self,
        queue: QueueId,
        moment_ms: int,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> QueueOffset | None:
        """The offset that a moment, Unix ms, stands for; None if the tier has no such queue.

        LOWER: the first message stored then or later, or the queue's end. UPPER: the last one
        stored then or earlier, or the queue's first offset; `rules` change it. No gap lies there.
        Costs and errors as `time_search.search_time`, which says what holds where a broker's clock
        was set back.
        """
        boundary, rules = Boundary(boundary), TimeRules(rules)
        moment_ms = whole_number("moment", moment_ms)

        async def search() -> QueueOffset | None:
            source = self._tier.container(queue)
            if source is None:
                return None
            gap = self._options.gap_bytes_max
            return await search_time(source, moment_ms, boundary, rules, gap_bytes_max=gap)

        return await from_newest_tier(self._tier, queue, search)

    async def earliest_message_time(self, queue: QueueId) -> int | None:
        """Store timestamp in Unix ms of the first message that can be read; None if there is none.

        Cost and errors as `message_timestamp`.
        """
        source = self._tier.container(queue)
        return (
            None if source is None else await self.message_timestamp(queue, first_message(source))
        )

    def forget(self, queue: QueueId) -> None:
        """Drop what is cached of a queue that was deleted, or whose tail was cut off.

        A cut that the metadata show is noticed without it.
        """
        self._reads.forget(queue)
        self._read_ahead.forget(queue)

    def statistics(self) -> FetcherStatistics:
        """What was done, and what is held now. O(readers)."""
        return FetcherStatistics(
            hits=self._hits,
            misses=self._misses,
            readers=len(self._read_ahead),
            windows={f"{queue} {group}": n for queue, group, n in self._read_ahead.windows()},
            **self._reads.counts(),
        )

    def check(self) -> None:
        """Assert the invariants of the cache, the reads and the read-ahead; for tests.

        O(messages held).
        """
        self._reads.check()
        self._read_ahead.check()

    def _from_cache(
        self, group: str, queue: QueueId, offset: int, messages_max: int, bytes_max: int | None
    ) -> FetchResult | None:
        """The whole answer if one cached run has it. Every call comes here first: kept short."""
        now_s = self._clock.monotonic_s()
        source = self._tier.container(queue)
        if source is None:
            return None
        key = CacheKey(queue, None, source.generation)
        run = self._reads.cached(key, offset, now_s)
        if run is None:
            return None
        minimum, maximum = source.min_offset, source.next_offset
        if not minimum <= offset < maximum or self._reads.has_beyond(queue, maximum):
            return None
        examined_max = self._options.run_messages_max
        start = offset - run.first
        stop = start + min(messages_max, examined_max)
        is_short = False
        if stop > len(run):
            stop = len(run)
            is_short = run.end < min(maximum, offset + examined_max)
        if bytes_max is not None:
            until = run.cut(start, stop, bytes_max)
            is_short = is_short and until == stop
            stop = until
        if is_short:
            return None
        next_offset = QueueOffset(run.first + stop)
        self._read_ahead.follow(
            group, source, key, run, offset=offset, next_offset=next_offset, now_s=now_s
        )
        messages = FetchedMessages((Selection(run, start, stop),), stop - start)
        return FetchResult(FetchStatus.FOUND, next_offset, minimum, maximum, messages)

    async def _from_tier(self, request: _Request) -> FetchResult:
        """The answer, reading what is missing."""
        queue, offset = request.queue, request.offset
        source = self._tier.container(queue)
        if source is None:
            self._reads.forget(queue)
            # RocketMQ's tier would answer `offset`, and its local store then corrects that to 0,
            # which is what its clients see; no local store corrects what is read here.
            return FetchResult(FetchStatus.NO_MATCHED_LOGIC_QUEUE, _NONE, _NONE, _NONE)
        minimum, maximum = source.min_offset, source.next_offset
        if self._reads.has_beyond(queue, maximum):
            self._reads.forget(queue)
        status, next_offset = offset_status(offset, minimum, maximum)
        gap = gap_at(source.gaps, offset)
        if status is FetchStatus.FOUND and gap is not None:
            status, next_offset = FetchStatus.OFFSET_FOUND_NULL, gap.end
        if status is not FetchStatus.FOUND:
            return FetchResult(status, next_offset, minimum, maximum)

        cursor = FetchCursor(
            offset,
            maximum,
            messages_max=request.messages_max,
            bytes_max=request.bytes_max,
            looked_max=self._options.run_messages_max,
            subscription=request.subscription,
            exact_tags=request.exact_tags,
        )
        await self._move(cursor, source, request)
        status = FetchStatus.FOUND if cursor.has_found else FetchStatus.NO_MATCHED_MESSAGE
        return FetchResult(status, QueueOffset(cursor.at), minimum, maximum, cursor.messages)

    async def _move(self, cursor: FetchCursor, source: TierQueue, request: _Request) -> None:
        """Take runs until the cursor is done, then see whether to read ahead."""
        now_s = self._clock.monotonic_s()
        key = CacheKey(request.queue, request.subscription, source.generation)
        has_waited = False
        run = None
        while not cursor.is_done:
            gap = gap_at(source.gaps, cursor.at)
            if gap is not None:
                if cursor.has_found:
                    break
                cursor.skip(gap)
                continue
            try:
                run = self._reads.cached(key, cursor.at, now_s)
                if run is None:
                    has_waited = True
                    run = await self._wait_for(cursor, source, key, request)
                cursor.take(run)
            except StoreError:
                if not cursor.has_found:
                    raise
                break
        self._hits += not has_waited
        self._misses += has_waited
        if run is not None:
            self._read_ahead.follow(
                request.group,
                source,
                key,
                run,
                offset=request.offset,
                next_offset=cursor.at,
                now_s=now_s,
            )

    async def _wait_for(
        self, cursor: FetchCursor, source: TierQueue, key: CacheKey, request: _Request
    ) -> CachedRun:
        """The run at the cursor, in the size that the group's window allows."""
        left = cursor.limit - cursor.at
        messages = min(cursor.messages_left, left)
        if self._options.cache_enabled:
            window = self._read_ahead.demand_messages(request.queue, request.group, request.offset)
            messages = max(messages, window)
        units = messages if key.subscription is None else max(left, messages)
        end = min(stretch_end(source, cursor.at), cursor.at + units)
        return await self._reads.run_at(source, key, cursor.at, end, messages=messages)

    async def _timestamp(self, queue: QueueId, offset: int) -> int | None:
        source = self._tier.container(queue)
        if source is None or not source.min_offset <= offset < source.next_offset:
            return None
        if gap_at(source.gaps, offset) is not None:
            return None
        key = CacheKey(queue, None, source.generation)
        run = self._reads.cached(key, offset, self._clock.monotonic_s())
        if run is not None:
            place = offset - run.first
            return int(store_timestamps(run.data, run.starts[place : place + 1])[0])
        return await load_store_timestamp(source, QueueOffset(offset))
