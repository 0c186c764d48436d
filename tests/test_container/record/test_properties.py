"""The properties of a message: RocketMQ's rules for reading and writing them, and their hashes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record import columns
from container.record.columns import Spans, tags_codes
from container.record.properties import (
    TAGS,
    decode_properties,
    encode_properties,
    index_keys,
    java_hash,
    key_hash,
    split_keys,
    tag_hash,
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


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("Tag1", 2598903),
        ("TopicTest#MessageKey", 638347386),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_hashes_are_those_of_a_jvm(text: str, wanted: int) -> None:
    assert java_hash(text) == tag_hash(text) == wanted


def test_the_hash_without_an_absolute_value_becomes_zero_as_a_key() -> None:
    assert key_hash("polygenelubricants") == 0


@given(st.text(st.characters()))
def test_every_text_hashes_by_the_polynomial_over_its_utf16_units(text: str) -> None:
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]
    total = sum(unit * 31 ** (len(units) - 1 - i) for i, unit in enumerate(units)) % 2**32
    assert java_hash(text) == (total if total < 2**31 else total - 2**32)
    assert 0 <= key_hash(text) < 2**31


PIECES = st.sampled_from(
    ["TAGS", "TAGSX", "XTAGS", "\x01", "\x02", "TagA", "|| b", "\u00e4", "\U0001f680", "k" * 9, ""]
)
PROPERTIES = st.lists(PIECES, max_size=12).map(lambda pieces: "".join(pieces).encode())


@given(st.lists(PROPERTIES, max_size=8), st.integers(0, 3), st.integers(4, 40), st.integers(1, 6))
def test_they_are_those_of_the_decoded_properties(
    found: list[bytes], behind: int, width: int, letters: int
) -> None:
    raw, starts, ends = b"", list[int](), list[int]()
    for one in found:  # between them lie other bytes, which are read with them
        raw += b"TAGS\x01no\x02"
        starts.append(len(raw))
        raw += one
        ends.append(len(raw))
    raw += b"TAGS\x01no\x02" * behind
    spans = Spans(np.array(starts, np.int64), np.array(ends, np.int64))
    wanted = [tag_hash(decode_properties(one).get(TAGS, "")) for one in found]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "PROPERTIES_TOGETHER_MAX", width)
        patched.setattr(columns, "TAGS_TOGETHER_MAX", letters)
        assert tags_codes(np.frombuffer(raw, np.uint8), spans).tolist() == wanted


def test_a_tag_whose_hash_is_negative_is_extended_with_its_sign() -> None:
    raw = b"TAGS\x01TagOrders\x02"
    spans = Spans(np.array([0]), np.array([len(raw)]))
    (code,) = tags_codes(np.frombuffer(raw, np.uint8), spans).tolist()
    assert code == tag_hash("TagOrders") < 0
