"""Records of the metadata: copies by hand, states of a segment's copy, and gaps."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.metadata.queue_changes import is_legal
from container.metadata.records import (
    CopyState,
    Gap,
    Queue,
    Segment,
    after_gaps,
    gap_at,
    gaps_between,
    next_gap_start,
)
from provider.ranges import QueueOffset
from tests.support.tier_values import queues, segments


@given(segments, segments)
def test_an_extended_segment_keeps_all_else(one: Segment, other: Segment) -> None:
    made = one.extended(other.extents, other.sealed_ms)
    assert made == replace(one, extents=other.extents, sealed_ms=other.sealed_ms)


@given(queues, st.lists(segments, max_size=2).map(tuple), st.lists(segments, max_size=2).map(tuple))
def test_an_extended_queue_keeps_all_else(
    queue: Queue, log: tuple[Segment, ...], units: tuple[Segment, ...]
) -> None:
    made = queue.extended(QueueOffset(77), log, units)
    assert made == replace(queue, next_offset=77, commit_log=log, consume_queue=units)


TABLE = {
    None: "1000",
    CopyState.COPY_STARTED: "1110",
    CopyState.COPY_FINISHED: "0110",
    CopyState.DELETE_STARTED: "0011",
    CopyState.DELETE_FINISHED: "0001",
}


@pytest.mark.parametrize("now", TABLE)
@pytest.mark.parametrize("wanted", CopyState)
def test_twenty_transitions_are_those_of_kafka(now: CopyState | None, wanted: CopyState) -> None:
    assert is_legal(now, wanted) == (TABLE[now][wanted] == "1")


END = 40


@st.composite
def some_gaps(draw: st.DrawFn) -> tuple[Gap, ...]:
    """Ascending gaps. Some are adjacent."""
    edges = sorted(draw(st.sets(st.integers(0, END))))
    kept = draw(st.sets(st.integers(0, END)))
    return tuple(
        Gap(QueueOffset(start), QueueOffset(end), "lost", 0)
        for number, (start, end) in enumerate(pairwise(edges))
        if number in kept
    )


@given(some_gaps(), st.integers(0, END), st.integers(0, END))
def test_gaps_are_found_by_offset(gaps: tuple[Gap, ...], offset: int, end: int) -> None:
    lost = {at: gap for gap in gaps for at in range(gap.start, gap.end)}
    starts = [gap.start for gap in gaps if gap.start > offset]
    assert gap_at(gaps, offset) is lost.get(offset)
    assert after_gaps(gaps, offset) == next(at for at in range(offset, END + 1) if at not in lost)
    assert next_gap_start(gaps, offset, end) == min([end, *starts])
    if offset < end:
        overlapping = {lost[at] for at in range(offset, end) if at in lost}
        assert list(gaps_between(gaps, offset, end)) == sorted(
            overlapping, key=lambda one: one.start
        )
