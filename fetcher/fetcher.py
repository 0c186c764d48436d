"""Messages of a tier by offset, with RocketMQ's statuses, through a cache with read-ahead."""

import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from container.metadata.records import Gap, gap_at
from container.names.queue_id import QueueId, named_queue, whole_number
from container.queue.commit_plan import EXTENT_MESSAGES_MAX
from container.queue.positions import Boundary, TimeRules
from container.record.batch import store_timestamps
from container.record.unit import UNIT_BYTES
from fetcher.options import FetcherOptions
from fetcher.plan import rounded_end, stretch_end
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
from fetcher.tag_filter import Subscription, matching, parse_subscription
from fetcher.time_search import first_message, load_store_timestamp, search_time
from provider.clock import Clock, LoopHold, SystemClock
from provider.disk_cache.use import cache_use
from provider.errors import Closed, Corrupt, OutOfRange, StoreError
from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class FetcherStatistics:
    """Counters since the fetcher was created, and present sizes. Counters never decrease."""

    hits: int
    """Calls served from the cache alone."""
    misses: int
    """Calls that waited for storage."""
    runs_read: int
    """Runs read from storage, read-ahead included."""
    bytes_read: int
    """Bytes of the runs read."""
    reads_failed: int
    """Reads that ended with an error."""
    prefetches: int
    """Reads started as read-ahead."""
    prefetches_used: int
    """Runs read ahead that were served."""
    prefetches_wasted: int
    """Runs read ahead that were dropped unserved."""
    runs_held: int
    bytes_held: int
    """Bytes of memory of the cached runs."""
    unread_bytes: int
    """Bytes of `bytes_held` that were read ahead and not served yet."""
    reads_in_flight: int
    bytes_in_flight: int
    readers: int
    """Number of windows kept."""
    windows: Mapping[str, int]
    """Messages of each group's next read-ahead, by `topic/queue group`."""


ResultT = TypeVar("ResultT")


async def from_newest_tier(
    tier: Tier, queue: QueueId, read: Callable[[], Awaitable[ResultT]]
) -> ResultT:
    """Return the result of `read`; retry it once with newer metadata if the storage disagrees.

    Raises:
        OutOfRange, Corrupt: metadata and storage disagree, or data is damaged, also in the retry.
        StoreError: any other error of `read`, or of the refresh.
    """
    generation = _generation(tier, queue)
    with cache_use() as use:
        try:
            return await read()
        except OutOfRange:
            # Retention or a new owner deleted or moved an object that the metadata names.
            await tier.refresh(doubted=True)
        except Corrupt:
            # Either a tail truncation freed a file that has other messages by now, or a cache has
            # a damaged response of the storage.
            is_newer = await tier.refresh(doubted=True) or _generation(tier, queue) != generation
            if not is_newer and not use.was_used:
                raise
            use.is_past = use.is_past or use.was_used
        return await read()


def _generation(tier: Tier, queue: QueueId) -> int | None:
    source = tier.container(queue)
    return None if source is None else source.generation


class FetchCursor:
    """Selection of messages from `at` on until a limit is reached. No I/O.

    C1  `at <= limit <=` the queue's end. No offset from `limit` on is examined.
    C2  The taken messages are below `at`, ascending, and at most `messages_max`.
    C3  The taken messages without the last one have less than `bytes_max` bytes. The last one may
        exceed the limit: sizes are compared after adding, as in RocketMQ, so that a large message
        is delivered.
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
        """Start at `offset`.

        Args:
            offset: queue offset of the first message.
            end: end of the queue.
            messages_max: most messages to take.
            bytes_max: bytes after which to stop; None: no limit.
            looked_max: most offsets to examine, without offsets in gaps.
            subscription: wanted tags; None: every message.
            exact_tags: whether to compare tags as texts, too.
        """
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
        """Whether a limit was reached."""
        return self._is_full or self.at >= self.limit

    @property
    def messages(self) -> FetchedMessages:
        """Messages taken so far."""
        return FetchedMessages(tuple(self._selections), self._count)

    @property
    def has_found(self) -> bool:
        """Whether any message was taken."""
        return self._count > 0

    def skip(self, gap: Gap) -> None:
        """Continue after `gap`, which contains `at`."""
        self.limit = min(self._end, self.limit + gap.end - self.at)
        self.at = gap.end

    def take(self, run: CachedRun) -> None:
        """Take the wanted messages of a run that begins at or before `at`.

        Raises:
            Corrupt: the tags of the message at `at` do not match the hash in its unit.
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
    """Arguments of one call of `get_message`, with the same meanings."""

    group: str
    queue: QueueId
    offset: QueueOffset
    messages_max: int
    bytes_max: int | None
    subscription: Subscription | None
    exact_tags: bool


