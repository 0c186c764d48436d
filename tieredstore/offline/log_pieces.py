"""A queue's log put together from runs of records that were found in parts. Pure.

Parts that were merged lie beside those that they were made of, and parts that were never published
beside those that were: the same bytes at the same place. Where bytes differ, one was cut off, or
its owner was fenced before it published them: what an owner of a higher epoch wrote there is what
was published later, and nothing that older owners wrote from there on is. Two versions of owners of
one epoch cannot be told apart.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from itertools import pairwise

from provider.errors import Corrupt
from tieredstore.offline.part_scan import PartRun
from tieredstore.offline.split import LogPiece

FILLER_BYTES = 4 << 20
"""Length of the object of zeros that stands for bytes that are lost."""

HOLE_BYTES_MAX = 64 << 30
"""A longer hole is taken for damage."""

AreSame = Callable[[LogPiece, LogPiece], bool]
"""Whether two places hold the same bytes."""


class _Covered:
    """Pieces of a log that do not overlap, in order."""

    def __init__(self) -> None:
        self.runs: list[PartRun] = []

    def overlapping(self, start: int, end: int) -> list[PartRun]:
        """Those that have a byte of `[start, end)`, in order."""
        first = bisect_right(self.runs, start, key=lambda one: one.end)
        last = bisect_left(self.runs, end, key=lambda one: one.position)
        return self.runs[first:last]

    def add(self, run: PartRun, end: int) -> None:
        """Add the parts of a run below `end` that are not covered yet."""
        at = run.position
        for other in [*self.overlapping(run.position, end), None]:
            low, high = at, end if other is None else min(other.position, end)
            if low < high:
                shift = low - run.position
                offset = run.first_offset if not shift else -1
                start = run.object_offset + shift
                part = PartRun(low, high - low, offset, 0, run.object_name, start)
                insort(self.runs, part, key=lambda one: one.position)
            if other is not None:
                at = other.end


def put_together(runs: Sequence[PartRun], are_same: AreSame, *, path: str) -> list[PartRun]:
    """The runs of a log, in order, without overlaps; there may be holes. O(n log n).

    `are_same` is asked of bytes that are there twice.

    Raises:
        Corrupt: two versions of owners of one epoch stand at one place; the position is the log's.
    """
    covered = _Covered()
    ends = _Ends()
    for run in sorted(runs, key=lambda one: (-one.epoch, one.position, -one.length)):
        end = min(run.end, ends.of(run.epoch))
        for other in covered.overlapping(run.position, end):
            low, high = max(run.position, other.position), min(end, other.end)
            if are_same(_part(run, low, high), _part(other, low, high)):
                continue
            if run.epoch == other.epoch:
                reason = (
                    f"two versions of its log stand in parts of epoch {run.epoch}, "
                    f"{run.object_name} and {other.object_name}"
                )
                raise Corrupt(reason, path, low)
            ends.lower(run.epoch, low)
            end = low
            break
        if run.position < end:
            covered.add(run, end)
    return covered.runs


def _part(run: PartRun, low: int, high: int) -> LogPiece:
    return LogPiece(low, high - low, run.object_name, run.object_offset + low - run.position)


class _Ends:
    """Where the logs of older owners were cut off by newer ones."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []

    def of(self, epoch: int) -> int:
        """Nothing that an owner of this epoch wrote there or behind is of the log."""
        return min((end for upto, end in self._ends if epoch <= upto), default=1 << 63)

    def lower(self, epoch: int, end: int) -> None:
        """Note that what owners up to this epoch wrote from `end` on was cut off."""
        self._ends.append((epoch, end))


def with_filler(pieces: Sequence[LogPiece], filler: str, *, path: str) -> list[LogPiece]:
    """The same log without holes: what is lost lies in the object `filler`, as zeros.

    Raises:
        Corrupt: a hole is so long that a damaged position is likelier.
    """
    found: list[LogPiece] = []
    for before, piece in pairwise([*pieces[:1], *pieces]):
        if piece.position - before.end > HOLE_BYTES_MAX:
            hole = piece.position - before.end
            raise Corrupt(f"{hole} bytes of its log are in no part", path, before.end)
    for piece in pieces:
        at = found[-1].end if found else piece.position
        while at < piece.position:
            length = min(FILLER_BYTES, piece.position - at)
            found.append(LogPiece(at, length, filler, 0))
            at += length
        found.append(piece)
    return found
