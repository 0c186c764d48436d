"""The open index file of a Java broker. Read-only."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from container.index.items import SECOND_MS, KeyItems
from container.index.layout import (
    OPEN_ITEM_DTYPE,
    OPEN_SLOT_DTYPE,
    SLOT_DTYPE,
    IndexHeader,
    OpenIndexItem,
)
from container.index.sealed import native_items
from container.record.batch import as_bytes
from provider.errors import Corrupt
from provider.object_store import Buffer

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
