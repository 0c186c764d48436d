"""Index items as columns in memory, and their canonical order in sealed files."""

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
"""Item of 36 bytes for a key of a message. `ordinal` numbers the keys of a message. In items that
were read from a file it is 0, and the time has the file's resolution."""

KeyItems = NDArray[np.void]
"""Array of `KEY_ITEM_DTYPE`."""


ItemPlace = tuple[int, int, int, int]
"""Place of an item's record: queue id, position, size, and store timestamp."""


def places_in_log(items: KeyItems) -> list[ItemPlace]:
    """Places of the records of items. O(items)."""
    names = ("queue_id", "position", "size", "store_timestamp")
    return [*zip(*(items[name].tolist() for name in names), strict=True)]


def no_items() -> KeyItems:
    """Return an empty array of items."""
    return np.empty(0, KEY_ITEM_DTYPE)


def joined(parts: Sequence[KeyItems]) -> KeyItems:
    """Concatenate arrays of items. O(items)."""
    return np.concatenate(parts) if parts else no_items()


SECOND_MS = 1_000
"""Resolution in ms of the times in a sealed file."""
_SORTED_BITS_MAX = 63
_HASH_BITS = 31


def canonical_order(items: KeyItems) -> NDArray[np.int64]:
    """Indices that sort items by second of storing, topic id, queue id, offset and key hash.

    All of these are in a sealed file. So the same messages give the same file, whichever process
    builds it, and from any smaller files. Positions replace queue offsets: in the log of one queue
    both ascend together. O(n log n): some 0.05 us an item if those of each queue are in order (as
    they are collected), else 0.2 us.
    """
    nearly = _order_of_collected(items)
    if nearly is not None:
        return nearly
    seconds = items["store_timestamp"] // SECOND_MS
    columns = (items["key_hash"], items["position"], places_of(items), seconds)
    return np.lexsort(columns).astype(np.int64, copy=False)


def _order_of_collected(items: KeyItems) -> NDArray[np.int64] | None:
    """As `canonical_order`, by a faster sort of single numbers. None if that is not possible.

    It is not possible if second, topic, queue and index do not fit into one number, or if the items
    of a queue and a second do not ascend by position.
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
    del seconds, columns  # each is 8 bytes an item, and there may be millions of items
    packed.sort(kind="stable")  # far faster than the default on nearly sorted numbers
    order = packed & ((1 << bits[-1]) - 1)
    places, positions = packed >> bits[-1], items["position"][order]
    del packed
    same = places[1:] == places[:-1]
    if (same & (positions[1:] < positions[:-1])).any():
        return None
    # Now sort the keys of each message by their hashes.
    begins = ~(same & (positions[1:] == positions[:-1]))
    del places, positions, same
    messages = np.zeros(len(items), np.int64)
    np.cumsum(begins, out=messages[1:])
    messages <<= _HASH_BITS
    messages |= items["key_hash"][order]
    return order[np.argsort(messages, kind="stable")]


def places_of(items: NDArray[np.void]) -> NDArray[np.int64]:
    """Number that orders items by topic and queue."""
    return items["topic_id"].astype(np.int64) << 32 | items["queue_id"].astype(np.int64)


def place_of(topic_id: int, queue_id: int) -> int:
    """Number of `places_of` for one queue."""
    return topic_id << 32 | queue_id
