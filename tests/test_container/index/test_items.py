"""The one order of items, however it is found."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from container.index.layout import (
    KEY_ITEM_DTYPE,
    SECOND_MS,
    KeyItems,
    canonical_order,
    places_in_log,
)

_NAMES = ["topic_id", "queue_id", "position", "key_hash"]


def ranks(items: KeyItems) -> list[tuple[int, ...]]:
    seconds = (items["store_timestamp"] // SECOND_MS).tolist()
    rest: list[tuple[int, ...]] = items[_NAMES].tolist()
    return [(second, *one) for second, one in zip(seconds, rest, strict=True)]


@st.composite
def collected(draw: st.DrawFn) -> KeyItems:
    """Items of queues as they are collected: runs of each queue's messages, some with many keys."""
    ends: dict[tuple[int, int], int] = {}
    rows: list[tuple[int, ...]] = []
    now_ms = draw(st.sampled_from((-5_000, 0, 1_700_000_000_000)))
    topics = st.sampled_from((0, 1, draw(st.sampled_from((2, 2**31 - 1)))))
    for _ in range(draw(st.integers(0, 12))):
        topic, queue, size = draw(topics), draw(st.integers(0, 2)), draw(st.integers(1, 2**31 - 1))
        at = ends.get((topic, queue), 0)
        ends[topic, queue] = at + size
        now_ms += draw(st.sampled_from((0, 0, 400, 70_000, -400)))
        for ordinal in range(draw(st.integers(0, 5))):
            key = draw(st.one_of(st.integers(0, 2**31 - 1), st.integers(0, 2)))
            rows.append((key, topic, queue, ordinal, at, now_ms, size))
    return np.array(rows, KEY_ITEM_DTYPE)


@settings(max_examples=60)
@given(collected(), st.booleans(), st.randoms(use_true_random=False))
def test_items_are_sorted_as_tuples_are(
    items: KeyItems,
    shuffled: bool,  # noqa: FBT001 - drawn
    chance: Random,
) -> None:
    if shuffled:
        order = [*range(len(items))]
        chance.shuffle(order)
        items = items[order]
    found = canonical_order(items)
    assert sorted(found.tolist()) == [*range(len(items))]
    assert ranks(items[found]) == sorted(ranks(items))


def test_items_whose_numbers_do_not_fit_into_one_are_sorted_too() -> None:
    rows = [
        (key, topic, queue, 0, 0, stamp, 1)
        for key in (5, 4)
        for topic in (2**31 - 1, 0)
        for queue in (2**31 - 1, 0)
        for stamp in (2**60, 7)
    ]
    items = np.array(rows, KEY_ITEM_DTYPE)
    assert ranks(items[canonical_order(items)]) == sorted(ranks(items))


def test_places_name_queue_position_size_and_time() -> None:
    items = np.array([(1, 2, 3, 4, 5, 6, 7), (8, 9, 10, 11, 12, 13, 14)], KEY_ITEM_DTYPE)
    assert places_in_log(items) == [(3, 5, 7, 6), (10, 12, 14, 13)]
