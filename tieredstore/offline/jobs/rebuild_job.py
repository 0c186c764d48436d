"""Worker side of a rebuild: units and keys from records, shuffled into new files."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from container.index.keys import MessageKeys
from container.index.layout import KEY_ITEM_DTYPE, IndexHeader, IndexSlot, KeyItems
from container.index.sealed import file_bytes, fitting_begin, fitting_slots, seal_index
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import INT64_MAX, segment_name
from container.record.batch import encode_units
from container.record.checksum import crc32c
from container.record.unit import UNIT_BYTES, UNIT_DTYPE, Units, consecutive
from provider.errors import AlreadyExists, Unavailable
from provider.file_segments import SegmentSlice
from provider.object_store import Buffer, ObjectStore
from provider.posix.staged_files import stage
from provider.stores.packed_segments import NONCE_BYTES, PackedSegments
from tieredstore.offline.jobs.derived import (
    IndexCuts,
    IndexPart,
    LogExtents,
    keys_within,
    labels_of,
)
from tieredstore.offline.jobs.engine import Piece
from tieredstore.offline.scan.log_scan import FoundRecords, LogScan
from tieredstore.offline.scan.sources import Sum, source_of, store_at
from tieredstore.offline.scan.split import (
    Runs,
    ScanReport,
    Split,
    TierPlace,
    add_runs,
)
from tieredstore.reader.arrow_columns import Labels


@dataclass(frozen=True, slots=True)
class ObjectSink:
    """Destination of the objects of a run. Can be pickled."""

    place: TierPlace
    epoch: int
    """Of the owner that publishes them."""
    run: str
    """Identity of the run: 16 random bytes, hexadecimal."""
    index_files: Mapping[str, str] = field(default_factory=dict[str, str])
    """By target, the name of the index file that it becomes, which nothing else has."""
    whole: Mapping[str, str] = field(default_factory=dict[str, str])
    """By target, the closed segment all of whose bytes it has."""
    names_in: str = ""
    """A target that begins with this continues with the name of its index file; "": none does."""

    def write(self, target: str, raw: Buffer) -> str:
        """Make the object of a target, or find it made; its name. Two requests at most.

        Raises:
            Unavailable: try again; or something else lies under an index file's name.
            Denied: the storage refuses.
        """
        store = store_at(self.place)
        name = self.index_files.get(target, "")
        if self.names_in and target.startswith(self.names_in):
            name = target.removeprefix(self.names_in)
        if name:
            store.call(_create, name, raw)
            return name
        return store.call(self._write_part, target, raw)

    async def _write_part(self, store: ObjectStore, target: str, raw: Buffer) -> str:
        segments = PackedSegments(store, epoch=self.epoch, rng=_NonceOf(f"{self.run}/{target}"))
        segment = self.whole.get(target, "")
        placed = await segments.write([SegmentSlice(segment, 0, (raw,))], alone=bool(segment))
        return placed[0].object_name


class _NonceOf:
    """Gives the same nonce for the same text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def randbytes(self, n: int, /) -> bytes:
        """`NonceSource.randbytes`."""
        return hashlib.blake2b(self._text.encode(), digest_size=n or NONCE_BYTES).digest()


async def _create(store: ObjectStore, name: str, raw: Buffer) -> None:
    try:
        await store.create(name, [raw])
    except AlreadyExists as error:
        if bytes(await store.read(name)) != raw:
            reason = "another run has made an index file of this name; try again"
            raise Unavailable(reason, name) from error


_WIDTHS = (0, 1, 2, 4, 8)
_NUMBER = np.dtype("<i8")

Columns = Sequence[NDArray[np.integer]]
"""Of the same length, at least 1; each value fits into a signed number of 8 bytes."""


def pack(columns: Columns) -> bytes:
    """Some columns as bytes. Some 5 ns a value."""
    head = [len(columns[0])]
    parts: list[bytes] = []
    for column in columns:
        least = int(column.min())
        span = int(column.max()) - least
        width = next(width for width in _WIDTHS if span >> 8 * width == 0)
        head += [least, width]
        if width:
            above = column.astype(np.int64, copy=False) - least  # may wrap, and wraps back
            parts.append(above.astype(f"<u{width}").tobytes())
    return b"".join((np.array(head, _NUMBER).tobytes(), *parts))


def unpack(payload: bytes, columns: int) -> list[NDArray[np.int64]]:
    """So many columns as they were packed. Some 2 ns a value."""
    head = np.frombuffer(payload, _NUMBER, 1 + 2 * columns).tolist()
    count, at = head[0], len(head) * _NUMBER.itemsize
    found: list[NDArray[np.int64]] = []
    for least, width in zip(head[1::2], head[2::2], strict=True):
        column = np.full(count, least, np.int64)
        if width:
            column += np.frombuffer(payload, f"<u{width}", count, at).astype(np.int64, copy=False)
        found.append(column)
        at += width * count
    return found


def rows_of(payload: bytes) -> int:
    """Return the number of packed rows."""
    return int(np.frombuffer(payload, _NUMBER, 1)[0])


