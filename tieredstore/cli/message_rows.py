"""A stored message as `read` prints it; fields are named as in the golden data."""

import base64
import hashlib
from ipaddress import IPv6Address

from container.record.body import decompress
from container.record.fields import Host
from container.record.layout import COMPRESSED
from container.record.message import StoredMessage
from provider.object_store import Buffer
from tieredstore.cli.output import count_text, time_text
from tieredstore.cli.printable import printable

PREVIEW_BYTES = 200
UTF8_BYTES_MAX = 4


def message_row(raw: Buffer, path: str, *, digest: bool) -> dict[str, object]:
    """All fields of a record; the body decompressed, with the bit of the sysFlag cleared for it.

    `digest`: length and SHA-256 of the body in place of the body, which else is text where it is
    UTF-8 and Base64 where it is not.

    Raises:
        Corrupt: the record or its compressed body contradicts its format.
    """
    message, body, sys_flag = _decoded(raw, path)
    row: dict[str, object] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "store_timestamp": message.store_timestamp,
        "born_timestamp": message.born_timestamp,
        "born_host": host_text(message.born_host),
        "store_host": host_text(message.store_host),
        "flag": message.flag,
        "sys_flag": sys_flag,
        "store_size": message.size,
        "tier_physical_offset": message.physical_offset,
        "body_crc": message.body_crc,
    }
    if digest:
        row["body_sha256"] = hashlib.sha256(body).hexdigest()
        row["body_length"] = len(body)
    else:
        try:
            row["body"] = body.decode()
        except UnicodeDecodeError:
            row["body_base64"] = base64.b64encode(body).decode()
    row["properties"] = message.property_map
    return row


def message_cells(raw: Buffer, path: str, *, digest: bool) -> list[str]:
    """A message for people: offset, time, size, tags, keys, and how its body begins."""
    message, body, _ = _decoded(raw, path)
    properties = message.property_map
    shown = hashlib.sha256(body).hexdigest() if digest else _preview(body)
    return [
        count_text(message.queue_offset),
        time_text(message.store_timestamp),
        count_text(message.size),
        printable(properties.get("TAGS", "")),
        printable(properties.get("KEYS", "")),
        shown,
    ]


def host_text(host: Host) -> str:
    """`ip:port`; IPv6 in brackets with all its eight groups, as Java writes it."""
    address, port = host
    if ":" not in address:
        return f"{address}:{port}"
    packed = IPv6Address(address).packed
    groups = (int.from_bytes(packed[at : at + 2]) for at in range(0, len(packed), 2))
    return f"[{':'.join(f'{group:x}' for group in groups)}]:{port}"


def _decoded(raw: Buffer, path: str) -> tuple[StoredMessage, bytes, int]:
    message = StoredMessage.decode(raw, path=path, position=0)
    if not message.body or not message.sys_flag & COMPRESSED:
        return message, message.body, message.sys_flag
    body = decompress(message.body, message.sys_flag, path=path, position=message.physical_offset)
    return message, body, message.sys_flag & ~COMPRESSED


def _preview(body: bytes) -> str:
    """How a body begins, if it is text."""
    begin = body[:PREVIEW_BYTES].decode(errors="ignore")
    if len(begin.encode()) < min(len(body), PREVIEW_BYTES) - UTF8_BYTES_MAX:
        return f"({count_text(len(body))} bytes)"
    return printable(begin)
