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


POLYNOMIAL = 0x82F63B78
"""Polynomial of CRC-32C. Bit 31 is the coefficient of x^0."""
_ONE = 1 << 31
_X = 1 << 30


def crc32c_of_rest(whole: int, first: int, rest_bytes: int) -> int:
    """CRC-32C of the last `rest_bytes` bytes of a byte string, without reading them.

    `whole` is the checksum of the whole string, `first` that of the bytes before the rest. About 30
    us.
    """
    return whole ^ _product(first, _x_to_the(8 * rest_bytes))


_STRIDE = 1 << 15
_LAST_BITS = range(32, 40)
"""Exponents that the bits of the last byte have in a checksum, the highest bit first."""


def flipped_byte(difference: int, length: int) -> int | None:
    """Find the byte with one flipped bit by the change of the CRC-32C of `length` bytes.

    Returns None if no single bit explains `difference`, the exclusive or of both checksums. A
    discrete logarithm by baby steps and giant steps: 10 ms for 4 MiB.
    """
    end = _LAST_BITS.stop + 8 * (length - 1)
    giants: dict[int, int] = {}
    power, stride = _ONE, _x_to_the(_STRIDE)
    for exponent in range(0, end + _STRIDE, _STRIDE):
        giants[power] = exponent
        power = _product(power, stride)
    value = difference
    for step in range(_STRIDE):
        exponent = giants.get(value, -1) - step
        if _LAST_BITS.start <= exponent < end:
            return length - 1 - (exponent - _LAST_BITS.start) // 8
        value = value >> 1 ^ POLYNOMIAL if value & 1 else value >> 1
    return None


def _product(left: int, right: int) -> int:
    """`left * right` modulo the polynomial."""
    product = 0
    while left:
        if left & _ONE:
            product ^= right
        left = left << 1 & 0xFFFF_FFFF
        right = right >> 1 ^ POLYNOMIAL if right & 1 else right >> 1
    return product


def _x_to_the(exponent: int) -> int:
    """`x ** exponent` modulo the polynomial."""
    power, square = _ONE, _X
    while exponent:
        if exponent & 1:
            power = _product(power, square)
        square = _product(square, square)
        exponent >>= 1
    return power
