"""Cursors over a queue or topic: large steps from an offset or time, over gaps and damage."""

import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heapreplace
from itertools import chain
from numbers import Real
from typing import Self, TypeVar

import numpy as np

from container.metadata.records import Gap, gaps_between
from container.names.queue_id import QueueId, whole_number
from container.names.rocketmq import INT64_MAX
from fetcher.fetcher import TieredMessageFetcher
from fetcher.result import FetchedMessages, FetchResult, FetchStatus, Selection
from fetcher.source import TierQueue
from fetcher.tag_filter import parse_subscription
from provider.errors import Corrupt, NotFound
from tieredstore.message import Message, messages_in

Moment = datetime | int
"""A time: a datetime with its time zone, or Unix ms."""
OnDamage = Callable[[QueueId, int, Corrupt], None]
"""Callback for queue, offset and cause of a damaged message, which is then skipped."""
OnGap = Callable[[QueueId, Gap], None]
"""Callback for messages that were lost before they could be tiered, when a read skips them."""

ItemT = TypeVar("ItemT")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Selection of messages, with the arguments of `ReadableTier.messages`."""

    offset: int | None = None
    """First queue offset; None: the oldest."""
    messages_max: int | None = None
    """Messages at most, over all queues; None: to the end."""
    tags: str | None = None
    since_ms: int | None = None
    """Stored at this time or later, Unix ms."""
    until_ms: int | None = None
    """Stored before this time, Unix ms."""
    on_damage: OnDamage | None = None
    on_gap: OnGap | None = None

    @classmethod
    def of(  # noqa: PLR0917 - in the order that the arguments of `messages` have
        cls,
        offset: int | None,
        messages_max: int | None,
        tags: str | None,
        since: Moment | None,
        until: Moment | None,
        on_damage: OnDamage | None,
        on_gap: OnGap | None,
    ) -> Self:
        """Validate the arguments of `ReadableTier.messages`.

        Raises:
            ValueError: as `moment_ms` and `parse_subscription`, or `messages_max` is negative.
        """
        parse_subscription(tags)
        if messages_max is not None and messages_max < 0:
            raise ValueError(f"messages_max is negative: {messages_max}")
        return cls(
            offset=offset,
            messages_max=messages_max,
            tags=tags,
            since_ms=None if since is None else moment_ms(since),
            until_ms=None if until is None else moment_ms(until),
            on_damage=on_damage,
            on_gap=on_gap,
        )


def moment_ms(moment: Moment) -> int:
    """A time in Unix ms, the first that is not before it.

    Raises:
        ValueError: the datetime has no time zone, or this is no time.
    """
    if not isinstance(moment, datetime):
        if isinstance(moment, Real):  # numpy's, too
            return moment
        raise ValueError(f"{moment!r} is no time: give a datetime or Unix ms")
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: give one, such as datetime.UTC")
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def whole_ms(name: str, moment: Moment) -> int:
    """A time in Unix ms, where a number must be a whole one.

    Raises:
        ValueError: the datetime has no time zone, or the number another type; names the argument.
    """
    return moment_ms(moment) if isinstance(moment, datetime) else whole_number(name, moment)


GROUP = "tieredstore"
"""Consumer group for read-ahead if the caller names none."""
FETCH_MESSAGES_MAX = 4096


class QueueCursor:
    """Goes through a queue in large steps: `async for result in cursor`. Nothing is to be closed.

    Each step is one fetch that advanced; a step over a gap or over messages of other tags may hold
    no message. Ends at the queue's end as it was published when the tier was opened or refreshed.
    After an error the next step tries again at `offset`, which may be set.
    """

    def __init__(
        self, fetcher: TieredMessageFetcher, source: TierQueue, wanted: Wanted, *, bytes_max: int
    ) -> None:
        """`bytes_max`: a step ends with the message that reaches it."""
        self.queue: QueueId = source.id
        self.offset: int = source.min_offset if wanted.offset is None else wanted.offset
        """Queue offset of the next step. Times become offsets in the first step, not before."""
        self._first = self.offset
        self._fetcher = fetcher
        self._source = source
        self._wanted = wanted
        self._left = INT64_MAX if wanted.messages_max is None else wanted.messages_max
        self._end = INT64_MAX
        self._bytes_max = bytes_max
        self._has_begun = False
        # A damaged unit has no reliable tag, so a cursor that skips damage reads the records.
        subscription = parse_subscription(wanted.tags)
        self._tags_here = None if wanted.on_damage is None else subscription

    def __repr__(self) -> str:
        return f"<QueueCursor {self.queue} at {self.offset}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FetchResult:
        """Return the messages of the next step.

        Raises:
            NotFound: the queue ends before the first offset.
            Unavailable, Corrupt, OutOfRange, Closed: as `ReadableTier.get_message`.
        """
        if not self._has_begun:
            await self._seek()
        while self._left > 0 and self.offset < self._end:
            try:
                return await self._step()
            except Corrupt as error:
                if self._wanted.on_damage is None:
                    raise
                self._wanted.on_damage(self.queue, self.offset, error)
                self.offset += 1
        raise StopAsyncIteration

    async def _seek(self) -> None:
        """Resolve the requested times to offsets."""
        wanted = self._wanted
        if wanted.since_ms is not None:
            self.offset = max(self.offset, await self._place(wanted.since_ms))
        if wanted.until_ms is not None:
            self._end = await self._place(wanted.until_ms)
        self._has_begun = True

    async def _place(self, moment_ms: int) -> int:
        """The first offset stored at a time or later; a gap right before it may be, too."""
        found = await self._fetcher.offset_by_time(self.queue, moment_ms)
        if found is None:
            return self._source.min_offset
        starts = (gap.start for gap in self._source.gaps if gap.end == found)
        return max(self._source.min_offset, next(starts, found))

    async def _step(self) -> FetchResult:
        began = self.offset
        result = await self._fetcher.get_message(
            GROUP,
            *self.queue,
            began,
            messages_max=min(self._left, FETCH_MESSAGES_MAX, self._end - began),
            subscription=None if self._tags_here is not None else self._wanted.tags,
            bytes_max=self._bytes_max,
            exact_tags=True,
        )
        if result.status is FetchStatus.OFFSET_OVERFLOW_BADLY and began == self._first:
            raise NotFound(
                f"offset {began} lies past the end, {result.max_offset}: choose one in "
                f"[{result.min_offset}, {result.max_offset})",
                str(self.queue),
            )
        if result.next_offset <= began:
            raise StopAsyncIteration
        messages = result.messages
        if result.next_offset > self._end:
            messages = _before(messages, self._end)
        if self._tags_here is not None:
            messages = _with_tags(messages, self._tags_here.tags)
        self._left -= len(messages)
        self.offset = min(result.next_offset, self._end)
        if self._wanted.on_gap is not None:
            for gap in gaps_between(self._source.gaps, began, self.offset):
                self._wanted.on_gap(self.queue, gap)
        if messages is result.messages:
            return result
        return FetchResult(
            result.status, result.next_offset, result.min_offset, result.max_offset, messages
        )


def messages_of(
    messages: FetchedMessages, queue: QueueId, on_damage: OnDamage | None
) -> Iterator[Message]:
    """Iterate over the messages of a step, each decoded on demand.

    Raises:
        Corrupt: while iterating, without `on_damage`: a body cannot be decompressed, or a record
            contradicts the format.
    """
    path = str(queue)
    if on_damage is None:
        return chain.from_iterable(
            messages_in(part.run.decoder, part.picked, path=path) for part in messages.selections
        )
    return _past_damage(messages, queue, on_damage)


def _past_damage(
    messages: FetchedMessages, queue: QueueId, on_damage: OnDamage
) -> Iterator[Message]:
    for offset, raw in zip(messages.offsets.tolist(), messages, strict=True):
        try:
            yield Message.decode(raw, path=str(queue))
        except Corrupt as error:
            on_damage(queue, offset, error)


def _before(messages: FetchedMessages, end: int) -> FetchedMessages:
    """Keep the messages below the offset `end`."""
    parts: list[Selection] = []
    count = 0
    for part in messages.selections:
        keep = int(np.searchsorted(part.run.offsets[part.picked], end))
        if keep and part.indices is None:
            parts.append(part._replace(stop=part.start + keep))
        elif keep and part.indices is not None:
            parts.append(part._replace(indices=part.indices[:keep]))
        count += keep
    return FetchedMessages(tuple(parts), count)


def _with_tags(messages: FetchedMessages, tags: frozenset[str]) -> FetchedMessages:
    """Keep the messages whose records have a tag of `tags`. Costs about 1 us a message."""
    parts: list[Selection] = []
    count = 0
    for part in messages.selections:
        places = np.arange(len(part.run))[part.picked]
        fits = [message.tags in tags for message in part.run.decode(part.picked)]
        indices = places[np.array(fits, np.bool_)]
        if len(indices):
            parts.append(Selection(part.run, 0, 0, indices))
        count += len(indices)
    return FetchedMessages(tuple(parts), count)


MERGE_BYTES_MAX = 32 << 20
"""Bytes of records that a merge holds, over all queues."""
MERGE_STEP_BYTES_MIN = 16 << 10
"""Bytes that one step of a queue reads in a merge, however many queues there are."""
CHUNK_MESSAGES_MAX = 1024
"""Messages that a merge gives at once."""

CursorOf = Callable[[QueueId, Wanted, int | None], QueueCursor]
"""Opens a cursor for a queue, a selection, and the bytes of a step at most (None: default)."""


async def queue_by_queue(
    cursor_of: CursorOf, queues: Sequence[QueueId], wanted: Wanted
) -> AsyncIterator[Iterable[Message]]:
    """All of one queue, then of the next; each item are the messages of one fetch, made lazily."""
    left = wanted.messages_max
    for queue in queues:
        if left is not None and left <= 0:
            return
        async for result in cursor_of(queue, replace(wanted, messages_max=left), None):
            if left is not None:
                left -= len(result.messages)
            if len(result.messages):
                yield messages_of(result.messages, queue, wanted.on_damage)


async def by_store_time(
    cursor_of: CursorOf, queues: Sequence[QueueId], wanted: Wanted
) -> AsyncIterator[Iterable[Message]]:
    """All queues merged by store time, some messages at a time.

    The order within a queue stays, so times are not in order after a broker's clock was set back.
    Of messages with the same time those of the lower queue come first. Holds
    `MERGE_BYTES_MAX`, or `MERGE_STEP_BYTES_MIN` or a message for each queue if that is more.
    """
    share = max(MERGE_STEP_BYTES_MIN, MERGE_BYTES_MAX // max(1, len(queues)))
    sources = [_Source(cursor_of(queue, wanted, share), wanted) for queue in queues]
    heads = [
        (source.messages[0].store_timestamp, number)
        for number, source in enumerate(sources)
        if await source.fill()
    ]
    heapify(heads)
    left = wanted.messages_max
    chunk: list[Message] = []
    while heads and (left is None or left > 0):
        _, number = heads[0]
        source = sources[number]
        chunk.append(source.messages.popleft())
        if left is not None:
            left -= 1
        if len(chunk) == CHUNK_MESSAGES_MAX:
            yield chunk
            chunk = []
        if await source.fill():
            heapreplace(heads, (source.messages[0].store_timestamp, number))
        else:
            heappop(heads)
    if chunk:
        yield chunk


async def one_by_one(chunks: AsyncIterator[Iterable[ItemT]]) -> AsyncIterator[ItemT]:
    """The items of all chunks."""
    async for chunk in chunks:
        for item in chunk:
            yield item


class _Source:
    """A queue of a merge. Its messages are copies, so they keep no run of the cache alive."""

    def __init__(self, cursor: QueueCursor, wanted: Wanted) -> None:
        self.messages: deque[Message] = deque()
        self._cursor = cursor
        self._wanted = wanted

    async def fill(self) -> bool:
        """Read on if there is no message at hand; False at the end."""
        while not self.messages:
            result = await anext(self._cursor, None)
            if result is None:
                return False
            self.messages.extend(
                messages_of(result.messages, self._cursor.queue, self._wanted.on_damage)
            )
        return True


_SPAN = re.compile(r"-?([0-9]{1,9})(s|m|h|d|w)", re.ASCII)
_SPAN_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNIX_MS = re.compile(r"[0-9]{11,14}", re.ASCII)
FORMS = "write 2026-11-21T12:00:00Z, 2h (ago) or Unix milliseconds"


def parse_moment(text: str, *, now_ms: int) -> int:
    """A time in Unix ms: `2026-11-21`, `2026-11-21T12:00+08:00`, `90s`, `1764000000000`.

    `90s` and `-90s` are 90 seconds before now.

    A time without a time zone is in UTC, as all times that commands print.

    Raises:
        ValueError: it is none of these; the message lists the forms.
    """
    if span := _SPAN.fullmatch(text):
        return now_ms - int(span[1]) * _SPAN_MS[span[2]]
    if _UNIX_MS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no time: {FORMS}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment_ms(moment)


def is_span(text: str) -> bool:
    """Whether a text is a span before now, such as `2h` or `-2h`."""
    return _SPAN.fullmatch(text) is not None
