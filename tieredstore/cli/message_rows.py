"""A message as `read` prints it; fields are named as in the golden data."""

import base64
import hashlib

from provider.object_store import Buffer
from tieredstore.cli.output import count_text, time_text
from tieredstore.cli.printable import printable
from tieredstore.message import Message

PREVIEW_BYTES = 200
UTF8_BYTES_MAX = 4


def message_row(raw: Buffer, path: str, *, digest: bool) -> dict[str, object]:
    """All fields of a record; the body decompressed, with the bit of the sysFlag cleared for it.

    `digest`: length and SHA-256 of the body in place of the body, which is otherwise text where
    it is UTF-8, and Base64 elsewhere.

    Raises:
        Corrupt: the record or its compressed body contradicts its format.
    """
    message = Message.decode(raw, path=path)
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
    }
    if digest:
        row["body_sha256"] = hashlib.sha256(message.body).hexdigest()
        row["body_length"] = len(message.body)
    else:
        try:
            row["body"] = message.body.decode()
        except UnicodeDecodeError:
            row["body_base64"] = base64.b64encode(message.body).decode()
    row["properties"] = message.properties
    return row


def message_cells(raw: Buffer, path: str, *, digest: bool) -> list[str]:
    """A message for people: offset, time, size, tags, keys, and how its body begins."""
    message = Message.decode(raw, path=path)
    shown = hashlib.sha256(message.body).hexdigest() if digest else _preview(message.body)
    return [
        count_text(message.offset),
        time_text(message.store_timestamp),
        count_text(message.stored.size),
        printable(message.tags),
        printable(message.properties.get("KEYS", "")),
        shown,
    ]


def _preview(body: bytes) -> str:
    """How a body begins, if it is text."""
    begin = body[:PREVIEW_BYTES].decode(errors="ignore")
    if len(begin.encode()) < min(len(body), PREVIEW_BYTES) - UTF8_BYTES_MAX:
        return f"({count_text(len(body))} bytes)"
    return printable(begin)
