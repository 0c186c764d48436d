"""What follows from records: their ConsumeQueue units and their index items."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false
# pyarrow ships no types.
import numpy as np
from numpy.typing import NDArray

from container.index.items import KeyItems
from container.index.keys import MessageKeys, OwnedSpans, items_of_keys, keys_of_values
from container.names.queue_id import QueueId
from container.record.java_hash import tag_hash
from container.record.kernels import encode_units
from container.record.properties import KEYS, TAGS, UNIQ_KEY
from container.record.unit import Units
from tieredstore.offline.log_scan import FoundRecords
from tieredstore.reading.arrow_columns import ColumnMaker, Labels


def labels_of(found: FoundRecords) -> Labels:
    """The properties of records, which both functions below need. Some 0.3 us a record."""
    return ColumnMaker(found.raw, found.columns).labels()


def units_of(found: FoundRecords, labels: Labels) -> Units:
    """The ConsumeQueue units of records, by the rule of `RecordCheck`. Some 0.2 us a record.

    A delayed message of a broker's own topic, whose unit has the time of its delivery, is not told
    apart: those topics are not tiered.
    """
    return encode_units(found.positions, found.sizes, tag_hashes(labels))


def tag_hashes(labels: Labels) -> NDArray[np.int64]:
    """Tags code of each record; each distinct tag is hashed once."""
    tags = labels.value_of(TAGS).dictionary_encode()
    codes = [0 if text is None else tag_hash(text) for text in tags.dictionary.to_pylist()]
    indices = np.asarray(tags.indices.fill_null(len(codes)))
    return np.array([*codes, 0], np.int64)[indices]


def hashed_keys_of(labels: Labels, topic: str) -> MessageKeys:
    """The index keys of records of a topic. Some 0.2 us a record and 0.1 us a key."""
    unique, users = (OwnedSpans(*labels.spans_of(name)) for name in (UNIQ_KEY, KEYS))
    return keys_of_values(labels.text, unique, users, topic=topic)


def keys_of(found: FoundRecords, labels: Labels, queue: QueueId, topic_id: int) -> KeyItems:
    """The index items of records. Some 0.2 us a record and 0.15 us a key."""
    items = items_of_keys(
        hashed_keys_of(labels, queue.topic),
        found.sizes,
        queue_id=queue.queue_id,
        positions=found.positions,
        store_timestamps=found.columns.store_timestamps,
    )
    items["topic_id"] = topic_id
    return items
