"""Merged files have the bytes of one that was built of all messages at once."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from container.index import merging
from container.index.layout import KEY_ITEM_DTYPE, KeyItems, place_of, places_of
from container.index.merging import MergedPart, merge_sealed
from container.index.sealed import decode_sealed, fitting_begin, fitting_slots, seal_index
from provider.errors import Corrupt
from tests.support.messages import FIRST_STORE_TIMESTAMP

EVERY_PLACE = np.array(
    sorted(place_of(topic, queue) for topic in range(3) for queue in range(3)), np.int64
)
_MESSAGE = st.tuples(
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 5_000),
    st.integers(0, 20_000),
    st.lists(st.one_of(st.integers(0, 2**31 - 1), st.integers(0, 9)), min_size=1, max_size=3),
)
_MESSAGES = st.lists(_MESSAGE, max_size=60, unique_by=lambda one: one[:3])


def items_of(messages: list[tuple[int, int, int, int, list[int]]]) -> KeyItems:
    rows = [
        (key, topic, queue, ordinal, at, FIRST_STORE_TIMESTAMP + late_ms, 91 + at % 7)
        for topic, queue, at, late_ms, keys in messages
        for ordinal, key in enumerate(keys)
    ]
    return np.array(rows, KEY_ITEM_DTYPE)


def sealed(items: KeyItems, slots: int | None = None) -> bytes:
    begin = fitting_begin(int(items["store_timestamp"].min())) if len(items) else 0
    wanted = fitting_slots(len(items)) if slots is None else slots
    return seal_index(items, slots=wanted, begin_timestamp=begin).tobytes()


def part(
    raw: bytes,
    places: NDArray[np.int64] = EVERY_PLACE,
    first_bytes: NDArray[np.int64] | None = None,
) -> MergedPart:
    firsts = np.zeros(len(places), np.int64) if first_bytes is None else first_bytes
    return MergedPart("part", raw, places, firsts)


@settings(max_examples=60)
@given(_MESSAGES, st.integers(1, 5), st.randoms(use_true_random=False), st.sampled_from([1, 8, 99]))
def test_as_if_built_at_once(
    messages: list[tuple[int, int, int, int, list[int]]],
    files: int,
    chance: Random,
    piece_items: int,
) -> None:
    shares: list[list[tuple[int, int, int, int, list[int]]]] = [[] for _ in range(files)]
    for message in messages:
        chance.choice(shares).append(message)
    # As many slots as fit, or as a file has that lost items to expiry.
    raws = [sealed(items_of(one), chance.choice([None, None, 1, 256])) for one in shares]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "PIECE_ITEMS", piece_items)
        merged = merge_sealed([part(raw) for raw in raws]).tobytes()
        assert merged == sealed(items_of(messages))
        again = merge_sealed(
            [part(merge_sealed(map_parts(raws[:2])).tobytes()), *map_parts(raws[2:])]
        )
    assert again.tobytes() == merged, "in whatever order files are merged"


def map_parts(raws: list[bytes]) -> list[MergedPart]:
    return [part(raw) for raw in raws]


@settings(max_examples=40)
@given(_MESSAGES, st.integers(0, 5_000), st.integers(1, 40))
def test_only_what_is_wanted_stays(
    messages: list[tuple[int, int, int, int, list[int]]], first_byte: int, slots: int
) -> None:
    kept = EVERY_PLACE[::2]
    firsts = np.arange(len(kept), dtype=np.int64) * (first_byte // 4)
    items = items_of(messages)
    merged = merge_sealed([part(sealed(items), kept, firsts)], slots=slots)
    lowest = dict(zip(kept.tolist(), firsts.tolist(), strict=True))
    wanted = [
        row
        for row, place in zip(items, places_of(items).tolist(), strict=True)
        if place in lowest and row["position"] >= lowest[place]
    ]
    index, found = decode_sealed(merged.data, path="merged")
    assert index.slots == slots
    names = ["key_hash", "topic_id", "queue_id", "position", "size"]
    assert sorted(found[names].tolist()) == sorted(np.array(wanted, KEY_ITEM_DTYPE)[names].tolist())


def test_times_count_from_the_begin_that_is_asked_for() -> None:
    items = items_of([(0, 0, at, 1_000 * at, [at]) for at in range(5)])
    begin = fitting_begin(FIRST_STORE_TIMESTAMP)
    merged = merge_sealed([part(sealed(items))], slots=7, begin_timestamp=begin - 3_001)
    index, found = decode_sealed(merged.data, path="merged")
    assert index.header.begin_timestamp == begin - 3_001
    early = items["store_timestamp"][np.argsort(items["position"])]
    late = early - found["store_timestamp"][np.argsort(found["position"])]
    assert ((late >= 0) & (late < 2_000)).all()


def test_a_part_that_contradicts_the_format_is_named() -> None:
    good = sealed(items_of([(0, 0, 1, 1, [1, 2, 3])]))
    for bad in (good[:-1], good[:40] + b"\xff" + good[41:], b""):
        with pytest.raises(Corrupt) as caught:
            merge_sealed([part(good), part(bad)])
        assert caught.value.path == "part"


def test_nothing_gives_a_file_without_items() -> None:
    none = np.empty(0, np.int64)
    merged = merge_sealed([part(sealed(items_of([(0, 0, 1, 1, [1])])), none, none)])
    assert merged.tobytes() == sealed(np.empty(0, KEY_ITEM_DTYPE))
