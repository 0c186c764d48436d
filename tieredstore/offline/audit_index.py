"""One index file against the keys of all messages that it covers. Reads the file, nothing else."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from container.check.finding import Finding
from container.index.items import KeyItems
from container.index.sealed import SealedIndex, native_items, sealed_rows, stored_seconds
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId
from container.record.crc32c import crc32c
from provider.errors import Corrupt
from provider.sequential import ByteSource
from tieredstore.offline.rebuild_rows import KEY_COLUMNS

_MARK = -1
"""Key hash of a row that is no item, but says which positions of a queue were looked at."""
COMPARED_AT_ONCE = 1 << 18
"""Keys and items that are sorted at once, some 130 bytes each."""
_COLUMNS = ("topic_id", "queue_id", "position", "key_hash", "size", "seconds")


def range_marks(queue: QueueId, topic_id: int, positions: Sequence[int]) -> list[NDArray[np.int64]]:
    """Rows that say that all messages between each two positions were looked at; no items."""
    count = len(positions)
    fields = {
        "key_hash": np.full(count, _MARK),
        "topic_id": np.full(count, topic_id),
        "queue_id": np.full(count, queue.queue_id),
        "position": np.array(positions, np.int64),
    }
    return [fields.get(name, np.zeros(count, np.int64)) for name in KEY_COLUMNS]


def audit_index_file(source: ByteSource, file: IndexFile, expected: KeyItems) -> list[Finding]:
    """What is wrong with an index file; expected are the keys of its messages, and marks.

    Holds the file and the keys: some 120 bytes a key.

    Raises:
        Unavailable, Denied: the file cannot be read.
    """
    raw = bytearray(file.size)
    try:
        count = source.read_into(file.object_name, 0, memoryview(raw))
    except Corrupt as error:  # an encrypted frame was changed
        return [Finding("unreadable", error.path, error.position, error.reason)]
    if count < file.size:
        return []  # that it is missing or short is told where its length is compared
    if file.crc32c is not None and (found := crc32c(raw)) != file.crc32c:
        detail = f"{file.size} bytes have {found:#010x}, published {file.crc32c:#010x}"
        return [Finding("checksum", file.object_name, 0, detail)]
    try:
        index, items = sealed_rows(raw, path=file.object_name)[:2]
    except Corrupt as error:
        return [Finding("index-file", file.object_name, error.position, error.reason)]
    if not file.coverage:
        return []  # one of RocketMQ's does not say what it covers
    return list(_compared(index, items, expected))


def _compared(index: SealedIndex, items: NDArray[np.void], expected: KeyItems) -> Iterator[Finding]:
    """Yield keys without an item, and items without a key among the messages looked at."""
    name, begin = index.path, index.header.begin_timestamp
    is_mark = expected["key_hash"] == _MARK
    marks, seen = expected[is_mark], _looked_at(items, expected[is_mark])
    marked = set(zip(marks["topic_id"].tolist(), marks["queue_id"].tolist(), strict=True))
    # By their hashes, so that few are sorted at once.
    parts = 1 + (len(items) + len(expected)) // COMPARED_AT_ONCE
    for part in range(parts):
        wanted = _sorted(expected[~is_mark & (expected["key_hash"] % parts == part)], begin)
        rows = items[seen & (items["key_hash"] % parts == part)]
        found = _sorted(native_items(rows, begin, index.tick_ms), begin)
        if len(wanted) == len(found) and (wanted == found).all():
            continue
        there, known = _rows(found), _rows(wanted)
        for _, queue_id, position, key_hash, *_ in sorted(known - there):
            message = f"the message at {position} of queue {queue_id}"
            detail = f"no item for the hash {key_hash} of {message}"
            yield Finding("index-key-missing", name, position, detail)
        for topic_id, queue_id, position, key_hash, *_ in sorted(there - known):
            if (topic_id, queue_id) in marked:
                detail = f"an item of hash {key_hash} names position {position} of queue {queue_id}"
                yield Finding("index-item", name, position, f"{detail} in vain")


def _rows(sorted_items: NDArray[np.int64]) -> set[tuple[int, ...]]:
    return {tuple(map(int, row)) for row in sorted_items}


def _looked_at(items: NDArray[np.void], marks: KeyItems) -> NDArray[np.bool_]:
    """Which items name a place between two marks of their queue."""
    seen = np.zeros(len(items), np.bool_)
    queues = np.unique(marks[["topic_id", "queue_id"]])
    for topic_id, queue_id in queues.tolist():
        mine = (marks["topic_id"] == topic_id) & (marks["queue_id"] == queue_id)
        bounds = marks["position"][mine].reshape(-1, 2)
        bounds = bounds[np.argsort(bounds[:, 0], kind="stable")]
        rows = np.flatnonzero((items["topic_id"] == topic_id) & (items["queue_id"] == queue_id))
        at = np.searchsorted(bounds[:, 0], items["position"][rows], side="right") - 1
        inside = (at >= 0) & (items["position"][rows] <= bounds[np.maximum(at, 0), 1])
        seen[rows[inside]] = True
    return seen


def _sorted(items: KeyItems, begin: int) -> NDArray[np.int64]:
    """Items as rows of numbers, in one order."""
    seconds = stored_seconds(items["store_timestamp"] - begin)
    columns = [items[name].astype(np.int64) for name in _COLUMNS[:-1]] + [seconds]
    rows = np.stack(columns, axis=1) if len(items) else np.empty((0, len(_COLUMNS)), np.int64)
    return rows[np.lexsort(rows.T[::-1])]
