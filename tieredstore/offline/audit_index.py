"""One index file against the keys of all messages that it covers. Reads the file, nothing else."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from container.check.finding import Finding
from container.index.items import KeyItems
from container.index.sealed import SealedIndex, native_items, sealed_rows, stored_seconds
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId
from container.record.checksum import crc32c
from provider.errors import Corrupt
from provider.sequential import ByteSource
from tieredstore.offline.rebuild_rows import KEY_COLUMNS

_MARK = -1
"""Key hash of a row that is no item, but says which positions of a queue were looked at."""
_ODD = np.uint64(0x9E3779B97F4A7C15)
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


def audit_index_file(source: ByteSource, file: IndexFile, expected: KeyItems) -> Iterator[Finding]:
    """Yield what is wrong with an index file; expected are the keys of its messages, and marks.

    Holds the file and the keys: some 120 bytes a key; of findings only the last one.

    Raises:
        Unavailable, Denied: the file cannot be read.
    """
    name, raw = file.object_name, bytearray(file.size)
    try:
        count = source.read_into(name, 0, memoryview(raw))
    except Corrupt as error:  # an encrypted frame was changed
        yield Finding("unreadable", error.path, error.position, error.reason)
        return
    if count < file.size:
        return  # that it is missing or short is told where its length is compared
    if file.crc32c is not None and (found := crc32c(raw)) != file.crc32c:
        detail = f"{file.size} bytes have {found:#010x}, published {file.crc32c:#010x}"
        yield Finding("checksum", name, 0, detail)
        return
    try:
        index, items = sealed_rows(raw, path=name)[:2]
    except Corrupt as error:
        yield Finding("index-file", name, error.position, error.reason)
        return
    if file.coverage:  # one of RocketMQ's does not say what it covers
        yield from _compared(index, items, expected)


def _compared(index: SealedIndex, items: NDArray[np.void], expected: KeyItems) -> Iterator[Finding]:
    """Yield keys without an item, and items without a key among the messages looked at."""
    name, begin = index.path, index.header.begin_timestamp
    is_mark = expected["key_hash"] == _MARK
    marks, seen = expected[is_mark], _looked_at(items, expected[is_mark])
    marked = set(zip(marks["topic_id"].tolist(), marks["queue_id"].tolist(), strict=True))
    count = 1 + (len(items) + len(expected)) // COMPARED_AT_ONCE  # so that few are sorted at once
    part_of_expected, part_of_items = _parts(expected, count), _parts(items, count)
    for part in range(count):
        wanted = _sorted(expected[~is_mark & (part_of_expected == part)], begin)
        rows = items[seen & (part_of_items == part)]
        found = _sorted(native_items(rows, begin, index.tick_ms), begin)
        if len(wanted) == len(found) and (wanted == found).all():
            continue
        for _, queue_id, position, key_hash, *_ in _rows(_without(wanted, found)):
            message = f"the message at {position} of queue {queue_id}"
            detail = f"no item for the hash {key_hash} of {message}"
            yield Finding("index-key-missing", name, position, detail)
        for topic_id, queue_id, position, key_hash, *_ in _rows(_without(found, wanted)):
            if (topic_id, queue_id) in marked:
                detail = f"an item of hash {key_hash} names position {position} of queue {queue_id}"
                yield Finding("index-item", name, position, f"{detail} in vain")


def _parts(items: NDArray[np.void], count: int) -> NDArray[np.uint32]:
    """Which of so many parts each item is compared in: the same one for the same item.

    By hash and position: a key may be that of all messages, and a message may have all keys.
    """
    mixed = items["position"].astype(np.uint64) * _ODD
    mixed ^= items["key_hash"].astype(np.uint64)
    mixed *= _ODD
    return (mixed >> np.uint64(32)).astype(np.uint32) % np.uint32(count)


def _without(some: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of the first, in order and each once, that are not in the second."""
    rows = np.concatenate([some, others])
    order = np.lexsort((np.arange(len(rows)) < len(some), *rows.T[::-1]))
    rows, is_first = rows[order], order < len(some)
    begins = np.ones(len(rows), np.bool_)  # of equal rows, those of the second first
    begins[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return rows[begins & is_first]


def _rows(rows: NDArray[np.int64]) -> Iterator[tuple[int, ...]]:
    return (tuple(map(int, row)) for row in rows)


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
