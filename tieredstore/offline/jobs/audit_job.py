"""Worker side of an audit: records, units and keys of a split, keys of an index file."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from container.errors import Finding
from container.index.layout import KeyItems
from container.index.sealed import SealedIndex, native_items, sealed_rows, stored_seconds
from container.metadata.records import IndexFile
from container.names.queue_id import QueueId
from container.record.batch import with_record_crc
from container.record.body import check_compression, decompress
from container.record.checksum import BODY_CRC_MASK, crc32, crc32c, record_crc_is_valid
from container.record.header import COMPRESSED, Coda
from container.record.unit import Units
from provider.errors import Corrupt, Denied
from provider.sequential import ByteSource
from tieredstore.offline.jobs.derived import keys_within, labels_of, units_of
from tieredstore.offline.jobs.engine import Piece
from tieredstore.offline.jobs.rebuild_job import KEY_COLUMNS, HeldRows, key_columns, keys_in
from tieredstore.offline.scan.log_scan import FoundRecords, LogScan
from tieredstore.offline.scan.sources import (
    Sum,
    SumFault,
    SummingSource,
    check_sum,
    read_units,
    source_of,
)
from tieredstore.offline.scan.split import (
    LogPiece,
    Runs,
    ScanReport,
    Split,
    TierPlace,
    add_runs,
)
from tieredstore.reader.arrow_columns import Labels

_MARK = -1
"""Key hash of a row that is no item, but has the examined positions of a queue."""
_ODD = np.uint64(0x9E3779B97F4A7C15)
COMPARED_AT_ONCE = 1 << 18
"""Keys and items that are sorted at once, some 130 bytes each."""
_COLUMNS = ("topic_id", "queue_id", "position", "key_hash", "size", "seconds")


def range_marks(queue: QueueId, topic_id: int, positions: Sequence[int]) -> list[NDArray[np.int64]]:
    """Pairs of positions between which all messages were verified; they are no items."""
    count = len(positions)
    fields = {
        "key_hash": np.full(count, _MARK),
        "topic_id": np.full(count, topic_id),
        "queue_id": np.full(count, queue.queue_id),
        "position": np.array(positions, np.int64),
    }
    return [fields.get(name, np.zeros(count, np.int64)) for name in KEY_COLUMNS]


def audit_index_file(source: ByteSource, file: IndexFile, expected: KeyItems) -> Iterator[Finding]:
    """Yield what is wrong with an index file; expected are the keys of its messages, and marks.

    Holds the file and the keys: some 120 bytes a key; of findings only the last one.

    Raises:
        Unavailable, Denied: the file cannot be read.
    """
    name, raw = file.object_name, bytearray(file.size)
    try:
        count = source.read_into(name, 0, memoryview(raw))
    except Corrupt as error:  # an encrypted frame was changed
        yield Finding("unreadable", error.path, error.position, error.reason)
        return
    if count < file.size:
        return  # the comparison of lengths reports a missing or short file
    if file.crc32c is not None and (found := crc32c(raw)) != file.crc32c:
        detail = f"{file.size} bytes have {found:#010x}, published {file.crc32c:#010x}"
        yield Finding("checksum", name, 0, detail)
        return
    try:
        index, items = sealed_rows(raw, path=name)[:2]
    except Corrupt as error:
        yield Finding("index-file", name, error.position, error.reason)
        return
    if file.coverage:  # one of RocketMQ's does not say what it covers
        yield from _compared(index, items, expected)


def _compared(index: SealedIndex, items: NDArray[np.void], expected: KeyItems) -> Iterator[Finding]:
    """Yield keys without an item, and items without a key among the examined messages."""
    name, begin = index.path, index.header.begin_timestamp
    is_mark = expected["key_hash"] == _MARK
    marks, seen = expected[is_mark], _looked_at(items, expected[is_mark])
    marked = set(zip(marks["topic_id"].tolist(), marks["queue_id"].tolist(), strict=True))
    count = 1 + (len(items) + len(expected)) // COMPARED_AT_ONCE  # so that few are sorted at once
    part_of_expected, part_of_items = _parts(expected, count), _parts(items, count)
    for part in range(count):
        wanted = _sorted(expected[~is_mark & (part_of_expected == part)], begin)
        mine = part_of_items == part
        found, every = (
            _sorted(native_items(items[rows], begin, index.tick_ms), begin)
            for rows in (seen & mine, mine)
        )
        if len(wanted) == len(found) and (wanted == found).all():
            continue
        for _, queue_id, position, key_hash, *_ in _rows(_without(wanted, every)):
            message = f"the message at {position} of queue {queue_id}"
            detail = f"no item for the hash {key_hash} of {message}"
            yield Finding("index-key-missing", name, position, detail)
        for topic_id, queue_id, position, key_hash, *_ in _rows(_without(found, wanted)):
            if (topic_id, queue_id) in marked:
                detail = f"an item of hash {key_hash} names position {position} of queue {queue_id}"
                yield Finding("index-item", name, position, f"{detail} in vain")


def _parts(items: NDArray[np.void], count: int) -> NDArray[np.uint32]:
    """Assign each item to one of `count` parts; equal items get the same part.

    By hash and position: a key may be that of all messages, and a message may have all keys.
    """
    mixed = items["position"].astype(np.uint64) * _ODD
    mixed ^= items["key_hash"].astype(np.uint64)
    mixed *= _ODD
    return (mixed >> np.uint64(32)).astype(np.uint32) % np.uint32(count)


def _without(some: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of the first, in order and each once, that are not in the second."""
    rows = np.concatenate([some, others])
    order = np.lexsort((np.arange(len(rows)) < len(some), *rows.T[::-1]))
    rows, is_first = rows[order], order < len(some)
    begins = np.ones(len(rows), np.bool_)  # of equal rows, those of the second first
    begins[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return rows[begins & is_first]


def _rows(rows: NDArray[np.int64]) -> Iterator[tuple[int, ...]]:
    return (tuple(map(int, row)) for row in rows)


def _looked_at(items: NDArray[np.void], marks: KeyItems) -> NDArray[np.bool_]:
    """Whether the position of each item is between two marks of its queue."""
    seen = np.zeros(len(items), np.bool_)
    queues = np.unique(marks[["topic_id", "queue_id"]])
    for topic_id, queue_id in queues.tolist():
        mine = (marks["topic_id"] == topic_id) & (marks["queue_id"] == queue_id)
        bounds = marks["position"][mine].reshape(-1, 2)
        bounds = bounds[np.argsort(bounds[:, 0], kind="stable")]
        rows = np.flatnonzero((items["topic_id"] == topic_id) & (items["queue_id"] == queue_id))
        at = np.searchsorted(bounds[:, 0], items["position"][rows], side="right") - 1
        inside = (at >= 0) & (items["position"][rows] <= bounds[np.maximum(at, 0), 1])
        seen[rows[inside]] = True
    return seen


def _sorted(items: KeyItems, begin: int) -> NDArray[np.int64]:
    """Items as rows of numbers, in one order."""
    seconds = stored_seconds(items["store_timestamp"] - begin)
    columns = [items[name].astype(np.int64) for name in _COLUMNS[:-1]] + [seconds]
    rows = np.stack(columns, axis=1) if len(items) else np.empty((0, len(_COLUMNS)), np.int64)
    return rows[np.lexsort(rows.T[::-1])]


FINDINGS_MAX = 1_000
"""Findings reported for a split, and for an index file; further ones are only counted."""
SPLIT, INDEX = "split/", "index/"
"""Prefixes of targets of pieces: a target for each queue, and one for each index file."""


class Covered(NamedTuple):
    """Offsets of a queue whose keys are in an index file."""

    index_file: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class AuditTask:
    """A split, with the metadata of its messages."""

    split: Split
    topic_id: int
    sums: tuple[Sum, ...]
    """Of the extents that the split reads whole."""
    units: tuple[LogPiece, ...]
    """Pieces of its units in the queue's ConsumeQueue, by bytes of that flat file."""
    covered: tuple[Covered, ...]
    decompresses: bool
    checks_record_crc: bool = True
    """False for a tier of RocketMQ's own: its whole-record checksums are those of other places."""


@dataclass(frozen=True, slots=True)
class SumTask:
    """Extents of which nothing but the checksum is compared here."""

    place: TierPlace
    queue: QueueId
    sums: tuple[Sum, ...]


@dataclass(slots=True)
class SplitResult:
    """Result of a split, for the reducer of its queue."""

    start: int
    end: int
    first: int | None = None
    ended: int | None = None
    records: int = 0
    units: int = 0
    extents: int = 0
    bytes: int = 0
    offsets: Runs = field(default_factory=Runs)
    """Queue offsets `[first, end)` that were found, in order of the log."""
    findings: list[Finding] = field(default_factory=list[Finding])
    findings_more: int = 0

    def add(self, finding: Finding) -> None:
        """Note a finding, or count it where there are many."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.findings_more += 1

    def piece(self, queue: QueueId) -> Piece:
        """As the reducer gets it."""
        return Piece(f"{SPLIT}{queue}", self.start, orjson.dumps(asdict(self)))


def audit_item(task: AuditTask | SumTask) -> Iterator[Piece]:
    """The mapper of an audit. Reads the split's bytes and its units once.

    Raises:
        Unavailable: try again.
    """
    if isinstance(task, SumTask):
        yield _summed(task)
        return
    queue = task.split.queue
    result = SplitResult(task.split.start, task.split.end)
    rows, looked_at = HeldRows(), dict[str, list[int]]()
    source = SummingSource(source_of(task.split.place), task.sums)
    beside = source_of(task.split.place)
    report = ScanReport(task.split)
    try:
        scan = LogScan(
            source,
            task.split,
            report=report,
            on_gap=lambda gap: result.add(gap.finding),
            on_expired=lambda _: None,  # the driver judges queues again that were trimmed
            keeps_missing=True,
        )
        for found in scan:
            _check_bodies(found, task, result)
            offsets = found.queue_offsets
            add_runs(result.offsets, offsets)
            labels = labels_of(found)
            try:
                stored = read_units(beside, task.units, offsets)
            except (Denied, Corrupt) as error:  # of these units; the messages are compared
                result.add(_unreadable(error))
            else:
                _check_units(queue, units_of(found), offsets, stored, result)
            yield from _key_pieces(task, found, labels, rows, looked_at)
        _add_sums(beside, source.left_out(), result)
    except (Denied, Corrupt) as error:  # of this object; the others are read
        result.add(_unreadable(error))
    finally:
        source.close()
        beside.close()
    result.extents += source.summed
    for fault in source.faults:
        result.add(_of_sum(fault))
    result.first, result.ended = report.first, report.end
    result.records, result.bytes = report.records, report.bytes
    yield result.piece(queue)
    if not report.gaps:  # else nothing is said of superfluous items
        for name, positions in looked_at.items():
            marks = range_marks(queue, task.topic_id, positions)
            yield from rows.add_keys(f"{INDEX}{name}", marks)
    yield from rows.rest()


@dataclass(frozen=True, slots=True)
class AuditReducer:
    """Joins the splits of a queue, or compares an index file with the keys that were found."""

    place: TierPlace
    queues: Mapping[QueueId, "QueueOffsets"]
    index_files: Mapping[str, IndexFile]

    def __call__(self, target: str, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """The reducer of an audit: one piece of JSON with findings and counts.

        Raises:
            Unavailable, Denied: an index file cannot be read.
        """
        if target.startswith(INDEX):
            file = self.index_files[target.removeprefix(INDEX)]
            source = source_of(self.place)
            try:
                found = audit_index_file(source, file, keys_in(pieces))
                findings = [*islice(found, FINDINGS_MAX)]
                payload: dict[str, Any] = {"findings_more": sum(1 for _ in found)}
            finally:
                source.close()
            payload |= {"index_files": 1, "index_items": file.items}
        else:
            topic, _, number = target.removeprefix(SPLIT).rpartition("/")
            queue = QueueId(topic, int(number))
            results = [orjson.loads(piece.payload) for piece in pieces]
            findings = [Finding(**one) for result in results for one in result["findings"]]
            findings += _joined(queue, self.queues[queue], results)
            payload = {
                name: sum(result[name] for result in results)
                for name in ("records", "units", "extents", "bytes", "findings_more")
            }
            payload["queues"] = 1
        payload["findings"] = [asdict(finding) for finding in findings]
        yield Piece(target, 0, orjson.dumps(payload))


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """Offsets of a queue that have a message according to its metadata."""

    start: int
    end: int
    gaps: tuple[tuple[int, int], ...]


def _joined(
    queue: QueueId, known: QueueOffsets, results: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Yield what the splits of a queue show together: places missed, offsets missed or twice."""
    scanned = [one for one in results if one["first"] is not None]
    for before, after in pairwise(scanned):
        if before["end"] == after["start"] and before["ended"] != after["first"]:
            detail = f"one part ends at {before['ended']}, the next begins at {after['first']}"
            yield Finding("records-do-not-join", str(queue), after["start"], detail)
    at = known.start
    gaps = dict(known.gaps)
    starts = sorted(gaps)
    runs = [(int(a), int(b)) for result in results for a, b in result["offsets"]]
    for start, end in [*runs, (known.end, known.end)]:
        if start < at:
            detail = f"offsets [{start}, {min(end, at)}) stand in the log twice, or out of order"
            yield Finding("offset-twice", str(queue), start, detail)
        while at < start:
            here = bisect_left(starts, at)
            until = min(starts[here], start) if here < len(starts) else start
            if at < until:
                detail = f"no sound record of offsets [{at}, {until}) is in the log"
                yield Finding("messages-missing", str(queue), at, detail)
            at = min(gaps.get(until, until), start) if until < start else start
        at = max(at, end)


def _summed(task: SumTask) -> Piece:
    source = source_of(task.place)
    result = SplitResult(-1, -1)
    try:
        _add_sums(source, task.sums, result)
    finally:
        source.close()
    return result.piece(task.queue)


def _add_sums(source: ByteSource, sums: Iterable[Sum], result: SplitResult) -> None:
    """Verify checksums; an unreadable or undecryptable range is a finding of its own."""
    for one in sums:
        result.extents += 1
        try:
            fault = check_sum(source, one)
        except (Denied, Corrupt) as error:
            result.add(_unreadable(error))
            continue
        if fault is not None:
            result.add(_of_sum(fault))


def _unreadable(error: Denied | Corrupt) -> Finding:
    """Bytes that the storage refuses, or an encrypted frame that was changed."""
    return Finding("unreadable", error.path, error.position, error.reason)


def _of_sum(fault: SumFault) -> Finding:
    kind = "checksum" if fault.bytes == fault.sum.length else "object-short"
    return Finding(kind, fault.sum.object_name, fault.sum.start, str(fault))


def _check_bodies(found: FoundRecords, task: AuditTask, result: SplitResult) -> None:
    """Note bodies and whole records whose checksums differ, and bodies that do not decompress."""
    queue, view = str(task.split.queue), found.raw.data
    headers, (starts, ends) = found.columns.headers, found.columns.bodies
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    sums = np.array([crc32(view[start:end]) for start, end in spans], np.uint32) & BODY_CRC_MASK
    for row in np.flatnonzero(sums != headers["body_crc"]).tolist():
        detail = f"body has CRC {sums[row]:#010x}, stored {headers['body_crc'][row]:#010x}"
        result.add(Finding("body-crc", queue, int(headers["queue_offset"][row]), detail))
    if task.checks_record_crc:
        for row in with_record_crc(found.raw, found.starts, found.sizes):
            start = int(found.starts[row])
            if not record_crc_is_valid(view[start : start + int(found.sizes[row])]):
                offset = int(headers["queue_offset"][row])
                detail = "the whole-record CRC does not match"
                result.add(Finding("record-crc", queue, offset, detail))
    verify = decompress if task.decompresses else check_compression
    intact = (sums == headers["body_crc"]) & (starts < ends)
    for row in np.flatnonzero(((headers["sys_flag"] & COMPRESSED) != 0) & intact).tolist():
        offset, flags = int(headers["queue_offset"][row]), int(headers["sys_flag"][row])
        try:
            body = view[int(starts[row]) : int(ends[row])]
            verify(body, flags, path=queue, position=offset)
        except Corrupt as error:
            result.add(Finding("body-compression", queue, offset, error.reason))


def _check_units(
    queue: QueueId,
    derived: Units,
    offsets: NDArray[np.int64],
    mine: NDArray[np.void],
    result: SplitResult,
) -> None:
    """Note units that differ from those that the records give."""
    result.units += len(mine)
    places = (mine["position"] == derived["position"]) | (
        mine["position"] + Coda.SIZE == derived["position"]
    )
    same = places & (mine["size"] == derived["size"])
    tags = mine["tag_hash"] == derived["tag_hash"]
    for row in np.flatnonzero(~same).tolist():
        offset = int(offsets[row])
        if int(mine["size"][row]) == 0:
            result.add(Finding("unit-missing", str(queue), offset, "its unit cannot be read"))
            continue
        detail = f"unit points to {mine['position'][row]}, {mine['size'][row]} bytes; the record "
        detail += f"has {derived['position'][row]}, {derived['size'][row]}"
        result.add(Finding("unit", str(queue), offset, detail))
    for row in np.flatnonzero(same & ~tags).tolist():
        detail = f"unit has {mine['tag_hash'][row]}, the tags give {derived['tag_hash'][row]}"
        result.add(Finding("tag-hash", str(queue), int(offsets[row]), detail))


def _key_pieces(
    task: AuditTask,
    found: FoundRecords,
    labels: Labels,
    rows: HeldRows,
    looked_at: dict[str, list[int]],
) -> Iterator[Piece]:
    """The keys of a chunk, by the index files that cover them; notes which positions were seen."""
    queue = task.split.queue
    for name, *span in task.covered:
        for some, keys in keys_within(found, labels, queue.topic, (span[0], span[1])):
            columns = key_columns(keys, some, task.topic_id, queue.queue_id)
            yield from rows.add_keys(f"{INDEX}{name}", columns)
            first, last = int(some.positions[0]), int(some.positions[-1])
            looked_at.setdefault(name, []).extend((first, last))
