"""Queue records and index files from the results of a metadata rebuild's scans. Pure."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from container.errors import Refused
from container.java.metadata import KnownOffsets
from container.metadata.coverage import merged
from container.metadata.records import Extent, Gap, IndexFile, Queue, Segment, check_queue
from container.names.queue_id import QueueId, SegmentType
from container.names.tier_objects import INDEX_PREFIX, IndexBase
from container.record.unit import UNIT_BYTES
from provider.errors import Corrupt
from provider.ranges import QueueOffset
from tieredstore.offline.jobs.part_scan import PartRun
from tieredstore.offline.scan.split import LogPiece

FIRST_EPOCH = 1
"""Epoch of the owner whose entry publishes the rebuilt metadata: the journal's first."""
GAP_REASON = "no sound record of it was in the log when the metadata were made again"
Said = Mapping[str, Any]
"""Report of a mapper or a reducer of a rebuild, as JSON."""


class QueueParts(NamedTuple):
    """Parts of a queue that the log proves."""

    queue: QueueId
    files: Sequence[tuple[int, int]]
    """Base and limit of each CommitLog file, in order."""
    said: Sequence[Said]
    """By split, in order."""
    units: Mapping[str, Said]
    """By name of a ConsumeQueue file, in order."""
    pieces: Sequence[LogPiece] = ()
    """Pieces of the log, for a tier in an object store; no extent is in two of them."""

    def place_of(self, position: int, base: int) -> tuple[str, int]:
        """Object and place in it of a byte of the log, in the segment at `base`."""
        if not self.pieces:
            return "", position - base
        at = bisect_right(self.pieces, position, key=lambda piece: piece.position) - 1
        piece = self.pieces[at]
        return piece.object_name, piece.object_offset + position - piece.position


def runs_of(said: Sequence[Said]) -> list[tuple[int, int]]:
    """Queue offsets `[first, end)` that follow one another, in order of the log."""
    runs: list[tuple[int, int]] = []
    for one in said:
        for start, behind in one["offsets"]:
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], behind)
            else:
                runs.append((start, behind))
    return runs


def queue_of_parts(parts: QueueParts, *, now_ms: int) -> Queue:
    """The record of a queue of which nothing was known.

    Raises:
        Corrupt: it cannot be published; the position is a queue offset.
    """
    runs, path = runs_of(parts.said), str(parts.queue)
    if not runs:
        raise Corrupt("no sound record is in its log", path)
    for (_, behind), (start, _) in pairwise(runs):
        if start < behind:
            raise Corrupt(f"offset {start} stands in the log behind {behind - 1}", path, start)
    faults = [one["fault"] for one in parts.units.values() if "fault" in one]
    if faults:
        raise Corrupt(faults[0], path, runs[0][0])
    gaps = tuple(
        Gap(QueueOffset(behind), QueueOffset(start), GAP_REASON, now_ms)
        for (_, behind), (start, _) in pairwise(runs)
    )
    queue = Queue(
        parts.queue,
        QueueOffset(runs[0][0]),
        QueueOffset(runs[-1][1]),
        _sealed(_log_segments(parts)),
        _sealed(_unit_segments(parts)),
        gaps=gaps,
    )
    try:
        check_queue(queue)
    except Refused as error:
        raise Corrupt(error.reason, path, error.position) from error
    return queue


def with_known_gaps(queue: Queue, known: KnownOffsets) -> Queue:
    """Return the queue with its gaps of an export of the earlier metadata. Pure.

    A gap at the end of the queue, which no message proves, is added, and the queue continues after
    it. A gap that was found again gets its reason and its time. Other gaps contradict the messages.
    """
    published = {(gap.start, gap.end): gap for gap in known.gaps}
    gaps = [published.get((gap.start, gap.end), gap) for gap in queue.gaps]
    last = next((gap for gap in known.gaps if gap.start == queue.next_offset), None)
    if last is None:
        return replace(queue, gaps=tuple(gaps))
    made = replace(
        queue,
        next_offset=last.end,
        commit_log=_sealed(queue.commit_log, goes_on=False),
        consume_queue=_sealed(queue.consume_queue, goes_on=False),
        gaps=(*gaps, last),
    )
    check_queue(made)
    return made


def _log_segments(parts: QueueParts) -> list[Segment]:
    rows = [row for one in parts.said for row in one["extents"]]
    while rows[-1][3] < 0:
        rows.pop()  # no gap covers what lies after the last message
    segments: list[Segment] = []
    firsts = _first_offsets(rows, runs_of(parts.said))
    stamp = next(row[4] for row in rows if row[3] >= 0)
    for base, limit in parts.files:
        extents: list[Extent] = []
        for (position, length, crc, first, oldest, newest), offset in zip(
            rows, firsts, strict=True
        ):
            if not base <= position < limit:
                continue
            stamp = newest if first >= 0 else stamp
            extents.append(
                Extent(
                    position - base,
                    length,
                    crc,
                    QueueOffset(offset),
                    oldest if first >= 0 else stamp,
                    newest if first >= 0 else stamp,
                    *parts.place_of(position, base),
                )
            )
        if extents:
            segments.append(
                Segment(SegmentType.COMMIT_LOG, base, _created(extents), 0, tuple(extents))
            )
    return segments


