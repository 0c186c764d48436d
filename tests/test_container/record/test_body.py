"""Compressed bodies: every kind, every bound, every damage."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# lz4 ships no types; what it returns is given one at each call.
import tracemalloc
import zlib
from typing import cast

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from container.record.body import FRAMES_MAX, CompressionType, compress, decompress
from provider.errors import Corrupt
from tests.support.messages import damages, value_or_corrupt

KINDS = list(CompressionType)
BODIES = [b"", b"a", b"abc" * 5000, bytes(3_000_000)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", BODIES, ids=len)
def test_a_body_comes_back_and_never_passes_its_bound(kind: CompressionType, body: bytes) -> None:
    packed, flags = compress(body, kind)
    assert decompress(packed, flags, path="log", position=9, bytes_max=len(body)) == body
    if body:
        with pytest.raises(Corrupt, match="longer than"):
            decompress(packed, flags, path="log", position=9, bytes_max=len(body) - 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", BODIES, ids=len)
def test_a_body_that_ends_early_is_corrupt(kind: CompressionType, body: bytes) -> None:
    packed, flags = compress(body, kind)
    for end in {0, 1, len(packed) // 2, len(packed) - 1}:
        with pytest.raises(Corrupt) as caught:
            decompress(packed[:end], flags, path="log", position=9)
        assert (caught.value.path, caught.value.position) == ("log", 9)


@given(st.sampled_from(KINDS), st.binary(max_size=300), st.data())
def test_damage_gives_bytes_or_corrupt(
    kind: CompressionType, body: bytes, data: st.DataObject
) -> None:
    packed, flags = compress(body, kind)
    damaged = data.draw(damages(packed))
    found = value_or_corrupt(
        lambda: decompress(damaged, flags, path="log", position=9, bytes_max=1000)
    )
    if isinstance(found, Corrupt):
        assert (found.path, found.position) == ("log", 9)
    else:
        assert len(found) <= 1000


def bomb(kind: CompressionType) -> bytes:
    """256 MiB of zeros, compressed in one stream."""
    zeros = bytes(4 << 20)
    if kind is CompressionType.LZ4:
        lz4_stream = lz4.frame.LZ4FrameCompressor()
        begin = cast("bytes", lz4_stream.begin())
        pieces = [cast("bytes", lz4_stream.compress(zeros)) for _ in range(64)]
        return b"".join([begin, *pieces, cast("bytes", lz4_stream.flush())])
    stream = (
        zlib.compressobj()
        if kind is CompressionType.ZLIB
        else zstandard.ZstdCompressor().compressobj()
    )
    return b"".join([*(stream.compress(zeros) for _ in range(64)), stream.flush()])


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_refused_long_before_it_is_unpacked(kind: CompressionType) -> None:
    packed, flags = bomb(kind), 0x001 | (kind << 8)
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match="longer than"):
            decompress(packed, flags, path="log", position=9, bytes_max=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(packed) + (8 << 20)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x28\xb5\x2f\xfd\x00\xa8\x01\0\0",
        b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\0\0",
    ],
    ids=["window of 2 GiB", "content of 1 TiB"],
)
def test_a_frame_that_claims_to_need_much_memory_is_corrupt(frame: bytes) -> None:
    with pytest.raises(Corrupt, match="damaged"):
        decompress(frame, 0x201, path="log", position=9)


@pytest.mark.parametrize("kind", [CompressionType.LZ4, CompressionType.ZSTD])
def test_several_frames_are_read_as_one_body_up_to_a_number(kind: CompressionType) -> None:
    one, flags = compress(b"one", kind)
    two, _ = compress(b"two", kind)
    assert decompress(one + two, flags, path="log", position=0) == b"onetwo"
    with pytest.raises(Corrupt, match="too many frames"):
        decompress(one * (FRAMES_MAX + 1), flags, path="log", position=0)


def test_old_messages_without_a_type_are_zlib_and_bytes_behind_its_end_do_not_matter() -> None:
    packed, _ = compress(b"body", CompressionType.ZLIB)
    assert decompress(packed + b"more", 0x001, path="log", position=0) == b"body"


def test_a_body_that_is_not_compressed_is_itself() -> None:
    assert decompress(b"body", 0x300, path="log", position=0) == b"body"


def test_an_unknown_type_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="unknown compression type 7"):
        decompress(b"body", 0x701, path="log", position=0)
