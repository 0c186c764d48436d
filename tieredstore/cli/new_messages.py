"""Messages to append, from a body or from a line that `read --json` printed. Pure."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from container.record.header import Host
from container.record.properties import RECORD_CRC
from tieredstore.hot.encoding import MessageRefused, NewMessage

NUMBERS = ("flag", "sys_flag", "born_timestamp", "reconsume_times", "prepared_transaction_offset")
HOSTS = ("born_host", "store_host")


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says of every message; it wins over what a line says."""

    topic: str | None = None
    queue_id: int | None = None
    """None: the line's, or 0."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


def message_of_body(body: bytes, given: Given) -> NewMessage:
    """A message with that body, and nothing else but what was given."""
    assert given.topic is not None, "a body alone names no topic"
    return NewMessage(given.topic, given.queue_id or 0, body, given.properties)


def message_of_line(line: bytes, given: Given) -> NewMessage:
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