def _first_offsets(rows: Sequence[Any], runs: Sequence[tuple[int, int]]) -> list[int]:
    """First queue offset of each row of a log: of one without records, the first that it lost.

    So that each row's offsets end where those of the next one begin.
    """
    ends = [behind for _, behind in runs]
    starts = {behind: start for (_, behind), (start, _) in pairwise(runs)}
    found: list[int] = []
    at = runs[-1][1]
    for row in reversed(rows):
        at = row[3] if row[3] >= 0 else at
        found.append(at)
    found.reverse()
    offset = runs[0][0]
    for number, row in enumerate(rows):
        if row[3] >= 0:
            offset = ends[bisect_right(runs, row[3], key=lambda run: run[0]) - 1]
        elif starts.get(offset) == found[number]:
            found[number] = offset
    return found


def _unit_segments(parts: QueueParts) -> list[Segment]:
    segments: list[Segment] = []
    for said in sorted(parts.units.values(), key=lambda one: one["first"]):
        made: str = said.get("object", "")
        extents = [
            Extent(position, length, crc, QueueOffset(first), oldest, newest, made, position)
            for position, length, crc, first, oldest, newest in said["extents"]
        ]
        base = UNIT_BYTES * said["first"]
        segments.append(
            Segment(SegmentType.CONSUME_QUEUE, base, _created(extents), 0, tuple(extents))
        )
    return segments


def _created(extents: Sequence[Extent]) -> int:
    return min(extent.min_timestamp for extent in extents)


def _sealed(segments: Sequence[Segment], *, goes_on: bool = True) -> tuple[Segment, ...]:
    """All but the last are closed for good; the last, too, if the queue ends with a gap."""
    last = segments[-1:] if goes_on else ()
    closed = [
        Segment(one.type, one.base, one.created_ms, one.epoch, one.extents, one.end_timestamp)
        for one in segments[: len(segments) - len(last)]
    ]
    return (*closed, *last)


def first_free_number(root: Path) -> int:
    """Above the numbers of all index files of the first epoch below a broker's directory."""
    names = (path.relative_to(root).as_posix() for path in (root / INDEX_PREFIX).glob("*"))
    bases = [base for name in names if (base := IndexBase.parse(name)) is not None]
    return 1 + max((b.number_of_owner for b in bases if b.epoch == FIRST_EPOCH), default=0)


def index_file_of(name: str, said: Said, coverage: Sequence[tuple[QueueId, int, int]]) -> IndexFile:
    """The record of an index file of ours."""
    parsed = IndexBase.parse(name)
    assert parsed is not None, "it was planned"
    spans: dict[QueueId, list[tuple[int, int]]] = {}
    for queue, start, behind in coverage:
        spans.setdefault(queue, []).append((start, behind))
    return IndexFile(
        name,
        parsed.number,
        said["bytes"],
        said["begin"],
        said["end"],
        said["slots"],
        said["items"],
        tuple(
            (queue, QueueOffset(a), QueueOffset(b))
            for queue in sorted(spans)
            for a, b in merged(spans[queue])
        ),
        said["crc32c"],
    )


FILLER_BYTES = 4 << 20
"""Length in bytes of the object of zeros in place of lost bytes."""

HOLE_BYTES_MAX = 64 << 30
"""A longer hole is taken for damage."""

AreSame = Callable[[LogPiece, LogPiece], bool]
"""Whether two places hold the same bytes."""


class _Covered:
    """Pieces of a log that do not overlap, in order."""

    def __init__(self) -> None:
        self.runs: list[PartRun] = []

    def overlapping(self, start: int, end: int) -> list[PartRun]:
        """Return the runs with a byte in `[start, end)`, in order."""
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

    `are_same` is asked of sound bytes that are there twice. Others fill what no sound ones cover.

    Raises:
        Corrupt: two versions of owners of one epoch stand at one place; the position is the log's.
    """
    covered = _Covered()
    ends = _Ends()
    for run in sorted(runs, key=_order):
        end = min(run.end, ends.of(run.epoch))
        for other in covered.overlapping(run.position, end) if run.is_sound else ():
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


def _order(run: PartRun) -> tuple[bool, int, int, int]:
    return not run.is_sound, -run.epoch, run.position, -run.length


def overlapping(runs: Sequence[PartRun]) -> set[PartRun]:
    """Return the runs with bytes of the log that another run has, too. O(n log n)."""
    found: set[PartRun] = set()
    last: PartRun | None = None
    for run in sorted(runs, key=lambda one: one.position):
        if last is not None and run.position < last.end:
            found |= {run, last}
        if last is None or run.end > last.end:
            last = run
    return found


def _part(run: PartRun, low: int, high: int) -> LogPiece:
    return LogPiece(low, high - low, run.object_name, run.object_offset + low - run.position)


class _Ends:
    """Positions at which newer owners truncated the logs of older ones."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []

    def of(self, epoch: int) -> int:
        """Bytes that an owner of this epoch wrote there or later are not of the log."""
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
