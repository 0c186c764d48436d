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
_SORTED_BITS_MAX = 63
_HASH_BITS = 31


def canonical_order(items: KeyItems) -> NDArray[np.int64]:
    """Indices that sort items by second of storing, topic id, queue id, offset and key hash.

    All of it stands in a sealed file, so that the same messages give the same file whoever builds
    it, and from whatever smaller files. Positions stand for queue offsets: in the log of one queue
    they ascend together. O(n log n): some 0.05 us an item where those of each queue are in order
    (as they are collected), else 0.2 us.
    """
    nearly = _order_of_collected(items)
    if nearly is not None:
        return nearly
    seconds = items["store_timestamp"] // SECOND_MS
    columns = (items["key_hash"], items["position"], places_of(items), seconds)
    return np.lexsort(columns).astype(np.int64, copy=False)


def _order_of_collected(items: KeyItems) -> NDArray[np.int64] | None:
    """The same by sorting single numbers, which is faster; None where that is not possible.

    That is: second, topic, queue and index do not fit into one number, or those of a queue and a
    second do not ascend by position.
    """
    if not len(items):
        return None
    seconds = items["store_timestamp"] // SECOND_MS
    seconds -= seconds.min()
    columns = [seconds, items["topic_id"], items["queue_id"], np.arange(len(items))]
    bits = [int(column.max()).bit_length() for column in columns]
    if sum(bits) > _SORTED_BITS_MAX or min(column.min() for column in columns) < 0:
        return None
    packed = np.zeros(len(items), np.int64)
    for column, width in zip(columns, bits, strict=True):
        packed <<= width
        packed |= column
    del seconds, columns  # each is 8 bytes an item, and there may be millions of them
    packed.sort(kind="stable")  # far faster than the default where they are nearly in order
    order = packed & ((1 << bits[-1]) - 1)
    places, positions = packed >> bits[-1], items["position"][order]
    del packed
    same = places[1:] == places[:-1]
    if (same & (positions[1:] < positions[:-1])).any():
        return None
    # Now the keys of each message by their hashes.
    begins = ~(same & (positions[1:] == positions[:-1]))
    del places, positions, same
    messages = np.zeros(len(items), np.int64)
    np.cumsum(begins, out=messages[1:])
    messages <<= _HASH_BITS
    messages |= items["key_hash"][order]
    return order[np.argsort(messages, kind="stable")]


def places_of(items: NDArray[np.void]) -> NDArray[np.int64]:
    """One number for topic and queue of each item; they sort as both do."""
    return items["topic_id"].astype(np.int64) << 32 | items["queue_id"].astype(np.int64)


def place_of(topic_id: int, queue_id: int) -> int:
    """The same number for a queue."""
    return topic_id << 32 | queue_id
