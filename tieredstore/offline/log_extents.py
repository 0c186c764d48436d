"""Extents of a log whose metadata are lost: cut while it is scanned, with their checksums."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from container.queue.roll_points import cut_runs
from container.record.blank import Coda
from container.record.checksum import crc32c
from provider.errors import Corrupt
from provider.sequential import ByteSource
from tieredstore.offline.log_scan import FoundRecords
from tieredstore.offline.split import LogPiece, ScanReport, Split

PIECE_BYTES = 4 << 20
ExtentRow = tuple[int, int, int | None, int, int, int]
"""Log position, length, CRC-32C (None: not all can be read), first offset (-1: it holds no record),
oldest, newest."""


@dataclass(slots=True)
class _Open:
    start: int
    end: int
    crc32c: int
    first_offset: int
    oldest_ms: int
    newest_ms: int

    @property
    def row(self) -> ExtentRow:
        """As it is told."""
        length = self.end - self.start
        return (
            self.start, length, self.crc32c, self.first_offset, self.oldest_ms, self.newest_ms
        )  # fmt: skip


class LogExtents:
    """Cuts the records of one split into extents that touch; what is between records is one, too.

    The cuts are not those of the owner that wrote the log, which nobody needs: an extent begins and
    ends between records, and that is all.
    """

    def __init__(self, bytes_max: int, pieces: Sequence[LogPiece] = ()) -> None:
        """No extent lies in two of these pieces, whose objects may differ."""
        self._bytes_max = bytes_max
        self._edges = [piece.position for piece in pieces]
        self._rows: list[ExtentRow] = []
        self._open: _Open | None = None

    def add(self, found: FoundRecords, offsets: NDArray[np.int64]) -> None:
        """Sum and cut the records of one chunk, which follow one another."""
        low, high = int(found.positions[0]), int(found.positions[-1])
        first, last = bisect_right(self._edges, low), bisect_right(self._edges, high)
        if first == last:
            self._add(found, offsets)
            return
        edges = np.array([low, *self._edges[first:last], high + 1], np.int64)
        for begin, end in pairwise(edges.tolist()):
            rows = (found.positions >= begin) & (found.positions < end)
            if rows.any():
                self._add(found.taken(rows), offsets[rows])

    def _add(self, found: FoundRecords, offsets: NDArray[np.int64]) -> None:
        """As `add`, of records that lie in one piece."""
        begin = int(found.positions[0])
        ends = found.positions + found.sizes
        if self._open is not None and (self._open.end != begin or self._is_edge(begin)):
            self._close()
        start = begin if self._open is None else self._open.start
        stamps, view = found.columns.store_timestamps, found.raw.data
        for cut in cut_runs(ends, begin, open_start=start, bytes_max=self._bytes_max):
            low = begin if cut.first == 0 else int(ends[cut.first - 1])
            high = int(ends[cut.last - 1])
            part = view[low - found.log_start : high - found.log_start]
            oldest = int(stamps[cut.first : cut.last].min())
            newest = int(stamps[cut.first : cut.last].max())
            now = self._open
            if now is not None and cut.start == now.start:
                now.crc32c, now.end = crc32c(part, now.crc32c), high
                now.oldest_ms, now.newest_ms = (
                    min(now.oldest_ms, oldest),
                    max(now.newest_ms, newest),
                )
            else:
                self._close()
                first = int(offsets[cut.first])
                self._open = _Open(low, high, crc32c(part), first, oldest, newest)

    def finish(self, source: ByteSource, report: ScanReport) -> list[ExtentRow]:
        """All extents of the split, which together cover `[first, end)` of its report.

        Reads what lies between records, which is little, for its checksum.
        """
        self._close()
        first, end = report.first, report.end
        assert first is not None, "the scan has ended"
        assert end is not None, "the scan has ended"
        rows: list[ExtentRow] = []
        at = first
        for row in [*self._rows, (end, 0, 0, -1, 0, 0)]:
            if at < row[0]:
                first, last = bisect_right(self._edges, at), bisect_left(self._edges, row[0])
                for low, high in pairwise([at, *self._edges[first:last], row[0]]):
                    rows = self._with_hole(rows, source, report.split, low, high)
            if row[1]:
                rows.append(row)
            at = row[0] + row[1]
        return rows

    def _with_hole(
        self, rows: list[ExtentRow], source: ByteSource, split: Split, start: int, end: int
    ) -> list[ExtentRow]:
        before = rows[-1] if rows else None
        is_coda = end - start == Coda.SIZE and not self._is_edge(start)
        if before is not None and is_coda and before[2] is not None:
            crc = _sum(source, split, start, end, before[2])
            return [*rows[:-1], (before[0], before[1] + Coda.SIZE, crc, *before[3:])]
        crc = _sum(source, split, start, end, 0)
        return [*rows, (start, end - start, crc, -1, 0, 0)]

    def _is_edge(self, position: int) -> bool:
        """Whether a piece begins there."""
        at = bisect_left(self._edges, position)
        return at < len(self._edges) and self._edges[at] == position

    def _close(self) -> None:
        if self._open is not None:
            self._rows.append(self._open.row)
        self._open = None


def _sum(source: ByteSource, split: Split, start: int, end: int, crc: int) -> int | None:
    """Checksum of bytes of the log, missing ones as zeros; None if some cannot be read."""
    room = memoryview(bytearray(min(PIECE_BYTES, end - start)))
    for piece in split.pieces:
        low, high = max(piece.position, start), min(piece.end, end)
        while low < high:
            view = room[: high - low]
            place = piece.object_offset + low - piece.position
            try:
                count = source.read_into(piece.object_name, place, view)
            except Corrupt:  # an encrypted frame was changed
                return None
            view[count:] = bytes(len(view) - count)
            crc, low = crc32c(view, crc), low + len(view)
    return crc
