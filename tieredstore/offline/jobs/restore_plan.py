"""Plan of a store directory written from a tier: extents as rows, queues, stretches."""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.metadata.records import TOPIC_DELETED_REASON, Gap, Queue, Segment
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.queue.message_queue_container import MessageQueueContainer
from container.record.header import BlankRecord
from container.record.unit import FILLER_SIZE, UNIT_BYTES
from container.tier_view import TierReader
from provider.posix.files import posix_errors
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.hot.log.topics import RESERVE_TIME, row_of
from tieredstore.offline.jobs.engine import temporary_directory
from tieredstore.offline.jobs.restore_group import (
    LogExtract,
    RestoreGroup,
    incarnation_of,
)
from tieredstore.offline.scan.planning import as_seen, with_open_tier
from tieredstore.offline.scan.split import LogPiece, Seen, Split, TierPlace
from tieredstore.session.reader import AS_OPTIONS


class LogRow(NamedTuple):
    """Extent of a log, in a row."""

    queue: int
    """Number that the reader gives it."""
    name: int
    """Number of the object's name; -1: the segment's own file."""
    start: int
    length: int
    object_offset: int
    first_offset: int
    next_offset: int
    first_ms: int
    last_ms: int
    crc32c: int
    """-1: not known."""
    bytes: int
    """Length of its records: `length`, unless a reader found other bytes beside them."""

    def piece(self, queue: QueueId, names: Sequence[str]) -> LogPiece:
        """Return its place. In a segment's own file an extent has its place in the log."""
        if self.name >= 0:
            name = names[self.name]
        else:
            name = segment_name(queue, SegmentType.COMMIT_LOG, self.start - self.object_offset)
        return LogPiece(self.start, self.length, name, self.object_offset)


_SHORT = {"queue": np.uint32, "name": np.int32}
ROW = np.dtype([(name, _SHORT.get(name, np.int64)) for name in LogRow._fields])
Rows = NDArray[np.void]


async def rows_of_log(
    container: MessageQueueContainer, number: int, names: dict[str, int]
) -> AsyncGenerator[Rows]:
    """Yield the extents that may hold readable messages, in order; those of a manifest at a time.

    They are those of `planning.extents_of`, of a tier that has a journal. `number` is that of the
    queue in the rows. Names of objects are added to `names`.

    Raises:
        BytesMissing, Corrupt, Unavailable: of a manifest.
    """
    queue = container.record
    rows = np.empty(0, ROW)
    async for segments in container.runs_of_segments(SegmentType.COMMIT_LOG):
        after = np.fromiter(_values(segments, number, names), ROW)
        if len(after):
            yield _readable(rows, queue, int(after["first_offset"][0]))
            rows = after
    yield _readable(rows, queue, queue.next_offset)


def _readable(rows: Rows, queue: Queue, next_offset: int) -> Rows:
    """Enter ends of offsets, the last of which is `next_offset`. Return the rows with messages."""
    rows["next_offset"] = np.append(rows["first_offset"][1:], next_offset)[: len(rows)]
    first, end = rows["first_offset"], rows["next_offset"]
    is_readable = (first < queue.next_offset) & (end > queue.min_offset)
    return rows[is_readable & ~_lie_in_gap(first, end, queue.gaps)]


def _values(segments: Sequence[Segment], number: int, names: dict[str, int]) -> Iterator[LogRow]:
    for segment in segments:
        for one in segment.extents if segment.is_readable else ():
            name = names.setdefault(one.object_name, len(names)) if one.object_name else -1
            yield LogRow(
                number, name, segment.base + one.position, one.length, one.object_offset,
                one.first_offset, 0, one.min_timestamp, one.max_timestamp,
                -1 if one.crc32c is None else one.crc32c, one.length,
            )  # fmt: skip


def _lie_in_gap(
    first: NDArray[np.int64], end: NDArray[np.int64], gaps: Sequence[Gap]
) -> NDArray[np.bool_]:
    """As `positions.lies_in_gap` for each extent."""
    starts = np.array([-1, *(one.start for one in gaps)])
    ends = np.array([-1, *(one.end for one in gaps)])
    gap_end = ends[np.searchsorted(starts, first, side="right") - 1]
    return (first < gap_end) & (end <= gap_end)


