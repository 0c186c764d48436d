"""What one commit of one queue writes, and what it will publish. Pure but for the batch's bytes."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from container.metadata.operations import CommitQueue, SegmentChange
from container.metadata.records import Extent, Queue, Segment
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.options import TierOptions
from container.queue.boundaries import AgeRule, Cut, cut_runs
from container.record.batch import MessageBatch
from container.record.kernels import encode_units, rewrite_positions
from container.record.unit import UNIT_BYTES
from provider.file_segments import SegmentSlice
from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """One queue's part of a round: slices to make durable, then one operation to publish."""

    queue: QueueId
    slices: tuple[SegmentSlice, ...]
    operation: CommitQueue

    @property
    def next_offset(self) -> QueueOffset:
        """The commit offset once the plan is published."""
        return self.operation.next_offset

    @property
    def bytes(self) -> int:
        """How many bytes it writes, CommitLog and ConsumeQueue together."""
        return sum(len(buffer) for part in self.slices for buffer in part.buffers)


class _Column(NamedTuple):
    """What is appended to one flat file: records or units, one item for each message."""

    type: SegmentType
    begin: int
    """First byte in the flat file."""
    data: NDArray[np.uint8]
    ends: NDArray[np.int64]
    """Byte of the flat file behind each item."""
    timestamps: NDArray[np.int64]
    """Store timestamps of the messages, Unix ms."""
    first_offset: int
    """Queue offset of the first message."""


class CutRules(NamedTuple):
    """What cutting needs to know besides the messages."""

    options: TierOptions
    epoch: int
    now_ms: int
    must_roll: bool
    """The open segments were begun by an owner that may still live: begin new ones."""


def plan_commit(queue: Queue, batch: MessageBatch, rules: CutRules) -> CommitPlan:
    """Plan the commit of `batch` behind what is published of `queue`.

    Rewrites bytes 28..35 of every record in `batch.data` to its tier position (and the optional
    whole-record CRC); doing that again for a second plan of the same batch is harmless.
    Thread-safe: it reads immutable records only. CPU: about 0.5 ns per byte and 0.2 us per message.
    """
    assert batch.first_offset == queue.next_offset, f"{batch.first_offset} after {queue}"
    log_begin = queue.flat_end(SegmentType.COMMIT_LOG)
    positions = batch.starts + log_begin
    rewrite_positions(batch.data, batch.starts, batch.sizes, positions)
    units = encode_units(positions, batch.sizes, batch.tag_hashes)
    unit_begin = UNIT_BYTES * queue.next_offset
    unit_ends = unit_begin + UNIT_BYTES * np.arange(1, len(batch) + 1, dtype=np.int64)
    columns = (
        _Column(
            SegmentType.COMMIT_LOG,
            log_begin,
            batch.data,
            positions + batch.sizes,
            batch.store_timestamps,
            batch.first_offset,
        ),
        _Column(
            SegmentType.CONSUME_QUEUE,
            unit_begin,
            units.view(np.uint8).reshape(-1),
            unit_ends,
            batch.store_timestamps,
            batch.first_offset,
        ),
    )
    slices: list[SegmentSlice] = []
    changes: list[SegmentChange] = []
    for column in columns:
        more_slices, more_changes = _plan_column(queue, column, rules)
        slices += more_slices
        changes += more_changes
    operation = CommitQueue(queue.id, queue.next_offset, batch.next_offset, tuple(changes))
    return CommitPlan(queue.id, tuple(slices), operation)


