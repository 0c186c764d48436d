"""Merge of sealed index files to one, with the bytes that it would have had from the start.

The time of an item has the file's resolution. All files of ours round times at whole seconds
(`fitting_begin`), so a merge loses nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from container.index.layout import (
    END_MAGIC,
    FILE_BYTES_MAX,
    ITEM_DTYPE,
    SECOND_MS,
    SLOT_DTYPE,
    IndexHeader,
    IndexItem,
    IndexSlot,
    places_of,
)
from container.index.sealed import (
    INT32_MAX,
    SealedIndex,
    file_bytes,
    fitting_slots,
    sealed_rows,
)
from provider.object_store import Buffer

PIECE_ITEMS = 131_072
"""Items that are sorted together, unless one slot has more."""
RANGES_MAX = 64
"""Parts of a file that are read for one piece. More would cost more than the whole file."""


@dataclass(frozen=True, slots=True)
class MergedPart:
    """Sealed file to merge, with a selection of its items."""

    path: str
    raw: Buffer
    """Contents of the whole file."""
    places: NDArray[np.int64]
    """Queues whose items are kept (`place_of`), ascending."""
    first_bytes: NDArray[np.int64]
    """First byte of each queue's log. Items of earlier messages are dropped."""


def merge_sealed(
    parts: Sequence[MergedPart],
    *,
    slots: int | None = None,
    begin_timestamp: int | None = None,
    newest_first: bool = False,
) -> NDArray[np.uint8]:
    """Build the sealed file of all kept items of the parts, in canonical order.

    Returns the same bytes as `seal_index` for the same items, if all begins are whole seconds. Some
    0.5 us an item. Holds the parts, the file, some 32 bytes an item, and `PIECE_ITEMS` times 80
    bytes, or as much for all items of a larger slot. Pure, thread-safe.

    Args:
        parts: files of ours, with verified checksums.
        slots: number of slots of the file. None: chosen by the number of items.
        begin_timestamp: origin of the times. None: the smallest begin.
        newest_first: reverse the order inside each slot, as RocketMQ does.

    Raises:
        Corrupt: a part contradicts the format.
        ValueError: this number of items and slots does not fit into a file.
    """
    opened = [_Opened.of(part) for part in parts]
    total = sum(one.items for one in opened)
    slots = fitting_slots(total) if slots is None else slots
    size = file_bytes(total, slots)
    if slots < 1 or size > FILE_BYTES_MAX:
        raise ValueError(f"an index file cannot have {slots} slots and {total} items")
    having = [one.index.header for one in opened if one.items]
    begin = begin_timestamp
    if begin is None:
        begin = min((header.begin_timestamp for header in having), default=0)
    raw = np.empty(size, np.uint8)
    first = IndexHeader.SIZE + slots * IndexSlot.SIZE
    rows = raw[first:].view(ITEM_DTYPE)
    counts = np.zeros(slots, np.int64)
    step = 1 << max(0, (slots * PIECE_ITEMS // max(total, 1)).bit_length() - 1)
    done = 0
    for start in range(0, slots, step):
        end = min(start + step, slots)
        piece = np.concatenate([one.rows_of(start, end, slots, begin) for one in opened])
        mine = piece["key_hash"] % slots
        columns = (piece["key_hash"], piece["position"], places_of(piece), piece["seconds"])
        if newest_first:
            order = np.lexsort((*columns, -mine))[::-1]
        else:
            order = np.lexsort((*columns, mine))
        rows[done : done + len(piece)] = piece[order]
        counts[start:end] = np.bincount(mine - start, minlength=end - start)
        done += len(piece)
    table = raw[IndexHeader.SIZE : first].view(SLOT_DTYPE)
    table["length"] = counts * IndexItem.SIZE
    table["position"] = first + (np.cumsum(counts) - counts) * IndexItem.SIZE
    newest = max((header.end_timestamp for header in having), default=0)
    used = int(np.count_nonzero(counts))
    header = IndexHeader(END_MAGIC, begin, newest, used, total)
    raw[: IndexHeader.SIZE] = np.frombuffer(header.encode(), np.uint8)
    return raw


@dataclass(frozen=True, slots=True)
class _Opened:
    """Validated part, with the positions of its items."""

    index: SealedIndex
    rows: NDArray[np.void]
    """`ITEM_DTYPE`, in the order of the file."""
    firsts: NDArray[np.int64]
    """First row of each slot, and the number of rows at the end."""
    stays: NDArray[np.bool_] | None
    """Whether each row is kept. None: all are."""

    @classmethod
    def of(cls, part: MergedPart) -> Self:
        index, rows, counts = sealed_rows(part.raw, path=part.path)
        firsts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        return cls(index, rows, firsts, _stays(rows, part))

    @property
    def items(self) -> int:
        """Number of kept rows."""
        return len(self.rows) if self.stays is None else int(np.count_nonzero(self.stays))

    def rows_of(self, start: int, end: int, slots: int, begin: int) -> NDArray[np.void]:
        """Copy the rows for slots `[start, end)` of the larger file, with times from `begin`.

        Keys of one slot in a file of 2**n slots are in few slots of any other such file.
        """
        spans = [self.firsts[[a, b]].tolist() for a, b in self._slots_of(start, end, slots)]
        rows = np.concatenate([self.rows[a:b] for a, b in spans])
        mine = rows["key_hash"] % slots
        wanted = (mine >= start) & (mine < end)
        if self.stays is not None:
            wanted &= np.concatenate([self.stays[a:b] for a, b in spans])
        if not wanted.all():
            rows = rows[wanted]
        late_ms = self.index.header.begin_timestamp - begin
        if late_ms:
            seconds = rows["seconds"].astype(np.int64) * self.index.tick_ms + late_ms
            rows["seconds"] = np.clip(seconds // SECOND_MS, -INT32_MAX - 1, INT32_MAX)
        return rows

    def _slots_of(self, start: int, end: int, slots: int) -> list[tuple[int, int]]:
        """Slots of this file that may have keys of slots `[start, end)` out of `slots`."""
        mine, count = self.index.slots, end - start
        if slots % mine == 0 and count < mine:
            low = start % mine
            high = low + count
            return [(low, high)] if high <= mine else [(low, mine), (0, high - mine)]
        if mine % slots == 0 and mine // slots <= RANGES_MAX:
            return [(start + at, end + at) for at in range(0, mine, slots)]
        return [(0, mine)]


def _stays(rows: NDArray[np.void], part: MergedPart) -> NDArray[np.bool_] | None:
    """Rows of kept queues whose messages still exist."""
    found = np.zeros(len(rows), bool)
    for at in range(0, len(rows) if len(part.places) else 0, PIECE_ITEMS):
        some = rows[at : at + PIECE_ITEMS]
        places = places_of(some)
        queues = np.minimum(np.searchsorted(part.places, places), len(part.places) - 1)
        found[at : at + PIECE_ITEMS] = (part.places[queues] == places) & (
            some["position"] >= part.first_bytes[queues]
        )
    return None if found.all() else found