ROWS_MAX = 1 << 16
"""Of one piece: at most 2 MiB of units, and 2.5 MiB of keys; a third of it as they mostly are."""
HELD_ROWS_MAX = 4 * ROWS_MAX
"""Rows that a mapper holds for all targets together: some 12 MiB."""
KEY_COLUMNS = ("key_hash", "topic_id", "queue_id", "position", "store_timestamp", "size")
UNIT_COLUMNS = ("position", "size", "tag_hash", "store_timestamp")


class Rows:
    """Rows for one target, held until there are enough of them for a piece."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._parts: list[Columns] = []
        self.count = 0
        """Number of held rows."""
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
        """Yield the held rows, and hold none afterwards."""
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
        """Yield the held rows of all targets, and hold none afterwards."""
        for rows in self._rows.values():
            yield from rows.rest()
        self._rows, self._count = {}, 0


def _runs(orders: NDArray[np.int64]) -> Sequence[int]:
    """Return the rows at which runs of consecutive orders begin, or are cut at `ROWS_MAX`."""
    runs = consecutive(orders)
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


NO_FILE = -1
UNITS, INDEX, LOG = "units/", "index/", "log/"
"""Prefixes of targets of pieces: a target for each rebuilt file, and one for each queue's log."""


class UnitRun(NamedTuple):
    """Queue offsets that follow one another, and how their units are cut into files."""

    first: int
    behind: int
    """`INT64_MAX` where the end is not known yet."""
    units_per_file: int
    """The first begins with the run, and has the name of the run's first unit."""


@dataclass(frozen=True, slots=True)
class RebuildTask:
    """A split, and the files to rebuild from its messages."""

    split: Split
    topic_id: int
    runs: tuple[UnitRun, ...]
    """Units of other offsets are not made."""
    index: tuple[IndexPart, ...]
    extent_bytes_max: int = 0
    """Cut the log into extents of so many bytes; 0: they are known."""


def rebuild_item(task: RebuildTask) -> Iterator[Piece]:
    """The mapper of a rebuild. Reads the split once.

    Raises:
        Unavailable: try again.
        Denied: the storage refuses.
    """
    queue = task.split.queue
    source, beside = source_of(task.split.place), source_of(task.split.place)
    report = ScanReport(task.split)
    extents = (
        LogExtents(task.extent_bytes_max, task.split.pieces) if task.extent_bytes_max else None
    )
    rows, cuts = HeldRows(), IndexCuts()
    unit_runs = np.array(sorted(task.runs), np.int64).reshape(-1, len(UnitRun._fields))
    offset_runs: Runs = []
    try:
        scan = LogScan(
            source,
            task.split,
            report=report,
            on_gap=lambda _: None,
            on_expired=lambda _: None,
            verify_bodies=extents is not None,  # whose checksums are published
            keeps_missing=True,
        )
        for found in scan:
            offsets = found.queue_offsets
            add_runs(offset_runs, offsets)
            if extents is not None:
                extents.add(found, offsets)
            labels = labels_of(found)
            yield from _unit_pieces(queue, unit_runs, found, rows)
            yield from _key_pieces(task, found, labels, cuts, rows)
        made = [] if extents is None else extents.finish(beside, report)
    finally:
        source.close()
        beside.close()
    said = {
        "first": report.first,
        "ended": report.end,
        "records": report.records,
        "bytes": report.bytes,
        "offsets": offset_runs,
        "index": {} if extents is None else cuts.offsets,  # what is published says that already
        "findings": [asdict(gap.finding) for gap in report.gaps],
        "extents": made,
    }
    yield Piece(f"{LOG}{queue}", task.split.start, orjson.dumps(said))
    yield from rows.rest()


def _unit_pieces(
    queue: QueueId,
    runs: NDArray[np.int64],
    found: FoundRecords,
    rows: HeldRows,
) -> Iterator[Piece]:
    """The units of a chunk, by the files that they belong to. O(rows log runs).

    `runs` are rows as `UnitRun`, which do not overlap, in order.
    """
    if not len(runs):
        return
    offsets = found.queue_offsets
    columns = (found.positions, found.sizes, found.tags_codes, found.columns.store_timestamps)
    first, behind, step = runs[np.searchsorted(runs[1:, 0], offsets, side="right")].T
    files = first + (offsets - first) // step * step
    files[(offsets < first) | (offsets >= behind)] = NO_FILE
    order = np.argsort(files, kind="stable")
    edges = np.flatnonzero(np.diff(files[order], prepend=NO_FILE)).tolist()
    for begin, end in pairwise([*edges, len(order)]):
        chosen = order[begin:end]
        name = segment_name(queue, SegmentType.CONSUME_QUEUE, UNIT_BYTES * int(files[chosen[0]]))
        whole = len(chosen) == len(order)  # nearly always, and in order
        some = columns if whole else [column[chosen] for column in columns]
        yield from rows.add(f"{UNITS}{name}", offsets[chosen], some, must_follow=True)


