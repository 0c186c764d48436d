"""CRC-32C of a buffer, CRC-32 of a body, and the optional checksum over a whole record."""

# pyright: reportUnknownMemberType=false

from collections.abc import Callable
from struct import Struct
from typing import Any, cast

import google_crc32c
import numpy as np
from isal import isal_zlib

from container.record.header import locate_parts
from container.record.properties import NAME_END, PAIR_END, RECORD_CRC
from provider.errors import Corrupt
from provider.object_store import Buffer

_extend = cast("Callable[[int, Any], int]", vars(google_crc32c)["extend"])
"""The library says nothing of its types."""


def crc32c(data: Buffer, before: int = 0) -> int:
    """CRC-32C of `data`, continued from `before`, the checksum of what lies before it.

    Copies nothing. The library takes `bytes` and arrays only, so that any other buffer passes as
    an array over the same memory, for 0.4 us.
    """
    return _extend(before, data if isinstance(data, bytes) else np.frombuffer(data, np.uint8))


# isal's types leave the buffer open; it is given one here.


BODY_CRC_MASK = 0x7FFF_FFFF
RECORD_CRC_DIGITS = 10
RECORD_CRC_PREFIX = (RECORD_CRC + NAME_END).encode()
RECORD_CRC_BYTES = len(RECORD_CRC_PREFIX) + RECORD_CRC_DIGITS + 1
"""Length of the property, always the record's last bytes."""

assert RECORD_CRC_BYTES == 20, "an on-disk format never drifts"  # noqa: PLR2004 - the format's

crc32 = cast("Callable[[Buffer], int]", isal_zlib.crc32)
"""CRC-32 as zlib has it, several times as fast."""

_INT64 = Struct(">q")
_END = PAIR_END.encode()


def body_crc_of(body: Buffer) -> int:
    """CRC-32 of a body as it is stored (compressed), without the sign bit; 0 for an empty one."""
    return crc32(body) & BODY_CRC_MASK


def encode_record_crc(covered: Buffer) -> bytes:
    """The property for a record whose bytes before it are `covered`.

    CRC-32 without the sign bit in ten decimal digits, the least significant first.
    """
    digits = f"{crc32(covered) & BODY_CRC_MASK:0{RECORD_CRC_DIGITS}d}"[::-1]
    return RECORD_CRC_PREFIX + digits.encode() + _END


def has_record_crc(raw: Buffer) -> bool:
    """Whether one whole record ends with the property; False for what is not a record. O(1)."""
    start = len(raw) - RECORD_CRC_BYTES
    if start < 0 or bytes(raw[start : start + len(RECORD_CRC_PREFIX)]) != RECORD_CRC_PREFIX:
        return False
    if bytes(raw[-1:]) != _END or not bytes(raw[-1 - RECORD_CRC_DIGITS : -1]).isdigit():
        return False
    try:
        _, parts = locate_parts(raw, path="", position=0)
    except Corrupt:
        return False
    if start == parts.properties:
        return True
    return start > parts.properties and bytes(raw[start - 1 : start]) == _END


def record_crc_is_valid(raw: Buffer) -> bool:
    """Whether the property of a record agrees with its bytes; True for a record without one."""
    if not has_record_crc(raw):
        return True
    covered = memoryview(raw)[:-RECORD_CRC_BYTES]
    return bytes(raw[-RECORD_CRC_BYTES:]) == encode_record_crc(covered)


def renew_record_crc(record: memoryview) -> bool:
    """Recompute the property of one whole record in place; False if it has none."""
    if not has_record_crc(record):
        return False
    record[-RECORD_CRC_BYTES:] = encode_record_crc(record[:-RECORD_CRC_BYTES])
    return True
