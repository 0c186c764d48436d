"""Work of one worker of a restore: a stretch of a CommitLog, and the units of its records."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import local
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.names.rocketmq import local_file_name
from container.record.batch import encode_units, rewrite_positions
from container.record.checksum import crc32c
from container.record.header import BlankRecord
from container.record.unit import UNIT_BYTES
from provider.object_store import Buffer
from provider.sequential import ByteSource
from tieredstore.following.directory.layout import COMMIT_LOG, CONSUME_QUEUE, RESTORING
from tieredstore.hot.log.files import write_all
from tieredstore.offline.jobs.engine import Piece
from tieredstore.offline.scan.log_scan import LogScan
from tieredstore.offline.scan.log_window import WINDOW_BYTES
from tieredstore.offline.scan.relocation import Relocated
from tieredstore.offline.scan.sources import source_of
from tieredstore.offline.scan.split import LogGap, Split

VECTORS_MAX = 1024
"""Buffers of one `pwritev`: IOV_MAX of Linux."""
MARKER = local_file_name(0)
"""File of the CommitLog until the end. It has a wrong length, so that a Java broker refuses it.
A worker locks it while it writes a group."""
BEGINS, SIZES = "begins", "sizes"
"""Targets of corrections: where a queue can begin, and the length of an extent's records."""


class LogExtract(NamedTuple):
    """Whole extent of a queue's log, all of whose records are restored."""

    split: Split
    first_offset: int
    next_offset: int
    bytes: int
    """Length of its records."""
    key_ms: int
    """No record of it is sorted before this time: the latest store time of the queue before it."""
    crc32c: int | None
    """As in `Extent`. The bodies were verified before it was published."""

    @property
    def has_checksum(self) -> bool:
        """Whether all of the records are known to be sound by one checksum."""
        return self.crc32c is not None and self.bytes == self.split.end - self.split.start

    @property
    def incarnation(self) -> str:
        """Key of corrections of the queue."""
        return incarnation_of(self.split.queue, self.split.generation)

    @property
    def place(self) -> str:
        """Key of corrections of this extent."""
        return f"{self.incarnation}@{self.split.start}"


def incarnation_of(queue: QueueId, generation: int | None) -> str:
    """Return a name of a queue as it is until it is truncated, or deleted and created again. Pure.

    Offsets and positions of one incarnation say nothing of another one.
    """
    return f"{queue}#{generation or 0}"


@dataclass(frozen=True, slots=True)
class RestoreGroup:
    """Extents whose records fill a stretch of the restored CommitLog. Can be pickled."""

    root: str
    number: int
    position: int
    """Of the first record, in the restored CommitLog."""
    extracts: tuple[LogExtract, ...]
    log_file_bytes: int
    queue_file_bytes: int
    ends_file: bool
    """Whether the rest of its CommitLog file stays empty, and another one follows."""

    @property
    def bytes(self) -> int:
        """Length of the records."""
        return sum(one.bytes for one in self.extracts)


class _Loaded(NamedTuple):
    """Records of a group in memory, in the order of its extents. Starts are in `raw`."""

    raw: NDArray[np.uint8]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    tags_codes: NDArray[np.int64]
    counts: list[int]
    """Records of each extent."""


def restore_group(group: RestoreGroup) -> Iterator[Piece]:
    """Write a group, and note in the ledger that it is done. Repeating it changes nothing.

    If an extent has not the records that its metadata promise, nothing is written, and a
    correction of the plan is yielded. Memory: the group, its columns, and that of a scan.

    Raises:
        Unavailable, Denied: the tier cannot be read.
        OSError: the directory cannot be written.
    """
    corrections: list[Piece] = []
    loaded = _load(group, corrections)
    if corrections:
        yield from corrections
        return
    root = Path(group.root)
    with (root / COMMIT_LOG / MARKER).open("rb") as marker:
        fcntl.flock(marker, fcntl.LOCK_SH)
        _write_group(group, loaded)
        with (root / RESTORING).open("ab", buffering=0) as ledger:
            ledger.write(b"%d %d\n" % (group.number, group.number))


