"""Derived data of records: units, index items, their files, extents with checksums."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.index.keys import MessageKeys, OwnedSpans, keys_of_values
from container.names.rocketmq import INT64_MAX, index_name
from container.names.tier_objects import IndexBase
from container.queue.commit_plan import EXTENT_MESSAGES_MAX, cut_runs
from container.record.batch import encode_units
from container.record.checksum import crc32c
from container.record.header import Coda
from container.record.properties import KEYS, UNIQ_KEY
from container.record.unit import Units
from provider.errors import Corrupt
from provider.sequential import ByteSource
from tieredstore.offline.scan.log_scan import FoundRecords
from tieredstore.offline.scan.split import LogPiece, Runs, ScanReport, Split, add_runs
from tieredstore.reader.arrow_columns import ColumnMaker, Labels

# pyarrow ships no types.


KEYS_AT_ONCE = 1 << 19
"""More only of one message."""
KEY_BYTES_AT_ONCE = 2 * KEYS_AT_ONCE
"""The least that so many keys take in a log: each is a byte, and a blank."""


def labels_of(found: FoundRecords) -> Labels:
    """The properties of records, which index keys are made of. Some 0.3 us a record."""
    return ColumnMaker(found.raw, found.columns).labels()


def units_of(found: FoundRecords) -> Units:
    """The ConsumeQueue units of records, by the rule of `RecordCheck`. Some 0.2 us a record.

    A delayed message of a broker's own topic, whose unit has the time of its delivery, is not told
    apart: those topics are not tiered.
    """
    return encode_units(found.positions, found.sizes, found.tags_codes)


def keys_within(
    found: FoundRecords, labels: Labels, topic: str, offsets: tuple[int, int]
) -> Iterator[tuple[FoundRecords, MessageKeys]]:
    """The index keys of those records that have queue offsets `[from, to)`, and these records.

    Some 0.2 us a record and 0.1 us a key. In parts of at most some `KEYS_AT_ONCE` keys, each of
    which takes 150 bytes here.
    """
    numbers = found.queue_offsets
    wanted = (numbers >= offsets[0]) & (numbers < offsets[1])
    if not wanted.any():
        return
    if not wanted.all():
        found = found.taken(wanted)
        labels = labels_of(found)
    edges = _edges(labels, len(found.starts))
    for first, behind in pairwise(edges):
        some, of_some = found, labels
        if len(edges) > 2:  # noqa: PLR2004 - more than one part
            some = found.taken(slice(first, behind))
            of_some = labels_of(some)
        unique, users = (OwnedSpans(*of_some.spans_of(name)) for name in (UNIQ_KEY, KEYS))
        yield some, keys_of_values(of_some.text, unique, users, topic=topic)


def _edges(labels: Labels, count: int) -> list[int]:
    """Return the rows that divide records into parts of about `KEYS_AT_ONCE` keys at most."""
    if len(labels.text) <= KEY_BYTES_AT_ONCE:  # nearly always
        return [0, count]
    owners, values = labels.spans_of(KEYS)
    lengths = np.zeros(count, np.int64)
    lengths[owners] = values.ends - values.starts
    parts = np.cumsum(lengths) // KEY_BYTES_AT_ONCE
    return [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), count]


INDEX_LOG_BYTES = 128 << 20
"""Messages whose keys go into one index file, in bytes of their log."""
INDEX_ITEMS_MAX = 1 << 20
"""Keys of one index file, as many as the store merges into one where nothing else is said. A worker
makes the file in memory: some 130 bytes a key."""
OPEN_GROUPS_MAX = 16
"""Groups of splits that another split may still join; each new split is compared with all."""


class IndexPart(NamedTuple):
    """Offsets of a queue whose keys go into one index file that is known, or into a planned row."""

    file: str
    start: int
    behind: int
    items_max: int = INT64_MAX
    """Keys of one split that go into a file, but for those of one message that has more."""
    step: int = 0
    """By how much the number of the next file of the row is higher."""

    def file_at(self, number: int) -> str:
        """The name of a file of the row, counted from 0."""
        if not number:
            return self.file
        base = IndexBase.parse(self.file)
        assert base is not None, "it was planned"
        return index_name(base.number + number * self.step)


class IndexCuts:
    """Cuts the keys of one split into the files of its parts, in order of the log."""

    def __init__(self) -> None:
        self.offsets: dict[str, Runs] = {}
        """By file, which messages' keys are in it."""
        self._at: dict[IndexPart, tuple[int, int]] = {}
        """By part, which file of the row has room, and how many keys of this split it has."""

    def cut(
        self, part: IndexPart, offsets: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Iterator[tuple[str, int, int]]:
        """Yield a file, and which keys go into it, by their first and the end; some have none.

        Args:
            part: the row of files.
            offsets: queue offset of each of the next messages.
            ends: number of keys up to and with each message.
        """
        first = done = 0
        number, held = self._at.get(part, (0, 0))
        while first < len(offsets):
            room = max(0, min(part.items_max - held, int(ends[-1])))
            behind = int(np.searchsorted(ends, done + room, side="right"))
            if behind == first and held:
                number, held = number + 1, 0
                continue
            behind = max(behind, first + 1)  # one message may have more keys than that
            file, end = part.file_at(number), int(ends[behind - 1])
            add_runs(self.offsets.setdefault(file, []), offsets[first:behind])
            yield file, done, end
            held, done, first = held + end - done, end, behind
        self._at[part] = number, held


def index_parts(lengths: Sequence[int], *, epoch: int, first_number: int) -> list[IndexPart]:
    """The row of files of each of some splits, by how long they are; some share theirs.

    Splits of at most `INDEX_LOG_BYTES` together share a row, each by its share of the length, so
    that no file has more than `INDEX_ITEMS_MAX` keys but for those of one message of each split.
    Files are numbered from `first_number` on: first the first one of each row, and so on.
    """
    groups = _groups(lengths)
    totals: Counter[int] = Counter()
    for group, length in zip(groups, lengths, strict=True):
        totals[group] += length
    return [
        IndexPart(
            index_name(IndexBase(epoch, first_number + group).number),
            0,
            INT64_MAX,
            max(1, INDEX_ITEMS_MAX * length // totals[group]),
            len(totals),
        )
        for length, group in zip(lengths, groups, strict=True)
    ]


def _groups(lengths: Sequence[int]) -> list[int]:
    """Assign each split to a group: the first with room among the few groups with the most."""
    found: list[int] = []
    room: dict[int, int] = {}
    count = 0
    for length in lengths:
        group = next((one for one, left in room.items() if left >= length), None)
        if group is None:
            group, count = count, count + 1
            room[group] = INDEX_LOG_BYTES
        found.append(group)
        room[group] -= length
        if len(room) > OPEN_GROUPS_MAX:
            del room[min(room, key=lambda one: room[one])]
    return found


PIECE_BYTES = 4 << 20
ExtentRow = tuple[int, int, int | None, int, int, int]
"""Log position, length, CRC-32C (None: not all can be read), first offset (-1: it holds no record),
oldest, newest."""


@dataclass(slots=True)
class _Open:
    start: int
    end: int
    crc32c: int
    first_offset: int
    oldest_ms: int
    newest_ms: int

    @property
    def row(self) -> ExtentRow:
        """Row of the extent in a reducer's report."""
        length = self.end - self.start
        return (
            self.start, length, self.crc32c, self.first_offset, self.oldest_ms, self.newest_ms
        )  # fmt: skip


class LogExtents:
    """Divides the log of a split into adjacent extents; bytes between records are extents, too.

    The bounds need not be those of the owner that wrote the log: an extent only has to begin and
    end between records.
    """

    def __init__(self, bytes_max: int, pieces: Sequence[LogPiece] = ()) -> None:
        """No extent is in two of these pieces, whose objects may differ."""
        self._bytes_max = bytes_max
        self._edges = [piece.position for piece in pieces]
        self._rows: list[ExtentRow] = []
        self._open: _Open | None = None

    def add(self, found: FoundRecords, offsets: NDArray[np.int64]) -> None:
        """Sum and cut the records of one chunk, in order; there may be others between them."""
        positions = found.positions
        low, high = int(positions[0]), int(positions[-1])
        inner = self._edges[bisect_right(self._edges, low) : bisect_right(self._edges, high)]
        begins = {0, *np.searchsorted(positions, inner).tolist()}
        begins.update(
            (1 + np.flatnonzero((positions + found.sizes)[:-1] != positions[1:])).tolist()
        )
        if len(begins) == 1:
            self._add(found, offsets)
            return
        for begin, end in pairwise([*sorted(begins), len(offsets)]):
            self._add(found.taken(slice(begin, end)), offsets[begin:end])

    def _add(self, found: FoundRecords, offsets: NDArray[np.int64]) -> None:
        """As `add`, of records that lie in one piece and follow one another."""
        begin = int(found.positions[0])
        ends = found.positions + found.sizes
        if self._open is not None and (self._open.end != begin or self._is_edge(begin)):
            self._close()
        start = begin if self._open is None else self._open.start
        stamps, view = found.columns.store_timestamps, found.raw.data
        cuts = cut_runs(
            ends,
            begin,
            open_start=start,
            bytes_max=self._bytes_max,
            items_max=EXTENT_MESSAGES_MAX,
            open_items=0 if self._open is None else int(offsets[0]) - self._open.first_offset,
        )
        for cut in cuts:
            low = begin if cut.first == 0 else int(ends[cut.first - 1])
            high = int(ends[cut.last - 1])
            part = view[low - found.log_start : high - found.log_start]
            oldest = int(stamps[cut.first : cut.last].min())
            newest = int(stamps[cut.first : cut.last].max())
            now = self._open
            if now is not None and cut.start == now.start:
                now.crc32c, now.end = crc32c(part, now.crc32c), high
                now.oldest_ms, now.newest_ms = (
                    min(now.oldest_ms, oldest),
                    max(now.newest_ms, newest),
                )
            else:
                self._close()
                first = int(offsets[cut.first])
                self._open = _Open(low, high, crc32c(part), first, oldest, newest)

    def finish(self, source: ByteSource, report: ScanReport) -> list[ExtentRow]:
        """All extents of the split, which together cover `[first, end)` of its report.

        Reads what lies between records, which is little, for its checksum.
        """
        self._close()
        first, end = report.first, report.end
        assert first is not None, "the scan has ended"
        assert end is not None, "the scan has ended"
        rows: list[ExtentRow] = []
        at = first
        for row in [*self._rows, (end, 0, 0, -1, 0, 0)]:
            if at < row[0]:
                first, last = bisect_right(self._edges, at), bisect_left(self._edges, row[0])
                for low, high in pairwise([at, *self._edges[first:last], row[0]]):
                    rows = self._with_hole(rows, source, report.split, low, high)
            if row[1]:
                rows.append(row)
            at = row[0] + row[1]
        return rows

    def _with_hole(
        self, rows: list[ExtentRow], source: ByteSource, split: Split, start: int, end: int
    ) -> list[ExtentRow]:
        before = rows[-1] if rows else None
        is_coda = end - start == Coda.SIZE and not self._is_edge(start)
        if before is not None and is_coda and before[2] is not None:
            crc = _sum(source, split, start, end, before[2])
            return [*rows[:-1], (before[0], before[1] + Coda.SIZE, crc, *before[3:])]
        crc = _sum(source, split, start, end, 0)
        return [*rows, (start, end - start, crc, -1, 0, 0)]

    def _is_edge(self, position: int) -> bool:
        """Whether a piece begins there."""
        at = bisect_left(self._edges, position)
        return at < len(self._edges) and self._edges[at] == position

    def _close(self) -> None:
        if self._open is not None:
            self._rows.append(self._open.row)
        self._open = None


def _sum(source: ByteSource, split: Split, start: int, end: int, crc: int) -> int | None:
    """Checksum of bytes of the log, missing ones as zeros; None if some cannot be read."""
    room = memoryview(bytearray(min(PIECE_BYTES, end - start)))
    for piece in split.pieces:
        low, high = max(piece.position, start), min(piece.end, end)
        while low < high:
            view = room[: high - low]
            place = piece.object_offset + low - piece.position
            try:
                count = source.read_into(piece.object_name, place, view)
            except Corrupt:  # an encrypted frame was changed
                return None
            view[count:] = bytes(len(view) - count)
            crc, low = crc32c(view, crc), low + len(view)
    return crc
