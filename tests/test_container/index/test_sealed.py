"""Sealed index files: what was put in is found again, and damage names itself."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from container.index.layout import (
    BEGIN_MAGIC,
    END_MAGIC,
    ITEM_DTYPE,
    KEY_ITEM_DTYPE,
    IndexHeader,
    IndexSlot,
    KeyItems,
    canonical_order,
)
from container.index.sealed import (
    SealedIndex,
    decode_sealed,
    file_bytes,
    fitting_slots,
    seal_index,
)
from provider.errors import Corrupt
from tests.support.messages import FIRST_STORE_TIMESTAMP, damages, value_or_corrupt

_INT31 = st.integers(0, 2**31 - 1)
_ROW = st.tuples(
    st.one_of(_INT31, st.integers(0, 3)),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(0, 2**62),
    st.integers(FIRST_STORE_TIMESTAMP, FIRST_STORE_TIMESTAMP + 10_000_000),
    st.integers(91, 2**31 - 1),
)
NAMES = ["key_hash", "topic_id", "queue_id", "position", "size"]


@st.composite
def key_items(draw: st.DrawFn) -> KeyItems:
    return np.array(draw(st.lists(_ROW, max_size=12)), KEY_ITEM_DTYPE)


def found(raw: bytes, key_hash: int) -> KeyItems:
    """What a reader finds that reads the header, one slot and its items."""
    index = SealedIndex.of(raw[: IndexHeader.SIZE], len(raw), path="x")
    slot = index.slot_of(key_hash)
    place = index.slot_range(slot)
    run = index.run(slot, raw[place.start : place.end])
    if run is None:
        return np.empty(0, KEY_ITEM_DTYPE)
    items = index.items(raw[run.start : run.end], position=run.start, slot=slot)
    return items[items["key_hash"] == key_hash]


@settings(max_examples=40)
@given(key_items(), st.integers(1, 9))
def test_every_item_is_found_in_canonical_order(items: KeyItems, slots: int) -> None:
    begin = int(items["store_timestamp"].min(initial=FIRST_STORE_TIMESTAMP + 10_000_000))
    raw = seal_index(items, slots=slots, begin_timestamp=begin).tobytes()
    assert len(raw) == file_bytes(len(items), slots)
    index, whole = decode_sealed(raw, path="x")
    assert index.slots == slots
    assert index.header.items == len(whole) == len(items)
    ordered = items[canonical_order(items)]
    for key_hash in {*items["key_hash"].tolist(), 7}:
        mine = ordered[ordered["key_hash"] == key_hash]
        got = found(raw, key_hash)
        assert got[NAMES].tolist() == mine[NAMES].tolist()
        late = mine["store_timestamp"] - got["store_timestamp"]
        assert ((late >= 0) & (late < 1000)).all()


@settings(max_examples=40)
@given(key_items(), st.integers(1, 9), st.randoms(use_true_random=False))
def test_the_same_items_give_the_same_bytes_in_whatever_order(
    items: KeyItems, slots: int, chance: Random
) -> None:
    names = ["topic_id", "queue_id", "position", "key_hash"]
    seconds = (items["store_timestamp"] // 1000).tolist()
    ranks = list(zip(seconds, items[names].tolist(), strict=True))
    _, firsts = np.unique([str(rank) for rank in ranks], return_index=True)
    order = firsts.tolist()  # two items of one rank are equal: keys of one message and one hash
    chance.shuffle(order)
    raws = [seal_index(items[i], slots=slots, begin_timestamp=0) for i in (firsts, order)]
    assert raws[0].tobytes() == raws[1].tobytes()


@settings(max_examples=60)
@given(st.data(), key_items().filter(len))
def test_damage_is_corrupt_or_changes_nothing_but_items(
    data: st.DataObject, items: KeyItems
) -> None:
    raw = seal_index(items, slots=3, begin_timestamp=FIRST_STORE_TIMESTAMP).tobytes()
    damaged = data.draw(damages(raw))
    got = value_or_corrupt(lambda: decode_sealed(damaged, path="the/path"))
    if isinstance(got, Corrupt):
        assert got.path == "the/path"
        assert 0 <= got.position <= max(len(raw), len(damaged))
    else:
        assert len(damaged) == len(raw)
    for key_hash in items["key_hash"].tolist():
        looked = value_or_corrupt(lambda key=key_hash: found(damaged, key))
        assert isinstance(looked, Corrupt) or (looked["key_hash"] == key_hash).all()


@pytest.mark.parametrize(
    ("at", "value", "position"),
    [(0, b"\0", 0), (0, BEGIN_MAGIC.to_bytes(4, "big"), 0), (24, b"\0\0\0\7", 0), (20, b"\xff", 0)],
)
def test_a_header_that_cannot_be_is_corrupt(at: int, value: bytes, position: int) -> None:
    items = np.array([(1, 0, 0, 0, 0, 5, 91)], KEY_ITEM_DTYPE)
    raw = bytearray(seal_index(items, slots=1, begin_timestamp=0))
    raw[at : at + len(value)] = value
    with pytest.raises(Corrupt) as caught:
        decode_sealed(raw, path="p")
    assert (caught.value.path, caught.value.position) == ("p", position)


def test_an_empty_file_has_the_header_and_one_slot() -> None:
    raw = seal_index(np.empty(0, KEY_ITEM_DTYPE), slots=fitting_slots(0), begin_timestamp=9)
    assert len(raw) == 36
    assert decode_sealed(raw.data, path="x")[0].header == IndexHeader(END_MAGIC, 9, 0, 0, 0)


def test_more_than_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="slots"):
        seal_index(np.empty(0, KEY_ITEM_DTYPE), slots=1 << 29, begin_timestamp=0)
    with pytest.raises(ValueError, match="0 slots"):
        seal_index(np.empty(0, KEY_ITEM_DTYPE), slots=0, begin_timestamp=0)


def test_times_are_whole_seconds_cut_towards_zero_within_32_bits() -> None:
    begin = 2_000_000
    stamps = [begin - 1999, begin - 999, begin, begin + 1999, begin + (1 << 45)]
    items = np.array([(1, 0, 0, 0, n, stamp, 91) for n, stamp in enumerate(stamps)], KEY_ITEM_DTYPE)
    raw = seal_index(items, slots=1, begin_timestamp=begin)
    seconds = raw[36:].view(ITEM_DTYPE)["seconds"].tolist()
    assert seconds == [-1, 0, 0, 1, 2**31 - 1]


def test_a_sealed_file_of_rocketmq_5_1_is_told_by_its_end() -> None:
    """Times in ms, entries of empty slots all zero, all slots in the header, a magic at the end."""
    slots = 4
    header = IndexHeader(END_MAGIC, 1000, 1250, slots, 2)
    first = 28 + 8 * slots
    entries = [(0, 0), (first, 56), (0, 0), (0, 0)]
    rows = np.array([(5, 1, 2, 700, 91, 250), (9, 1, 2, 600, 91, 0)], ITEM_DTYPE)
    raw = header.encode() + b"".join(IndexSlot.LAYOUT.pack(*one) for one in entries)
    raw += rows.tobytes() + BEGIN_MAGIC.to_bytes(4, "big")
    index, items = decode_sealed(raw, path="x")
    assert (index.slots, index.tick_ms) == (slots, 1)
    assert items["store_timestamp"].tolist() == [1250, 1000]
    assert found(raw, 9)["position"].tolist() == [600]
    with pytest.raises(Corrupt, match="magic number at its end"):
        decode_sealed(raw[:-1] + b"\0", path="x")
