"""Index keys of messages that were read, and of a commit."""

from dataclasses import dataclass

from container.index.items import KeyItems
from container.index.keys import items_of_records
from container.metadata.records import Queue
from container.names.queue_id import QueueId, SegmentType
from container.queue.lenient_scan import SoundRecords
from container.record.batch import MessageBatch


@dataclass(frozen=True, slots=True)
class CommitKeys:
    """Index items of a batch."""

    items: KeyItems
    """Index items. The caller sets their topic id."""
    record_bytes: int
    """Length of the records in bytes."""
    generation: int
    """Generation of the queue that the batch was planned on."""


def key_items_of(found: SoundRecords, queue: QueueId, topic_id: int) -> KeyItems:
    """Index items of messages that were read. Costs and errors as `keys_of_records`."""
    items = items_of_records(
        found.data,
        found.starts,
        found.sizes,
        topic=queue.topic,
        queue_id=queue.queue_id,
        positions=found.positions,
        store_timestamps=found.store_timestamps,
    )
    items["topic_id"] = topic_id
    return items


def keys_of_commit(queue: Queue, batch: MessageBatch) -> CommitKeys:
    """Index keys of a batch that continues the published messages of `queue`. Pure, thread-safe.

    Costs as `keys_of_records`.

    Raises:
        Corrupt: a record contradicts the format.
    """
    items = items_of_records(
        batch.data,
        batch.starts,
        batch.sizes,
        topic=queue.id.topic,
        queue_id=queue.id.queue_id,
        positions=batch.starts + queue.flat_end(SegmentType.COMMIT_LOG),
        store_timestamps=batch.store_timestamps,
    )
    return CommitKeys(items, batch.bytes, queue.generation)
