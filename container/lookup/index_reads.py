"""Whole index files of ours, for what makes other files of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from container.index.items import place_of
from container.index.merging import MergedPart
from container.metadata.records import IndexFile
from container.metadata.state import TierState
from container.names.queue_id import SegmentType
from container.record.crc32c import crc32c
from provider.errors import Corrupt
from provider.object_store import Buffer, ObjectStore


async def read_whole(store: ObjectStore, file: IndexFile) -> Buffer:
    """A file as it was published. One request; holds the file.

    Raises:
        Corrupt: its bytes are others.
        OutOfRange, Unavailable, Denied: as the storage's `read`.
    """
    raw = await store.read(file.object_name)
    if len(raw) != file.size or crc32c(raw) != file.crc32c:
        reason = f"the index file has {len(raw)} bytes that are not those that were written"
        raise Corrupt(reason, file.object_name)
    return raw


def part_of(state: TierState, file: IndexFile, raw: Buffer) -> MergedPart:
    """The items of a file that belong to what it covers, and to messages that are there. Pure.

    Of a queue that was dropped, or cut off wholly, it covers nothing any more; items of such a
    queue would name other messages in a queue of the same name.
    """
    places: list[int] = []
    first_bytes: list[int] = []
    for queue_id in dict.fromkeys(queue for queue, _, _ in file.coverage):
        queue, topic = state.queues.get(queue_id), state.topics.get(queue_id.topic)
        if queue is not None and topic is not None:
            places.append(place_of(topic.topic_id, queue_id.queue_id))
            first_bytes.append(queue.flat_begin(SegmentType.COMMIT_LOG))
    order = np.argsort(np.array(places, np.int64))
    return MergedPart(file.object_name, raw, _taken(places, order), _taken(first_bytes, order))


def _taken(numbers: Sequence[int], order: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)[order]
