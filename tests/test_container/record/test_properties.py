"""The properties of a message: RocketMQ's rules for reading and writing them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record.properties import (
    decode_properties,
    encode_properties,
    index_keys,
    split_keys,
)
from tests.support.messages import property_maps


@given(property_maps)
def test_pairs_come_back_in_order(pairs: dict[str, str]) -> None:
    assert list(decode_properties(encode_properties(pairs)).items()) == list(pairs.items())


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b"", {}),
        (b"a\x01b\x02", {"a": "b"}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01\x02c\x01d\x02", {"c": "d"}),
        (b"\x01b\x02c\x01d\x02", {"c": "d"}),
        (b"ab\x02\x02\x02c\x01d\x02", {"c": "d"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
        (b"a\x01\xff\x02", {"a": "�"}),
    ],
)
def test_damaged_pieces_are_dropped_as_java_does(raw: bytes, wanted: dict[str, str]) -> None:
    assert decode_properties(raw) == wanted


@given(st.binary(max_size=100))
def test_no_bytes_make_reading_fail(raw: bytes) -> None:
    for name, value in decode_properties(raw).items():
        assert name
        assert value


def test_pairs_with_an_empty_part_are_not_written() -> None:
    assert encode_properties({"a": "", "": "b", "c": "d"}) == b"c\x01d\x02"


@pytest.mark.parametrize("pair", [("a\x01", "b"), ("a\x02", "b"), ("a", "b\x02")])
def test_a_pair_that_would_not_come_back_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="separator"):
        encode_properties(dict([pair]))


def test_an_unpaired_surrogate_is_written_as_java_writes_it() -> None:
    assert encode_properties({"a": "\ud800"}) == b"a\x01?\x02"


def test_keys_are_split_at_single_blanks_without_empty_pieces() -> None:
    assert split_keys("  a  b c ") == ["a", "b", "c"]
    assert split_keys("a\tb") == ["a\tb"]


def test_index_keys_are_the_unique_one_then_each_user_key_once() -> None:
    assert index_keys({"KEYS": "b a b", "UNIQ_KEY": "u"}) == ("u", "b", "a")
    assert index_keys({"KEYS": "u x", "UNIQ_KEY": "u"}) == ("u", "x")
    assert index_keys({"KEYS": " "}) == ()
