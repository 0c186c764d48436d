"""Spans of offsets equal sets of offsets."""

import asyncio

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.lookup.collector import Collected
from container.metadata import coverage as in_turns
from container.metadata.coverage import (
    CoverageRows,
    Span,
    count,
    covered_by_files,
    merged,
    readable,
    rows_in_turns,
    rows_of_topic,
    topic_covered_by_files,
    without,
)
from container.metadata.record_codecs import COVERAGE
from container.metadata.records import Gap, IndexFile, Queue
from container.names.queue_id import QueueId
from provider.clock import SystemClock
from provider.ranges import QueueOffset

QUEUE = QueueId("T", 0)
_SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted).map(tuple))


def offsets(spans: list[Span]) -> list[int]:
    return sorted(one for start, end in spans for one in range(start, end))


@given(_SPANS, _SPANS)
def test_as_sets(spans: list[Span], holes: list[Span]) -> None:
    assert offsets(merged(spans)) == sorted(set(offsets(spans)))
    left = without(spans, holes)
    assert offsets(left) == sorted(set(offsets(spans)) - set(offsets(holes)))
    assert count(left) == len(offsets(left))
    assert all(start < end for start, end in left)


@given(_SPANS)
def test_of_what_is_collected_in_any_order(spans: list[Span]) -> None:
    collected = Collected()
    for start, end in spans:
        if start < end:
            collected.cover(QUEUE, start, end)
    assert collected.spans.get(QUEUE, []) == merged(spans)


def test_gaps_and_expired_messages_are_not_readable() -> None:
    gaps = (Gap(QueueOffset(5), QueueOffset(7), "lost", 0),)
    queue = Queue(QUEUE, QueueOffset(3), QueueOffset(9), gaps=gaps)
    assert readable(queue) == [(3, 5), (7, 9)]


def test_files_together_cover_what_each_does() -> None:
    a, b = ((QUEUE, QueueOffset(0), QueueOffset(4)),), ((QUEUE, QueueOffset(6), QueueOffset(8)),)
    files = [IndexFile("a", 0, 36, 0, 0, 0, 0, a), IndexFile("b", 1, 36, 0, 0, 0, 0, b)]
    assert covered_by_files(files) == {QUEUE: [(0, 4), (6, 8)]}


@given(st.lists(st.tuples(st.sampled_from("ABCD"), st.integers(0, 3), st.integers(0, 9))))
def test_the_rows_of_a_topic_are_those_that_name_it(rows: list[tuple[str, int, int]]) -> None:
    coverage = tuple(
        (QueueId(topic, queue), QueueOffset(at), QueueOffset(at + 1))
        for topic, queue, at in sorted(rows)
    )
    file = IndexFile("a", 0, 36, 0, 0, 0, 0, coverage)
    whole = covered_by_files([file])
    for topic in "ABCDE":
        wanted = tuple(row for row in coverage if row[0].topic == topic)
        assert rows_of_topic(file, topic) == wanted
        mine = {queue: spans for queue, spans in whole.items() if queue.topic == topic}
        assert topic_covered_by_files([file], topic) == mine


class CountingClock(SystemClock):
    """A clock that counts the turns of other tasks."""

    def __init__(self) -> None:
        self.turns = 0

    async def sleep(self, seconds: float) -> None:
        assert seconds == 0
        self.turns += 1


@pytest.mark.parametrize("chunk_rows", [1, 2, 5, 512])
@given(st.dictionaries(st.tuples(st.sampled_from("ABCD"), st.integers(0, 3)), _SPANS))
def test_rows_in_turns_are_those_of_one_turn_and_have_its_encoding(
    chunk_rows: int, spans: dict[tuple[str, int], list[Span]]
) -> None:
    queues = {QueueId(*name): merged(some) for name, some in spans.items()}
    whole = CoverageRows.of(
        (queue, QueueOffset(start), QueueOffset(end))
        for queue, some in queues.items()
        for start, end in some
    )
    clock = CountingClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_turns, "CHUNK_ROWS", chunk_rows)
        found = asyncio.run(rows_in_turns(sorted(queues), queues.__getitem__, clock))
    assert (found, len(found)) == (whole, len(whole))
    assert found == CoverageRows.of(tuple(found))
    assert orjson.dumps(COVERAGE.encode(found)) == orjson.dumps(COVERAGE.encode(tuple(whole)))
    assert clock.turns >= len(whole) // (chunk_rows + max(map(len, queues.values()), default=0))
    assert (found == ()) == (not whole)


def test_rows_of_which_some_are_cut_are_encoded_anew() -> None:
    queues = [QueueId("T", number) for number in range(3)]
    found = asyncio.run(rows_in_turns(queues, lambda _: [(0, 9)], CountingClock()))
    less, _ = found.without_ends({queues[1]: QueueOffset(4)})
    assert COVERAGE.encode(less) == ["T", [0, 0, 9, 1, 0, 4, 2, 0, 9]]
