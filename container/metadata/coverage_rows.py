"""Coverage of an index file in chunks, so that a change copies some rows and not all."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, overload

import orjson

from container.metadata.records import CoverageRow
from container.names.queue_id import QueueId
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
