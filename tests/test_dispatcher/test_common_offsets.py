"""Which few offsets stand for all that the tier and the hot log both have."""

from math import log2

from hypothesis import given
from hypothesis import strategies as st

from container.metadata.records import Gap, Queue
from container.names.queue_id import QueueId
from dispatcher.ports import HotQueue
from dispatcher.start import OverlapSample
from provider.ranges import QueueOffset

A = QueueId("Orders", 0)


@st.composite
def queues(draw: st.DrawFn) -> OverlapSample:
    """What both have of a queue with gaps; they begin and end anywhere."""
    bounds = draw(st.lists(st.integers(0, 300), min_size=2, max_size=12, unique=True))
    low, *inside, end = sorted(bounds)
    gaps = [
        Gap(QueueOffset(start), QueueOffset(stop), "lost", 0)
        for start, stop in zip(inside[::2], inside[1::2], strict=False)
    ]
    hot_low, hot_end = sorted((draw(st.integers(0, 300)), draw(st.integers(0, 300))))
    hot = HotQueue(A, QueueOffset(hot_low), QueueOffset(hot_end))
    return OverlapSample.of(hot, Queue(A, QueueOffset(low), QueueOffset(end), gaps=tuple(gaps)))


def held_by(common: OverlapSample) -> list[QueueOffset]:
    lost = {offset for gap in common.gaps for offset in range(gap.start, gap.end)}
    offsets = range(common.low, common.end)
    return [QueueOffset(offset) for offset in offsets if offset not in lost]


def without_gaps(low: int, end: int) -> OverlapSample:
    return OverlapSample(QueueOffset(low), QueueOffset(end))


def test_samples_are_the_newest_those_at_doubling_distances_and_the_first() -> None:
    samples = without_gaps(5, 105).sampled(QueueOffset(105), newest=3)
    assert samples == [5, 105 - 64, 105 - 32, 105 - 16, 105 - 8, 105 - 4, 102, 103, 104]
    assert without_gaps(7, 7).sampled(QueueOffset(7), newest=3) == []
    assert without_gaps(9, 7).sampled(QueueOffset(7), newest=3) == []
    assert without_gaps(6, 7).sampled(QueueOffset(7), newest=3) == [6]


def test_a_million_messages_have_two_dozen_samples_and_a_trillion_not_twice_as_many() -> None:
    assert len(without_gaps(0, 10**6).sampled(QueueOffset(10**6), newest=3)) <= 24
    assert len(without_gaps(0, 10**12).sampled(QueueOffset(10**12), newest=3)) <= 45


@given(queues(), st.integers(1, 20), st.data())
def test_samples_are_few_and_what_both_have(
    common: OverlapSample, newest: int, data: st.DataObject
) -> None:
    held = held_by(common)
    end = data.draw(st.sampled_from([*held, common.end]))
    below = [offset for offset in held if offset < end]
    samples = common.sampled(end, newest=newest)
    assert samples == sorted(set(samples))
    assert set(samples) <= set(below)
    if below:
        assert {below[0], below[-1]} <= set(samples)
        assert len(samples) <= newest + log2(end - common.low) + 2


@given(queues(), st.integers(1, 20), st.data())
def test_what_is_spread_out_is_even_and_empty_only_where_nothing_is(
    common: OverlapSample, count: int, data: st.DataObject
) -> None:
    held = held_by(common)
    start = data.draw(st.sampled_from([*held, common.end]))
    end = data.draw(st.sampled_from([offset for offset in [*held, common.end] if offset >= start]))
    inside = [offset for offset in held if start <= offset < end]
    spread = common.spread(start, end, count=count)
    assert spread == sorted(set(spread))
    assert set(spread) <= set(inside)
    assert len(spread) <= count
    assert bool(spread) == bool(inside)
    if end - start <= count:
        assert spread == inside


def test_probes_leave_equal_parts() -> None:
    spread = without_gaps(0, 10**6).spread(QueueOffset(0), QueueOffset(170), count=16)
    assert spread == list(range(10, 170, 10))