GROUP_BYTES = 64 << 20
"""Records that a worker sorts at once. Neighbours overlap by the time of an extent at most."""
DIGESTED_ROWS = WRITTEN_ROWS = 1 << 16
"""Extents whose columns are in memory at once; more of a tier are in a file."""
DAMAGED, GAP, NOT_WANTED = "damage in the tier", "a gap", "not asked for"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Messages that are wanted in the directory; each queue ends where it does in the tier."""

    topics: frozenset[str] | None = None
    """None: all."""
    since_ms: int | None = None
    """From the first extent on with a message that was stored at this time or later."""


@dataclass(slots=True)
class Corrections:
    """Contradictions of records to the metadata, so that the next plan fits them."""

    begins: dict[str, int] = field(default_factory=dict[str, int])
    """First offset after damage, by incarnation of the queue."""
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    """Length of the records of an extent, by queue and position: a coda is none of them."""


@dataclass(frozen=True, slots=True)
class RestoredQueue:
    """Offsets of one queue in the directory and in the tier."""

    topic: str
    queue_id: int
    first: int
    """First offset in the directory; `end` if it has no message."""
    end: int
    tier_first: int
    why: str = ""
    """Why offsets from `tier_first` to `first` are not in the directory; "" if there are none."""


class Stretch(NamedTuple):
    """Stretch of the restored CommitLog, which one worker writes."""

    number: int
    position: int
    """Of the first record, in the restored CommitLog."""
    extents: tuple[int, int]
    """Extents `[from, to)` of it, in the order of the plan."""
    bytes: int
    """Length of the records."""
    ends_file: bool
    """Whether the rest of its CommitLog file stays empty, and another one follows."""


@dataclass(slots=True)
class RestorePlan:
    """Everything that is to be written. It follows from the metadata and the corrections."""

    state: TierState
    place: TierPlace
    seen: Seen
    root: Path
    queues: list[RestoredQueue]
    rows: Rows
    """Extents that are wanted, by queue. `first_ms`: no record is sorted before this time, which is
    the latest store time of the queue before it."""
    order: NDArray[np.uint32]
    """Numbers of the rows in the order of their times."""
    names: Sequence[str]
    """Names of objects, by their numbers in the rows."""
    groups: list[Stretch]
    deleted: list[str]
    """Topics that their broker deleted."""
    newest_ms: int
    log_file_bytes: int
    queue_file_bytes: int

    @property
    def digest(self) -> str:
        """Digest of all that workers are to write."""
        said = sha256(repr((self.groups, self.queues, self.log_file_bytes, self.queue_file_bytes))
                      .encode())  # fmt: skip
        for start in range(0, len(self.order), DIGESTED_ROWS):
            rows = self.rows[self.order[start : start + DIGESTED_ROWS]]
            for name in ("queue", "first_offset", "next_offset", "bytes"):
                said.update(rows[name].tobytes())
        return said.hexdigest()

    def group(self, stretch: Stretch) -> RestoreGroup:
        """Return the task of a worker."""
        rows = self.rows[self.order[slice(*stretch.extents)]]
        return RestoreGroup(
            str(self.root),
            stretch.number,
            stretch.position,
            tuple(self._extract(LogRow(*values)) for values in rows.tolist()),
            self.log_file_bytes,
            self.queue_file_bytes,
            stretch.ends_file,
        )

    def _extract(self, row: LogRow) -> LogExtract:
        one = self.queues[row.queue]
        queue = self.state.queues[QueueId(one.topic, one.queue_id)]
        piece = row.piece(queue.id, self.names)
        split = Split(
            queue.id,
            piece.position,
            piece.end,
            piece.position,
            piece.end,
            (piece,),
            place=self.place,
            generation=queue.generation,
            seen=self.seen,
        )
        crc = None if row.crc32c < 0 else row.crc32c
        return LogExtract(split, row.first_offset, row.next_offset, row.bytes, row.first_ms, crc)

    @property
    def bytes(self) -> int:
        """Length of all records, units and fillers."""
        units = sum(one.end - filled_from(one, self.queue_file_bytes) for one in self.queues)
        return sum(one.bytes for one in self.groups) + units * UNIT_BYTES

    @property
    def inodes(self) -> int:
        """Number of all files and directories."""
        units = self.queue_file_bytes // UNIT_BYTES
        files = sum(
            -(-one.end // units) - filled_from(one, self.queue_file_bytes) // units
            for one in self.queues
        )
        logs = 1 + sum(one.ends_file for one in self.groups)
        topics = len({one.topic for one in self.queues})
        return files + len(self.queues) + logs + topics

    def rows_in_tier(self) -> dict[str, dict[str, Any]]:
        """Return the settings that the tier has, in the form of `topics.json`, by topic."""
        rows = {one.topic: self._row_in_tier(one.topic) for one in self.queues}
        return {topic: row for topic, row in rows.items() if row is not None}

    def reserve_time(self, topic: str) -> str | None:
        """Return the retention of a topic in the tier; None for the default."""
        known = self.state.topics.get(topic)
        if known is not None and known.retention_hours > 0:
            return str(known.retention_hours)
        row = self._row_in_tier(topic)
        return None if row is None else row["attributes"].get(RESERVE_TIME)

    def _row_in_tier(self, topic: str) -> dict[str, Any] | None:
        known = self.state.topics.get(topic)
        return None if known is None else row_of(topic, known.settings)


def planned(config: Config, root: Path, wanted: Wanted, corrections: Corrections) -> RestorePlan:
    """Plan a directory. Reads the metadata.

    Many extents are in a temporary file, which is mapped: 80 bytes for each. Memory: 4 bytes for
    each, 30 while they are sorted, and the objects of one manifest.

    Raises:
        ConfigError: there is no such topic, or an extent is longer than a file of the CommitLog.
        NotFound, Corrupt, NewerVersion, Denied, Unavailable: as `planning.plan`.
    """
    with tempfile.TemporaryFile(dir=temporary_directory(), buffering=0) as file:

        async def work(reader: TierReader, place: TierPlace) -> RestorePlan:
            return await _Planning(config, root, wanted, corrections, file).plan(reader, place)

        return with_open_tier(config, work, naming=AS_OPTIONS)


class _Planning:
    """Planning of one directory from one state of a tier."""

    def __init__(
        self,
        config: Config,
        root: Path,
        wanted: Wanted,
        corrections: Corrections,
        file: FileIO,
    ) -> None:
        """`file`: for the extents; a mapping of it is in the plan."""
        self._file = file
        self._waiting: list[Rows] = []
        self._added = self._written = 0
        """All rows, and those in the file."""
        self._config = config
        self._root = root
        self._wanted = wanted
        self._corrections = corrections
        self._sizes: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for place, length in corrections.sizes.items():
            incarnation, _, start = place.rpartition("@")
            self._sizes[incarnation][int(start)] = length
        self._queues: list[RestoredQueue] = []
        self._names: dict[str, int] = {}
        self._newest_ms = 0

    async def plan(self, reader: TierReader, place: TierPlace) -> RestorePlan:
        """As `planned`."""
        state = reader.state.copy()
        place, seen = await as_seen(reader, state, place)
        missing = (self._wanted.topics or frozenset()) - {queue.topic for queue in state.queues}
        if missing:
            topic = min(missing)
            raise ConfigError(f"the tier has no topic {topic}: `tieredstore topics` lists them")
        deleted: set[str] = set()
        for queue in (state.queues[name] for name in sorted(state.queues)):
            container = reader.container(queue.id)
            if _is_deleted(queue):
                deleted.add(queue.id.topic)
            elif container is not None:
                await self._add(queue, container.as_of(queue))
        rows = await asyncio.to_thread(self._mapped)
        order = np.argsort(rows["first_ms"], kind="stable").astype(np.uint32)
        hot = self._config.hot_write
        # A queue may be from before, its topic created again.
        deleted -= {one.topic for one in self._queues}
        groups = list(_stretches(rows, order, self._queues, hot.commit_log_bytes))
        return RestorePlan(
            state, place, seen, self._root, self._queues, rows, order, [*self._names], groups,
            sorted(deleted), self._newest_ms, hot.commit_log_bytes, hot.queue_file_bytes,
        )  # fmt: skip

    def _write(self) -> None:
        rows = np.concatenate(self._waiting)
        with posix_errors(temporary_directory()):
            self._file.seek(self._written * ROW.itemsize)
            left = memoryview(rows.tobytes())
            while left:
                left = left[self._file.write(left) :]
        self._written, self._waiting = self._added, []

    def _mapped(self) -> Rows:
        if not self._written:
            return np.concatenate([np.empty(0, ROW), *self._waiting])
        if self._waiting:
            self._write()
        return np.asarray(np.memmap(self._file, ROW, "r", shape=(self._written,)))

    async def _add(self, queue: Queue, container: MessageQueueContainer) -> None:
        """Add a queue, and the extents of it that are wanted."""
        begin = _begin_of(queue, self._wanted, self._corrections)
        since_ms = self._wanted.since_ms
        first, latest_ms = queue.next_offset, 0
        sizes = self._sizes.get(incarnation_of(queue.id, queue.generation), {})
        async for found in rows_of_log(container, len(self._queues), self._names):
            if since_ms is not None:
                young = found["first_offset"][found["last_ms"] >= since_ms]
                if not len(young):
                    continue
                begin, since_ms = max(begin, (int(young[0]), NOT_WANTED)), None
            rows = found[found["first_offset"] >= begin[0]]
            if not len(rows):
                continue
            first = min(first, int(rows["first_offset"][0]))
            corrected = np.isin(rows["start"], [*sizes])
            rows["bytes"][corrected] = [sizes[start] for start in rows["start"][corrected].tolist()]
            latest = np.maximum.accumulate(np.concatenate(([latest_ms], rows["last_ms"])))
            rows["first_ms"] = np.maximum(rows["first_ms"], latest[:-1])
            latest_ms = int(latest[-1])
            self._waiting.append(rows)
            self._added += len(rows)
            if self._added >= self._written + WRITTEN_ROWS:
                await asyncio.to_thread(self._write)
        if since_ms is not None:
            begin = max(begin, (queue.next_offset, NOT_WANTED))
        why = begin[1] if first > queue.min_offset else ""
        self._queues.append(
            RestoredQueue(*queue.id, first, queue.next_offset, queue.min_offset, why)
        )
        self._newest_ms = max(self._newest_ms, latest_ms)


def _is_deleted(queue: Queue) -> bool:
    last = queue.gaps[-1] if queue.gaps else None
    return (
        last is not None and last.end == queue.next_offset and last.reason == TOPIC_DELETED_REASON
    )


def _begin_of(queue: Queue, wanted: Wanted, corrections: Corrections) -> tuple[int, str]:
    """First offset that a queue may have in the directory at all times, and the reason for it.

    Offsets without a message have no unit that a broker passes over: a queue begins after its last
    gap.
    """
    if wanted.topics is not None and queue.id.topic not in wanted.topics:
        return queue.next_offset, NOT_WANTED
    gap = queue.gaps[-1].end if queue.gaps else 0
    damaged = corrections.begins.get(incarnation_of(queue.id, queue.generation), 0)
    return max((0, ""), (gap, GAP), (damaged, DAMAGED))


def log_start(file_bytes: int) -> int:
    """Return the position at which a CommitLog with such files begins. Pure.

    A filler states position 0 and the largest size. A Java broker takes the end of a queue's last
    unit for the position up to which the queue is built, so that it would build no unit of the
    first messages of a queue that has fillers alone (`ConsumeQueue.putMessagePositionInfo`).
    """
    return -(-(FILLER_SIZE + 1) // file_bytes) * file_bytes


def _stretches(
    rows: Rows, order: NDArray[np.uint32], queues: Sequence[RestoredQueue], file_bytes: int
) -> Iterator[Stretch]:
    """Divide extents, in order of their times, into stretches of the files of a CommitLog."""
    sizes = rows["bytes"][order]
    if len(sizes) and sizes.max() > file_bytes - BlankRecord.SIZE:
        one = queues[int(rows["queue"][int(order[int(sizes.argmax())])])]
        raise ConfigError(
            f"mappedFileSizeCommitLog is {file_bytes}, and an extent of {one.topic}/{one.queue_id} "
            f"has {sizes.max()} bytes: make it larger"
        )
    ends = np.cumsum(sizes)
    position, first, before, number = log_start(file_bytes), 0, 0, 0
    while first < len(ends):
        room = file_bytes - position % file_bytes - BlankRecord.SIZE
        fitting = int(np.searchsorted(ends, before + room, side="right"))
        end = min(fitting, int(np.searchsorted(ends, before + GROUP_BYTES)) + 1)
        ends_file = end == fitting < len(ends)
        length = int(ends[end - 1]) - before
        yield Stretch(number, position, (first, end), length, ends_file)
        number, first, before, position = number + 1, end, before + length, position + length
        if ends_file:
            position += file_bytes - position % file_bytes


def filled_from(queue: RestoredQueue, file_bytes: int) -> int:
    """First offset of the file in which a queue begins. Fillers are before its first message.

    A queue without messages ends with a filler, so that a broker finds its end.
    """
    last = queue.first if queue.first < queue.end else max(queue.end - 1, 0)
    return last - last % (file_bytes // UNIT_BYTES)