class TieredMessageFetcher:
    """Reader of a tier by offset. Use it as `async with fetcher:`; the block owns every read.

    Results do not depend on the cache: a call returns the messages from `offset` on until it
    reaches `messages_max`, `bytes_max`, `run_messages_max` examined offsets, a gap, or the queue's
    end. A fetcher that is garbage collected while open emits a `ResourceWarning`.

    Verification of a returned message, by mode:

    - Always: its record has the expected size, queue id, queue offset and position.
    - `FetcherOptions.verify` (default): also topic, lengths, and the CRC-32 of the body. With a
      subscription, a skipped message has the tags code that was published, by the CRC-32C of the
      units; a tier of RocketMQ's own store has no such checksum. A message whose record is read
      has the tags that its unit's hash requires. A run is verified when it is read, and not again
      while it is cached. Extents that a read has as a whole are verified by their CRC-32C, which
      covers every byte, and sequential reads consist of them (decision 0070). Elsewhere times,
      hosts, flags, counters and properties are not verified.
    - A tier that verifies extents (`tieredStoreExtentCheckEnable`): every byte is as published.

    `message_timestamp` validates headers only.
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
        """Open the fetcher. A fetcher can be opened once."""
        await self._reads.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the fetcher. An error of the block propagates unchanged."""
        await self.close()

    async def close(self) -> None:
        """Cancel the reads and wait for their end. Calls that wait for a read raise `Closed`.

        Idempotent. The end of an `async with` block calls it.
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

        If the messages are cached, costs no request and does not wait, except that it yields to
        other tasks every `loop_hold_s_max` seconds. Otherwise costs one read of ConsumeQueue units
        and one round of CommitLog ranges for each missing run. All calls that need a run share its
        read.

        Inside a gap the status is OFFSET_FOUND_NULL and the next offset is the gap's end. An error
        after the first found message ends the result early; the next call raises it.

        Args:
            group: name of the consumer group. Each group has its own read-ahead.
            topic: the topic.
            queue_id: id of the queue in the topic.
            offset: queue offset of the first message.
            messages_max: most messages to return, > 0.
            subscription: tags, as `TagA || TagB`; None, "" or `*` for every message. Matched by
                hash as in RocketMQ's broker, so a hash collision passes a foreign tag.
            bytes_max: size in bytes at which the result ends, with the message that reaches it;
                None: no limit.
            exact_tags: compare tags as texts, too. Costs about 1 us for each message whose hash
                matches. For tags that are not UTF-8 the hash alone decides.

        Returns:
            Status, next offset, the queue's bounds, and the messages. `result.messages` has the
            stored records as views; `result.messages.decode()` returns `StoredMessage` objects.

        Raises:
            Unavailable: storage did not respond. Never reported as "no message".
            Corrupt: the message at the reached offset is damaged, also by the newest metadata. The
                error has queue and position.
            OutOfRange: metadata and storage disagree, even after a refresh of the metadata.
            Closed: the fetcher is not open.
            ValueError: an argument has a wrong type, `messages_max` is not positive, `bytes_max` is
                negative, or the subscription has no tag or is SQL92.

        Cancelling does not stop a read that other calls share.
        """
        queue = named_queue(topic, queue_id)
        wanted = parse_subscription(subscription)
        refuse_bounds(offset, messages_max, bytes_max)
        result = None
        if wanted is None:
            result = self.cached_messages(group, queue, offset, messages_max, bytes_max)
        if result is None:
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
        """Return the store timestamp, Unix ms, of the message at `offset`; None if there is none.

        Costs no request if the message is cached, else two small ones.

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
        """Find the offset at `moment_ms`, Unix ms; None if the tier does not have the queue.

        LOWER: the first message stored at that time or later, or the queue's end. UPPER: the last
        message stored at that time or earlier, or the queue's first offset; `rules` modify it. The
        offset is never in a gap. Costs, errors, and the effect of a broker's clock that was set
        back are those of `time_search.search_time`.
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
        """Return the store timestamp, Unix ms, of the first readable message; None without one.

        Cost and errors as `message_timestamp`.
        """
        source = self._tier.container(queue)
        return (
            None if source is None else await self.message_timestamp(queue, first_message(source))
        )

    def forget(self, queue: QueueId) -> None:
        """Drop the cached runs of a queue that was deleted or whose tail was truncated.

        Not needed for a truncation that the metadata show.
        """
        self._reads.forget(queue)
        self._read_ahead.forget(queue)

    def statistics(self) -> FetcherStatistics:
        """Return counters and present sizes. O(readers)."""
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

    def cached_messages(
        self, group: str, queue: QueueId, offset: int, messages_max: int, bytes_max: int | None
    ) -> FetchResult | None:
        """Return the result of `get_message` for every tag if one cached run has it, else None.

        No request, and no other task runs meanwhile: a caller who loops yields by itself.
        """
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
        self._hits += 1
        return FetchResult(FetchStatus.FOUND, next_offset, minimum, maximum, messages)

    async def _from_tier(self, request: _Request) -> FetchResult:
        """Return the result; reads the missing runs."""
        queue, offset = request.queue, request.offset
        source = self._tier.container(queue)
        if source is None:
            self._reads.forget(queue)
            # RocketMQ's tier returns `offset` here, and its local store corrects that to 0 for its
            # clients. There is no local store here, so this returns 0.
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
        """Take runs until the cursor is done, then start a read-ahead if one is due."""
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
        """Read the run at the cursor, in the size of the group's window."""
        left = cursor.limit - cursor.at
        messages = min(cursor.messages_left, left)
        limit = stretch_end(source, cursor.at)
        is_sequential = False
        if self._options.cache_enabled:
            window = self._read_ahead.demand_messages(request.queue, request.group, request.offset)
            messages = max(messages, window)
            is_sequential = max(request.messages_max, window) >= self._options.window_step_messages
        units = messages if key.subscription is None else max(left, messages)
        end = min(limit, cursor.at + units)
        if is_sequential and key.subscription is None and self._options.verify:
            # Room for the extent in which the read would end, and then to the end of an object.
            run_max = self._options.run_messages_max
            far = min(limit, cursor.at + run_max, end + EXTENT_MESSAGES_MAX)
            end = max(end, min(limit, rounded_end(source, cursor.at, far, run_max)))
            messages = max(messages, end - cursor.at)
        return await self._reads.run_at(
            source, key, cursor.at, end, messages=messages, is_sequential=is_sequential
        )

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
