"""Copy the records of many queues out of the CommitLog in one pass, and verify them together.

The records of a round lie among each other: they are read in the order in which they lie, in
windows that the CPU's cache holds, and sorted into their queues from there (decision 0006).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.record.batch import MessageBatch
from container.record.gathering import take_ranges
from container.record.kernels import store_timestamps
from container.record.unit import UNIT_DTYPE
from container.record.verification import leading_good_units, verify_records
from dispatcher.hot_log import Wanted
from provider.errors import Corrupt, OutOfRange, StoreError
from tieredstore.following.log.buffers import BatchBuffers
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.options import WINDOW_BYTES

GAP_BYTES_MAX = 64 << 10
"""Bytes of others between two records that are read along: no dearer than one more window, and
what the kernel reads ahead anyway."""


class _Share(NamedTuple):
    """What one queue has of a round: the records `[first, last)`; none if its first unit is bad."""

    wanted: Wanted
    first: int
    last: int


class _Records(NamedTuple):
    """The records of a round, one entry each, queue after queue."""

    positions: NDArray[np.int64]
    """First byte in the CommitLog."""
    sizes: NDArray[np.int64]
    starts: NDArray[np.int64]
    """First byte in the round's buffer, where they lie back to back."""
    tag_hashes: NDArray[np.int64]


class _Failure(NamedTuple):
    """Records that could not be copied."""

    indices: NDArray[np.int64]
    error: StoreError


def gather_round(
    log: CommitLogFiles, wanted: Sequence[Wanted], *, bytes_max: int, buffers: BatchBuffers
) -> list[MessageBatch | StoreError]:
    """The records that each of `wanted` names, or why there are none; in the same order.

    Copies first and verifies the copy, so that what was verified is what is tiered. A batch ends
    before its first record that fails, and where the round has `bytes_max` bytes, though it has
    one message at least; an error is about its first record. About 0.3 us a record and three
    copies of its bytes, two of them within the CPU's cache; blocks on cold pages.
    """
    shares, records = _lay_out(log, wanted, bytes_max)
    data = buffers.take(int(records.sizes.sum()))
    failures = list(_copy(log, records, data, buffers))
    if failures or not _all_good(data, records, shares):
        return [_judge(log, data, records, share, failures) for share in shares]
    stamps = store_timestamps(data, records.starts)
    return [_batch(data, records, share, stamps[share.first : share.last]) for share in shares]


def _lay_out(
    log: CommitLogFiles, wanted: Sequence[Wanted], bytes_max: int
) -> tuple[list[_Share], _Records]:
    """Where everything goes, as far as units can be believed and `bytes_max` reaches."""
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
    """How many leading units are not refuted by their record's length, where they claim so much.

    Else one that lies would take up to 2 GiB of memory before it is found out.
    """
    for index in np.flatnonzero(sizes > WINDOW_BYTES).tolist():
        said = np.zeros(4, np.uint8)
        with suppress(StoreError):  # the copy meets it again, and names it
            length = log.read_into(int(positions[index]), said)
            if length < len(said) or int(said.view(">i4")[0]) != sizes[index]:
                return index
    return len(sizes)


def _copy(
    log: CommitLogFiles, records: _Records, data: NDArray[np.uint8], buffers: BatchBuffers
) -> Iterator[_Failure]:
    """Copy all records to their places; what is yielded could not be."""
    order = np.argsort(records.positions, kind="stable")
    positions = records.positions[order]
    ends = positions + records.sizes[order]
    scratch = buffers.take(WINDOW_BYTES)
    for first, last in _pieces(positions, ends, log.table.file_bytes):
        indices = order[first:last]
        span = int(ends[last - 1] - positions[first])
        is_run = last - first == 1 or _is_run(indices, records.sizes, span)
        start = int(records.starts[indices[0]])
        target = data[start : start + span] if is_run else scratch[:span]
        try:
            length = log.read_into(int(positions[first]), target)
        except StoreError as error:
            yield _Failure(indices, error)
            continue
        count: int = last - first
        if length < span:
            end = int(positions[first]) + length
            count = int(np.searchsorted(ends[first:last], end, side="right"))
            yield _Failure(indices[count:], _cut_off(log, records, int(indices[count]), end))
        if not is_run and count:
            inside = positions[first : first + count] - positions[first]
            _sort_out(target, inside, indices[:count], records, data)


def _pieces(
    positions: NDArray[np.int64], ends: NDArray[np.int64], file_bytes: int
) -> Iterator[tuple[int, int]]:
    """Runs of neighbours, at most a window long, in one file; what overlaps is no neighbour."""
    gaps = positions[1:] - ends[:-1]
    files = positions // max(file_bytes, 1)
    apart = (gaps < 0) | (gaps > GAP_BYTES_MAX) | (files[1:] != files[:-1])
    bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(positions)]
    for first, last in pairwise(bounds):
        begin = first
        while begin < last:
            reach = int(positions[begin]) + WINDOW_BYTES
            fitting = int(np.searchsorted(ends[begin:last], reach, side="right"))
            end = begin + max(1, fitting)
            yield begin, end
            begin = end


def _is_run(indices: NDArray[np.int64], sizes: NDArray[np.int64], span: int) -> bool:
    """Whether the piece lies in the buffer as it lies in the file."""
    return bool((np.diff(indices) == 1).all()) and int(sizes[indices].sum()) == span


def _sort_out(
    window: NDArray[np.uint8],
    inside: NDArray[np.int64],
    indices: NDArray[np.int64],
    records: _Records,
    data: NDArray[np.uint8],
) -> None:
    """Copy the records that begin at `inside` of the window, in ascending order, to their places.

    First into the order of the places, which Arrow does without a step of Python for each record,
    then every queue's run of them in one piece.
    """
    by_place = np.argsort(indices)
    placed = indices[by_place]
    sorted_out = take_ranges(window, inside, records.sizes[indices], by_place)
    ends = np.cumsum(records.sizes[placed])
    lasts = np.flatnonzero(np.diff(placed) != 1)
    run_ends = [*ends[lasts].tolist(), len(sorted_out)]
    targets = records.starts[placed[np.concatenate(([0], lasts + 1))]].tolist()
    begin = 0
    for target, end in zip(targets, run_ends, strict=True):
        data[target : target + end - begin] = sorted_out[begin:end]
        begin = end


def _all_good(data: NDArray[np.uint8], records: _Records, shares: Sequence[_Share]) -> bool:
    """Whether every record is what its unit and its place promise: one pass for each topic."""
    if any(share.first == share.last for share in shares):
        return False
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
            return False
    return True


def _judge(
    log: CommitLogFiles,
    data: NDArray[np.uint8],
    records: _Records,
    share: _Share,
    failures: Sequence[_Failure],
) -> MessageBatch | StoreError:
    """What one queue gets of a round in which something is wrong."""
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
    stamps = store_timestamps(data, records.starts[good.first : good.last])
    return _batch(data, records, good, stamps)


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
    """A broker deletes its oldest files first: nothing else can be missing, or waited for.

    Not so between files that only pins keep and the broker's own: what was not pinned there is
    gone.
    """
    table = log.table
    base = table.base_of(position)
    if not table.paths or base < table.live_position or base in table.paths:
        return None
    reason = f"no such file, though the CommitLog begins at {table.live_position}"
    return Corrupt(reason, log.path_of(position), position - base)
