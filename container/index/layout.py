"""Where the fields of index files lie: every size and magic number of them, once.

A file finds messages by the hash of `topic#key`. Its header is followed by slots, and those by
items: an item belongs to the slot `key hash mod slots`. RocketMQ appends to an open file, in which
the items of a slot are chained, and makes a sealed one of it, in which they lie together.
"""

from dataclasses import astuple, dataclass
from struct import Struct
from typing import ClassVar, Self

import numpy as np

from provider.errors import Corrupt
from provider.object_store import Buffer

BEGIN_MAGIC = 0xBCC5_0289
"""Of an open file with room left; at the end of a sealed one of RocketMQ 5.1."""
END_MAGIC = 0xBCC5_0285
"""Of a sealed file, and of an open one without room."""

SLOT_DTYPE = np.dtype([("position", ">i4"), ("length", ">i4")])
"""A slot of a sealed file."""
OPEN_SLOT_DTYPE = np.dtype([("newest", ">i4"), ("unused", ">i4")])
"""A slot of an open file."""
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
"""An item of a sealed file."""
OPEN_ITEM_DTYPE = np.dtype([*ITEM_DTYPE.descr, ("previous", ">i4")])
"""An item of an open file."""

FILE_BYTES_MAX = (1 << 31) - 1
"""Slots hold places in the file as signed 32-bit numbers."""


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """How an index file begins."""

    magic: int
    """0xBCC50285 of a sealed file, or one without room; 0xBCC50289 of an open one."""
    begin_timestamp: int
    """Ours: smallest store timestamp in it, or a little less. Java's: when the file was made."""
    end_timestamp: int
    """Largest store timestamp in it, Unix ms; 0 of a file without items."""
    used_slots: int
    """Slots that have items; of a sealed file of RocketMQ 5.1, all slots."""
    items: int
    """How many items it holds."""

    LAYOUT: ClassVar[Struct] = Struct(">Iqqii")
    SIZE: ClassVar[int] = 28

    def encode(self) -> bytes:
        """The header's 28 bytes."""
        return self.LAYOUT.pack(*astuple(self))

    @classmethod
    def decode(cls, raw: Buffer, *, path: str) -> Self:
        """Read the header at the beginning of `raw`.

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
    """Where a sealed file has the items of one slot."""

    position: int
    """First byte of the slot's items in the file; where they would begin if there are none."""
    length: int
    """Bytes of its items."""

    LAYOUT: ClassVar[Struct] = Struct(">ii")
    SIZE: ClassVar[int] = 8


@dataclass(frozen=True, slots=True)
class IndexItem:
    """One key of one message, as a sealed file has it."""

    key_hash: int
    """Hash of `topic#key`, never negative."""
    topic_id: int
    """The topic's number in the tier's metadata."""
    queue_id: int
    """The queue of the topic."""
    position: int
    """First byte of the record in the queue's tier CommitLog."""
    size: int
    """Length of the record in bytes."""
    seconds: int
    """Store timestamp: seconds behind the header's begin, cut to whole ones towards 0."""

    LAYOUT: ClassVar[Struct] = Struct(">iiiqii")
    SIZE: ClassVar[int] = 28


@dataclass(frozen=True, slots=True)
class OpenIndexItem(IndexItem):
    """One key of one message, as an open file has it."""

    previous: int
    """Number of the item before it in the chain of its slot; 0 if there is none (5.1: -1)."""

    LAYOUT: ClassVar[Struct] = Struct(">iiiqiii")
    SIZE: ClassVar[int] = 32


assert IndexHeader.LAYOUT.size == IndexHeader.SIZE, "an on-disk format never drifts"
assert SLOT_DTYPE.itemsize == OPEN_SLOT_DTYPE.itemsize == IndexSlot.SIZE, "nor does its slot"
assert IndexSlot.LAYOUT.size == IndexSlot.SIZE, "columns and single slots are the same bytes"
assert ITEM_DTYPE.itemsize == IndexItem.LAYOUT.size == IndexItem.SIZE, "nor do its items"
assert OPEN_ITEM_DTYPE.itemsize == OpenIndexItem.LAYOUT.size == OpenIndexItem.SIZE, "nor do those"
