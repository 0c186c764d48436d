"""Scan of parts whose metadata is lost: runs of records of one queue each.

A part has no directory. Its records hold their queue, their offset and their position in the
queue's log, so a run of records has all facts of an extent. Other bytes, units or damage, are
searched for the next record (`log_window.find_any_record`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from container.names.queue_id import QueueId, check_path_component
from container.record.batch import values_at
from container.record.columns import RecordColumns, leading_columns
from container.record.verification import ENDS_INSIDE, damaged_bodies, walk_records
from provider.sequential import ByteSource
from provider.stores.packed_segments import PartName
from tieredstore.offline.jobs.engine import Piece
from tieredstore.offline.scan.log_scan import QUEUE_OFFSET_MAX
from tieredstore.offline.scan.log_window import (
    WINDOW_BYTES,
    LogWindow,
    bytes_needed,
    find_any_record,
)
from tieredstore.offline.scan.sources import source_of
from tieredstore.offline.scan.split import LogPiece, TierPlace

AHEAD_BYTES = 32 << 20
"""Bytes of ranges that are announced to the source at once."""
NEAR_BYTES = 64 << 10
"""Rest of the window below which it moves: a move copies its content."""


class PartRun(NamedTuple):
    """Records of one queue that lie side by side in a part, and in the queue's log."""

    position: int
    """First byte in the log."""
    length: int
    first_offset: int
    records: int
    """Number of records; their queue offsets are consecutive."""
    object_name: str
    object_offset: int
    is_sound: bool = True
    """False if each record fails a checksum. Only `split_by_checksums` verifies any."""

    @property
    def end(self) -> int:
        """End in the log, exclusive."""
        return self.position + self.length

    @property
    def epoch(self) -> int:
        """Of the owner that made the part."""
        part = PartName.parse(self.object_name)
        return 0 if part is None else part.epoch

    @property
    def piece(self) -> LogPiece:
        """Piece of its bytes."""
        return LogPiece(self.position, self.length, self.object_name, self.object_offset)


@dataclass(frozen=True, slots=True)
class PartTask:
    """Parts for one worker."""

    parts: tuple[tuple[str, int], ...]
    """Name and length of each."""
    place: TierPlace

    @property
    def bytes(self) -> int:
        """Bytes to read."""
        return sum(size for _, size in self.parts)


def part_item(task: PartTask) -> Iterator[Piece]:
    """The mapper: a piece for each queue and part, whose payload is JSON of its runs.

    Raises:
        Unavailable: try again.
        Denied: the storage refuses.
        Corrupt: a data key of an encrypted tier was changed.
    """
    source = source_of(task.place)
    try:
        for name, size in task.parts:
            found: dict[QueueId, list[PartRun]] = {}
            for queue, run in runs_of_part(source, name, size):
                found.setdefault(queue, []).append(run)
            for queue, runs in found.items():
                yield Piece(str(queue), runs[0].position, _json(runs))
    finally:
        source.close()


def _json(runs: list[PartRun]) -> bytes:
    return orjson.dumps([tuple(run) for run in runs])


def runs_of_part(source: ByteSource, name: str, size: int) -> Iterator[tuple[QueueId, PartRun]]:
    """The runs of one part, in order. Some 0.6 us a record; memory: a window of 4 MiB.

    Raises:
        Unavailable, Denied: as `ByteSource.read_into`.
    """
    if not size:
        return
    window = LogWindow(source, [LogPiece(0, size, name, 0)], 0, size)
    at = expected = 0
    last: tuple[QueueId, PartRun] | None = None
    while at < size:
        if at >= expected:
            expected = min(at + AHEAD_BYTES, size)
            window.expect(expected)
        rows, end = _records_from(window, at)
        for queue, run in rows:
            run = run._replace(object_name=name)  # noqa: PLW2901 - now it is whole
            if last is not None and last[0] == queue and _follows(last[1], run):
                before = last[1]
                length, records = before.length + run.length, before.records + run.records
                last = (queue, before._replace(length=length, records=records))
                continue
            if last is not None:
                yield last
            last = (queue, run)
        at = end if rows else find_any_record(window, end)
    if last is not None:
        yield last


def _follows(before: PartRun, run: PartRun) -> bool:
    return (
        before.object_offset + before.length == run.object_offset
        and before.end == run.position
        and before.first_offset + before.records == run.first_offset
    )


def split_by_checksums(source: ByteSource, run: PartRun) -> Iterator[PartRun]:
    """Yield the parts of a run whose records all pass their checksums, or all fail.

    Reads the run. Some 0.5 us a record, and one CRC-32 over its body.

    Raises:
        Unavailable, Denied: as `ByteSource.read_into`.
    """
    window = LogWindow(source, [run.piece], run.position, run.end)
    window.expect(run.end)
    at, done = run.position, 0
    while at < run.end:
        starts, sizes, _ = _touching(window, at)
        if not len(starts):  # unreadable by now
            yield _part_of(run, at, run.end, done, run.records - done, is_sound=False)
            return
        bad = np.zeros(len(starts), np.bool_)
        bad[damaged_bodies(window.raw, starts, sizes)] = True
        edges = [0, *(np.flatnonzero(np.diff(bad)) + 1).tolist(), len(bad)]
        for first, last in pairwise(edges):
            end = at + int(sizes[first:last].sum())
            yield _part_of(run, at, end, done, last - first, is_sound=not bad[first])
            at, done = end, done + last - first


