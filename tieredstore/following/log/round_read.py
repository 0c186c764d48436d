"""Round read: records of many queues in one pass over the CommitLog, verified together."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.columns import TagsCodes
from container.record.unit import EXTENDED_ADDRESS_MAX, UNIT_DTYPE
from container.record.verification import (
    damaged_bodies,
    leading_good_units,
    verify_records,
)
from dispatcher.ports import Wanted
from provider.errors import Corrupt, OutOfRange, StoreError
from provider.posix.files import BufferPool
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.mapped_files import SKIPPED, Places
from tieredstore.following.options import WINDOW_BYTES
from tieredstore.following.statistics import ScanStatistics

ROTTED = (
    "{} differs from its checksum on the broker's disk at offset {} ({} at {}): it is tiered as "
    "it is, and a read of it fails; a replica may have it whole"
)


class BodyCheck:
    """Verification of bodies.

    Counts each damaged message once, and reports the first of each queue. Thread-safe.
    """

    def __init__(
        self, log: CommitLogFiles, statistics: ScanStatistics, lock: threading.Lock
    ) -> None:
        """`lock` guards the statistics. It is taken only for damage."""
        self._log = log
        self._statistics = statistics
        self._lock = lock
        self._seen: dict[QueueId, int] = {}
        """Offset after the last damaged message of each queue, for a round may be retried."""

    def verify(self, wanted: Wanted, batch: MessageBatch) -> None:
        """Verify the bodies of a batch, and whole records if they have a checksum.

        About 0.15 us a message and 50 ns per KiB.
        """
        for index in damaged_bodies(batch.data, batch.starts, batch.sizes).tolist():
            with self._lock:
                self._note(
                    wanted, batch.first_offset + index, int(wanted.references["position"][index])
                )

    def _note(self, wanted: Wanted, offset: int, position: int) -> None:
        seen = self._seen.get(wanted.queue)
        if seen is not None and offset < seen:
            return
        self._seen[wanted.queue] = offset + 1
        self._statistics.bodies_damaged += 1
        if seen is None:
            inside = position - self._log.table.base_of(position)
            path = self._log.path_of(position)
            self._statistics.find([ROTTED.format(wanted.queue, offset, path, inside)])


GAP_BYTES_MAX = 16 << 10
"""Largest gap between two records that is read along, in bytes. Copying more would cost more than
another call."""


class _Share(NamedTuple):
    """Records `[first, last)` of a round for one queue; none if its first unit is bad."""

    wanted: Wanted
    first: int
    last: int


class _Records(NamedTuple):
    """Records of a round, one entry each, queue after queue."""

    positions: NDArray[np.int64]
    """CommitLog position of the first byte."""
    sizes: NDArray[np.int64]
    starts: NDArray[np.int64]
    """First byte in the round's buffer, where records lie back to back."""
    tag_hashes: NDArray[np.int64]


class _Failure(NamedTuple):
    """Records that could not be copied."""

    indices: NDArray[np.int64]
    error: StoreError


def gather_round(
    log: CommitLogFiles, wanted: Sequence[Wanted], *, bytes_max: int, buffers: BufferPool
) -> list[MessageBatch | StoreError]:
    """Read the records of each of `wanted`, or the errors, in the same order.

    Copies first and verifies the copy, so that exactly the verified bytes are tiered. A batch ends
    before its first record that fails, and when the round has `bytes_max` bytes, but it has one
    message at least. An error is about its first record. About 0.3 us a record and one copy of its
    bytes. Blocks on cold pages.
    """
    shares, records = _lay_out(log, wanted, bytes_max)
    data = buffers.take(int(records.sizes.sum()))
    failures = list(_copy(log, records, data))
    stamps = None if failures else _verify_all(data, records, shares)
    if stamps is None:
        return [_judge(log, data, records, share, failures) for share in shares]
    _replace_addresses(data, records)
    return [_batch(data, records, share, stamps[share.first : share.last]) for share in shares]


