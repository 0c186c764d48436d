"""Extents of very many logs as rows of an array, which have a tenth of the size of objects."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.metadata.records import Gap, Queue, Segment
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.queue.message_queue_container import MessageQueueContainer
from tieredstore.offline.scan.split import LogPiece


class LogRow(NamedTuple):
    """Extent of a log, in a row."""

    queue: int
    """Number that the reader gives it."""
    name: int
    """Number of the object's name; -1: the segment's own file."""
    start: int
    length: int
    object_offset: int
    first_offset: int
    next_offset: int
    first_ms: int
    last_ms: int
    crc32c: int
    """-1: not known."""
    bytes: int
    """Length of its records: `length`, unless a reader found other bytes beside them."""

    def piece(self, queue: QueueId, names: Sequence[str]) -> LogPiece:
        """Return its place. In a segment's own file an extent has its place in the log."""
        if self.name >= 0:
            name = names[self.name]
        else:
            name = segment_name(queue, SegmentType.COMMIT_LOG, self.start - self.object_offset)
        return LogPiece(self.start, self.length, name, self.object_offset)


_SHORT = {"queue": np.uint32, "name": np.int32}
ROW = np.dtype([(name, _SHORT.get(name, np.int64)) for name in LogRow._fields])
Rows = NDArray[np.void]


async def rows_of_log(
    container: MessageQueueContainer, number: int, names: dict[str, int]
) -> AsyncGenerator[Rows]:
    """Yield the extents that may hold readable messages, in order; those of a manifest at a time.

    They are those of `planning.extents_of`, of a tier that has a journal. `number` is that of the
    queue in the rows. Names of objects are added to `names`.

    Raises:
        BytesMissing, Corrupt, Unavailable: of a manifest.
    """
    queue = container.record
    rows = np.empty(0, ROW)
    async for segments in container.runs_of_segments(SegmentType.COMMIT_LOG):
        after = np.fromiter(_values(segments, number, names), ROW)
        if len(after):
            yield _readable(rows, queue, int(after["first_offset"][0]))
            rows = after
    yield _readable(rows, queue, queue.next_offset)


def _readable(rows: Rows, queue: Queue, next_offset: int) -> Rows:
    """Enter ends of offsets, the last of which is `next_offset`. Return the rows with messages."""
    rows["next_offset"] = np.append(rows["first_offset"][1:], next_offset)[: len(rows)]
    first, end = rows["first_offset"], rows["next_offset"]
    is_readable = (first < queue.next_offset) & (end > queue.min_offset)
    return rows[is_readable & ~_lie_in_gap(first, end, queue.gaps)]


def _values(segments: Sequence[Segment], number: int, names: dict[str, int]) -> Iterator[LogRow]:
    for segment in segments:
        for one in segment.extents if segment.is_readable else ():
            name = names.setdefault(one.object_name, len(names)) if one.object_name else -1
            yield LogRow(
                number, name, segment.base + one.position, one.length, one.object_offset,
                one.first_offset, 0, one.min_timestamp, one.max_timestamp,
                -1 if one.crc32c is None else one.crc32c, one.length,
            )  # fmt: skip


def _lie_in_gap(
    first: NDArray[np.int64], end: NDArray[np.int64], gaps: Sequence[Gap]
) -> NDArray[np.bool_]:
    """As `positions.lies_in_gap` for each extent."""
    starts = np.array([-1, *(one.start for one in gaps)])
    ends = np.array([-1, *(one.end for one in gaps)])
    gap_end = ends[np.searchsorted(starts, first, side="right") - 1]
    return (first < gap_end) & (end <= gap_end)
