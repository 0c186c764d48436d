"""Messages of the command line on their way into a store: read, parsed, appended in order, counted.

Lines of standard input come in batches, read beside the event loop.
"""

import asyncio
import base64
import binascii
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import click
import orjson

from container.names.queue_id import QueueId
from container.record.header import Host
from container.record.properties import RECORD_CRC
from provider.errors import Closed, StoreError
from tieredstore.cli.output import Row, write_json
from tieredstore.hot.encoding import Appended, MessageRefused, NewMessage
from tieredstore.metrics.summary import counted
from tieredstore.store.protocol import MessageStore

NUMBERS = ("flag", "sys_flag", "born_timestamp", "reconsume_times", "prepared_transaction_offset")
HOSTS = ("born_host", "store_host")


@dataclass(frozen=True, slots=True)
class GivenFields:
    """Fields of every message from the command line; they win over those of a line."""

    topic: str | None = None
    queue_id: int | None = None
    """None: the line's, or 0."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


def message_of_body(body: bytes, given: GivenFields) -> NewMessage:
    """A message with that body, and nothing else but what was given."""
    assert given.topic is not None, "a body alone names no topic"
    return NewMessage(given.topic, given.queue_id or 0, body, given.properties)


def message_of_line(line: bytes, given: GivenFields) -> NewMessage:
    """A message with the fields of one JSON object, named as in `read --json`.

    Queue offset, position and store time are the store's to give; those of the line, and fields
    that are not known, count for nothing. So does a checksum of the whole record, which would be
    that of the old one.

    Raises:
        MessageRefused: the line is no such object, or a field has another type.
    """
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise MessageRefused(f"This is no JSON: {error}.") from error
    if not isinstance(row, dict):
        raise MessageRefused("This is no JSON object.")
    fields = cast("dict[str, Any]", row)
    topic = given.topic if given.topic is not None else _topic(fields)
    queue_id = given.queue_id
    if queue_id is None:
        queue_id = _number(fields, "queue_id") if "queue_id" in fields else 0
    properties = {**_properties(fields), **given.properties}
    numbers = {name: _number(fields, name) for name in NUMBERS if name in fields}
    hosts = {name: _host(fields, name) for name in HOSTS if name in fields}
    message = NewMessage(topic, queue_id, _body(fields), properties)
    return message._replace(**numbers, **hosts)


def properties_of(
    pairs: Sequence[tuple[str, str]], tags: str | None, keys: str | None
) -> dict[str, str]:
    """The properties that options name: `--property`, and `--tags` and `--keys` after them."""
    named = {"TAGS": tags, "KEYS": keys}
    return {**dict(pairs), **{name: text for name, text in named.items() if text is not None}}


def _topic(fields: Mapping[str, Any]) -> str:
    topic = fields.get("topic")
    if not isinstance(topic, str):
        raise MessageRefused("The message names no topic.")
    return topic


def _body(fields: Mapping[str, Any]) -> bytes:
    text, encoded = fields.get("body"), fields.get("body_base64")
    if isinstance(text, str):
        return text.encode()
    if isinstance(encoded, str):
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise MessageRefused("The field body_base64 is no Base64.") from error
    if "body_sha256" in fields:
        raise MessageRefused("The message was read with --digest, so its body is not here.")
    raise MessageRefused("The message has no body: a text in the field body, or body_base64.")


def _properties(fields: Mapping[str, Any]) -> dict[str, str]:
    found: object = fields.get("properties", {})
    if not isinstance(found, dict):
        raise MessageRefused("The field properties is no object.")
    properties = cast("dict[str, object]", found)
    for name, value in properties.items():
        if not isinstance(value, str):
            raise MessageRefused(f"The property {name} is no text.")
    return {name: str(value) for name, value in properties.items() if name != RECORD_CRC}


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int:
        raise MessageRefused(f"The field {name} is no whole number.")
    return value


def _host(fields: Mapping[str, Any], name: str) -> Host:
    """`ip:port`, IPv6 in brackets."""
    text = fields[name]
    if isinstance(text, str):
        address, colon, port = text.rpartition(":")
        if colon and port.isascii() and port.isdecimal() and len(port) <= len("65535"):
            return address.removeprefix("[").removesuffix("]"), int(port)
    raise MessageRefused(f"The field {name} is no address and port, such as 10.0.0.1:10911.")


CHUNK_BYTES = 256 << 10
"""Bytes of one read at most."""
CHUNKS_AHEAD = 2
"""Batches that are read and not taken yet."""


class LineTooLongError(ValueError):
    """A line has no end within the bytes that one message may take."""


class InputLines:
    """The lines of a file, a pipe or a terminal.

    They are read by a thread of their own, because a read of a pipe cannot be given up; it ends
    with the process at the latest. At most `CHUNKS_AHEAD + 1` chunks and one line are held.
    """

    def __init__(self, fd: int, *, line_bytes_max: int) -> None:
        """`fd` stays the caller's. Nothing is read before `batches` is iterated over."""
        self._fd = fd
        self._line_bytes_max = line_bytes_max
        self._found: asyncio.Queue[list[bytes] | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(CHUNKS_AHEAD)
        self._loop = asyncio.get_running_loop()

    def end(self) -> None:
        """End `batches` after the input that was read already."""
        self._found.put_nowait(None)

    async def batches(self) -> AsyncGenerator[list[bytes], None]:
        r"""Lines without their `\n`, as many as came at once; the last one may lack it.

        Raises:
            OSError: it cannot be read.
            LineTooLongError: after the lines before that one.
        """
        threading.Thread(target=self._read, name="input", daemon=True).start()
        while (found := await self._found.get()) is not None:
            self._room.release()
            if isinstance(found, Exception):
                raise found
            yield found

    def _read(self) -> None:
        rest = b""
        try:
            while chunk := os.read(self._fd, CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                if lines and not self._tell(lines):
                    return
                if len(rest) > self._line_bytes_max:
                    too_long = f"it has more than {self._line_bytes_max} bytes"
                    self._tell(LineTooLongError(too_long))
                    return
        except OSError as error:
            self._tell(error)
            return
        if rest:
            self._tell([rest])
        self._tell(None)

    def _tell(self, found: list[bytes] | Exception | None) -> bool:
        """Hand a batch, the error or the end to the loop; False once that is closed."""
        self._room.acquire()
        try:
            self._loop.call_soon_threadsafe(self._found.put_nowait, found)
        except RuntimeError:
            return False
        return True


QUEUES_SAID_MAX = 4
"""Queues that are named with their last offsets."""
Decode = Callable[[bytes], NewMessage]


class Appending:
    """Appends to one store. What was appended is printed at once, and stays appended."""

    def __init__(
        self, store: MessageStore, decode: Decode, *, as_json: bool, goes_on: bool = False
    ) -> None:
        """Nothing is read yet.

        Args:
            store: open; takes the messages.
            decode: makes a message of a line.
            as_json: print one JSON object a message.
            goes_on: answer a line that cannot be appended with an object (its number and the
                error), and continue with the next one.
        """
        self._store = store
        self._decode = decode
        self._as_json = as_json
        self._goes_on = goes_on
        self.count = 0
        """Messages that were appended."""
        self._lines = 0
        self._ends: dict[QueueId, int] = {}

    @property
    def done(self) -> str:
        """Sentence about the appended messages."""
        ends = [f"{queue} up to offset {end}" for queue, end in sorted(self._ends.items())]
        more = len(ends) - QUEUES_SAID_MAX
        listed = ", ".join(ends[:QUEUES_SAID_MAX]) + (
            f" and {more} more queues" if more > 0 else ""
        )
        text = f"appended {counted(self.count, 'message')}"
        return f"{text}: {listed}" if listed else text

    async def append_lines(self, lines: InputLines) -> None:
        """Append a message for each line that is not empty, until they end.

        Raises:
            click.ClickException: a line is no message, or one that the store refuses; names it.
                All before it were appended, and none after it.
            StoreError, OSError: as the store, or the input cannot be read.
        """
        try:
            async for batch in lines.batches():
                await self._append_batch(batch)
        except LineTooLongError as error:
            self._refuse(self._lines + 1, str(error))

    async def append(
        self, messages: Sequence[NewMessage], lines: Sequence[int] | None = None
    ) -> None:
        """Append messages, which stood in those lines, and print where they are.

        Raises:
            MessageRefused: the store refuses one of them; none was appended.
        """
        places = await self._store.put_messages(messages)
        self.count += len(places)
        for message, place in zip(messages, places, strict=True):
            self._ends[QueueId(message.topic, message.queue_id)] = place.queue_offset
        if self._as_json:
            numbers = [None] * len(places) if lines is None else lines
            write_json(map(_row, messages, places, numbers))
        else:
            pairs = zip(messages, places, strict=True)
            click.echo("\n".join(f"{m.topic}\t{m.queue_id}\t{p.queue_offset}" for m, p in pairs))
        sys.stdout.flush()

    async def _append_batch(self, batch: Sequence[bytes]) -> None:
        """Append runs of good lines, each at once; a bad one stands between two of them."""
        first = self._lines + 1
        self._lines += len(batch)
        good: list[tuple[int, NewMessage]] = []
        for number, line in enumerate(batch, first):
            if not line.strip(b"\r"):
                continue
            try:
                good.append((number, self._decode(line)))
            except MessageRefused as error:
                await self._append_run(good)
                good = []
                self._refuse(number, sentence_of(error))
        await self._append_run(good)

    async def _append_run(self, good: Sequence[tuple[int, NewMessage]]) -> None:
        """Append all at once; where one is refused, one by one."""
        if not good:
            return
        try:
            lines, messages = zip(*good, strict=True)
            await self.append(messages, lines)
        except MessageRefused as error:
            if len(good) == 1:
                self._refuse(good[0][0], sentence_of(error))
                return
            for one in good:
                await self._append_run([one])
        except StoreError as error:
            if not self._goes_on or isinstance(error, Closed):
                raise
            for number, _ in good:
                self._refuse(number, error.reason)

    def _refuse(self, line: int, reason: str) -> None:
        """Answer a line that was not appended."""
        if not self._goes_on:
            raise click.ClickException(f"line {line}: {reason}")
        write_json([{"line": line, "error": reason}])
        sys.stdout.flush()


def _row(message: NewMessage, place: Appended, line: int | None) -> Row:
    return {
        **({} if line is None else {"line": line}),
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": place.queue_offset,
        "store_timestamp": place.store_timestamp,
        "store_size": place.size,
        "physical_offset": place.position,
    }


def sentence_of(refused: MessageRefused) -> str:
    """A refusal as a part of the sentence that a command ends with."""
    text = str(refused).removesuffix(".")
    return f"{text[:1].lower()}{text[1:]}"


def with_done(error: StoreError, appending: Appending) -> StoreError:
    """Return the error with the messages that were appended before it, if any."""
    if appending.count:
        error.reason = f"{error.reason}; before that: {appending.done}"
    return error
