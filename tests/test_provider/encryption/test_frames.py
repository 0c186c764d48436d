"""Encrypted objects: their layout, and what is refused of changed ones."""

import os
from random import Random

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import example, given
from hypothesis import strategies as st

from provider.encryption.frames import (
    CONTENT_BYTES,
    FRAME_BYTES,
    Cipher,
    ObjectKey,
    content_bytes,
    frames_of,
    open_range,
    open_whole,
    seal,
)
from provider.errors import Corrupt, OutOfRange
from provider.ranges import ByteRange

KEY_ID = b"\x01\x02\x03\x04"
CIPHER: Cipher = AESGCM(bytes(32))
SIZES = st.one_of(
    st.integers(0, 3 * CONTENT_BYTES + 5),
    st.sampled_from([n * CONTENT_BYTES + d for n in (1, 2, 3) for d in (-1, 0, 1)]),
)


def key_of(key_id: bytes) -> ObjectKey:
    assert key_id == KEY_ID
    return ObjectKey(CIPHER, is_bound=True)


def sealed(content: bytes) -> bytes:
    return b"".join(seal(CIPHER, KEY_ID, [content]))


@given(SIZES)
@example(0)
def test_the_length_of_an_object_says_that_of_its_content(size: int) -> None:
    found = sealed(bytes(size))
    full, tail = divmod(size, CONTENT_BYTES)
    assert len(found) == (full + 1) * FRAME_BYTES + tail
    assert content_bytes(len(found)) == size
    assert len(found) <= size * 1.01 + 2 * FRAME_BYTES


@given(SIZES, st.data())
def test_any_range_is_read_from_its_frames_alone(size: int, data: st.DataObject) -> None:
    content = Random(size).randbytes(size)
    found = sealed(content)
    assert open_whole(key_of, found, "n") == content
    if not size:
        return
    start = data.draw(st.integers(0, size - 1))
    wanted = ByteRange(start, data.draw(st.integers(start + 1, size)))
    frames = frames_of(wanted)
    assert frames.end <= len(found)
    part = found[frames.start : frames.end]
    assert open_range(key_of, part, "n", wanted) == content[wanted.start : wanted.end]


def test_a_range_that_ends_behind_the_content_is_refused() -> None:
    found = sealed(b"x" * 10)
    with pytest.raises(OutOfRange, match="the object ends at 10"):
        open_range(key_of, found[:FRAME_BYTES], "n", ByteRange(4, 11))
    full = sealed(b"x" * CONTENT_BYTES)
    second = ByteRange(CONTENT_BYTES, CONTENT_BYTES + 1)
    with pytest.raises(OutOfRange, match=f"the object ends at {CONTENT_BYTES}"):
        open_range(key_of, full[FRAME_BYTES:], "n", second)


def test_a_flipped_bit_anywhere_in_a_frame_is_found() -> None:
    content = bytes(range(256)) * 40
    found = bytearray(sealed(content))
    rng = Random(7)
    frames = len(found) // FRAME_BYTES * FRAME_BYTES
    for _ in range(200):
        at, bit = rng.randrange(frames), 1 << rng.randrange(8)
        found[at] ^= bit
        with pytest.raises((Corrupt, AssertionError)):  # another id asks for another key
            open_whole(key_of, bytes(found), "n")
        found[at] ^= bit
    assert open_whole(key_of, bytes(found), "n") == content


def test_frames_that_changed_places_or_are_left_out_are_found() -> None:
    found = sealed(os.urandom(2 * CONTENT_BYTES + 100))
    first, second, last = (found[at : at + FRAME_BYTES] for at in range(0, 3 * FRAME_BYTES, 4096))
    for changed in (second + first + last, first + last, second + last, last):
        with pytest.raises(Corrupt):
            open_whole(key_of, changed + bytes(100), "n")
    for cut in (first + second, first, first + second + bytes(100), b"", b"x" * 100):
        with pytest.raises(Corrupt):
            open_whole(key_of, cut, "n")


def test_what_is_appended_to_an_object_is_not_taken_for_content() -> None:
    found = sealed(b"abc")
    with pytest.raises(Corrupt):
        open_whole(key_of, found + b"x", "n")
    with pytest.raises(Corrupt):
        open_whole(key_of, found + found, "n")
