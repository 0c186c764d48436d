"""Message browser: messages of a queue from an offset or time on, or of a topic by key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from container.names.rocketmq import INT64_MAX
from provider.clock import Clock
from provider.errors import Corrupt
from tieredstore.message import Message
from tieredstore.metrics.summary import QueueSummary
from tieredstore.reader.cursor import messages_of, parse_moment
from tieredstore.reader.readable_tier import ReadableTier

ROWS = 50
SEARCH_S_MAX = 3.0
"""Seconds after which a search for a tag ends; the next page continues it."""
KEY_SCAN_BYTES_MAX = 32 << 20
"""Bytes of messages that no index has yet, of a search for a key."""
NOTES_MAX = 20


@dataclass(frozen=True, slots=True)
class Query:
    """Selection of messages."""

    topic: str
    queue_id: int
    offset: int | None
    since_ms: int | None
    since: str
    key: str
    tag: str
    rows: int = ROWS

    @classmethod
    def of(cls, given: Mapping[str, str], queues: Sequence[QueueSummary], now_ms: int) -> Self:
        """Parse the parameters of a request; without a queue, it is the first one.

        Raises:
            ValueError: a parameter is wrong; names it.
        """
        texts = {name: value.strip() for name, value in given.items()}
        number = _number(texts, "queue")
        queue = next((one for one in queues if number in {None, one.queue_id}), None)
        if queue is None:
            raise ValueError(f"the topic has no queue {number}")
        offset = _number(texts, "offset")
        if offset is not None:
            offset = min(max(offset, queue.min_offset), queue.max_offset)
        since = texts.get("since", "")
        return cls(
            queue.topic,
            queue.queue_id,
            offset,
            parse_moment(since, now_ms=now_ms) if since else None,
            since,
            texts.get("key", ""),
            texts.get("tag", ""),
        )

    def moved(self, offset: int) -> dict[str, object]:
        """Return the parameters of the page at another offset."""
        tag = {"tag": self.tag} if self.tag else {}
        return {"queue": self.queue_id, "offset": offset, **tag}


@dataclass(slots=True)
class Found:
    """Messages of a page."""

    messages: list[Message] = field(default_factory=list[Message])
    notes: list[str] = field(default_factory=list[str])
    """Damage, losses and limits of the search, in sentences."""
    first_offset: int = 0
    next_offset: int | None = None
    """First offset of the next page; None: this is the last one."""


async def browse(tier: ReadableTier, query: Query, clock: Clock) -> Found:
    """Find the messages of a page.

    Raises:
        NotFound, Unavailable, Corrupt: as `ReadableTier.messages`.
    """
    if query.key:
        return await _by_key(tier, query)
    found = Found()

    def damaged(queue: object, offset: int, error: Corrupt) -> None:
        if len(found.notes) < NOTES_MAX:
            found.notes.append(f"{queue} {offset} is damaged and left out: {error}")

    end = tier.queue(query.topic, query.queue_id).max_offset
    cursor = tier.results(
        query.topic,
        query.queue_id,
        query.offset,
        since=None if query.offset is not None else query.since_ms,
        tags=query.tag or None,
        messages_max=query.rows,
        on_damage=damaged,
        on_gap=lambda _, gap: found.notes.append(
            f"offsets {gap.start} to {gap.end - 1} were lost: {gap.reason}"
        ),
    )
    found.first_offset = cursor.offset
    stop_s = clock.monotonic_s() + SEARCH_S_MAX
    async for result in cursor:
        found.messages += messages_of(result.messages, cursor.queue, damaged)
        if len(found.messages) >= query.rows or clock.monotonic_s() >= stop_s:
            break
    if query.offset is None and found.messages:
        found.first_offset = found.messages[0].offset
    if cursor.offset < end:
        found.next_offset = cursor.offset
        if len(found.messages) < query.rows:
            found.notes.append(f"searched to offset {cursor.offset}: the next page continues")
    return found


async def _by_key(tier: ReadableTier, query: Query) -> Found:
    result = await tier.query_message(
        query.topic,
        query.key,
        messages_max=query.rows,
        since=query.since_ms,
        scan_bytes_max=KEY_SCAN_BYTES_MAX,
    )
    found = Found(notes=[f"a message may be missing: {one}" for one in result.damage[:NOTES_MAX]])
    for stored in result.messages:
        try:
            found.messages.append(Message.of(stored, path=query.topic))
        except Corrupt as error:
            found.notes.append(str(error))
    if result.unsearched:
        found.notes.append(
            f"{result.unsearched} messages are in no index yet and were not searched"
        )
    elif len(found.messages) == query.rows and not result.is_complete:
        found.notes.append(f"the newest {query.rows} are shown: give a time to see others")
    return found


def _number(texts: Mapping[str, str], name: str) -> int | None:
    text = texts.get(name, "")
    if not text:
        return None
    number = number_of(text)
    if number < 0:
        raise ValueError(f"{name} is no offset and no number of a queue")
    return number


def number_of(text: str) -> int:
    """The number that a parameter of an address states, below 10^18; -1 if it states none."""
    stated = text.isascii() and text.isdecimal() and len(text) < len(str(INT64_MAX))
    return int(text) if stated else -1
