"""Several sealed files become one: the bytes that it would have had from the first.

The time of an item is as exact as a file has it, and all files of ours cut it at whole seconds
(`fitting_begin`), so nothing is lost from one file to the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from container.index.items import SECOND_MS, places_of
from container.index.layout import (
    END_MAGIC,
    FILE_BYTES_MAX,
    ITEM_DTYPE,
    SLOT_DTYPE,
    IndexHeader,
    IndexItem,
    IndexSlot,
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
"""Items that are put in order together, unless one slot has more."""
RANGES_MAX = 64
"""Parts of a file that are looked up for one piece; more cost more than the whole file."""


@dataclass(frozen=True, slots=True)
class MergedPart:
    """A sealed file that goes into a larger one, and which of its items go with it."""

    path: str
    raw: Buffer
    """The whole file."""
    places: NDArray[np.int64]
    """The queues whose items stay (`place_of`), ascending."""
    first_bytes: NDArray[np.int64]
    """Of each, the first byte of its log; items of messages before it are left out."""


def merge_sealed(
    parts: Sequence[MergedPart],
    *,
    slots: int | None = None,
    begin_timestamp: int | None = None,
    newest_first: bool = False,
) -> NDArray[np.uint8]:
    """The sealed file of all items of these that stay, in canonical order.

    The same bytes as `seal_index` gives for the same items, where all begins are whole seconds.
    Some 0.5 us an item. Holds the parts, the file, some 32 bytes an item, and `PIECE_ITEMS` times
    80 bytes, or as much for all items of a slot that has more. Pure, thread-safe.

    Args:
        parts: files of ours; their checksums are compared already.
        slots: how many slots the file gets; None: as many as fit.
        begin_timestamp: what times count from; None: the smallest begin.
        newest_first: the other way round inside each slot, as RocketMQ has it.

    Raises:
        Corrupt: a part contradicts the format.
        ValueError: so many items and slots do not fit into a file.
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
    """A part, compared with the format, and where it has what."""

    index: SealedIndex
    rows: NDArray[np.void]
    """`ITEM_DTYPE`, as they lie in the file."""
    firsts: NDArray[np.int64]
    """Of each slot, its first row; and how many rows there are."""
    stays: NDArray[np.bool_] | None
    """Whether each row goes into the larger file; None: all do."""

    @classmethod
    def of(cls, part: MergedPart) -> Self:
        index, rows, counts = sealed_rows(part.raw, path=part.path)
        firsts = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        return cls(index, rows, firsts, _stays(rows, part))

    @property
    def items(self) -> int:
        """How many rows stay."""
        return len(self.rows) if self.stays is None else int(np.count_nonzero(self.stays))

    def rows_of(self, start: int, end: int, slots: int, begin: int) -> NDArray[np.void]:
        """A copy of the rows that slots `[start, end)` of the larger file get, times from `begin`.

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
        """The slots of this file that may have keys of slots `[start, end)` out of `slots`."""
        mine, count = self.index.slots, end - start
        if slots % mine == 0 and count < mine:
            low = start % mine
            high = low + count
            return [(low, high)] if high <= mine else [(low, mine), (0, high - mine)]
        if mine % slots == 0 and mine // slots <= RANGES_MAX:
            return [(start + at, end + at) for at in range(0, mine, slots)]
        return [(0, mine)]


def _stays(rows: NDArray[np.void], part: MergedPart) -> NDArray[np.bool_] | None:
    """Which rows are of a queue that stays, and of a message that is still there."""
    found = np.zeros(len(rows), bool)
    for at in range(0, len(rows) if len(part.places) else 0, PIECE_ITEMS):
        some = rows[at : at + PIECE_ITEMS]
        places = places_of(some)
        queues = np.minimum(np.searchsorted(part.places, places), len(part.places) - 1)
        found[at : at + PIECE_ITEMS] = (part.places[queues] == places) & (
            some["position"] >= part.first_bytes[queues]
        )
    return None if found.all() else found
