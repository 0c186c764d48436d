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
"""Untyped in the library."""


def crc32c(data: Buffer, before: int = 0) -> int:
    """CRC-32C of `data`, continued from `before`, the checksum of the preceding bytes.

    Copies nothing. The library accepts only `bytes` and arrays. Any other buffer is passed as an
    array over the same memory, which costs 0.4 us.
    """
    return _extend(before, data if isinstance(data, bytes) else np.frombuffer(data, np.uint8))


# isal's types leave the buffer parameter open: the cast below declares it.


BODY_CRC_MASK = 0x7FFF_FFFF
RECORD_CRC_DIGITS = 10
RECORD_CRC_PREFIX = (RECORD_CRC + NAME_END).encode()
RECORD_CRC_BYTES = len(RECORD_CRC_PREFIX) + RECORD_CRC_DIGITS + 1
"""Length of the property in bytes. It is always the end of the record."""

assert RECORD_CRC_BYTES == 20, "an on-disk format never drifts"  # noqa: PLR2004 - the format's

crc32 = cast("Callable[[Buffer], int]", isal_zlib.crc32)
"""CRC-32 as in zlib, several times as fast."""

_INT64 = Struct(">q")
_END = PAIR_END.encode()


def body_crc_of(body: Buffer) -> int:
    """CRC-32 of a stored (compressed) body, without the sign bit. 0 for an empty body."""
    return crc32(body) & BODY_CRC_MASK


def encode_record_crc(covered: Buffer) -> bytes:
    """Encode the checksum property of a record whose preceding bytes are `covered`.

    The value is the CRC-32 without the sign bit, in ten decimal digits, least significant first.
    """
    digits = f"{crc32(covered) & BODY_CRC_MASK:0{RECORD_CRC_DIGITS}d}"[::-1]
    return RECORD_CRC_PREFIX + digits.encode() + _END


def has_record_crc(raw: Buffer) -> bool:
    """Whether a whole record ends with the checksum property.

    False for bytes that are no record. O(1).
    """
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
    """Whether a record's checksum property matches its bytes.

    True for a record without the property.
    """
    if not has_record_crc(raw):
        return True
    covered = memoryview(raw)[:-RECORD_CRC_BYTES]
    return bytes(raw[-RECORD_CRC_BYTES:]) == encode_record_crc(covered)


def renew_record_crc(record: memoryview) -> bool:
    """Recompute the checksum property of a whole record in place. Return False if it has none."""
    if not has_record_crc(record):
        return False
    record[-RECORD_CRC_BYTES:] = encode_record_crc(record[:-RECORD_CRC_BYTES])
    return True