def _plan_column(
    queue: Queue, column: _Column, rules: CutRules
) -> tuple[list[SegmentSlice], list[SegmentChange]]:
    """The slices and changes of one flat file."""
    slices: list[SegmentSlice] = []
    changes: list[SegmentChange] = []
    live = queue.segments(column.type)
    newest = live[-1] if live and live[-1].sealed_ms is None else None
    open_segment = None if rules.must_roll else newest
    options = rules.options
    is_log = column.type == SegmentType.COMMIT_LOG
    age = AgeRule(
        column.timestamps,
        open_segment.begin_timestamp if open_segment else None,
        options.rolling_age_ms,
        options.rolling_bytes_min,
    )
    cuts = cut_runs(
        column.ends,
        column.begin,
        open_start=open_segment.base if open_segment else column.begin,
        bytes_max=options.commit_log_bytes_max if is_log else options.consume_queue_bytes_max,
        age=age if is_log else None,
    )
    if newest is not None and (open_segment is None or cuts[0].start != open_segment.base):
        changes.append(_sealed(newest, rules.now_ms))
        open_segment = None
    for number, cut in enumerate(cuts):
        extended = open_segment if open_segment and cut.start == open_segment.base else None
        name = segment_name(queue.id, column.type, cut.start)
        first_byte, last_byte = _bytes_of(column, cut)
        position = column.begin + first_byte - cut.start
        slices.append(SegmentSlice(name, position, (column.data[first_byte:last_byte].data,)))
        keep, extents = _extents(column, cut, extended, options.extent_bytes_max)
        changes.append(
            SegmentChange(
                column.type,
                cut.start,
                keep,
                extents,
                created_ms=extended.created_ms if extended else rules.now_ms,
                epoch=extended.epoch if extended else rules.epoch,
                sealed_ms=rules.now_ms if number < len(cuts) - 1 else None,
            )
        )
    return slices, changes


def _sealed(segment: Segment, now_ms: int) -> SegmentChange:
    return SegmentChange(
        segment.type,
        segment.base,
        len(segment.extents),
        (),
        created_ms=segment.created_ms,
        epoch=segment.epoch,
        sealed_ms=now_ms,
    )


def _bytes_of(column: _Column, cut: Cut) -> tuple[int, int]:
    """First and last byte of a cut's items, counted in the column's own data."""
    first = 0 if cut.first == 0 else int(column.ends[cut.first - 1]) - column.begin
    return first, int(column.ends[cut.last - 1]) - column.begin


def _extents(
    column: _Column, cut: Cut, extended: Segment | None, bytes_max: int
) -> tuple[int, tuple[Extent, ...]]:
    """The extents that change: how many old ones stay as they are, and what follows them."""
    old = extended.extents if extended else ()
    # A checksum that was never read (of a Java tier) cannot be extended.
    newest = old[-1] if old and old[-1].crc32c is not None else None
    first_byte, _ = _bytes_of(column, cut)
    begin = column.begin + first_byte
    runs = cut_runs(
        column.ends[cut.first : cut.last],
        begin,
        open_start=cut.start + newest.position if newest else begin,
        bytes_max=bytes_max,
    )
    growing = newest if runs[0].start < begin else None
    extents = [_extent(column, cut, runs[0], growing)]
    extents += [_extent(column, cut, run, None) for run in runs[1:]]
    return len(old) - (growing is not None), tuple(extents)


def _extent(column: _Column, cut: Cut, run: Cut, growing: Extent | None) -> Extent:
    """The extent of one run of a cut's items, with what it had before if it is `growing`."""
    items = Cut(run.start, cut.first + run.first, cut.first + run.last)
    first, last = _bytes_of(column, items)
    stamps = column.timestamps[items.first : items.last]
    length, checksum = last - first, 0
    offset = QueueOffset(column.first_offset + items.first)
    low, high = int(stamps.min()), int(stamps.max())
    if growing is not None:
        length += growing.length
        checksum = growing.crc32c or 0
        offset = growing.first_offset
        low, high = min(low, growing.min_timestamp), max(high, growing.max_timestamp)
    return Extent(
        position=run.start - cut.start,
        length=length,
        crc32c=crc32c(column.data[first:last].data, checksum),
        first_offset=offset,
        min_timestamp=low,
        max_timestamp=high,
        object_offset=run.start - cut.start,
    )
