"""Layout of index files: all sizes and magic numbers, declared here.

A file finds messages by the hash of `topic#key`. The header is followed by slots, then by items. An
item belongs to the slot `key hash mod slots`. RocketMQ appends to an open file, in which the items
of a slot are chained. It converts it to a sealed file, in which they are contiguous.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from struct import Struct
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from provider.errors import Corrupt
from provider.object_store import Buffer

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


BEGIN_MAGIC = 0xBCC5_0289
"""Magic of an open file with room left, and at the end of a sealed file of RocketMQ 5.1."""
END_MAGIC = 0xBCC5_0285
"""Magic of a sealed file, and of an open one without room."""

SLOT_DTYPE = np.dtype([("position", ">i4"), ("length", ">i4")])
"""Slot of a sealed file."""
OPEN_SLOT_DTYPE = np.dtype([("newest", ">i4"), ("unused", ">i4")])
"""Slot of an open file."""
ITEM_DTYPE = np.dtype(
    [
        ("key_hash", ">i4"),
        ("topic_id", ">i4"),
        ("queue_id", ">i4"),
        ("position", ">i8"),
        ("size", ">i4"),
        ("seconds", ">i4"),
    ]
)
"""Item of a sealed file."""
OPEN_ITEM_DTYPE = np.dtype([*ITEM_DTYPE.descr, ("previous", ">i4")])
"""Item of an open file."""

FILE_BYTES_MAX = (1 << 31) - 1
"""Limit of a file's length: slots hold positions as signed 32-bit numbers."""


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """Header of an index file."""

    magic: int
    """0xBCC50285 in a sealed file, or one without room; 0xBCC50289 in an open one."""
    begin_timestamp: int
    """Ours: smallest store timestamp, or a little less. Java's: creation time of the file."""
    end_timestamp: int
    """Largest store timestamp in it, Unix ms. 0 in a file without items."""
    used_slots: int
    """Slots that have items. In a sealed file of RocketMQ 5.1: all slots."""
    items: int
    """Number of items."""

    LAYOUT: ClassVar[Struct] = Struct(">Iqqii")
    SIZE: ClassVar[int] = 28

    def encode(self) -> bytes:
        """Return the header's 28 bytes."""
        return self.LAYOUT.pack(*astuple(self))

    @classmethod
    def decode(cls, raw: Buffer, *, path: str) -> Self:
        """Decode the header at the beginning of `raw`.

        Raises:
            Corrupt: `raw` is shorter, or begins with another magic number, or a count is negative.
        """
        if len(raw) < cls.SIZE:
            raise Corrupt(f"index file has {len(raw)} bytes, its header {cls.SIZE}", path, 0)
        header = cls(*cls.LAYOUT.unpack_from(raw))
        if header.magic not in (BEGIN_MAGIC, END_MAGIC):
            raise Corrupt(f"{header.magic:#010x} begins no index file", path, 0)
        if header.used_slots < 0 or header.items < 0:
            raise Corrupt(f"impossible {header}", path, 0)
        return header


@dataclass(frozen=True, slots=True)
class IndexSlot:
    """Place of a slot's items in a sealed file."""

    position: int
    """First byte of the slot's items in the file, also if there are none."""
    length: int
    """Length of its items in bytes."""

    LAYOUT: ClassVar[Struct] = Struct(">ii")
    SIZE: ClassVar[int] = 8


@dataclass(frozen=True, slots=True)
class IndexItem:
    """Key of a message in a sealed file."""

    key_hash: int
    """Hash of `topic#key`, never negative."""
    topic_id: int
    """Id of the topic in the tier's metadata."""
    queue_id: int
    """Number of the queue in its topic."""
    position: int
    """First byte of the record in the queue's tier CommitLog."""
    size: int
    """Length of the record in bytes."""
    seconds: int
    """Store timestamp: seconds since the header's begin, rounded towards 0."""

    LAYOUT: ClassVar[Struct] = Struct(">iiiqii")
    SIZE: ClassVar[int] = 28


@dataclass(frozen=True, slots=True)
class OpenIndexItem(IndexItem):
    """Key of a message in an open file."""

    previous: int
    """Number of the previous item in the chain of its slot. 0 if there is none (5.1: -1)."""

    LAYOUT: ClassVar[Struct] = Struct(">iiiqiii")
    SIZE: ClassVar[int] = 32


assert IndexHeader.LAYOUT.size == IndexHeader.SIZE, "an on-disk format never drifts"
assert SLOT_DTYPE.itemsize == OPEN_SLOT_DTYPE.itemsize == IndexSlot.SIZE, "nor does its slot"
assert IndexSlot.LAYOUT.size == IndexSlot.SIZE, "columns and single slots are the same bytes"
assert ITEM_DTYPE.itemsize == IndexItem.LAYOUT.size == IndexItem.SIZE, "nor do its items"
assert OPEN_ITEM_DTYPE.itemsize == OpenIndexItem.LAYOUT.size == OpenIndexItem.SIZE, "nor do those"
