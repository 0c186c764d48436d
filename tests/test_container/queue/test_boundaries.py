"""Cuts depend on the messages alone, and respect their limits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from container.queue.commit_plan import AgeRule, Cut, cut_runs

sizes_of_items = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def ends_of(begin: int, sizes: list[int]) -> np.ndarray:
    return begin + np.cumsum(np.array(sizes, np.int64))


def test_a_run_ends_after_its_items_whatever_their_bytes() -> None:
    ends = ends_of(5, [1] * 7)
    cuts = cut_runs(ends, 5, open_start=0, bytes_max=100, items_max=3, open_items=1)
    assert cuts == [Cut(0, 0, 2), Cut(7, 2, 5), Cut(10, 5, 7)]
    cuts = cut_runs(ends, 5, open_start=0, bytes_max=100, items_max=3, open_items=3)
    assert cuts == [Cut(5, 0, 3), Cut(8, 3, 6), Cut(11, 6, 7)]


def test_an_item_that_does_not_fit_begins_a_new_run() -> None:
    assert cut_runs(ends_of(0, [4, 4, 4]), 0, open_start=0, bytes_max=8) == [
        Cut(0, 0, 2),
        Cut(8, 2, 3),
    ]


def test_an_open_run_is_continued_as_far_as_it_goes() -> None:
    assert cut_runs(ends_of(6, [2, 2]), 6, open_start=0, bytes_max=8) == [
        Cut(0, 0, 1),
        Cut(8, 1, 2),
    ]


def test_an_item_longer_than_a_run_gets_one_of_its_own() -> None:
    assert cut_runs(ends_of(3, [20, 1]), 3, open_start=0, bytes_max=8) == [
        Cut(3, 0, 1),
        Cut(23, 1, 2),
    ]


def test_a_run_ends_before_an_item_that_is_much_younger_unless_it_is_short() -> None:
    ends = ends_of(0, [4, 4, 4, 4])
    age = AgeRule(np.array([0, 90, 120, 121]), None, age_ms=100, bytes_min=8)
    assert cut_runs(ends, 0, open_start=0, bytes_max=100, age=age) == [Cut(0, 0, 2), Cut(8, 2, 4)]
    short = age._replace(bytes_min=9)
    assert cut_runs(ends, 0, open_start=0, bytes_max=100, age=short) == [
        Cut(0, 0, 3),
        Cut(12, 3, 4),
    ]


@given(sizes=sizes_of_items, bytes_max=st.integers(1, 60))
def test_every_item_lies_in_one_run_and_no_run_is_too_long(
    sizes: list[int], bytes_max: int
) -> None:
    ends = ends_of(0, sizes)
    cuts = cut_runs(ends, 0, open_start=0, bytes_max=bytes_max)
    assert [cut.first for cut in cuts] == [0, *[cut.last for cut in cuts[:-1]]]
    assert cuts[-1].last == len(sizes)
    for cut in cuts:
        assert cut.start == (0 if cut.first == 0 else ends[cut.first - 1])
        assert ends[cut.last - 1] - cut.start <= bytes_max or cut.last - cut.first == 1


@given(
    items=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 500)), min_size=1, max_size=60),
    batches=st.lists(st.integers(1, 20), min_size=1, max_size=60),
    bytes_max=st.integers(1, 90),
)
def test_batching_does_not_change_the_cuts(
    items: list[tuple[int, int]], batches: list[int], bytes_max: int
) -> None:
    sizes, stamps = [item[0] for item in items], np.array([item[1] for item in items])
    ends = ends_of(0, sizes)
    rule = AgeRule(stamps, None, age_ms=120, bytes_min=30)
    whole = [cut.start for cut in cut_runs(ends, 0, open_start=0, bytes_max=bytes_max, age=rule)]
    starts: list[int] = []
    first, open_start, oldest = 0, 0, None
    for count in batches * len(items):
        if first == len(items):
            break
        last = min(first + count, len(items))
        begin = 0 if first == 0 else int(ends[first - 1])
        part = rule._replace(timestamps=stamps[first:last], open_begin_timestamp=oldest)
        cuts = cut_runs(
            ends[first:last], begin, open_start=open_start, bytes_max=bytes_max, age=part
        )
        for cut in cuts:
            continued = cut.start < begin + (0 if cut.first == 0 else 1) and cut.start in starts
            low = int(stamps[first + cut.first : first + cut.last].min())
            oldest = min(low, oldest) if continued and oldest is not None else low
            starts.extend([] if continued else [cut.start])
        first, open_start = last, cuts[-1].start
    assert starts == whole
