"""Units of the messages in one CommitLog file, made from their records."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.blank import BlankRecord
from container.record.header import locate_parts
from container.record.java_hash import tag_hash
from container.record.kernels import encode_units, headers_at
from container.record.layout import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from container.record.properties import TAGS, decode_properties
from container.record.unit import Units
from container.record.verification import ENDS_INSIDE, Walk, walk_records
from provider.errors import Corrupt
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.options import WINDOW_BYTES


def units_in(
    log: CommitLogFiles, base: int, wanted: frozenset[QueueId], *, window_bytes: int = WINDOW_BYTES
) -> dict[QueueId, tuple[NDArray[np.int64], Units]]:
    """Queue offsets and units of the `wanted` queues' records in the CommitLog file at `base`.

    In the order of the log; offsets may have holes. Prepared and rolled-back transactions have no
    units. Records after one that cannot be passed over are out of reach.

    Reads the file in windows of at least 8 bytes, longer ones for longer records: about 0.3 us for
    each record, and 10 us for each wanted one.

    Raises:
        OutOfRange: the file is not there any more, or not yet.
        Unavailable, Denied: it cannot be read.
    """
    pieces: dict[QueueId, list[NDArray[np.int64]]] = {}
    for position, window, walk in _windows(log, base, window_bytes):
        for queue, rows in _wanted_rows(window, walk, wanted).items():
            columns = np.array(rows, np.int64)
            columns[:, 1] += position
            pieces.setdefault(queue, []).append(columns)
    whole = {queue: np.concatenate(columns) for queue, columns in pieces.items()}
    return {
        queue: (rows[:, 0], encode_units(rows[:, 1], rows[:, 2], rows[:, 3]))
        for queue, rows in whole.items()
    }


def _windows(
    log: CommitLogFiles, base: int, window_bytes: int
) -> Iterator[tuple[int, NDArray[np.uint8], Walk]]:
    """Windows that begin where a record does, with their position; each takes the last one's place.

    A record longer than a window makes the windows longer.
    """
    place, end = base, base + log.table.file_bytes
    memory = np.empty(min(window_bytes, end - base), np.uint8)
    while place < end:
        window = memory[: log.read_into(place, memory)]
        walk = walk_records(window)
        if len(walk.starts):
            yield place, window, walk
        if walk.reason not in {"", ENDS_INSIDE}:
            return
        place += walk.next
        if not walk.next:
            is_full = len(window) == len(memory) >= BlankRecord.SIZE
            size = int(window[:4].view(">i4")[0]) if is_full else 0
            if not len(memory) < size <= end - place:
                return  # the file ends inside the record
            memory = np.empty(size, np.uint8)


def _wanted_rows(
    window: NDArray[np.uint8], walk: Walk, wanted: frozenset[QueueId]
) -> dict[QueueId, list[tuple[int, int, int, int]]]:
    """Queue offset, place in the window, size and tags code of each wanted record."""
    headers = headers_at(window, walk.starts)
    transaction = headers["sys_flag"] & TRANSACTION_MASK
    has_unit = (transaction != TRANSACTION_PREPARED) & (transaction != TRANSACTION_ROLLBACK)
    has_unit &= np.isin(headers["queue_id"], [queue.queue_id for queue in wanted])
    rows = np.flatnonzero(has_unit)
    found: dict[QueueId, list[tuple[int, int, int, int]]] = {}
    data = window.data
    for start, size in zip(walk.starts[rows].tolist(), walk.sizes[rows].tolist(), strict=True):
        raw = data[start : start + size]
        try:
            header, parts = locate_parts(raw, path="", position=start)
        except Corrupt:
            continue  # the hole that it leaves shows in the offsets
        topic = bytes(raw[parts.topic : parts.topic_end]).decode("utf-8", "replace")
        queue = QueueId(topic, header.queue_id)
        if queue in wanted:
            properties = decode_properties(bytes(raw[parts.properties :]))
            code = tag_hash(properties.get(TAGS, ""))
            found.setdefault(queue, []).append((header.queue_offset, start, size, code))
    return found
