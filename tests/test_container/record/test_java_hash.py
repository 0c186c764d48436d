"""Java's string hash, against values computed by a JVM and a definition of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record.properties import java_hash, key_hash, tag_hash


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
