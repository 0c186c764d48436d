"""Properties of many messages at once, against `decode_properties` of each."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from container.record.properties import decode_properties
from tieredstore.reader.arrow_columns import NAMES_IN_TABLE_MAX, Pairs, is_last_of_name, split_pairs

PROPERTIES = st.one_of(
    st.binary(max_size=12),
    st.lists(
        st.sampled_from([b"\x01", b"\x02", b"A", b"B", b"KEYS", b"\xe8\xae"]), max_size=12
    ).map(b"".join),
)


def decoded(raw: bytes, pairs: Pairs, names_max: int) -> list[dict[str, str]]:
    names = [raw[a:b] for a, b in zip(pairs.name_starts, pairs.name_ends, strict=True)]
    values = [raw[a:b] for a, b in zip(pairs.value_starts, pairs.value_ends, strict=True)]
    codes = np.array([sorted(set(names)).index(name) for name in names], np.int64)
    kept = is_last_of_name(pairs, codes, max(names_max, len(set(names))))
    some = pairs.taken(kept)
    assert len(some.name_starts) == kept.sum()
    found: list[dict[str, str]] = [{} for _ in range(len(pairs.bounds) - 1)]
    for message, name, value, is_kept in zip(pairs.messages, names, values, kept, strict=True):
        if is_kept:
            found[message][name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found


@given(st.lists(PROPERTIES, max_size=6), st.sampled_from([1, NAMES_IN_TABLE_MAX + 1]))
def test_many_are_split_as_each_alone(each: list[bytes], names_max: int) -> None:
    raw = b"".join(each)
    bounds = np.concatenate([[0], np.cumsum([len(one) for one in each])]).astype(np.int64)
    pairs = split_pairs(np.frombuffer(raw, np.uint8), bounds)
    assert decoded(raw, pairs, names_max) == [decode_properties(one) for one in each]