def _key_pieces(
    task: RebuildTask, found: FoundRecords, labels: Labels, cuts: IndexCuts, rows: HeldRows
) -> Iterator[Piece]:
    """The keys of a chunk, by the index files that they belong to."""
    queue = task.split.queue
    for part in task.index:
        for some, keys in keys_within(found, labels, queue.topic, (part.start, part.behind)):
            ends = np.cumsum(np.bincount(keys.messages, minlength=len(some.starts)))
            columns = key_columns(keys, some, task.topic_id, queue.queue_id)
            for file, first, behind in cuts.cut(part, some.queue_offsets, ends):
                mine = [column[first:behind] for column in columns]
                yield from rows.add_keys(f"{INDEX}{file}", mine)


@dataclass(frozen=True, slots=True)
class KnownUnits:
    """A ConsumeQueue file that is published: what its bytes must be."""

    first: int
    behind: int
    sums: tuple[Sum, ...]


@dataclass(frozen=True, slots=True)
class KnownIndex:
    """An index file that is published."""

    size: int
    crc32c: int | None
    begin_timestamp: int


@dataclass(frozen=True, slots=True)
class RebuildReducer:
    """Makes one file of all its pieces, and compares it with what was published of it."""

    staging: str = ""
    """Directory of staged files, each under its target; "" if no file is staged."""
    objects: ObjectSink | None = None
    """Destination of objects; None if files are written, or nothing."""
    units: Mapping[str, KnownUnits] = field(default_factory=dict[str, KnownUnits])
    index: Mapping[str, KnownIndex] = field(default_factory=dict[str, KnownIndex])
    extent_bytes_max: int = 4 << 20

    def __call__(self, target: str, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """The reducer of a rebuild: one piece of JSON.

        Raises:
            Unavailable, Denied: a file cannot be staged, or an object not be made.
        """
        if target.startswith(LOG):
            payload: Any = [orjson.loads(piece.payload) for piece in pieces]
        elif target.startswith(UNITS):
            payload = self._units(target, pieces)
        else:
            payload = self._index(target, pieces)
        yield Piece(target, 0, orjson.dumps(payload))

    def _units(self, target: str, pieces: Sequence[Piece]) -> dict[str, Any]:
        known = self.units.get(target.removeprefix(UNITS))
        first = known.first if known is not None else pieces[0].order
        at = first
        for piece in pieces:
            if piece.order != at:
                return {"fault": f"no record of offsets [{at}, {piece.order}) is in the log"}
            at += rows_of(piece.payload)
        units, times = units_in(pieces, self._units_per_extent)
        raw = units.view(np.uint8).data
        if known is not None:
            if at != known.behind:
                return {"fault": f"no record of offsets [{at}, {known.behind}) is in the log"}
            for one in known.sums:
                if crc32c(raw[one.start : one.start + one.length]) != one.crc32c:
                    return {"fault": "what the messages give has another checksum than published"}
        made = self._made(target, raw)
        extents = self._unit_extents(first, times, raw)
        return {
            "first": first,
            "behind": at,
            "bytes": len(raw),
            "extents": extents,
            "object": made,
        }

    @property
    def _units_per_extent(self) -> int:
        return max(self.extent_bytes_max // UNIT_BYTES, 1)

    def _unit_extents(
        self, first: int, times: Sequence[tuple[int, int]], raw: memoryview
    ) -> list[tuple[int, int, int, int, int, int]]:
        """Position, length, checksum, first offset, and times of each extent."""
        step = self._units_per_extent * UNIT_BYTES
        return [
            (at, len(part), crc32c(part), first + at // UNIT_BYTES, oldest, newest)
            for at, (oldest, newest) in zip(range(0, len(raw), step), times, strict=True)
            for part in [raw[at : at + step]]
        ]

    def _index(self, target: str, pieces: Sequence[Piece]) -> dict[str, Any]:
        items = keys_in(pieces)
        known = self.index.get(target.removeprefix(INDEX))
        slots = fitting_slots(len(items))
        begin = fitting_begin(int(items["store_timestamp"].min()))
        if known is not None:
            left = known.size - file_bytes(len(items), 0)
            slots, begin = max(1, left // IndexSlot.SIZE), known.begin_timestamp
        raw = seal_index(items, slots=slots, begin_timestamp=begin)
        found = crc32c(raw.data)
        if known is not None and (len(raw), found) != (known.size, known.crc32c):
            return {"fault": "what the messages give differs from what was published"}
        made = self._made(target, raw.data)
        header = IndexHeader.decode(raw.data, path=target)
        return {
            "bytes": len(raw),
            "crc32c": found,
            "begin": header.begin_timestamp,
            "end": header.end_timestamp,
            "slots": header.used_slots,
            "items": header.items,
            "object": made,
        }

    def _made(self, target: str, raw: memoryview) -> str:
        """Stage the output, or create its object and return its name; "" if it has none."""
        if self.objects is not None:
            return self.objects.write(target, raw)
        if self.staging:
            stage(self.staging, target, [raw])
        return ""


def unknown_end(first: int, units_per_file: int) -> UnitRun:
    """Return a run whose end is not known yet."""
    return UnitRun(first, INT64_MAX, units_per_file)


def queue_of(target: str) -> QueueId:
    """The queue of a `LOG` target."""
    topic, _, number = target.removeprefix(LOG).rpartition("/")
    return QueueId(topic, int(number))
