"""Reads of hot log and tier together: choice of the side, and fallback to the other."""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from container.lookup.find import KnownCoverage
from container.lookup.query import KeyQuery, QueryResult
from container.names.queue_id import QueueId
from container.queue.positions import Boundary, TimeRules, UpperPlace, upper_offset
from dispatcher.topic_filter import TopicFilter
from fetcher.fetcher import TRANSFER_BYTES_MAX
from fetcher.result import FetchStatus
from provider.errors import Closed, StoreError, Unavailable
from tieredstore.metrics.reads import Caller, ReadMeter
from tieredstore.store.cold_tier import ColdTier
from tieredstore.store.key_query import JoinedQuery, Untiered, in_tier_alone
from tieredstore.store.key_scan import query_by_scan
from tieredstore.store.levels import ANSWERS_ELSEWHERE, JoinedQueue, Level, Source, Span, who_serves
from tieredstore.store.protocol import GetMessageResult, MessageStore

TRIES = 3
"""Attempts of a read whose messages move meanwhile."""
_SERVED = (FetchStatus.FOUND, FetchStatus.NO_MATCHED_MESSAGE)

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of one `get_message`."""

    group: str
    queue: QueueId
    offset: int
    messages_max: int
    subscription: str | None
    bytes_max: int | None


class _Moment(NamedTuple):
    """The arguments of one search by time."""

    queue: QueueId
    moment_ms: int
    boundary: Boundary
    rules: TimeRules


class TieredReads:
    """Reads of both sides: the level chooses the first side.

    R1  A message that one side has is never reported as absent. If one side fails, or its message
        has just moved, the other one is read. If neither serves, the error is raised.
    R2  The next offset of a result without messages is the first offset at or after the requested
        one that any side has.
    """

    def __init__(self, inner: MessageStore, topics: TopicFilter, meter: ReadMeter) -> None:
        self._inner = inner
        self._meter = meter
        self._topics = topics
        self._known = KnownCoverage()
        self._untiered = Untiered(inner)
        self.level = Level.DISABLE
        self.cold: ColdTier | None = None
        """Open tier; None at DISABLE, while it is awaited, or if it ended before the store."""
        self.awaited: StoreError | None = None
        """Error of the tier that is awaited. Until it opens, the hot log serves alone."""
        self.counts: Counter[str] = Counter()
        """Messages served by each side, and reads that fell back to the other side."""

    def __repr__(self) -> str:
        return f"<TieredReads {self.level.name}: {dict(self.counts)}>"

    @property
    def tier(self) -> ColdTier | None:
        """Tier to read from; None at DISABLE."""
        return None if self.level is Level.DISABLE else self.cold

    @property
    def is_awaited(self) -> bool:
        """Whether a tier that was not open yet may have messages. False at DISABLE."""
        return self.awaited is not None and self.level is not Level.DISABLE

    def away(self) -> Unavailable:
        """Return the error of an awaited tier, for messages that only it may have."""
        assert self.awaited is not None, "the caller checked"
        return Unavailable(
            f"the tier is away since the store was opened: {self.awaited.reason}", self.awaited.path
        )

    def _refuse_if_ended(self) -> None:
        """Refuse to answer for a tier that was taken over or closed: R1."""
        if self.level is not Level.DISABLE and self.cold is None and self.awaited is None:
            raise Closed("the tier was closed, or another process took it", repr(self._inner))

    def is_tiered_above(self, queue: QueueId, offset: int) -> bool:
        """Whether the tier has messages at or above `offset`. False at DISABLE."""
        tier = self.tier
        span = None if tier is None else tier.span(queue)
        return span is not None and offset < span.end

    async def joined(self, queue: QueueId) -> JoinedQueue:
        """Return the current offsets of a queue on both sides; the hot log's alone at DISABLE.

        An awaited tier counts as having all messages below the hot log's first message.

        Raises:
            Closed: the tier ended, so that its content is unknown.
            Unavailable: the tier is awaited, and the hot log has no message of the queue.
        """
        self._refuse_if_ended()
        topic, queue_id = queue
        tier = self.tier
        cold = None if tier is None else tier.span(queue)  # first: moving messages are then in both
        end = await self._inner.max_offset(topic, queue_id)
        hot = Span(await self._inner.min_offset(topic, queue_id), end) if end else None
        if self.is_awaited and not self._topics.excludes(topic):
            if hot is None:
                raise self.away()
            cold = Span(0, hot.first)
        return JoinedQueue(hot, cold)

    async def min_offset(self, queue: QueueId) -> int:
        """Return the first offset that any side has.

        Raises:
            Unavailable: the tier is awaited, and may have messages below those of the hot log.
        """
        joined = await self.joined(queue)
        if self.is_awaited and joined.tier is not None and joined.tier.end:
            raise self.away()
        return joined.min_offset

    async def get(self, request: Request) -> GetMessageResult:
        """Read messages from an offset on, with the bounds of both sides together.

        Raises:
            StoreError: the message at the offset exists, and cannot be read.
        """
        if self.level is Level.DISABLE:
            return await self._from_hot(request)
        last: GetMessageResult | None = None

        async def from_hot() -> GetMessageResult | None:
            nonlocal last
            last = await self._from_hot(request)
            return last if last.status in _SERVED else None

        queue, offset = request.queue, request.offset
        caller = Caller("get_message", queue.topic, request.group)
        result = await self._served(
            caller,
            queue,
            offset,
            request.messages_max,
            from_hot,
            lambda cold: _from_tier(cold, request),
        )
        if result is not None:
            return await self._with_bounds(queue, result)
        joined = await self.joined(queue)
        if last is not None:
            is_lost = last.status is FetchStatus.MESSAGE_WAS_REMOVING and joined.hot_spans(offset)
            if is_lost or joined.tier is None:
                return last
        return joined.absent(offset)

    def _from_hot(self, request: Request) -> Awaitable[GetMessageResult]:
        return self._inner.get_message(
            request.group,
            *request.queue,
            request.offset,
            messages_max=request.messages_max,
            subscription=request.subscription,
            bytes_max=request.bytes_max,
        )

    async def _with_bounds(self, queue: QueueId, result: GetMessageResult) -> GetMessageResult:
        """Return the result with the bounds of both sides, or its own if a side fails."""
        try:
            joined = await self.joined(queue)
        except (*ANSWERS_ELSEWHERE, Closed):
            return result
        first = min(result.min_offset, joined.min_offset)
        return replace(
            result, min_offset=first, max_offset=max(result.max_offset, joined.max_offset)
        )

    async def store_time(self, queue: QueueId, offset: int) -> int | None:
        """Return the store time of one message; None if no side has it.

        Raises:
            StoreError: as `get`.
        """

        def from_hot() -> Awaitable[int | None]:
            return self._inner.message_store_time(*queue, offset)

        caller = Caller("get_time_by_offset", queue.topic)
        return await self._served(
            caller,
            queue,
            offset,
            1,
            from_hot,
            lambda cold: cold.fetcher.message_timestamp(queue, offset),
        )

    async def earliest_time(self, queue: QueueId) -> int | None:
        """Return the store time of the first message that any side has; None if there is none.

        Raises:
            StoreError: as `get`.
        """
        for _ in range(TRIES):
            joined = await self.joined(queue)
            first = joined.next_from(joined.min_offset)
            if first is None:
                return None
            found = await self.store_time(queue, first)
            if found is not None:
                return found
        raise Unavailable("messages are deleted faster than they are read", str(queue))

    async def offset_by_time(
        self, queue: QueueId, moment_ms: int, boundary: Boundary, rules: TimeRules
    ) -> int:
        """Return the offset for a time, over both sides together.

        The hot log is searched if its first message is old enough to decide. Else the tier is
        searched, then the hot log for messages that the tier lacks. If that side fails, the other
        one is searched, and both by bisection if it cannot decide alone.

        Raises:
            StoreError: as `get`.
        """
        wanted = _Moment(queue, moment_ms, boundary, rules)
        try:
            return await self._searched(wanted)
        except ANSWERS_ELSEWHERE:
            if self.tier is None:
                raise
        found = await self._decided(wanted)
        return await self._bisected(wanted) if found is None else found

    async def _searched(self, wanted: "_Moment") -> int:
        """Search the side that decides."""
        queue = wanted.queue
        for _ in range(TRIES):
            joined = await self.joined(queue)
            found, of = await self._offset_by_time(joined, *wanted)
            if self.is_awaited and joined.hot is not None and 0 < joined.hot.first >= found:
                raise self.away()
            if of is Source.TIER or joined.hot is None or joined.tier is None:
                return found
            hot = (await self.joined(queue)).hot
            if hot is None or hot.first == joined.hot.first or hot.first < found:
                return found  # else retention may have deleted the wanted message meanwhile
        raise Unavailable("messages are deleted faster than they are read", str(queue))

    async def _decided(self, wanted: "_Moment") -> int | None:
        """Search one side alone; None if it fails, or cannot decide alone."""
        queue, tier = wanted.queue, self.tier
        joined = await self.joined(queue)
        hot, tiered = joined.hot, joined.tier
        if hot is not None and hot.end == joined.max_offset:
            with suppress(*ANSWERS_ELSEWHERE):
                found = await self._inner.offset_by_time(*queue, *wanted[1:])
                now = (await self.joined(queue)).hot
                is_decided = hot.first <= joined.min_offset or found > hot.first
                if is_decided and now is not None and now.first == hot.first:
                    return found
        first = joined.min_offset
        if tier is not None and tiered is not None and tiered.first == first and not tiered.gaps:
            with suppress(*ANSWERS_ELSEWHERE):
                found = await tier.fetcher.offset_by_time(*wanted)
                last = joined.max_offset if joined.max_offset == tiered.end else tiered.end - 2
                if found is not None and found <= last:
                    return found
        return None

    async def _bisected(self, wanted: "_Moment") -> int:
        """Bisect by some log2(messages) store times, each from a side that can be read."""
        queue, moment_ms, boundary, rules = wanted
        joined = await self.joined(queue)
        low, high = joined.min_offset, joined.max_offset
        before, before_ms = None, None
        while low < high:
            middle = (low + high) // 2
            at = joined.next_from(middle)
            if at is None or at >= high:
                high = middle
                continue
            time = await self.store_time(queue, at)
            if (
                time is None
                or time < moment_ms
                or (time == moment_ms and boundary is Boundary.UPPER)
            ):
                low, before, before_ms = at + 1, at, time
            else:
                high = middle
        after = joined.next_from(low)
        after = joined.max_offset if after is None else after
        if boundary is Boundary.LOWER:
            return after
        before = None if before_ms is None else before
        place = UpperPlace(before, before_ms == moment_ms, after)
        return upper_offset(place, rules, min_offset=joined.min_offset)

    async def _offset_by_time(
        self,
        joined: JoinedQueue,
        queue: QueueId,
        moment_ms: int,
        boundary: Boundary,
        rules: TimeRules,
    ) -> tuple[int, Source]:
        """Return an offset and the side that found it.

        Valid while the hot log keeps `joined.hot`.
        """
        tier, inner, began_ms = self.tier, self._inner, None
        if tier is None or joined.tier is None or joined.hot is None:
            decides = joined.tier is None or tier is None
        elif not (decides := joined.tier.first >= joined.hot.first):
            began_ms = await inner.earliest_message_time(*queue)
            decides = began_ms is not None and (
                began_ms < moment_ms if boundary is Boundary.LOWER else began_ms <= moment_ms
            )
        if decides or tier is None or joined.tier is None:
            found = await inner.offset_by_time(*queue, moment_ms, boundary, rules)
            return found, Source.HOT
        asked = tier.fetcher.offset_by_time(queue, moment_ms, boundary, rules)
        tiered = await self._meter.timed(Caller("get_offset_by_time", queue.topic), asked)
        span = tier.span(queue)
        if tiered is not None and joined.hot is not None and began_ms is not None:
            tiered = min(tiered, joined.hot.first)  # late enough, and possibly in a gap
        if tiered is not None and (span is None or tiered < span.end or joined.hot is None):
            return tiered, Source.TIER
        after = await inner.offset_by_time(*queue, moment_ms, boundary, rules)
        return max(tiered or 0, after), Source.HOT

    async def query(self, query: KeyQuery) -> QueryResult:
        """Return messages with a key in hot log and tier, each once.

        If one side fails, the result is that of the other one, and incomplete. So is that of the
        hot log alone (DISABLE, a tier that is away) if the tier may have more messages.

        Raises:
            StoreError: both sides fail.
        """
        self._refuse_if_ended()
        cold = self.tier
        if not query.key or query.messages_max < 1:
            return QueryResult((), is_complete=True)
        if cold is None:
            return await self._by_hot_log(query)
        caller = Caller("query_message", query.topic)

        def find() -> Awaitable[QueryResult]:
            return self._meter.timed(caller, cold.find(query, self._known))

        return await JoinedQuery(self._inner, self._untiered, cold, query).answer(find)

    async def _by_hot_log(self, query: KeyQuery) -> QueryResult:
        found = await query_by_scan(self._inner, query)
        if self._topics.excludes(query.topic):
            return found
        if self.is_awaited:
            damage = (*found.damage, self.away())
            return found._replace(is_complete=False, damage=damage)
        alone = await in_tier_alone(self._inner, self.cold, query.topic)
        is_complete = found.is_complete and not alone
        return found._replace(is_complete=is_complete, unsearched=found.unsearched + alone)

    async def _served(  # noqa: PLR0917 - caller, request, and both sides
        self,
        caller: Caller,
        queue: QueueId,
        offset: int,
        messages: int,
        from_hot: Callable[[], Awaitable[AnswerT | None]],
        from_tier: Callable[[ColdTier], Awaitable[AnswerT | None]],
    ) -> AnswerT | None:
        """Return the result of the first side that has one; None if no side has the message: R1."""
        for _ in range(TRIES):
            failed: StoreError | None = None
            is_lacking = False
            first = await self._source(queue, offset, messages)
            other = Source.HOT if first is Source.TIER else Source.TIER
            for source in (first, other):
                cold = self.tier
                if source is other and not await self._has(source, queue, offset):
                    continue
                try:
                    if source is Source.HOT:
                        answer = await from_hot()
                        is_lacking = answer is None
                    else:
                        answer = None
                        if cold is not None:
                            answer = await self._meter.timed(caller, from_tier(cold))
                except ANSWERS_ELSEWHERE as error:
                    failed = failed or error
                    continue
                if answer is not None:
                    is_fallback = source is other and failed is not None
                    self._count(caller, source, answer, is_fallback=is_fallback)
                    return answer
            if await self._is_absent(queue, offset, is_lacking=is_lacking and failed is None):
                return None
            if failed is not None:
                raise failed
        raise self._unserved(queue, offset)

    def _unserved(self, queue: QueueId, offset: int) -> Unavailable:
        """Return the error for a message that no side served although one may have it."""
        if self.is_awaited:
            return self.away()
        return Unavailable("the message moves faster than it is read", str(queue), offset)

    async def _is_absent(self, queue: QueueId, offset: int, *, is_lacking: bool) -> bool:
        """Whether no side has a message.

        `is_lacking`: the hot log did not have it, and the tier served none. If its offset lies
        within the hot log, a repair gave it up, for retention deletes only below the first message.
        """
        joined = await self.joined(queue)
        is_given_up = is_lacking and joined.hot_spans(offset) and not self.is_awaited
        return joined.next_from(offset) != offset or is_given_up

    async def _source(self, queue: QueueId, offset: int, messages: int) -> Source:
        """Choose the first side to read, by the level."""
        tier = self.tier
        span = None if tier is None else tier.span(queue)
        commit = None if span is None else span.end
        is_filtered = self._topics.excludes(queue.topic)
        source = who_serves(self.level, offset, commit, is_filtered=is_filtered)
        if source is Source.ASK_STORE:
            in_store = await self._has(Source.HOT, queue, offset)
            source = who_serves(self.level, offset, commit, in_store=in_store)
        if source is Source.ASK_MEMORY:
            try:
                in_memory = await self._inner.is_in_memory(*queue, offset, messages)
            except ANSWERS_ELSEWHERE:
                in_memory = False  # the tier has the message
            source = who_serves(self.level, offset, commit, in_store=True, in_memory=in_memory)
        return Source.HOT if source is Source.ASK_MEMORY else source

    async def _has(self, source: Source, queue: QueueId, offset: int) -> bool:
        tier = self.tier
        span = None if tier is None else tier.span(queue)
        is_tiered = span is not None and span.has(offset)
        if source is Source.TIER:
            return is_tiered
        try:
            return await self._inner.is_in_store(*queue, offset)
        except ANSWERS_ELSEWHERE:
            if is_tiered:
                return False  # a hot log that fails here serves nothing
            raise

    def _count(self, caller: Caller, source: Source, answer: object, *, is_fallback: bool) -> None:
        side = "hot" if source is Source.HOT else "tier"
        if isinstance(answer, GetMessageResult):
            self.counts[f"messages_from_{side}"] += len(answer.messages)
            if source is Source.TIER:
                self._meter.gave(caller, len(answer.messages))
        if is_fallback:
            self.counts[f"fallbacks_to_{side}"] += 1
            if source is Source.HOT:
                self._meter.fell_back(caller)


async def _from_tier(cold: ColdTier, request: Request) -> GetMessageResult | None:
    """Read from the tier; None if it does not have the message."""
    topic, queue_id = request.queue
    bytes_max = request.bytes_max
    result = await cold.fetcher.get_message(
        request.group,
        topic,
        queue_id,
        request.offset,
        messages_max=request.messages_max,
        subscription=request.subscription,
        bytes_max=TRANSFER_BYTES_MAX if bytes_max is None else min(bytes_max, TRANSFER_BYTES_MAX),
        exact_tags=True,
    )
    if result.status not in _SERVED:
        return None
    messages = list(result.messages.decode())
    status, following = result.status, int(result.next_offset)
    span = cold.span(request.queue)
    for gap in span.gaps if span is not None and request.subscription else ():
        if request.offset < gap.start < following:  # the hot log may have these
            following = gap.start
            messages = [one for one in messages if one.queue_offset < following]
            status = FetchStatus.FOUND if messages else FetchStatus.NO_MATCHED_MESSAGE
            break
    return GetMessageResult(status, following, result.min_offset, result.max_offset, messages)