def last_record(source: ByteSource, piece: LogPiece) -> int:
    """Return the log position of the last record of a piece that begins with one. Reads it.

    Raises:
        Unavailable, Denied: as `ByteSource.read_into`.
    """
    window = LogWindow(source, [piece], piece.position, piece.end)
    window.expect(piece.end)
    at = last = piece.position
    while at < piece.end:
        starts, sizes, _ = _touching(window, at)
        if not len(starts):
            break
        last = window.start + int(starts[-1])
        at = last + int(sizes[-1])
    return last


def _part_of(
    run: PartRun, start: int, end: int, done: int, records: int, *, is_sound: bool
) -> PartRun:
    shift = start - run.position
    return PartRun(
        start,
        end - start,
        run.first_offset + done,
        records,
        run.object_name,
        run.object_offset + shift,
        is_sound,
    )


def _records_from(window: LogWindow, at: int) -> tuple[list[tuple[QueueId, PartRun]], int]:
    """Return the adjacent runs from `at` on and their end, or the position to search from."""
    starts, sizes, columns = _touching(window, at)
    if not len(starts):
        return [], at + 1
    found = _runs(window.raw, window.start, starts, sizes, columns)
    return found, window.start + int(starts[-1] + sizes[-1])


def _touching(
    window: LogWindow, at: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], RecordColumns]:
    """Return starts in the window, sizes and fields of the adjacent records from `at` on."""
    if window.end - at < NEAR_BYTES and window.end < window.limit:
        window.move(at, WINDOW_BYTES)
    walk = walk_records(window.raw, at - window.start)
    if not len(walk.starts) and walk.reason == ENDS_INSIDE and window.end < window.limit:
        needed = bytes_needed(window.raw.data[at - window.start :], window.limit - at)
        window.move(at, max(needed, 1))
        walk = walk_records(window.raw, at - window.start)
    begin = at - window.start
    ends = walk.starts + walk.sizes
    follow = np.concatenate((np.array([begin]), ends[:-1])) == walk.starts
    touching = len(follow) if follow.all() else int(np.argmin(follow))
    sound = int(np.searchsorted(ends, window.lost_behind(at) - window.start, side="right"))
    count = min(touching, sound, len(walk.starts))
    columns, _ = leading_columns(window.raw, walk.starts[:count], walk.sizes[:count])
    count = len(columns.headers)
    return walk.starts[:count], walk.sizes[:count], columns


def _runs(
    raw: NDArray[np.uint8],
    at: int,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    columns: RecordColumns,
) -> list[tuple[QueueId, PartRun]]:
    """Return runs of adjacent records. Records that no queue can have are left out."""
    headers = columns.headers
    offsets = headers["queue_offset"].astype(np.int64)
    positions = headers["physical_offset"].astype(np.int64)
    queue_ids = headers["queue_id"].astype(np.int64)
    goes_on = (
        (np.diff(queue_ids) == 0)
        & (np.diff(offsets) == 1)
        & (np.diff(positions) == sizes[:-1])
        & _same_as_before(raw, columns.topics.starts, columns.topics.ends)
    )
    edges = [0, *(np.flatnonzero(~goes_on) + 1).tolist(), len(starts)]
    found: list[tuple[QueueId, PartRun]] = []
    for first, last in pairwise(edges):
        text = raw[columns.topics.starts[first] : columns.topics.ends[first]].tobytes()
        topic = text.decode("utf-8", "replace")
        offset, position = int(offsets[first]), int(positions[first])
        queue_id = int(queue_ids[first])
        is_possible = 0 <= offset <= QUEUE_OFFSET_MAX and position >= 0 and queue_id >= 0
        if not is_possible or check_path_component(topic) is not None or topic.encode() != text:
            continue
        length = int(sizes[first:last].sum())
        run = PartRun(position, length, offset, last - first, "", at + int(starts[first]))
        found.append((QueueId(topic, queue_id), run))
    return found


def _same_as_before(
    raw: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Of each text but the first, whether it equals the one before it."""
    lengths = ends - starts
    same = np.diff(lengths) == 0
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if not length or len(rows) < 2:  # noqa: PLR2004 - two are compared
            continue
        texts = values_at(raw, f"V{length}", starts[rows]).view(np.uint8).reshape(-1, length)
        neighbours = np.diff(rows) == 1
        equal = (texts[1:] == texts[:-1]).all(axis=1)
        same[rows[:-1][neighbours]] &= equal[neighbours]
    return same
