"""Coverage of indexes: spans of a queue's offsets with and without indexed keys. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import orjson

from container.metadata.coverage_rows import CHUNK_ROWS, CoverageRows, extend_encoded
from container.metadata.records import Coverage, CoverageRow, IndexFile, Queue
from container.names.queue_id import QueueId
from provider.clock import Clock
from provider.ranges import QueueOffset

Span = tuple[int, int]
"""Offsets `[from, to)` of a queue. Not empty."""
ROWS_PER_TURN = 2_000
"""Rows of coverage that are read before other tasks get a turn: some ms."""


def merged(spans: Iterable[Span]) -> list[Span]:
    """Join the spans to as few as possible, in order. O(n log n)."""
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def without(spans: Sequence[Span], holes: Iterable[Span]) -> list[Span]:
    """Offsets of `spans`, in order, that are in none of `holes`. O(n log n)."""
    left: list[Span] = []
    rest = merged(spans)
    for hole_start, hole_end in [*merged(holes), (1 << 63, 1 << 63)]:
        while rest and rest[0][0] < hole_end:
            start, end = rest.pop(0)
            if start < hole_start:
                left.append((start, min(end, hole_start)))
            if end > hole_end:
                rest.insert(0, (hole_end, end))
                break
    return left


def readable(queue: Queue) -> list[Span]:
    """Offsets of a queue that have a message."""
    gaps = [(gap.start, gap.end) for gap in queue.gaps]
    return without([(queue.min_offset, queue.next_offset)], gaps)


def covered_by_files(files: Iterable[IndexFile]) -> dict[QueueId, list[Span]]:
    """By queue, the offsets whose keys are in a sealed file. O(coverage of all files)."""
    found: dict[QueueId, list[Span]] = {}
    for file in files:
        _add(file.coverage, found)
    return found


async def covered_in_turns(files: Iterable[IndexFile], clock: Clock) -> dict[QueueId, list[Span]]:
    """Return `covered_by_files`, and yield to other tasks meanwhile."""
    found: dict[QueueId, list[Span]] = {}
    rows = chain.from_iterable([file.coverage for file in files])
    while some := list(islice(rows, ROWS_PER_TURN)):
        _add(some, found)
        if len(some) == ROWS_PER_TURN:
            await clock.sleep(0)
    return found


async def rows_in_turns(
    queues: Iterable[QueueId], spans_of: Callable[[QueueId], Iterable[Span]], clock: Clock
) -> CoverageRows:
    """Coverage of spans of ordered queues, with its encoding. Yields to other tasks meanwhile."""
    chunks: list[tuple[CoverageRow, ...]] = []
    raw: list[Any] = []
    rows: list[CoverageRow] = []
    for queue in queues:
        rows += ((queue, QueueOffset(start), QueueOffset(end)) for start, end in spans_of(queue))
        if len(rows) >= CHUNK_ROWS:
            extend_encoded(raw, rows)
            chunks.append(tuple(rows))
            rows.clear()
            await clock.sleep(0)
    extend_encoded(raw, rows)
    return CoverageRows([*chunks, tuple(rows)], encoded=orjson.Fragment(orjson.dumps(raw)))


def _add(rows: Iterable[CoverageRow], found: dict[QueueId, list[Span]]) -> None:
    """Add the offsets of some rows to those of their queues."""
    for queue, start, end in rows:
        found.setdefault(queue, []).append((start, end))


def rows_of_topic(file: IndexFile, topic: str) -> Coverage:
    """Rows of a file's coverage for a topic. O(log rows + result)."""
    first = bisect_left(file.coverage, topic, key=lambda row: row[0].topic)
    last = bisect_right(file.coverage, topic, lo=first, key=lambda row: row[0].topic)
    return file.coverage[first:last]


def topic_covered_by_files(files: Iterable[IndexFile], topic: str) -> Mapping[QueueId, list[Span]]:
    """`covered_by_files` for the queues of one topic. O(log rows) for a file without the topic."""
    found: dict[QueueId, list[Span]] = {}
    for file in files:
        _add(rows_of_topic(file, topic), found)
    return found


def count(spans: Iterable[Span]) -> int:
    """Number of offsets."""
    return sum(end - start for start, end in spans)
