"""One key query over hot log and tier together."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from container.lookup.coverage import Span, count, merged, readable, without
from container.lookup.query import Found, KeyQuery, QueryResult
from provider.errors import StoreError
from tieredstore.store.cold_side import ColdSide
from tieredstore.store.joined import ANSWERS_ELSEWHERE
from tieredstore.store.key_scan import scan_for_key
from tieredstore.store.protocol import MessageStore
from tieredstore.store.untiered import Untiered

_ALL: Sequence[Span] = ((0, 1 << 62),)


class JoinedQuery:
    """The messages of both sides with a key, each once. Used for one query.

    The hot log is scanned for the offsets that the tier lacks. Where the tier fails or is damaged,
    the rest of the hot log is scanned, too, and the answer is incomplete.
    """

    def __init__(
        self, inner: MessageStore, untiered: Untiered, cold: ColdSide, query: KeyQuery
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
        """Scan the hot log, then await `find`, the answer of the tier.

        Raises:
            StoreError: both sides fail.
        """
        failed: StoreError | None = None
        try:  # The hot log first: what it deletes meanwhile is in the tier before it is asked.
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

    async def _recheck(self, *, is_damaged: bool) -> None:
        """Scan what the tier dropped while it was asked; all of the hot log if it is damaged."""
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
        for record in self._cold.tier.state.queues.of_topic(topic):
            place = topic, record.id.queue_id
            hot = await self._inner.min_offset(*place), await self._inner.max_offset(*place)
            self._unsearched += count(without(readable(record), [hot]))

    async def _scan(self, spans: Mapping[int, Sequence[Span]]) -> None:
        """Scan the hot log within `spans`, but for what was scanned already."""
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
