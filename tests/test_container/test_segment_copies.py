"""Which copy of a segment is read does not depend on the order of events (Kafka 2.6, our rule)."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.segment_copies import SegmentCopy, is_legal, referenced, superseded
from container.tier_records import CopyState

_copies = st.lists(
    st.builds(
        lambda start, length, epoch, state: (start, start + length, epoch, state),
        st.integers(0, 12),
        st.integers(1, 8),
        st.integers(1, 3),
        st.sampled_from([*CopyState, CopyState.COPY_FINISHED, CopyState.COPY_FINISHED]),
    ),
    max_size=8,
).map(
    lambda rows: [
        SegmentCopy(start, end, epoch, f"copy-{number}", state)
        for number, (start, end, epoch, state) in enumerate(rows)
    ]
)

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


@given(_copies, st.randoms())
def test_order_of_arrival_does_not_matter(copies, rng: random.Random) -> None:
    shuffled = rng.sample(copies, len(copies))
    assert referenced(copies) == referenced(shuffled)


@given(_copies)
def test_every_covered_position_has_the_copy_that_a_floor_lookup_finds(copies) -> None:
    chosen = referenced(copies)
    for position in range(25):
        covered = any(
            copy.start <= position < copy.end
            for copy in copies
            if copy.state == CopyState.COPY_FINISHED
        )
        below = [copy for copy in chosen if copy.start <= position]
        assert (bool(below) and position < below[-1].end) == covered


@given(_copies)
def test_no_copy_is_lost(copies) -> None:
    finished = [copy for copy in copies if copy.state == CopyState.COPY_FINISHED]
    assert sorted(referenced(copies) + superseded(copies)) == sorted(finished)


@given(_copies, st.integers(0, 7))
def test_a_superseded_copy_comes_back_when_its_rival_goes(copies, which: int) -> None:
    chosen = referenced(copies)
    if not chosen:
        return
    left = [copy for copy in copies if copy != chosen[which % len(chosen)]]
    covered = {
        position
        for copy in left
        if copy.state == CopyState.COPY_FINISHED
        for position in range(copy.start, copy.end)
    }
    readable = {p for copy in referenced(left) for p in range(copy.start, copy.end)}
    assert readable == covered


def test_of_equal_ranges_the_newer_owners_is_read() -> None:
    old = SegmentCopy(0, 10, 1, "a")
    new = SegmentCopy(0, 10, 2, "b")
    assert referenced([old, new]) == [new]
    assert superseded([old, new]) == [old]
