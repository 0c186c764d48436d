"""Units of the messages in one CommitLog file, made from their records."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.blank import BlankRecord
from container.record.unit import UNIT_DTYPE, Units
from container.record.verification import ENDS_INSIDE, Walk, walk_records
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.options import WINDOW_BYTES
from tieredstore.following.rebuild.damaged_log import has_begun_later, records_after
from tieredstore.following.rebuild.record_units import QueueRun, UnitColumns


def units_in(
    log: CommitLogFiles,
    base: int,
    wanted: frozenset[QueueId],
    findings: list[str],
    *,
    window_bytes: int = WINDOW_BYTES,
) -> dict[QueueId, tuple[NDArray[np.int64], Units]]:
    """Queue offsets and units of the `wanted` queues' records in the CommitLog file at `base`.

    In the order of the log; offsets may have holes. Prepared and rolled-back transactions have no
    units. Bytes that are no record are passed over up to the next record, once a later file has
    begun; a sentence about them is added to `findings`.

    Reads the file in windows of at least 8 bytes, longer ones for longer records: about 0.4 us for
    each record, 4 us for each wanted one, and 0.6 us for one of another topic with a wanted number.

    Raises:
        OutOfRange: the file is not there any more, or not yet.
        Unavailable, Denied: it cannot be read.
    """
    pieces: dict[QueueId, list[QueueRun]] = {}
    for position, window, walk in _windows(log, base, window_bytes, findings):
        columns = UnitColumns.read(window, position, walk.starts, walk.sizes, wanted)
        for run in columns.runs():
            pieces.setdefault(run.queue, []).append(run)
    return {queue: _joined(runs) for queue, runs in pieces.items()}


def _joined(runs: Sequence[QueueRun]) -> tuple[NDArray[np.int64], Units]:
    """Queue offsets and units of one queue's runs."""
    offsets = np.concatenate([np.arange(run.first, run.end) for run in runs])
    return offsets, np.concatenate([run.units for run in runs], dtype=UNIT_DTYPE)


def _windows(
    log: CommitLogFiles, base: int, window_bytes: int, findings: list[str]
) -> Iterator[tuple[int, NDArray[np.uint8], Walk]]:
    """Windows that begin where a record does, with their position; each takes the last one's place.

    A record longer than a window makes the windows longer.
    """
    place, end = base, base + log.table.file_bytes
    last = place
    """The last record, whose length may lie: what is searched for lies after its beginning."""
    holes: list[tuple[int, int]] = []
    memory = np.empty(min(window_bytes, end - base), np.uint8)
    while place < end:
        window = memory[: log.read_into(place, memory)]
        walk = walk_records(window)
        if len(walk.starts):
            last = place + int(walk.starts[-1])
            yield place, window, walk
        is_damaged = walk.reason not in {"", ENDS_INSIDE}
        place += walk.next
        if not walk.next and not is_damaged:
            is_full = len(window) == len(memory) >= BlankRecord.SIZE
            size = int(window[:4].view(">i4")[0]) if is_full else 0
            is_damaged = not len(memory) < size <= end - place  # the file ends inside the record
            if not is_damaged:
                memory = np.empty(size, np.uint8)
        if is_damaged:
            found = next(records_after(log, last, end), end) if has_begun_later(log, base) else end
            if found < end:
                holes.append((place, found))
            place = last = found
    if holes:
        findings.append(_passed_over(log, holes))


def _passed_over(log: CommitLogFiles, holes: Sequence[tuple[int, int]]) -> str:
    """What a person must know of the places that hold no record; at least one."""
    first = holes[0][0]
    more = f", nor at {len(holes) - 1:,} more" if len(holes) > 1 else ""
    return (
        f"{log.path_of(first)} holds no record at position {first}{more}, though records follow: "
        "units are made of these, and what was there is lost."
    )
