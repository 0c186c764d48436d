"""Bisections of a queue's gaps agree with their definitions, offset by offset."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from container.metadata.records import Gap, after_gaps, gap_at, gaps_between, next_gap_start
from provider.ranges import QueueOffset

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
