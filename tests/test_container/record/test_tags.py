"""Tags codes of many records at once are those of each one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record import tags
from container.record.columns import Spans
from container.record.properties import TAGS, decode_properties, tag_hash
from container.record.tags import tags_codes

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
        patched.setattr(tags, "PROPERTIES_TOGETHER_MAX", width)
        patched.setattr(tags, "TAGS_TOGETHER_MAX", letters)
        assert tags_codes(np.frombuffer(raw, np.uint8), spans).tolist() == wanted


def test_a_tag_whose_hash_is_negative_is_extended_with_its_sign() -> None:
    raw = b"TAGS\x01TagOrders\x02"
    spans = Spans(np.array([0]), np.array([len(raw)]))
    (code,) = tags_codes(np.frombuffer(raw, np.uint8), spans).tolist()
    assert code == tag_hash("TagOrders") < 0
