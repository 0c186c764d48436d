"""Messages as `read` prints them: JSON, whole lines for a pipe, or a table on a terminal.

Fields are named as in the golden data. Widths of columns are chosen before the first line.
"""

import base64
import hashlib
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click
from rich.cells import cell_len, set_cell_size

from container.record.properties import KEYS
from tieredstore.cli.output import write_json
from tieredstore.message import Message, Origin
from tieredstore.texts import count_text, escaped, printable, time_text

PREVIEW_BYTES = 200
UTF8_BYTES_MAX = 4


def message_row(message: Message, *, digest: bool) -> dict[str, object]:
    """All fields of a record; the body decompressed, with the bit of the sysFlag cleared for it.

    `digest`: length and SHA-256 of the body in place of the body, which is otherwise text where
    it is UTF-8, and Base64 elsewhere.
    """
    stored = message.stored
    row: dict[str, object] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.offset,
        "store_timestamp": message.store_timestamp,
        "born_timestamp": message.born_timestamp,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "flag": stored.flag,
        "sys_flag": message.sys_flag,
        "store_size": stored.size,
        "tier_physical_offset": stored.physical_offset,
        "body_crc": stored.body_crc,
        "reconsume_times": stored.reconsume_times,
        "prepared_transaction_offset": stored.prepared_transaction_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
    }
    if digest:
        row["body_sha256"] = _sha256(message)
        row["body_length"] = len(message.body)
    else:
        try:
            row["body"] = message.body.decode()
        except UnicodeDecodeError:
            row["body_base64"] = base64.b64encode(message.body).decode()
    row["properties"] = message.properties
    return row


def message_cells(message: Message, *, digest: bool) -> list[str]:
    """A message for people: queue, offset, time, size, tags, keys, and how its body begins."""
    return [
        str(message.queue_id),
        count_text(message.offset),
        time_text(message.store_timestamp),
        count_text(message.stored.size),
        printable(message.tags),
        printable(message.properties.get(KEYS, "")),
        _sha256(message) if digest else _preview(message.body),
    ]


def message_line(message: Message, *, digest: bool) -> str:
    r"""A whole message in one line: the same fields, separated by tabs, nothing cut off.

    Characters that are not printable are written as escapes (`\n`), a body that is no text in
    Base64 after `base64:`.
    """
    fields = (
        str(message.queue_id),
        str(message.offset),
        _iso_time(message),
        str(message.stored.size),
        escaped(message.tags),
        escaped(message.properties.get(KEYS, "")),
        _sha256(message) if digest else _whole(message.body),
    )
    return "\t".join(fields)


def _sha256(message: Message) -> str:
    return hashlib.sha256(message.body).hexdigest()


def _iso_time(message: Message) -> str:
    """The store time in UTC; the number itself if it is no time."""
    stored_at = message.stored_at
    if stored_at is None:
        return str(message.store_timestamp)
    return f"{stored_at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _whole(body: bytes) -> str:
    try:
        return escaped(body.decode())
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(body).decode()}"


def _preview(body: bytes) -> str:
    """Return the first bytes of a body that is text, else its size."""
    begin = body[:PREVIEW_BYTES].decode(errors="ignore")
    if len(begin.encode()) < min(len(body), PREVIEW_BYTES) - UTF8_BYTES_MAX:
        return f"({count_text(len(body))} bytes)"
    return printable(begin)


TITLES = ("queue", "offset", "stored (UTC)", "bytes", "tags", "keys", "body")
DIGEST = "body SHA-256"
NUMBERS = frozenset({0, 1, 3})
QUEUE, BODY = 0, 6
TIME_CELLS, BYTES_CELLS = 19, 9
QUEUE_CELLS, OFFSET_CELLS_MIN, TAGS_CELLS_MIN, KEYS_CELLS_MIN = 5, 6, 8, 12
TAGS_CELLS_MORE, KEYS_CELLS_MORE = 8, 24
"""Cells that tags and keys get in addition if the terminal has room."""
BODY_CELLS_MIN, DIGEST_CELLS = 24, 64
BROKER, BROKER_CELLS_MAX = "broker", 20
BETWEEN = "  "
CUT = "\u2026"


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The columns shown, by number, with their widths in cells."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    titles: tuple[str, ...]

    def head(self) -> str:
        """The line above the first message."""
        return self.line(self.titles)

    def line(self, cells: Sequence[str]) -> str:
        """Format a message as a line; `cells` has all columns, shown or not."""
        parts = [
            cells[number].rjust(width) if number in NUMBERS else fitted(cells[number], width)
            for number, width in zip(self.shown, self.widths, strict=True)
        ]
        return BETWEEN.join(parts).rstrip()


