"""Message browser: messages of a queue from an offset or time on, or of a topic by key."""

import json
import re
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
from tieredstore.texts import escaped

TEXT, JSON, HEX = "text", "json", "hex"
TEXT_BYTES_MAX = 64 << 10
"""Bytes of a body that a page shows as text or JSON."""
HEX_BYTES_MAX = 16 << 10
HEX_WIDTH = 16
UTF8_BYTES_MAX = 4
DEPTH_SHOWN_MAX = 40
"""Depth of JSON from which on lines are no longer indented further."""
PREVIEW_BYTES = 160
INDENT = "  "
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(frozen=True, slots=True)
class ShownBody:
    """Body of a message in one form."""

    form: str
    text: str
    forms: tuple[str, ...]
    """Forms that the body has."""
    size: int
    is_cut: bool


def shown_body(body: bytes, form: str | None) -> ShownBody:
    """Show a body; without a form, or with one that it does not have, in the most readable."""
    text = _decoded(body[:TEXT_BYTES_MAX], is_cut=len(body) > TEXT_BYTES_MAX)
    as_json = _json_text(text) if text is not None and len(body) <= TEXT_BYTES_MAX else None
    forms = ((JSON,) if as_json is not None else ()) + ((TEXT,) if text is not None else ())
    forms = (*forms, HEX)
    chosen = form if form in forms else forms[0]
    if chosen == JSON and as_json is not None:
        return ShownBody(JSON, visible(as_json), forms, len(body), is_cut=False)
    if chosen == TEXT and text is not None:
        return ShownBody(TEXT, visible(text), forms, len(body), len(body) > TEXT_BYTES_MAX)
    return ShownBody(HEX, _hex(body[:HEX_BYTES_MAX]), forms, len(body), len(body) > HEX_BYTES_MAX)


def preview(body: bytes) -> str:
    """Begin of a body in one line; "" if it is no text."""
    text = _decoded(body[:PREVIEW_BYTES], is_cut=len(body) > PREVIEW_BYTES)
    return "" if text is None else visible(" ".join(text.split()))


def visible(text: str) -> str:
    r"""Text with escapes (`\x1b`, `\u202e`) for what is not printable, but for line ends and tabs.

    Marks that change the direction of text cannot hide what a message has.
    """
    return escaped(text.replace("\r\n", "\n"), kept="\n\t")


def _decoded(body: bytes, *, is_cut: bool) -> str | None:
    """The text of a body; None if it is none. A cut may divide the last character."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.start >= len(body) - UTF8_BYTES_MAX:
            return body[: error.start].decode()
        return None


def _json_text(text: str) -> str | None:
    """Indented JSON with every token as it was; None if the text is no object and no array."""
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    parts, depth, before = list[str](), 0, ""
    for word in _TOKEN.findall(text):
        if word in {"}", "]"}:
            depth -= 1
        opens = before in {"{", "["}
        closes = word in {"}", "]"}
        if before and ((opens and not closes) or (closes and not opens) or before == ","):
            parts.append("\n" + INDENT * min(depth, DEPTH_SHOWN_MAX))
        parts.append(": " if word == ":" else word)
        if word in {"{", "["}:
            depth += 1
        before = word
    return "".join(parts)


def _hex(body: bytes) -> str:
    lines = list[str]()
    for at in range(0, len(body), HEX_WIDTH):
        row = body[at : at + HEX_WIDTH]
        letters = "".join(chr(one) if 32 <= one < 127 else "." for one in row)  # noqa: PLR2004 - ASCII
        lines.append(f"{at:08x}  {row.hex(' '):{3 * HEX_WIDTH}} {letters}")
    return "\n".join(lines)


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