def _lay_out(
    log: CommitLogFiles, wanted: Sequence[Wanted], bytes_max: int
) -> tuple[list[_Share], _Records]:
    """Lay out the buffer, up to the first incredible unit of each queue and up to `bytes_max`."""
    units = np.concatenate([item.references for item in wanted], dtype=UNIT_DTYPE)
    positions = units["position"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    chosen = np.ones(len(units), np.bool_)
    shares: list[_Share] = []
    begin = first = 0
    for item in wanted:
        end = begin + len(item.references)
        count = leading_good_units(positions[begin:end], sizes[begin:end])
        count = _leading_true(log, positions[begin : begin + count], sizes[begin : begin + count])
        ends = np.cumsum(sizes[begin : begin + count])
        if count and ends[-1] > bytes_max:
            count = max(1, int(np.searchsorted(ends, bytes_max, side="right")))
        if count:
            bytes_max -= int(ends[count - 1])
        chosen[begin + count : end] = False
        shares.append(_Share(item, first, first + count))
        begin, first = end, first + count
    if first < begin:
        units, positions, sizes = units[chosen], positions[chosen], sizes[chosen]
    starts = np.cumsum(sizes) - sizes
    return shares, _Records(positions, sizes, starts, units["tag_hash"].astype(np.int64))


def _leading_true(
    log: CommitLogFiles, positions: NDArray[np.int64], sizes: NDArray[np.int64]
) -> int:
    """Return the number of leading units whose large sizes agree with their record's length.

    Otherwise a wrong one would take up to 2 GiB of memory before it is detected.
    """
    for index in np.flatnonzero(sizes > WINDOW_BYTES).tolist():
        said = np.zeros(4, np.uint8)
        with suppress(StoreError):  # the copy meets the error again, and reports it
            length = log.read_into(int(positions[index]), said)
            if length < len(said) or int(said.view(">i4")[0]) != sizes[index]:
                return index
    return len(sizes)


def _copy(log: CommitLogFiles, records: _Records, data: NDArray[np.uint8]) -> Iterator[_Failure]:
    """Copy all records to their places. Yield those that fail."""
    if not len(records.positions):
        return
    order = np.argsort(records.positions, kind="stable")
    positions = records.positions[order]
    ends = positions + records.sizes[order]
    pieces = _pieces(positions, ends, log.table.file_bytes)
    places, firsts = _places(positions, ends, records.starts[order], pieces, data)
    columns = (positions[pieces[:-1]], ends[pieces[1:] - 1], firsts[:-1], firsts[1:])
    for number, (begin, end, first, last) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        try:
            reached = begin + log.fill(places, begin, end - begin, first, last)
        except StoreError as error:
            yield _Failure(order[pieces[number] : pieces[number + 1]], error)
            continue
        if reached < end:
            part = slice(pieces[number], pieces[number + 1])
            lost = order[part][np.searchsorted(ends[part], reached, side="right") :]
            yield _Failure(lost, _cut_off(log, records, int(lost[0]), reached))


def _pieces(
    positions: NDArray[np.int64], ends: NDArray[np.int64], file_bytes: int
) -> NDArray[np.int64]:
    """Return the starts of runs of neighbours, and the end.

    One call reads a run or fails as a whole. Neighbours lie in one file and begin in the same
    window of it. Overlapping records are none.
    """
    gaps = positions[1:] - ends[:-1]
    apart = (gaps < 0) | (gaps > GAP_BYTES_MAX)
    for unit in (max(file_bytes, 1), WINDOW_BYTES):
        apart |= np.diff(positions // unit) != 0
    return np.concatenate(([0], np.flatnonzero(apart) + 1, [len(positions)]))


def _places(
    positions: NDArray[np.int64],
    ends: NDArray[np.int64],
    starts: NDArray[np.int64],
    pieces: NDArray[np.int64],
    data: NDArray[np.uint8],
) -> tuple[Places, NDArray[np.int64]]:
    """Return the places of all runs' bytes in the order of the log, and each run's first place.

    Bytes back to back both in the log and in the buffer are one place. Bytes between two records of
    a run are skipped.
    """
    lengths = ends - positions
    gaps = np.zeros_like(positions)
    gaps[1:] = positions[1:] - ends[:-1]
    gaps[pieces[:-1]] = 0
    is_head = gaps > 0
    is_head[1:] |= starts[1:] != starts[:-1] + lengths[:-1]
    is_head[pieces[:-1]] = True
    heads = np.flatnonzero(is_head)
    if len(heads) < len(positions):
        tails = np.append(heads[1:], len(positions)) - 1
        starts, lengths, gaps = starts[heads], ends[tails] - positions[heads], gaps[heads]
    after_gaps = np.flatnonzero(gaps)
    places = Places(
        data,
        np.insert(starts, after_gaps, SKIPPED),
        np.insert(lengths, after_gaps, gaps[after_gaps]),
    )
    firsts = np.searchsorted(heads, pieces)
    return places, firsts + np.searchsorted(after_gaps, firsts)


def _verify_all(
    data: NDArray[np.uint8], records: _Records, shares: Sequence[_Share]
) -> NDArray[np.int64] | None:
    """Return the store timestamps of all records; None unless each fits its unit and position.

    One pass for each topic.
    """
    if any(share.first == share.last for share in shares):
        return None
    stamps = np.empty(len(records.starts), np.int64)
    for topic, group in groupby(shares, lambda share: share.wanted.queue.topic):
        members = list(group)
        part = slice(members[0].first, members[-1].last)
        counts = [share.last - share.first for share in members]
        numbers = np.arange(part.start, part.stop)
        starts = [share.wanted.start - share.first for share in members]
        verified = verify_records(
            data,
            records.starts[part],
            records.sizes[part],
            queue_id=np.repeat([share.wanted.queue.queue_id for share in members], counts),
            queue_offsets=numbers + np.repeat(starts, counts),
            physical_positions=records.positions[part],
            topic=topic.encode(),
        )
        if verified.count < len(numbers):
            return None
        stamps[part] = verified.store_timestamps
    return stamps


def _judge(
    log: CommitLogFiles,
    data: NDArray[np.uint8],
    records: _Records,
    share: _Share,
    failures: Sequence[_Failure],
) -> MessageBatch | StoreError:
    """Return the result of one queue in a round with an error."""
    queue, start, references = share.wanted
    if share.first == share.last:
        unit = references[0]
        place = int(unit["position"])
        reason = f"impossible unit of {queue} at {start}: {unit}"
        return Corrupt(reason, log.path_of(place), max(place, 0))
    last, error = share.last, None
    for failure in failures:
        mine = failure.indices[(failure.indices >= share.first) & (failure.indices < last)]
        if len(mine):
            last, error = int(mine.min()), failure.error
    place = int(records.positions[share.first])
    if last == share.first:
        assert error is not None, "only a failure shortens a share"
        return _hole(log, place) or error if isinstance(error, OutOfRange) else error
    part = slice(share.first, last)
    verified = verify_records(
        data,
        records.starts[part],
        records.sizes[part],
        queue_id=queue.queue_id,
        queue_offsets=start + np.arange(last - share.first),
        physical_positions=records.positions[part],
        topic=queue.topic.encode(),
    )
    if not verified.count:
        reason = f"the record of {queue} at {start}: {verified.reason}"
        return Corrupt(reason, log.path_of(place), place - log.table.base_of(place))
    good = share._replace(last=share.first + verified.count)
    _replace_addresses(data, records, slice(good.first, good.last))
    return _batch(data, records, good, verified.store_timestamps)


def _replace_addresses(
    data: NDArray[np.uint8], records: _Records, part: slice = slice(None)
) -> None:
    """Replace addresses (`enableConsumeQueueExt`) by the records' own tags codes.

    The records were verified. Costs one comparison a record if there is no address.
    """
    codes = records.tag_hashes[part]
    rows = np.flatnonzero(codes <= EXTENDED_ADDRESS_MAX)
    if len(rows):
        starts, sizes = records.starts[part][rows], records.sizes[part][rows]
        codes[rows] = TagsCodes().of_records(data, starts, sizes)


def _batch(
    data: NDArray[np.uint8], records: _Records, share: _Share, stamps: NDArray[np.int64]
) -> MessageBatch:
    part = slice(share.first, share.last)
    starts, sizes = records.starts[part], records.sizes[part]
    begin = int(starts[0])
    return MessageBatch(
        first_offset=share.wanted.start,
        data=data[begin : int(starts[-1] + sizes[-1])],
        starts=starts - begin,
        sizes=sizes,
        tag_hashes=records.tag_hashes[part],
        store_timestamps=stamps,
    )


def _cut_off(log: CommitLogFiles, records: _Records, index: int, end: int) -> Corrupt:
    position, size = int(records.positions[index]), int(records.sizes[index])
    base = log.table.base_of(position)
    reason = f"a record of {size} bytes ends behind the file's end at {end - base}"
    return Corrupt(reason, log.path_of(position), position - base)


def _hole(log: CommitLogFiles, position: int) -> Corrupt | None:
    """Return the error of a file missing among the broker's own; None if there is none.

    A broker deletes its oldest files first, so no other file can be missing, or appear later. Below
    the broker's first file the result is None: files that were not pinned there are deleted.
    """
    table = log.table
    base = table.base_of(position)
    if not table.paths or base < table.live_position or base in table.paths:
        return None
    reason = f"no such file, though the CommitLog begins at {table.live_position}"
    return Corrupt(reason, log.path_of(position), position - base)
