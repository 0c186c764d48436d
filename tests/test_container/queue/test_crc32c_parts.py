"""A part's checksum without its bytes."""

from hypothesis import example, given
from hypothesis import strategies as st

from container.queue.commit_plan import crc32c_of_rest
from container.record.checksum import crc32c


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
