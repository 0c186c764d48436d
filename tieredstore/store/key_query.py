"""Key queries over hot log and tier together, with the backlog scanned."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from container.lookup.query import Found, KeyQuery, QueryResult
from container.metadata.coverage import Span, count, merged, readable, without
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from provider.errors import StoreError
from tieredstore.store.cold_tier import ColdTier
from tieredstore.store.key_scan import scan_for_key
from tieredstore.store.levels import ANSWERS_ELSEWHERE
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.protocol import MessageStore

TOPICS_MAX = 64
"""Maximum of cached topics."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Cached spans, and the tier state and hot log revision for which they hold."""

    state: TierState
    sequence: int
    revision: int
    spans: Mapping[int, Sequence[Span]]


class Untiered:
    """Offsets that the tier lacks and the hot log may have, by topic.

    They are the offsets from the tier's end on, those below the tier's first offset, and its gaps.
    """

    def __init__(self, inner: MessageStore) -> None:
        self._inner = inner
        self._known: dict[str, _Known] = {}

    def __repr__(self) -> str:
        return f"<Untiered of {self._inner!r}: {len(self._known)} topics>"

    async def spans(self, topic: str, cold: ColdTier) -> Mapping[int, Sequence[Span]]:
        """Return the offsets that the tier lacks, by queue. Queues without any are omitted.

        O(1) if nothing was put or tiered since the last call. Else O(queues), some 0.3 us each
        without plug-ins around the hot log.
        """
        found = self.spans_at_once(topic, cold)
        return await self._asked(topic, cold) if found is None else found

    def spans_at_once(self, topic: str, cold: ColdTier) -> Mapping[int, Sequence[Span]] | None:
        """As `spans`. None with plug-ins around the hot log."""
        inner, state = self._inner, cold.tier.state
        if not isinstance(inner, LocalMessageStore):
            return None
        log = inner.log
        known, revision = self._known.get(topic), log.revision
        if (
            known is not None
            and known.state is state
            and (known.sequence, known.revision) == (state.sequence, revision)
        ):
            return known.spans
        found: dict[int, Sequence[Span]] = {}
        for queue_id in inner.queue_ids(topic):
            queue = QueueId(topic, queue_id)
            if spans := _lacking(state, queue, log.end_offset(queue)):
                found[queue_id] = spans
        self._known.pop(topic, None)
        if len(self._known) >= TOPICS_MAX:
            del self._known[next(iter(self._known))]
        self._known[topic] = _Known(state, state.sequence, revision, found)
        return found

    async def _asked(self, topic: str, cold: ColdTier) -> Mapping[int, Sequence[Span]]:
        found: dict[int, Sequence[Span]] = {}
        state = cold.tier.state
        for queue_id in self._inner.queue_ids(topic):
            queue = QueueId(topic, queue_id)
            end = await self._inner.max_offset(*queue)
            if spans := _lacking(state, queue, end):
                found[queue_id] = spans
        return found


def _lacking(state: TierState, queue: QueueId, end: int) -> Sequence[Span]:
    """Return the offsets below the hot log's `end` that the tier lacks."""
    record = state.queues.get(queue)
    if record is None:
        return without([(0, end)], ())
    if record.next_offset >= end and not (record.min_offset or record.gaps):
        return ()
    return without([(0, end)], readable(record))


async def in_tier_alone(inner: MessageStore, cold: ColdTier | None, topic: str) -> int:
    """Return the number of messages of a topic below or above those of the hot log.

    `cold`: the tier that has them. None: a tier that is not open may have any below the hot log's.
    """
    if cold is None:
        return sum([await inner.min_offset(topic, one) for one in inner.queue_ids(topic)])
    total = 0
    for record in cold.tier.state.queues.of_topic(topic):
        place = topic, record.id.queue_id
        hot = await inner.min_offset(*place), await inner.max_offset(*place)
        total += count(without(readable(record), [hot]))
    return total


_ALL: Sequence[Span] = ((0, 1 << 62),)


class JoinedQuery:
    """Key query over both sides, each message once. Used for one query.

    The hot log is scanned for the offsets that the tier lacks. If the tier fails or is damaged, the
    rest of the hot log is scanned, too, and the result is incomplete.
    """

    def __init__(
        self, inner: MessageStore, untiered: Untiered, cold: ColdTier, query: KeyQuery
    ) -> None:
        self._inner = inner
        self._untiered = untiered
        self._cold = cold
        self._query = query
        self._found = Found(query)
        self._scanned: dict[int, Sequence[Span]] = {}
        self._unsearched = 0
        self._damage: list[StoreError] = []

    def __repr__(self) -> str:
        return f"<JoinedQuery {self._query}>"

    async def answer(self, find: Callable[[], Awaitable[QueryResult]]) -> QueryResult:
        """Scan the hot log, then await `find`, the result of the tier.

        Raises:
            StoreError: both sides fail.
        """
        failed: StoreError | None = None
        try:  # Hot log first: messages that it deletes meanwhile are in the tier's later result.
            if not self._is_all_tiered():
                await self._scan(await self._untiered.spans(self._query.topic, self._cold))
        except ANSWERS_ELSEWHERE as error:
            failed = error
            self._damage.append(error)
        try:
            tiered = await find()
        except ANSWERS_ELSEWHERE as error:
            if failed is not None:
                raise failed from error
            await self._without_tier()
            self._damage.append(error)
        else:
            if tiered.is_complete and not self._scanned and self._is_all_tiered():
                return tiered
            for message in tiered.messages:
                self._found.add(message)
            self._unsearched += tiered.unsearched
            if failed is None:
                await self._recheck(is_damaged=bool(tiered.damage))
            self._damage += tiered.damage
            if not (tiered.is_complete or tiered.damage or tiered.unsearched):
                self._found.cut = True
        messages = self._found.messages()
        is_complete = not (self._found.cut or self._unsearched or self._damage)
        return QueryResult(messages, is_complete, self._unsearched, tuple(self._damage))

    def _is_all_tiered(self) -> bool:
        """Whether the hot log is known to have nothing that the tier lacks. Waits for nothing."""
        spans = self._untiered.spans_at_once(self._query.topic, self._cold)
        return spans is not None and not spans

    async def _recheck(self, *, is_damaged: bool) -> None:
        """Scan messages that the tier dropped meanwhile; all of the hot log if it is damaged."""
        topic = self._query.topic
        try:
            await self._scan(await self._untiered.spans(topic, self._cold))
            if is_damaged:
                await self._scan(dict.fromkeys(self._inner.queue_ids(topic), _ALL))
        except ANSWERS_ELSEWHERE as error:
            self._damage.append(error)

    async def _without_tier(self) -> None:
        """Scan all of the hot log, and count the messages that the tier alone has."""
        topic = self._query.topic
        await self._scan(dict.fromkeys(self._inner.queue_ids(topic), _ALL))
        self._unsearched += await in_tier_alone(self._inner, self._cold, topic)

    async def _scan(self, spans: Mapping[int, Sequence[Span]]) -> None:
        """Scan the hot log within `spans`, without offsets scanned before."""
        rest: dict[int, Sequence[Span]] = {}
        for queue_id, some in spans.items():
            before = self._scanned.get(queue_id, ())
            if new := without(some, before):
                rest[queue_id] = new
                self._scanned[queue_id] = merged([*before, *some])
        if rest:
            scan = await scan_for_key(self._inner, self._query, self._found, spans=rest)
            self._unsearched += scan.unsearched
            self._damage += scan.damage
