"""The sealed index file: built in canonical order, read by slot or as a whole."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from container.index.layout import (
    BEGIN_MAGIC,
    END_MAGIC,
    FILE_BYTES_MAX,
    ITEM_DTYPE,
    KEY_ITEM_DTYPE,
    OPEN_ITEM_DTYPE,
    OPEN_SLOT_DTYPE,
    SECOND_MS,
    SLOT_DTYPE,
    IndexHeader,
    IndexItem,
    IndexSlot,
    ItemPlace,
    KeyItems,
    OpenIndexItem,
    canonical_order,
    places_in_log,
)
from container.record.batch import as_bytes
from provider.errors import Corrupt
from provider.object_store import Buffer
from provider.ranges import ByteRange

MAGIC_BYTES = 4
FEW_ITEMS = 64
"""Up to this number, items of a slot are decoded one by one: columns cost at least some 30 us."""
AT_ONCE_ITEMS = 1 << 14
"""Items that are copied into a file at once: few enough for the processor's cache. They are copied
as records, 40 times faster than with `[]`."""
INT32_MAX = (1 << 31) - 1
_INT32_MIN = -(1 << 31)


def fitting_slots(items: int) -> int:
    """Number of slots for a number of items: the next power of two.

    So a file with few items is small. A query for a key that is not in the file finds at least two
    slots in five empty. The slots of a small file are ranges of those of a larger one.
    """
    return 1 << max(0, items - 1).bit_length()


def fitting_begin(store_timestamp: int) -> int:
    """Begin of a file whose oldest item has this time: the whole second.

    So all files round times at the same moments, and items can move between files.
    """
    return store_timestamp // SECOND_MS * SECOND_MS


def file_bytes(items: int, slots: int) -> int:
    """Length of a sealed file in bytes."""
    return IndexHeader.SIZE + slots * IndexSlot.SIZE + items * IndexItem.SIZE


def seal_index(items: KeyItems, *, slots: int, begin_timestamp: int) -> NDArray[np.uint8]:
    """Build the bytes of a sealed file, its items in canonical order inside each slot.

    For the same items, slots and begin RocketMQ writes the same bytes, except for the order inside
    a slot. About 0.2 us an item. Holds some 90 bytes an item, and twice the file.

    Raises:
        ValueError: this number of items and slots does not fit into a file.
    """
    size = file_bytes(len(items), slots)
    if slots < 1 or size > FILE_BYTES_MAX:
        raise ValueError(f"an index file cannot have {slots} slots and {len(items)} items")
    canonical = canonical_order(items)
    hashes = items["key_hash"][canonical]
    assert not len(items) or hashes.min() >= 0, "the hash of a key is not negative"
    of_slots = hashes % slots
    counts = np.bincount(of_slots, minlength=slots)
    # Sorted as single numbers, which is far faster than a stable sort of indices.
    ranked = np.sort(of_slots.astype(np.int64) << 32 | np.arange(len(items)))
    order = canonical[ranked & 0xFFFF_FFFF]
    del canonical, hashes, of_slots, ranked
    raw = np.empty(size, np.uint8)
    first = IndexHeader.SIZE + slots * IndexSlot.SIZE
    table = raw[IndexHeader.SIZE : first].view(SLOT_DTYPE)
    table["length"] = counts * IndexItem.SIZE
    table["position"] = first + (np.cumsum(counts) - counts) * IndexItem.SIZE
    rows = raw[first:].view(ITEM_DTYPE)
    for at in range(0, len(items), AT_ONCE_ITEMS):
        part, some = rows[at:][:AT_ONCE_ITEMS], items.take(order[at:][:AT_ONCE_ITEMS])
        for name in ("key_hash", "topic_id", "queue_id", "position", "size"):
            part[name] = some[name]
        part["seconds"] = stored_seconds(some["store_timestamp"] - begin_timestamp)
    header = IndexHeader(
        END_MAGIC,
        begin_timestamp,
        int(items["store_timestamp"].max()) if len(items) else 0,
        int(np.count_nonzero(counts)),
        len(items),
    )
    raw[: IndexHeader.SIZE] = np.frombuffer(header.encode(), np.uint8)
    return raw


def stored_seconds(milliseconds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Whole seconds, rounded towards 0 as in Java, limited to 32 bits."""
    cut = np.sign(milliseconds) * (np.abs(milliseconds) // SECOND_MS)
    return np.clip(cut, _INT32_MIN, INT32_MAX)


@dataclass(frozen=True, slots=True)
class SealedIndex:
    """Layout of a sealed file, from its header and length."""

    path: str
    header: IndexHeader
    size: int
    """Length of the file in bytes."""
    slots: int
    tick_ms: int
    """Unit of the items' times in ms: 1,000, or 1 in files of RocketMQ 5.1."""

    @classmethod
    def of(cls, head: Buffer, size: int, *, path: str) -> "SealedIndex":
        """Derive the layout from the first 28 bytes of a file of `size` bytes. Pure.

        Sealed files of RocketMQ 5.1 are recognized by the magic number at their end.

        Raises:
            Corrupt: no sealed file has this header and this length.
        """
        return cls.by_header(IndexHeader.decode(head, path=path), size, path=path)

    @classmethod
    def by_header(cls, header: IndexHeader, size: int, *, path: str) -> "SealedIndex":
        """As `of`, for a decoded header. Pure. Raises as `of`."""
        if header.magic != END_MAGIC:
            raise Corrupt("the index file is not sealed", path, 0)
        rest = size - IndexHeader.SIZE - header.items * IndexItem.SIZE
        is_51 = rest % IndexSlot.SIZE == MAGIC_BYTES
        slots, left = divmod(rest - (MAGIC_BYTES if is_51 else 0), IndexSlot.SIZE)
        if (
            left
            or slots < 1
            or (header.used_slots != slots if is_51 else header.used_slots > slots)
        ):
            raise Corrupt(f"a sealed index file of {size} bytes cannot have {header}", path, 0)
        return cls(path, header, size, slots, 1 if is_51 else SECOND_MS)

    @property
    def first_item(self) -> int:
        """First byte of the items."""
        return IndexHeader.SIZE + self.slots * IndexSlot.SIZE

    @property
    def items_end(self) -> int:
        """End of the items, exclusive."""
        return self.first_item + self.header.items * IndexItem.SIZE

    def slot_of(self, key_hash: int) -> int:
        """Slot of a hash."""
        return key_hash % self.slots

    def slot_range(self, slot: int) -> ByteRange:
        """Range of the slot's entry."""
        start = self.slot_at(slot)
        return ByteRange(start, start + IndexSlot.SIZE)

    def slot_at(self, slot: int) -> int:
        """First byte of the slot's entry."""
        return IndexHeader.SIZE + slot * IndexSlot.SIZE

    def run(self, slot: int, raw: Buffer) -> ByteRange | None:
        """Range of a slot's items, by its entry `raw`. None if it has none.

        Raises:
            Corrupt: the range is impossible.
        """
        position, length = IndexSlot.LAYOUT.unpack(raw)
        if not length:
            return None
        inside = self.first_item <= position <= self.items_end - length
        if length < 0 or not inside or (position - self.first_item) % IndexItem.SIZE:
            at = self.slot_at(slot)
            raise Corrupt(f"slot {slot} names {length} bytes at {position}", self.path, at)
        if length % IndexItem.SIZE:
            at = self.slot_at(slot)
            raise Corrupt(f"slot {slot} names {length} bytes of items", self.path, at)
        return ByteRange(position, position + length)

    def items(self, raw: Buffer, *, position: int, slot: int | None = None) -> KeyItems:
        """Decode the items in `raw`, which lie at `position` of the file. O(items).

        Raises:
            Corrupt: one has a hash of another slot than `slot`, or is impossible.
        """
        rows = self.rows(raw, position=position, slot=slot)
        return native_items(rows, self.header.begin_timestamp, self.tick_ms)

    def places(
        self, raw: Buffer, key: tuple[int, int], *, position: int, slot: int
    ) -> list[ItemPlace]:
        """Places of the records of items in `raw`, of one slot, with a given hash and topic id.

        Few items, the usual case, cost some 0.5 us each. Raises as `items`.
        """
        if len(raw) > FEW_ITEMS * IndexItem.SIZE:
            items = self.items(raw, position=position, slot=slot)
            mine = (items["key_hash"] == key[0]) & (items["topic_id"] == key[1])
            return places_in_log(items[mine])
        found: list[ItemPlace] = []
        for fields in IndexItem.LAYOUT.iter_unpack(raw):
            key_hash, topic_id, queue_id, at, size, ticks = fields
            if key_hash < 0 or size <= 0 or at < 0 or key_hash % self.slots != slot:
                self.rows(raw, position=position, slot=slot)  # raises with the item and the reason
            if (key_hash, topic_id) == key:
                stamp = self.header.begin_timestamp + ticks * self.tick_ms
                found.append((queue_id, at, size, stamp))
        return found

    def rows(self, raw: Buffer, *, position: int, slot: int | None = None) -> NDArray[np.void]:
        """As `items`, as `ITEM_DTYPE` and without a copy. Raises as `items`."""
        rows = np.frombuffer(raw, ITEM_DTYPE)
        good = (rows["key_hash"] >= 0) & (rows["size"] > 0) & (rows["position"] >= 0)
        if slot is not None:
            good &= rows["key_hash"] % self.slots == slot
        if not good.all():
            bad = int(np.argmin(good))
            at = position + bad * IndexItem.SIZE
            raise Corrupt(f"impossible item {rows[bad]}", self.path, at)
        return rows


def native_items(rows: NDArray[np.void], begin_timestamp: int, tick_ms: int) -> KeyItems:
    """Convert items of a file to those in memory. Their times have the resolution `tick_ms`."""
    items = np.empty(len(rows), KEY_ITEM_DTYPE)
    for name in ("key_hash", "topic_id", "queue_id", "position", "size"):
        items[name] = rows[name]
    items["ordinal"] = 0
    items["store_timestamp"] = begin_timestamp + rows["seconds"].astype(np.int64) * tick_ms
    return items


def decode_sealed(raw: Buffer, *, path: str) -> tuple[SealedIndex, KeyItems]:
    """Decode a whole sealed file: its layout, and all items, in the order of the file. O(bytes).

    Raises:
        Corrupt: some part contradicts the format. The position is that of the first.
    """
    index, rows, _ = sealed_rows(raw, path=path)
    return index, native_items(rows, index.header.begin_timestamp, index.tick_ms)


def sealed_rows(
    raw: Buffer, *, path: str
) -> tuple[SealedIndex, NDArray[np.void], NDArray[np.int64]]:
    """As `decode_sealed`, as `ITEM_DTYPE` without a copy, with the items of each slot.

    Raises as `decode_sealed`.
    """
    whole = as_bytes(raw)
    index = SealedIndex.of(raw, len(raw), path=path)
    table = whole[IndexHeader.SIZE : index.first_item].view(SLOT_DTYPE)
    lengths = table["length"].astype(np.int64)
    begins = index.first_item + np.cumsum(lengths) - lengths
    good = (lengths >= 0) & (lengths % IndexItem.SIZE == 0)
    empty_is_zero = index.tick_ms == 1  # RocketMQ 5.1 does not write the entries of empty slots
    good &= (table["position"] == begins) | ((lengths == 0) & empty_is_zero)
    if not good.all():
        bad = int(np.argmin(good))
        reason = f"slot {bad} names {lengths[bad]} bytes at {table['position'][bad]}"
        raise Corrupt(reason, path, index.slot_at(bad))
    if int(lengths.sum()) != index.items_end - index.first_item:
        reason = f"the slots have {int(lengths.sum()) // IndexItem.SIZE} items"
        raise Corrupt(f"{reason}, the header {index.header.items}", path, IndexHeader.SIZE)
    used = int(np.count_nonzero(lengths))
    if index.tick_ms != 1 and used != index.header.used_slots:
        raise Corrupt(f"{used} slots have items, the header says another number", path, 20)
    rows = index.rows(whole[index.first_item : index.items_end].data, position=index.first_item)
    counts = lengths // IndexItem.SIZE
    slots = np.repeat(np.arange(index.slots, dtype=np.int32), counts)
    if len(misplaced := np.flatnonzero(rows["key_hash"] % index.slots != slots)):
        at = index.first_item + int(misplaced[0]) * IndexItem.SIZE
        raise Corrupt(f"impossible item {rows[misplaced[0]]}", path, at)
    if index.tick_ms == 1 and whole[-MAGIC_BYTES:].tobytes() != BEGIN_MAGIC.to_bytes(4, "big"):
        raise Corrupt("the index file has no magic number at its end", path, index.items_end)
    return index, rows, counts


EXTRA_BYTES_51 = 16
"""Extra length of files of RocketMQ 5.1, in bytes: a header of 40 bytes with 28 in use, and 4
bytes."""


@dataclass(frozen=True, slots=True)
class OpenIndex:
    """Open file, to which a broker may be writing. The counts in its header are valid."""

    path: str
    header: IndexHeader
    lowest: int
    """Number of the first item: 1, or 0 in files of RocketMQ 5.1."""
    heads: NDArray[np.int32]
    """Number of the newest item of each slot, `lowest - 1` for none. As on disk."""
    rows: NDArray[np.void]
    """`OPEN_ITEM_DTYPE`: items by number, and the unused places around them."""

    @classmethod
    def of(cls, raw: Buffer, *, slots: int, path: str) -> "OpenIndex":
        """Locate the parts of the whole file `raw`, which may be mapped. O(1), reads the header.

        Args:
            raw: the whole file.
            slots: number of slots (`tieredStoreIndexFileMaxHashSlotNum` of the broker), which is
                not recorded in the file.
            path: name of the file.

        Raises:
            Corrupt: it is no open index file with this number of slots.
        """
        header = IndexHeader.decode(raw, path=path)
        first = IndexHeader.SIZE + slots * SLOT_DTYPE.itemsize
        rest = len(raw) - first
        is_51 = rest % OpenIndexItem.SIZE == EXTRA_BYTES_51
        if slots < 1 or rest < 0 or (rest % OpenIndexItem.SIZE and not is_51):
            raise Corrupt(f"no index file of {slots} slots has {len(raw)} bytes", path, 0)
        places = rest // OpenIndexItem.SIZE
        lowest = 0 if is_51 else 1
        if header.items + lowest > places:
            raise Corrupt(f"{header.items} items do not fit", path, 24)
        whole = as_bytes(raw)
        heads = whole[IndexHeader.SIZE : first].view(OPEN_SLOT_DTYPE)["newest"]
        rows = whole[first : first + places * OpenIndexItem.SIZE].view(OPEN_ITEM_DTYPE)
        return cls(path, header, lowest, heads, rows)

    def chain(self, key_hash: int, *, items_max: int) -> KeyItems:
        """Items of a hash, newest first, among the newest `items_max` of its slot.

        Raises:
            Corrupt: the chain of the slot leads to an impossible item.
        """
        slot = key_hash % len(self.heads)
        number, above = int(self.heads[slot]), self.header.items + self.lowest
        found: list[int] = []
        while number >= self.lowest and len(found) < items_max:
            if number >= above:
                raise self._impossible(number)
            found.append(number)
            above, number = number, int(self.rows["previous"][number])
        items = self._native(self.rows[found])
        good = (items["key_hash"] % len(self.heads) == slot) & (items["size"] > 0)
        good &= items["position"] >= 0
        if not good.all():
            raise self._impossible(found[int(np.argmin(good))])
        return items[items["key_hash"] == key_hash]

    def items(self) -> KeyItems:
        """All items, oldest first. Verifies every chain. O(bytes).

        Raises:
            Corrupt: a slot or an item is impossible. The position is that of the first.
        """
        end = self.header.items + self.lowest
        numbers = np.arange(self.lowest, end)
        rows = self.rows[self.lowest : end]
        good = (rows["size"] > 0) & (rows["position"] >= 0)
        good &= (rows["previous"] >= self.lowest - 1) & (rows["previous"] < numbers)
        if not good.all():
            raise self._impossible(self.lowest + int(np.argmin(good)))
        items = self._native(rows)
        newest = np.full(len(self.heads), self.lowest - 1)
        np.maximum.at(newest, items["key_hash"] % len(self.heads), numbers)
        if len(wrong := np.flatnonzero(newest != self.heads)):
            slot = int(wrong[0])
            at = IndexHeader.SIZE + slot * SLOT_DTYPE.itemsize
            raise Corrupt(f"slot {slot} begins with item {self.heads[slot]}", self.path, at)
        return items

    def _native(self, rows: NDArray[np.void]) -> KeyItems:
        tick_ms = SECOND_MS if self.lowest else 1
        items = native_items(rows, self.header.begin_timestamp, tick_ms)
        np.maximum(items["key_hash"], 0, out=items["key_hash"])  # Java's result for MIN_VALUE
        return items

    def _impossible(self, number: int) -> Corrupt:
        first = IndexHeader.SIZE + len(self.heads) * SLOT_DTYPE.itemsize
        at = first + number * OpenIndexItem.SIZE
        return Corrupt(f"item {number} of the open index file cannot be", self.path, at)