def fitted(text: str, width: int) -> str:
    """Text in exactly `width` cells: filled with spaces, or cut and marked as cut."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - 1)) + CUT * (width > 0)


def message_columns(
    terminal: int, max_offset: int, *, digest: bool, with_queue: bool = False
) -> MessageColumns:
    """The columns for a terminal of `terminal` cells and offsets below `max_offset`.

    Tags, then keys get the room that the body does not need. On a narrow terminal bytes, time and
    keys are left out, in this order.
    """
    shown = [*([QUEUE] if with_queue else []), 1, 2, 3, 4, 5, BODY]
    offset = max(OFFSET_CELLS_MIN, len(count_text(max_offset)))
    widths = [QUEUE_CELLS, offset, TIME_CELLS, BYTES_CELLS, TAGS_CELLS_MIN, KEYS_CELLS_MIN, 0]

    def room() -> int:
        between = len(BETWEEN) * (len(shown) - 1)
        return terminal - between - sum(widths[number] for number in shown)

    for number in (3, 2, 5):
        if room() < BODY_CELLS_MIN // 2:
            shown.remove(number)
    spare = max(0, room() - (DIGEST_CELLS if digest else BODY_CELLS_MIN))
    for number, more in ((4, TAGS_CELLS_MORE), (5, KEYS_CELLS_MORE)):
        if number in shown:
            widths[number] += min(more, spare)
            spare -= min(more, spare)
    widths[BODY] = max(0, room())
    titles = (*TITLES[:BODY], DIGEST if digest else TITLES[BODY])
    return MessageColumns(tuple(shown), tuple(widths[number] for number in shown), titles)


class MessagePrinter:
    """Prints messages as they come, in one form, chosen before the first."""

    def __init__(
        self,
        *,
        as_json: bool,
        is_terminal: bool,
        digest: bool,
        with_queue: bool,
        max_offset: int,
        brokers: Sequence[Origin] = (),
    ) -> None:
        """`max_offset`: no offset is higher; `with_queue`: the table has a column for the queue.

        `brokers`: those that `print` gets, each message then names its own.
        """
        self._as_json = as_json
        self._digest = digest
        self._columns = None
        self._broker_cells = max((cell_len(one.broker) for one in brokers), default=0)
        if is_terminal and not as_json:
            width = shutil.get_terminal_size((80, 24)).columns
            if brokers:
                self._broker_cells = max(len(BROKER), min(self._broker_cells, BROKER_CELLS_MAX))
                width -= self._broker_cells + len(BETWEEN)
            self._columns = message_columns(width, max_offset, digest=digest, with_queue=with_queue)
        self._is_first = True

    def print(self, messages: Iterable[Message], origin: Origin | None = None) -> None:
        """Print some messages, of one broker, and the head of the table before the first."""
        if self._as_json:
            named = {} if origin is None else origin._asdict()
            write_json(named | message_row(message, digest=self._digest) for message in messages)
        elif self._columns is None:
            begin = "" if origin is None else f"{origin.cluster}\t{origin.broker}\t"
            self._echo(begin + message_line(message, digest=self._digest) for message in messages)
        else:
            columns = self._columns
            if self._is_first:
                click.echo(self._broker_cell(BROKER if origin else "") + columns.head())
            self._is_first = False
            begin = self._broker_cell(printable(origin.broker) if origin else "")
            self._echo(
                begin + columns.line(message_cells(message, digest=self._digest))
                for message in messages
            )

    def _broker_cell(self, text: str) -> str:
        return f"{fitted(text, self._broker_cells)}{BETWEEN}" if text else ""

    def _echo(self, lines: Iterable[str]) -> None:
        text = "\n".join(lines)
        if text:
            click.echo(text)
        sys.stdout.flush()
