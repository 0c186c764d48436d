"""Checksums of buffers of every kind, none of them copied."""

import tracemalloc

import google_crc32c
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from container.record.checksum import crc32c, crc32c_of_rest, flipped_byte

CHECK = b"123456789"
CHECK_CRC = 0xE306_9283
"""The check value of CRC-32C in the catalogue of CRC algorithms."""
LARGE_BYTES = 16 << 20


@pytest.mark.parametrize(
    "data",
    [
        CHECK,
        bytearray(CHECK),
        memoryview(CHECK),
        memoryview(bytearray(CHECK)),
        memoryview(b"0" + CHECK + b"0")[1:-1],
    ],
    ids=["bytes", "bytearray", "read-only view", "view", "part of a view"],
)
def test_every_buffer_has_the_checksum_of_its_bytes(data: bytes | bytearray | memoryview) -> None:
    assert crc32c(data) == CHECK_CRC
    assert crc32c(data[5:], crc32c(data[:5])) == CHECK_CRC


@pytest.mark.parametrize(
    "empty", [b"", bytearray(), memoryview(b"")], ids=["bytes", "array", "view"]
)
def test_nothing_changes_no_checksum(empty: bytes | bytearray | memoryview) -> None:
    assert crc32c(empty) == 0
    assert crc32c(empty, CHECK_CRC) == CHECK_CRC


def test_no_buffer_is_copied() -> None:
    data = bytearray(LARGE_BYTES)
    view = memoryview(data)[1:-1]
    tracemalloc.start()
    try:
        crc32c(data)
        crc32c(view)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < LARGE_BYTES / 100


def test_the_library_computes_in_c() -> None:
    """Its fallback in Python is some thousand times slower, and only warns."""
    assert google_crc32c.implementation == "c"


@given(first=st.binary(max_size=300), rest=st.binary(max_size=300))
@example(first=b"", rest=b"")
@example(first=b"", rest=b"rest")
@example(first=b"first", rest=b"")
def test_the_rest_has_the_checksum_that_its_bytes_give(first: bytes, rest: bytes) -> None:
    whole = crc32c(first + rest)
    assert crc32c_of_rest(whole, crc32c(first), len(rest)) == crc32c(rest)


def test_the_rest_may_be_as_long_as_a_segment() -> None:
    first, rest = b"first", bytes(range(256)) * (5 << 12) + b"odd"
    whole = crc32c(rest, crc32c(first))
    assert crc32c_of_rest(whole, crc32c(first), len(rest)) == crc32c(rest)


@given(data=st.binary(min_size=1, max_size=3000), at=st.integers(0), bit=st.integers(0, 7))
@example(data=bytes(1), at=0, bit=0)
@example(data=bytes(70_000), at=0, bit=7)
@example(data=bytes(70_000), at=69_999, bit=0)
def test_one_flipped_bit_is_found_by_both_checksums(data: bytes, at: int, bit: int) -> None:
    at %= len(data)
    damaged = bytearray(data)
    damaged[at] ^= 1 << bit
    assert flipped_byte(crc32c(data) ^ crc32c(damaged), len(data)) == at


def test_damage_of_two_bits_is_no_flipped_bit() -> None:
    data = bytes(3000)
    damaged = bytearray(data)
    damaged[1000] ^= 3
    assert flipped_byte(crc32c(data) ^ crc32c(damaged), len(data)) is None
    assert flipped_byte(0, len(data)) is None
