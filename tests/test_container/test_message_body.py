"""Compressed bodies: every kind, every bound, every damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.message_body import FRAMES_MAX, CompressionType, compress, decompress
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
