"""A message as `read` prints it; fields are named as in the golden data."""

import base64
import hashlib

from container.record.properties import KEYS
from tieredstore.cli.output import count_text, time_text
from tieredstore.cli.printable import escaped, printable
from tieredstore.message import Message

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
    Base64 behind `base64:`.
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
    """How a body begins, if it is text."""
    begin = body[:PREVIEW_BYTES].decode(errors="ignore")
    if len(begin.encode()) < min(len(body), PREVIEW_BYTES) - UTF8_BYTES_MAX:
        return f"({count_text(len(body))} bytes)"
    return printable(begin)
