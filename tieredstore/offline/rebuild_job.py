"""What the workers of a rebuild do: units and keys from records, files from units and keys.

All that they write is the same for the same messages, whoever writes it and how often.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from container.index.layout import IndexHeader, IndexSlot
from container.index.sealed import file_bytes, fitting_begin, fitting_slots, seal_index
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import INT64_MAX, segment_name
from container.record.checksum import crc32c
from container.record.unit import UNIT_BYTES
from provider.posix.staged_files import stage
from tieredstore.offline.derived import keys_within, labels_of, tag_hashes
from tieredstore.offline.engine import Piece
from tieredstore.offline.flat_bytes import Sum
from tieredstore.offline.index_parts import IndexCuts, IndexPart
from tieredstore.offline.log_extents import LogExtents
from tieredstore.offline.log_scan import FoundRecords, LogScan
from tieredstore.offline.made_objects import ObjectSink
from tieredstore.offline.offset_runs import Runs, add_runs
from tieredstore.offline.packed_columns import rows_of
from tieredstore.offline.rebuild_rows import (
    HeldRows,
    key_columns,
    keys_in,
    units_in,
)
from tieredstore.offline.sources import source_of
from tieredstore.offline.split import ScanReport, Split
from tieredstore.reading.arrow_columns import Labels

NO_FILE = -1
UNITS, INDEX, LOG = "units/", "index/", "log/"
"""How the targets of pieces begin: one for each file that is made, one for each queue's log."""


class UnitRun(NamedTuple):
    """Queue offsets that follow one another, and how their units are cut into files."""

    first: int
    behind: int
    """`INT64_MAX` where the end is not known yet."""
    units_per_file: int
    """The first begins with the run, and has the name of the run's first unit."""


@dataclass(frozen=True, slots=True)
class RebuildTask:
    """One split, and what is to be made of its messages."""

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
            keeps_missing=True,
        )
        for found in scan:
            offsets = found.queue_offsets
            add_runs(offset_runs, offsets)
            if extents is not None:
                extents.add(found, offsets)
            labels = labels_of(found)
            yield from _unit_pieces(queue, unit_runs, found, labels, rows)
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
        "gaps": [
            {name: getattr(gap, name) for name in ("position", "length", "reason", "shift")}
            for gap in report.gaps
        ],
        "extents": made,
    }
    yield Piece(f"{LOG}{queue}", task.split.start, orjson.dumps(said))
    yield from rows.rest()


def _unit_pieces(
    queue: QueueId,
    runs: NDArray[np.int64],
    found: FoundRecords,
    labels: Labels,
    rows: HeldRows,
) -> Iterator[Piece]:
    """The units of a chunk, by the files that they belong to. O(rows log runs).

    `runs` are rows as `UnitRun`, which do not overlap, in order.
    """
    if not len(runs):
        return
    offsets = found.queue_offsets
    columns = (found.positions, found.sizes, tag_hashes(labels), found.columns.store_timestamps)
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
    """Where files are staged, each under its target; "": no file is."""
    objects: ObjectSink | None = None
    """What makes objects in place of files; None where nothing is written, or files are."""
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
        """Stage what was made, or make its object, whose name it gives back; "" if it has none."""
        if self.objects is not None:
            return self.objects.write(target, raw)
        if self.staging:
            stage(self.staging, target, [raw])
        return ""


def unknown_end(first: int, units_per_file: int) -> UnitRun:
    """A run whose end nobody knows yet."""
    return UnitRun(first, INT64_MAX, units_per_file)


def queue_of(target: str) -> QueueId:
    """The queue of a `LOG` target."""
    topic, _, number = target.removeprefix(LOG).rpartition("/")
    return QueueId(topic, int(number))
