"""Index items as columns in memory, and their one order in sealed files."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KEY_ITEM_DTYPE = np.dtype(
    [
        ("key_hash", np.int32),
        ("topic_id", np.int32),
        ("queue_id", np.int32),
        ("ordinal", np.int32),
        ("position", np.int64),
        ("store_timestamp", np.int64),
        ("size", np.int32),
    ]
)
"""One key of one message: 36 bytes. `ordinal` counts the keys of one message; of items that were
read from a file it is 0, and the time is as exact as the file has it."""

KeyItems = NDArray[np.void]
"""An array of `KEY_ITEM_DTYPE`."""


ItemPlace = tuple[int, int, int, int]
"""Where the record of an item lies: queue id, position, size; and its store timestamp."""


def places_in_log(items: KeyItems) -> list[ItemPlace]:
    """Where the records of items lie. O(items)."""
    names = ("queue_id", "position", "size", "store_timestamp")
    return [*zip(*(items[name].tolist() for name in names), strict=True)]


def no_items() -> KeyItems:
    """None."""
    return np.empty(0, KEY_ITEM_DTYPE)


def joined(parts: Sequence[KeyItems]) -> KeyItems:
    """All of them in one array. O(items)."""
    return np.concatenate(parts) if parts else no_items()


SECOND_MS = 1_000
"""How exact the times in a sealed file are."""


def canonical_order(items: KeyItems) -> NDArray[np.int64]:
    """Indices that sort items by second of storing, topic id, queue id, offset and key hash.

    All of it stands in a sealed file, so that the same messages give the same file whoever builds
    it, and from whatever smaller files. Positions stand for queue offsets: in the log of one queue
    they ascend together. O(n log n), some 0.3 us an item, less if they are nearly in order.
    """
    seconds = items["store_timestamp"] // SECOND_MS
    columns = (items["key_hash"], items["position"], places_of(items), seconds)
    return np.lexsort(columns).astype(np.int64, copy=False)


def places_of(items: NDArray[np.void]) -> NDArray[np.int64]:
    """One number for topic and queue of each item; they sort as both do."""
    return items["topic_id"].astype(np.int64) << 32 | items["queue_id"].astype(np.int64)


def place_of(topic_id: int, queue_id: int) -> int:
    """The same number for a queue."""
    return topic_id << 32 | queue_id
