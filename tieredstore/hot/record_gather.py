"""Copy records out of mapped CommitLog files and verify them, by whole batches."""

import numpy as np
from numpy.typing import NDArray

from container.record_batch import RecordBatch, Units
from container.record_checks import leading_good_units, verify_records
from container.record_kernels import gather, store_timestamps
from container.tier_records import QueueId
from provider.errors import Corrupt, OutOfRange
from provider.ranges import QueueOffset
from tieredstore.hot.batch_buffers import BatchBuffers
from tieredstore.hot.commit_log_files import CommitLogFiles
from tieredstore.hot.mapped_files import MappedFiles


def within(sizes: NDArray[np.int64], bytes_max: int) -> int:
    """How many leading records fit together into `bytes_max`; at least one."""
    return max(1, int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right")))


def gather_batch(
    log: CommitLogFiles,
    files: MappedFiles,
    queue: QueueId,
    start: QueueOffset,
    references: Units,
    *,
    bytes_max: int,
    buffers: BatchBuffers,
) -> RecordBatch:
    """The records of `references`, the first of which has queue offset `start`.

    Copies first and verifies the copy, so that what was verified is what is tiered. Ends before
    the first record that fails, at `bytes_max`, and at a file that went meanwhile. About 0.5 us a
    record and a copy of its bytes; blocks on cold pages.

    Raises:
        Corrupt: the first record fails; path and position are the CommitLog's.
        OutOfRange: the first record's file was deleted.
        Unavailable, Denied: a file cannot be opened.
    """
    assert len(references) > 0, "a batch has at least one message"
    positions = references["position"].astype(np.int64)
    sizes = references["size"].astype(np.int64)
    count = leading_good_units(positions, sizes)
    if not count:
        unit = references[0]
        place = int(unit["position"])
        path = log.path_of(max(place, 0))
        raise Corrupt(f"impossible unit of {queue} at {start}: {unit}", path, place)
    count = within(sizes[:count], bytes_max)
    positions, sizes = positions[:count], sizes[:count]

    ends = np.cumsum(sizes)
    starts = ends - sizes
    data = buffers.take(int(ends[-1]))
    done = 0
    while done < count:
        try:
            done += _from_one_file(log, files, positions[done:], sizes[done:], data[starts[done] :])
        except (Corrupt, OutOfRange) as error:
            if done:
                break
            if isinstance(error, OutOfRange):
                _refuse_a_hole(log, int(positions[0]), error)
            raise
    starts, ends = starts[:done], ends[:done]
    verified = verify_records(
        data,
        starts,
        sizes[:done],
        queue_id=queue.queue_id,
        queue_offsets=start + np.arange(done),
        physical_positions=positions[:done],
        topic=queue.topic.encode(),
    )
    if not verified.count:
        place = int(positions[0])
        reason = f"the record of {queue} at {start}: {verified.reason}"
        raise Corrupt(reason, log.path_of(place), place - log.table.base_of(place))
    done = verified.count
    starts = starts[:done]
    return RecordBatch(
        first_offset=start,
        data=data[: int(ends[done - 1])],
        starts=starts,
        sizes=sizes[:done],
        tag_hashes=references["tag_hash"][:done].astype(np.int64),
        store_timestamps=store_timestamps(data, starts),
    )


def _refuse_a_hole(log: CommitLogFiles, position: int, error: OutOfRange) -> None:
    """A broker deletes its oldest files first: nothing else can be missing, or waited for."""
    table = log.table
    base = table.base_of(position)
    if table.paths and base >= table.min_position and base not in table.paths:
        reason = f"no such file, though the CommitLog begins at {table.min_position}"
        raise Corrupt(reason, log.path_of(position), position - base) from error


def _from_one_file(
    log: CommitLogFiles,
    files: MappedFiles,
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    target: NDArray[np.uint8],
) -> int:
    """Copy the leading records that lie in the first one's file, and not too far apart.

    They go to the beginning of `target`; returns how many they are.

    Neighbours of one queue may lie hundreds of MB apart among those of other queues; what was
    touched between them must be given back before more is touched.
    """
    base = log.table.base_of(int(positions[0]))
    view = log.view(base)
    inside = positions - base
    reach = min(log.table.file_bytes, int(inside[0]) + files.span_bytes_max)
    count = max(1, int(np.searchsorted(inside, reach)))
    fits = inside[:count] + sizes[:count] <= len(view)
    if not fits.all():
        count = int(fits.argmin())
        if not count:
            reason = f"a record of {int(sizes[0])} bytes ends behind the file's end at {len(view)}"
            raise Corrupt(reason, log.path_of(base), int(inside[0]))
    total = int(sizes[:count].sum())
    gather(view, inside[:count], sizes[:count], into=target[:total])
    span = int(inside[count - 1] + sizes[count - 1] - inside[0])
    files.touched(count, total, span)
    return count
