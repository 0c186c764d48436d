"""Records that a commit makes by hand are those that `replace` makes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from container.metadata.records import Queue, Segment
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
