"""JSON documents of the hot log with a checksum, each in a file and a second copy.

A document begins with its checksum, CRC-32C of the rest: `{"crc32c":"89abcdef",...}`. A program
that knows nothing of the checksum reads the same document.
"""

import re
from pathlib import Path
from typing import Any, cast

import orjson

from container.record.checksum import crc32c

_HEAD = re.compile(rb'\{"crc32c":"([0-9a-f]{8})",')
_HEAD_BYTES = len(b'{"crc32c":"01234567",')


class NotSound(ValueError):
    """The bytes are no document that was written here."""


def encode_checked(document: dict[str, Any]) -> bytes:
    """The bytes of a document, which has at least one field, with its checksum."""
    assert document, "a checksum of nothing tells nothing"
    rest = orjson.dumps(document)[1:]
    return b'{"crc32c":"%08x",' % crc32c(rest) + rest


def is_checked(raw: bytes) -> bool:
    """Whether a document begins with a checksum, right or wrong."""
    return _HEAD.match(raw) is not None


def decode_checked(raw: bytes) -> dict[str, Any]:
    """The document of `encode_checked`, without the checksum.

    Raises:
        NotSound: the checksum is missing or wrong.
    """
    head = _HEAD.match(raw)
    rest = raw[_HEAD_BYTES:]
    if head is None or int(head[1], 16) != crc32c(rest):
        raise NotSound("its checksum is missing or wrong")
    return cast("dict[str, Any]", orjson.loads(b"{" + rest))


def copy_of(path: Path) -> Path:
    """Where the second copy of a document lies."""
    return path.with_name(path.name + ".copy")
