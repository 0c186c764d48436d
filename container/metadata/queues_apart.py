"""The payload of a snapshot, with its queues apart and in pieces. Pure.

Of a tier with many queues nearly all of a snapshot is their records. Parsed at once they are
objects of six times the snapshot's length, which are all dropped again, and leave the memory in
shreds. Where the pieces are found by their bytes, only a piece is parsed at a time. That the bytes
mean what they seem to mean is proved by parsing the rest, with a mark in place of the queues.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from container.metadata.field_codecs import DecodeError, json_object

PIECE_BYTES = 1 << 18
"""Parsed at a time, and what is left of a record at its end."""
_BEGIN = b',"queues":['
_END = b'],"tombstones":['
_RECORD = b',{"id":["'
"""Inside a JSON text the quotes would be escaped; inside a record this may be, but only in a field
of a newer version: a piece that ends there is no JSON."""
_MARK = "@queues"


def queues_apart(payload: bytes) -> tuple[dict[str, Any], Iterator[Any]] | None:
    """The fields of a snapshot but for the queues, and these one by one; None if not found.

    Iterating raises `orjson.JSONDecodeError` where a piece turns out to be none.
    """
    begin = payload.find(_BEGIN) + len(_BEGIN)
    end = payload.find(_END, begin)
    if begin < len(_BEGIN) or end <= begin:
        return None
    try:
        rest = b'%b"%b"%b' % (payload[:begin], _MARK.encode(), payload[end:])
        fields = json_object(orjson.loads(rest))
    except (orjson.JSONDecodeError, DecodeError):
        return None
    if fields.get("queues") != [_MARK]:
        return None
    del fields["queues"]
    return fields, _records(payload, begin, end)


def _records(payload: bytes, begin: int, end: int) -> Iterator[Any]:
    while begin < end:
        cut = payload.find(_RECORD, begin + PIECE_BYTES, end)
        stop = end if cut < 0 else cut
        yield from orjson.loads(b"[%b]" % payload[begin:stop])
        begin = stop + 1
