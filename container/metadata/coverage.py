"""Coverage of indexes: offsets with and without indexed keys, rows in chunks. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, overload

import orjson

from container.metadata.records import Coverage, CoverageRow, IndexFile, Queue
from container.names.queue_id import QueueId
from provider.clock import Clock
from provider.ranges import QueueOffset

CHUNK_ROWS = 512


def extend_encoded(raw: list[Any], rows: Iterable[CoverageRow]) -> None:
    """Extend the JSON form of ordered rows by the rows that follow them."""
    for queue, start, end in rows:
        if not raw or raw[-2] != queue.topic:
            raw += (queue.topic, [])
        raw[-1] += (queue.queue_id, start, end)


class CoverageRows(Sequence[CoverageRow]):
    """Ordered rows. All rows of a queue are in one chunk, and no chunk is empty. Immutable."""

    __slots__ = ("_chunks", "_ends", "_firsts", "encoded")

    def __init__(
        self, chunks: Iterable[tuple[CoverageRow, ...]], *, encoded: orjson.Fragment | None = None
    ) -> None:
        """`chunks`: ordered rows, divided between queues. `encoded`: their JSON, if known."""
        self.encoded = encoded
        self._chunks = tuple(chunk for chunk in chunks if chunk)
        self._firsts = [chunk[0][0] for chunk in self._chunks]
        self._ends: list[int] = []
        for chunk in self._chunks:
            self._ends.append(len(self) + len(chunk))

    @staticmethod
    def of(rows: Iterable[CoverageRow]) -> "CoverageRows":
        """Sort rows and divide them into chunks. Returns `rows` if it is that already."""
        return rows if isinstance(rows, CoverageRows) else CoverageRows(_divided(sorted(rows)))

    def __repr__(self) -> str:
        return f"<CoverageRows: {len(self)} rows>"

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[CoverageRow]:
        return chain.from_iterable(self._chunks)

    @overload
    def __getitem__(self, at: int) -> CoverageRow: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[CoverageRow]: ...

    def __getitem__(self, at: int | slice) -> CoverageRow | Sequence[CoverageRow]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            assert step == 1, "rows are read in their order"
            return tuple(islice(self._from(start), max(0, stop - start)))
        if at < 0:
            at += len(self)
        if not 0 <= at < len(self):
            raise IndexError(at)
        return next(self._from(at))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, CoverageRows):
            return self is other or self._chunks == other._chunks or tuple(self) == tuple(other)
        if other == ():  # the default of a record's field
            return not self
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment] - as a list, it is never a key

    def _from(self, at: int) -> Iterator[CoverageRow]:
        """Rows from the row `at` on."""
        number = bisect_right(self._ends, at)
        if number == len(self._chunks):
            return iter(())
        inside = at - (self._ends[number - 1] if number else 0)
        return chain(
            islice(self._chunks[number], inside, None),
            chain.from_iterable(islice(self._chunks, number + 1, None)),
        )

    def without_ends(self, ends: Mapping[QueueId, QueueOffset]) -> tuple["CoverageRows", int]:
        """Rows below the ends of some queues, and the number of these that are cut in part.

        Returns these rows if nothing changes. O(log rows) for each queue, and a copy of its chunk.
        """
        of_chunks: dict[int, dict[QueueId, QueueOffset]] = {}
        for queue, end in ends.items():
            number = bisect_right(self._firsts, queue) - 1
            if number >= 0:
                of_chunks.setdefault(number, {})[queue] = end
        chunks, cuts = list(self._chunks), 0
        for number, some in of_chunks.items():
            chunks[number], more = _without_ends(chunks[number], some)
            cuts += more
        if all(chunks[number] is self._chunks[number] for number in of_chunks):
            return self, 0
        return CoverageRows(chunks), cuts


def _without_ends(
    rows: tuple[CoverageRow, ...], ends: Mapping[QueueId, QueueOffset]
) -> tuple[tuple[CoverageRow, ...], int]:
    cut = {row[0] for row in rows if row[0] in ends and row[2] > ends[row[0]]}
    if not cut:
        return rows, 0
    kept: list[CoverageRow] = []
    left: set[QueueId] = set()
    for queue, start, end in rows:
        if queue not in cut:
            kept.append((queue, start, end))
        elif start < ends[queue]:
            kept.append((queue, start, min(end, ends[queue])))
            left.add(queue)
    return tuple(kept), len(left)


def _divided(rows: Sequence[CoverageRow]) -> Iterator[tuple[CoverageRow, ...]]:
    """Chunks of ordered rows, none of which ends amid the rows of a queue."""
    start = 0
    while start < len(rows):
        end = min(start + CHUNK_ROWS, len(rows))
        while end < len(rows) and rows[end][0] == rows[end - 1][0]:
            end += 1
        yield tuple(rows[start:end])
        start = end


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
