"""Hot log and tier as one queue: bounds, and what is said where neither has a message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.metadata.records import Gap
from fetcher.result import FetchStatus
from provider.ranges import QueueOffset
from tieredstore.store.levels import JoinedQueue, Span

NOWHERE = JoinedQueue(None, None)
BOTH = JoinedQueue(Span(50, 100), Span(10, 60))
APART = JoinedQueue(Span(80, 100), Span(10, 60))


def gap(start: int, end: int) -> Gap:
    return Gap(QueueOffset(start), QueueOffset(end), "lost", 0)


@pytest.mark.parametrize(
    ("queue", "offset", "status", "following"),
    [
        (NOWHERE, 7, FetchStatus.NO_MATCHED_LOGIC_QUEUE, 0),
        (JoinedQueue(None, Span(0, 0)), 7, FetchStatus.NO_MESSAGE_IN_QUEUE, 0),
        (BOTH, 9, FetchStatus.OFFSET_TOO_SMALL, 10),
        (BOTH, -1, FetchStatus.OFFSET_TOO_SMALL, 10),
        (BOTH, 100, FetchStatus.OFFSET_OVERFLOW_ONE, 100),
        (BOTH, 101, FetchStatus.OFFSET_OVERFLOW_BADLY, 100),
        (APART, 60, FetchStatus.OFFSET_FOUND_NULL, 80),
        (JoinedQueue(None, Span(5, 9)), 9, FetchStatus.OFFSET_OVERFLOW_ONE, 9),
        (JoinedQueue(Span(9, 9), Span(5, 9)), 4, FetchStatus.OFFSET_TOO_SMALL, 5),
    ],
)
def test_what_a_reader_is_told(
    queue: JoinedQueue, offset: int, status: FetchStatus, following: int
) -> None:
    told = queue.absent(offset)
    assert (told.status, told.next_offset) == (status, following)
    assert (told.min_offset, told.max_offset) == (queue.min_offset, queue.max_offset)


def test_the_hot_log_serves_what_the_tier_lost() -> None:
    queue = JoinedQueue(Span(15, 30), Span(0, 30, [gap(10, 20)]))
    assert queue.absent(12).next_offset == 15
    assert queue.next_from(15) == 15
    assert queue.min_offset == 0


@given(data=st.data())
def test_the_next_message_is_the_first_that_any_side_has(data: st.DataObject) -> None:
    def side() -> tuple[Span | None, set[int]]:
        if data.draw(st.booleans()):
            return None, set()
        first = data.draw(st.integers(0, 20))
        cuts = sorted(data.draw(st.sets(st.integers(first, 30), min_size=1, max_size=6)))
        gaps = [gap(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
        end = max(cuts)
        has = set(range(first, end)) - {o for one in gaps for o in range(one.start, one.end)}
        return Span(first, end, gaps), has

    hot, in_hot = side()
    tier, in_tier = side()
    there = in_hot | in_tier
    queue = JoinedQueue(hot, tier)
    for offset in range(-1, 33):
        following = min((one for one in there if one >= offset), default=None)
        assert queue.next_from(offset) == following
        if following != offset:
            told = queue.absent(offset)
            assert told.next_offset == following or following is None or offset < queue.min_offset
            assert not there & set(range(offset, min(told.next_offset, 40)))
