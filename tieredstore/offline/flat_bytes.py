"""Bytes of a flat file that lie in several objects, and checksums of bytes that are read once."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.record.batch import decode_units
from container.record.checksum import crc32c
from container.record.unit import UNIT_BYTES, UNIT_DTYPE, Units
from provider.sequential import ByteSource, ObjectRange
from tieredstore.offline.split import LogPiece

SUM_BYTES = 4 << 20
"""Read at once for a checksum alone."""
NEAR_UNITS = 4 << 10
"""Units that nobody asked for are read where they are no more than these between two others."""


class Sum(NamedTuple):
    """Bytes of one object with the checksum that was published of them."""

    object_name: str
    start: int
    length: int
    crc32c: int


class SumFault(NamedTuple):
    """Bytes that have another checksum, or are not all there."""

    sum: Sum
    found: int
    bytes: int
    """How many of the bytes are there."""

    def __str__(self) -> str:
        if self.bytes < self.sum.length:
            return f"{self.bytes} of {self.sum.length} bytes are there"
        published = f"published {self.sum.crc32c:#010x}"
        return f"{self.sum.length} bytes have {self.found:#010x}, {published}"


class SummingSource:
    """A `ByteSource` that sums what is read through it, if that is all of it, once and in order."""

    def __init__(self, inner: ByteSource, sums: Sequence[Sum]) -> None:
        self._inner = inner
        self._sums = {(one.object_name, one.start): one for one in sums}
        self._starts: dict[str, list[int]] = {}
        for name, begin in sorted(self._sums):
            self._starts.setdefault(name, []).append(begin)
        self._running: dict[str, tuple[Sum, int, int]] = {}
        self._broken: list[Sum] = []
        """Those of which some bytes were refused and what follows was read."""
        self.faults: list[SumFault] = []
        """Of the sums that are complete."""
        self.summed = 0
        """How many are complete."""

    def expect(self, ranges: Sequence[ObjectRange]) -> None:
        """`ByteSource.expect`."""
        self._inner.expect(ranges)

    def read_into(self, name: str, start: int, view: memoryview) -> int:
        """`ByteSource.read_into`; what is not there counts as wrong."""
        count = self._inner.read_into(name, start, view)
        at = 0
        while at < count:
            running = self._running.pop(name, None)
            if running is not None and running[0].start + running[1] != start + at:
                self._broken.append(running[0])
                running = None
            running = running or self._begun(name, start + at)
            if running is None:
                following = self._next_start(name, start + at, start + count)
                if following is None:
                    return count
                at = following - start
                continue
            one, done, crc = running
            part = view[at : min(count, at + one.length - done)]
            crc = crc32c(part, crc)
            at, done = at + len(part), done + len(part)
            if done < one.length:
                self._running[name] = (one, done, crc)
            else:
                self._end(one, crc, done)
        if count < len(view) and (left := self._running.pop(name, None)) is not None:
            self._end(left[0], left[2], left[1])
        return count

    def close(self) -> None:
        """`ByteSource.close`."""
        self._inner.close()

    def left_out(self) -> list[Sum]:
        """The sums that are not complete, because their bytes were not read one by one."""
        running = (one for one, _, _ in self._running.values())
        return [*self._sums.values(), *self._broken, *running]

    def _next_start(self, name: str, after: int, until: int) -> int | None:
        """Where the next sum begins, behind bytes that belong to none, or to one that broke off."""
        starts = self._starts.get(name, [])
        at = bisect_right(starts, after)
        return starts[at] if at < len(starts) and starts[at] < until else None

    def _begun(self, name: str, start: int) -> tuple[Sum, int, int] | None:
        one = self._sums.pop((name, start), None)
        return None if one is None else (one, 0, 0)

    def _end(self, one: Sum, crc: int, done: int) -> None:
        self.summed += 1
        if done < one.length or crc != one.crc32c:
            self.faults.append(SumFault(one, crc, done))


def check_sum(source: ByteSource, one: Sum) -> SumFault | None:
    """Read some bytes and compare their checksum; None if it is right. Holds `SUM_BYTES`."""
    room = memoryview(bytearray(min(SUM_BYTES, one.length)))
    found = done = 0
    while done < one.length:
        view = room[: one.length - done]
        count = source.read_into(one.object_name, one.start + done, view)
        found, done = crc32c(view[:count], found), done + count
        if count < len(view):
            break
    return SumFault(one, found, done) if done < one.length or found != one.crc32c else None


def read_flat(source: ByteSource, pieces: Sequence[LogPiece], start: int, end: int) -> bytes:
    """The bytes `[start, end)` of a flat file; zeros where there are none."""
    found = bytearray(end - start)
    view = memoryview(found)
    for piece in pieces:
        low, high = max(piece.position, start), min(piece.end, end)
        if low < high:
            place = piece.object_offset + low - piece.position
            source.read_into(piece.object_name, place, view[low - start : high - start])
    return bytes(found)


def read_units(source: ByteSource, pieces: Sequence[LogPiece], offsets: NDArray[np.int64]) -> Units:
    """The unit of each of these queue offsets; zeros, which no unit is, where none is.

    Units of near offsets are read at once. Memory: theirs and those up to `NEAR_UNITS` between.
    """
    wanted = np.unique(offsets)
    runs = np.split(wanted, np.flatnonzero(np.diff(wanted) > NEAR_UNITS) + 1)
    units = np.empty(len(wanted), UNIT_DTYPE)
    done = 0
    for run in runs if len(wanted) else ():
        first, behind = int(run[0]), int(run[-1]) + 1
        raw = read_flat(source, pieces, first * UNIT_BYTES, behind * UNIT_BYTES)
        units[done : done + len(run)] = decode_units(np.frombuffer(raw, np.uint8))[run - first]
        done += len(run)
    return units[np.searchsorted(wanted, offsets)]