def _write_group(group: RestoreGroup, loaded: _Loaded) -> None:
    positions = _written(group, loaded)
    units = encode_units(positions, loaded.sizes, loaded.tags_codes)
    row = 0
    for extract, count in zip(group.extracts, loaded.counts, strict=True):
        raw = units[row : row + count].tobytes()
        queue = extract.split.queue
        write_units(group.root, queue, extract.first_offset, raw, group.queue_file_bytes)
        row += count


def as_said(target: str, pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The reducer: the driver takes all corrections."""
    del target
    return pieces


def _load(group: RestoreGroup, corrections: list[Piece]) -> _Loaded:
    raw = _ROOM.of(group.bytes)
    starts: list[NDArray[np.int64]] = []
    sizes: list[NDArray[np.int64]] = []
    times: list[NDArray[np.int64]] = []
    codes: list[NDArray[np.int64]] = []
    counts: list[int] = []
    at = 0
    with closing(source_of(group.extracts[0].split.place)) as read:
        for extract in group.extracts:
            some = _Extraction(extract)
            some.read_into(read, raw[at : at + extract.bytes])
            if some.has_moved:
                some = _Extraction(extract)
                some.read_into(read, raw[at : at + extract.bytes], in_place=False)
            correction = some.correction(group.number)
            if correction is not None:
                corrections.append(correction)
                continue
            starts += [one + at for one in some.starts]
            sizes += some.sizes
            codes += some.tags_codes
            times.append(np.maximum.accumulate(np.concatenate([[extract.key_ms], *some.times]))[1:])
            counts.append(len(times[-1]))
            at += extract.bytes
    if corrections:
        starts = sizes = times = codes = [np.empty(0, np.int64)]
    start, size, time, code = map(np.concatenate, (starts, sizes, times, codes))
    return _Loaded(raw, start, size, time, code, counts)


class _Room(local):
    """Buffer of the groups of a thread, one after another: the kernel clears each new page."""

    raw: NDArray[np.uint8] = np.empty(0, np.uint8)

    def of(self, length: int) -> NDArray[np.uint8]:
        """Return the buffer, or a longer one."""
        if len(self.raw) < length:
            self.raw = np.empty(length, np.uint8)
        return self.raw[:length]


_ROOM = _Room()


class _Extraction:
    """Scan of one extent into a buffer."""

    def __init__(self, extract: LogExtract) -> None:
        self._extract = extract
        self._begin = 0
        """Offset from which on the queue can be restored, as far as damage was met."""
        self._next = extract.first_offset
        self._bytes = 0
        self._is_in_place = False
        self.starts: list[NDArray[np.int64]] = []
        self.sizes: list[NDArray[np.int64]] = []
        self.times: list[NDArray[np.int64]] = []
        self.tags_codes: list[NDArray[np.int64]] = []

    @property
    def has_moved(self) -> bool:
        """Whether records were read in place, and moved for others after them."""
        return self._is_in_place and len(self.starts) > 1

    def read_into(
        self, read: ByteSource, view: NDArray[np.uint8], *, in_place: bool = True
    ) -> None:
        """Read the records to `view`, as far as it reaches; those of one window without a copy."""
        self._is_in_place = in_place and len(view) <= WINDOW_BYTES
        scan = LogScan(
            read,
            self._extract.split,
            on_gap=self._pass_gap,
            on_expired=self._pass_expired,
            verify_bodies=not self._extract.has_checksum,
            keeps_missing=True,
            room=view if self._is_in_place else None,
        )
        for found in scan:
            begin, end = int(found.starts[0]), int(found.starts[-1] + found.sizes[-1])
            is_there = begin == self._bytes and np.may_share_memory(found.raw, view)
            if not is_there and self._bytes + end - begin <= len(view):
                view[self._bytes : self._bytes + end - begin] = found.raw[begin:end]
            offsets = found.queue_offsets
            self.starts.append(found.starts - begin + self._bytes)
            self.sizes.append(found.sizes.astype(np.int64))
            self.times.append(found.columns.store_timestamps.astype(np.int64))
            self.tags_codes.append(found.tags_codes)
            self._bytes += end - begin
            jumps = np.flatnonzero(np.diff(offsets, prepend=self._next - 1) != 1)
            if len(jumps):
                self._begin = max(self._begin, int(offsets[jumps[-1]]))
            self._next = int(offsets[-1]) + 1
        is_all = self._extract.has_checksum and self._bytes == len(view)
        if is_all and crc32c(view.data) != self._extract.crc32c:
            self._begin = self._extract.next_offset

    def correction(self, number: int) -> Piece | None:
        """Return what the plan has to say of this extent in place of what it said."""
        extract = self._extract
        if self._next != extract.next_offset:
            self._begin = extract.next_offset
        if self._begin:
            return Piece(BEGINS, number, orjson.dumps([extract.incarnation, self._begin]))
        if self._bytes != extract.bytes:
            return Piece(SIZES, number, orjson.dumps([extract.place, self._bytes]))
        return None

    def _pass_gap(self, gap: LogGap) -> None:
        behind = gap.offset_behind
        self._begin = max(self._begin, self._extract.next_offset if behind is None else behind)

    def _pass_expired(self, found: Relocated) -> None:
        self._begin = max(self._begin, found.min_offset, self._extract.next_offset)


def _written(group: RestoreGroup, loaded: _Loaded) -> NDArray[np.int64]:
    """Write the records in store order. Return the position of each.

    Records of one queue keep their order, also where the clock of their broker went back.
    """
    order = np.argsort(loaded.times_ms, kind="stable")
    sizes = loaded.sizes[order]
    ends = np.cumsum(sizes)
    positions = np.empty_like(loaded.starts)
    positions[order] = group.position + ends - sizes
    rewrite_positions(loaded.raw, loaded.starts, loaded.sizes, positions)
    starts = loaded.starts[order]
    breaks = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
    firsts = starts[np.concatenate(([0], breaks))].tolist()
    lasts = (starts + sizes)[np.concatenate((breaks - 1, [-1]))].tolist()
    view = loaded.raw.data
    base = group.position - group.position % group.log_file_bytes
    path = Path(group.root) / COMMIT_LOG / local_file_name(base)
    fd = open_sparse(path, group.log_file_bytes)
    try:
        at = group.position - base
        for row in range(0, len(firsts), VECTORS_MAX):
            pairs = zip(
                firsts[row : row + VECTORS_MAX], lasts[row : row + VECTORS_MAX], strict=True
            )
            at += _write_vectors(fd, [view[begin:end] for begin, end in pairs], at)
        if group.ends_file:
            write_all(fd, at, BlankRecord(group.log_file_bytes - at).encode())
        # The disk begins while other groups are read, and pages of those before become free.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return positions


def _write_vectors(fd: int, parts: Sequence[memoryview], position: int) -> int:
    length = sum(map(len, parts))
    done = os.pwritev(fd, parts, position)
    if done < length:
        write_all(fd, position + done, b"".join(parts)[done:])
    return length


def write_units(
    root: str | Path, queue: QueueId, offset: int, units: Buffer, file_bytes: int
) -> None:
    """Write units of a queue from `offset` on, into as many files as they need."""
    directory = Path(root) / CONSUME_QUEUE / queue.topic / str(queue.queue_id)
    place, at = offset * UNIT_BYTES, 0
    while at < len(units):
        base = place - place % file_bytes
        count = min(len(units) - at, base + file_bytes - place)
        fd = open_sparse(directory / local_file_name(base), file_bytes)
        try:
            write_all(fd, place - base, memoryview(units)[at : at + count])
        finally:
            os.close(fd)
        place, at = place + count, at + count


def open_sparse(path: Path, length: int) -> int:
    """Open or create a file of this length, in a directory that is created if needed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, flags, 0o644)
    try:
        if os.fstat(fd).st_size != length:
            os.ftruncate(fd, length)
    except BaseException:
        os.close(fd)
        raise
    return fd
