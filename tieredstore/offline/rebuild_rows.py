"""Units and keys on their way from the splits of a rebuild to the files that they belong to."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from container.index.items import KEY_ITEM_DTYPE, KeyItems
from container.index.keys import MessageKeys
from container.record.batch import encode_units
from container.record.unit import UNIT_DTYPE, Units
from tieredstore.offline.engine import Piece
from tieredstore.offline.log_scan import FoundRecords
from tieredstore.offline.offset_runs import edges_of_runs
from tieredstore.offline.packed_columns import Columns, pack, rows_of, unpack

ROWS_MAX = 1 << 16
"""Of one piece: at most 2 MiB of units, and 2.5 MiB of keys; a third of it as they mostly are."""
HELD_ROWS_MAX = 4 * ROWS_MAX
"""That a mapper holds for all targets together: some 12 MiB."""
KEY_COLUMNS = ("key_hash", "topic_id", "queue_id", "position", "store_timestamp", "size")
UNIT_COLUMNS = ("position", "size", "tag_hash", "store_timestamp")


class Rows:
    """Rows for one target, held until there are enough of them for a piece."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._parts: list[Columns] = []
        self.count = 0
        """How many are held."""
        self._order = 0
        self._next_order = 0

    def add(
        self, orders: NDArray[np.int64], columns: Columns, *, must_follow: bool = False
    ) -> Iterator[Piece]:
        """Hold some more; yields what there is enough of.

        A piece has the order of its first row; if rows `must_follow` one another, those of all
        others follow from it.
        """
        if not len(orders):
            return
        begins = _runs(orders) if must_follow else range(0, len(orders), ROWS_MAX)
        for begin, end in zip(begins, [*begins[1:], len(orders)], strict=True):
            first = int(orders[begin])
            if must_follow and first != self._next_order:
                yield from self.rest()
            if self.count + end - begin > ROWS_MAX:
                yield from self.rest()
            if not self.count:
                self._order = first
            # Copied, for a view would hold all rows that it is of.
            self._parts.append([column[begin:end].copy() for column in columns])
            self.count += end - begin
            self._next_order = first + end - begin

    def rest(self) -> Iterator[Piece]:
        """What is held."""
        if self.count:
            columns = [np.concatenate(parts) for parts in zip(*self._parts, strict=True)]
            yield Piece(self._target, self._order, pack(columns))
            self._parts, self.count = [], 0


class HeldRows:
    """Rows for all targets of a mapper, of which it holds few, however many targets there are."""

    def __init__(self) -> None:
        self._rows: dict[str, Rows] = {}
        self._count = 0

    def add(
        self,
        target: str,
        orders: NDArray[np.int64],
        columns: Columns,
        *,
        must_follow: bool = False,
    ) -> Iterator[Piece]:
        """`Rows.add` for a target."""
        rows = self._rows.setdefault(target, Rows(target))
        before = rows.count
        yield from rows.add(orders, columns, must_follow=must_follow)
        self._count += rows.count - before
        if self._count > HELD_ROWS_MAX:
            yield from self.rest()

    def add_keys(self, target: str, columns: Sequence[NDArray[np.int64]]) -> Iterator[Piece]:
        """The same for `KEY_COLUMNS`, which may lie in pieces of any order."""
        yield from self.add(target, columns[KEY_COLUMNS.index("position")], columns)

    def rest(self) -> Iterator[Piece]:
        """What is held of all targets."""
        for rows in self._rows.values():
            yield from rows.rest()
        self._rows, self._count = {}, 0


def _runs(orders: NDArray[np.int64]) -> Sequence[int]:
    """Where runs of orders begin that follow one another, and where they are cut."""
    runs = pairwise(edges_of_runs(orders))
    return [at for begin, end in runs for at in range(begin, end, ROWS_MAX)]


def units_in(pieces: Sequence[Piece], units_per_extent: int) -> tuple[Units, list[tuple[int, int]]]:
    """Units of pieces, in their order, and the oldest and newest store timestamp of each extent.

    Memory: 20 bytes a row, and a piece.
    """
    counts = [rows_of(piece.payload) for piece in pieces]
    units = np.empty(sum(counts), UNIT_DTYPE)
    times: list[tuple[int, int]] = []
    at = 0
    for piece, count in zip(pieces, counts, strict=True):
        *columns, stamps = unpack(piece.payload, len(UNIT_COLUMNS))
        units[at : at + count] = encode_units(*columns)
        behind, inner = at + count, at - at % units_per_extent + units_per_extent
        for begin, end in pairwise([at, *range(inner, behind, units_per_extent), behind]):
            some = stamps[begin - at : end - at]
            here = int(some.min()), int(some.max())
            if begin % units_per_extent:
                before = times.pop()
                here = min(before[0], here[0]), max(before[1], here[1])
            times.append(here)
        at = behind
    return units, times


def key_columns(
    keys: MessageKeys, found: FoundRecords, topic_id: int, queue_id: int
) -> list[NDArray[np.int64]]:
    """`KEY_COLUMNS` of keys of records, a row each."""
    count = len(keys.messages)
    return [
        keys.hashes,
        np.full(count, topic_id),
        np.full(count, queue_id),
        found.positions[keys.messages],
        found.columns.store_timestamps[keys.messages],
        found.sizes[keys.messages],
    ]


def keys_in(pieces: Sequence[Piece]) -> KeyItems:
    """Index items of pieces; ordinals are 0. Memory: 36 bytes a row, and a piece."""
    counts = [rows_of(piece.payload) for piece in pieces]
    items = np.zeros(sum(counts), KEY_ITEM_DTYPE)
    at = 0
    for piece, count in zip(pieces, counts, strict=True):
        part = items[at : at + count]
        for name, column in zip(KEY_COLUMNS, unpack(piece.payload, len(KEY_COLUMNS)), strict=True):
            part[name] = column
        at += count
    return items
