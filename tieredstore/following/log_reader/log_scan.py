"""Scan of a followed CommitLog in log order, and its trusted replay position."""

from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from container.record.blank import BlankRecord
from container.record.header import RecordHeader
from container.record.layout import (
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
)
from container.record.verification import Walk, walk_records
from provider.errors import Closed, Corrupt, NotFound
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.confirmation import FOREVER_MS, Confirmed
from tieredstore.following.log.record_units import (
    QueueRun,
    UnitColumns,
    has_begun_later,
    is_whole,
    records_after,
)
from tieredstore.following.options import WINDOW_BYTES
from tieredstore.following.queues.files import partition_point

WINDOW_BYTES_MIN = 64 << 10
"""What is read first: a log that trickles has little behind its known end, and then zeros."""
LOST_TAIL = (
    "a record of the CommitLog that was read is another one now: the log lost its tail while it "
    "was followed; nothing more was tiered, for only a start compares every queue with the tier"
)
MISSING = (
    "{} is missing amid the CommitLog's files: what it held is not tiered unless it is back at a "
    "later start, before the broker deletes the files after it; reading goes on at position {}."
)
AGAIN = (
    "{} is back amid the CommitLog's files: the next start reads it, and tiers what follows there "
    "on what is tiered."
)
_MAGICS = (MAGIC_V1, MAGIC_V2)


class LastRecord(NamedTuple):
    """A record that was read, to tell later whether the log still is the same."""

    position: int
    head: bytes
    """Its first 48 bytes: with queue offset, checksum and time, no two records have the same."""

    def is_there(self, log: CommitLogFiles) -> bool:
        """Whether it still stands there; True where its file was deleted. One small read.

        Raises:
            Unavailable, Denied: it cannot be read now.
        """
        try:
            found = log.peek(self.position, len(self.head))
        except NotFound:
            return True
        except Corrupt:
            return False  # the file was cut off before it
        return found in (b"", self.head)


@dataclass(slots=True)
class Piece:
    """What one step read."""

    next: int
    """Where the next step begins."""
    last: LastRecord | None
    runs: list[QueueRun] = field(default_factory=list[QueueRun])
    """In the order of the log, as far as those of one queue are concerned."""
    findings: list[str] = field(default_factory=list[str])
    holes: dict[int, int] = field(default_factory=dict[int, int])
    """What was passed over without its records: first byte of a file, and of what it lacks."""
    missing: set[int] = field(default_factory=set[int])
    """First bytes of the files that were missing amid others."""
    is_all: bool = False
    """Whether there is nothing more to read now."""
    newest_ms: int = 0
    """Store timestamp of the last unconfirmed record that was read, Unix ms; 0: none was."""


class LogScan:
    """Where the records have been read up to. One thread at a time.

    R1  Every record below `position` that is in the log was in a piece, once and in order.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.last: LastRecord | None = None
        self._window_bytes = WINDOW_BYTES_MIN
        self._holes: dict[int, int] = {}
        """The holes that the log has below `position`, as in `Piece`; the first of each file."""
        self._missing: set[int] = set()
        """First bytes of the files among them that are missing whole."""

    def __repr__(self) -> str:
        return f"<LogScan at {self.position}>"

    def read(self, log: CommitLogFiles, confirmed: Confirmed | None, *, bytes_max: int) -> Piece:
        """The records from `position` on, some `bytes_max` bytes of them. Changes nothing.

        Args:
            log: where they are.
            confirmed: which records count; None: all.
            bytes_max: after how many bytes to stop; one window is always read.

        Raises:
            Closed: what was read before is not there any more.
            Unavailable, Denied: the log cannot be read now.
        """
        if self.last is not None and not self.last.is_there(log):
            raise Closed(LOST_TAIL, log.path_of(self.last.position), self.last.position)
        piece = Piece(self.position, self.last)
        while piece.next - self.position < bytes_max:
            if not self._step(log, confirmed, piece):
                piece.is_all = True
                break
        return piece

    def accept(self, piece: Piece) -> None:
        """What was read is kept: go on behind it."""
        assert piece.next >= self.position, f"R1: {self}, {piece.next}"
        self.position, self.last = piece.next, piece.last
        self._holes = {**piece.holes, **self._holes}
        self._missing |= piece.missing

    def first_hole(self, log: CommitLogFiles) -> int | None:
        """The first position below which all is read; None: that is `position`.

        What lies in a hole may be readable again at a later start, until the broker comes to delete
        files behind it. O(holes), of which each file has one at most.
        """
        live = log.table.live_position
        self._holes = {base: at for base, at in self._holes.items() if base >= live}
        self._missing &= self._holes.keys()
        return min(self._holes.values(), default=None)

    def files_again(self, log: CommitLogFiles) -> list[str]:
        """A sentence for each file that was missing, and is there again since the last call."""
        again = sorted(self._missing & log.table.paths.keys())
        self._missing.difference_update(again)
        return [AGAIN.format(log.path_of(base)) for base in again]

    def _step(self, log: CommitLogFiles, confirmed: Confirmed | None, piece: Piece) -> bool:
        """Read one window; whether there may be more."""
        table = log.table
        place = max(piece.next, table.min_position)
        base = table.base_of(place)
        if base not in table.paths:  # deleted amid others, or not there yet
            later = min((b for b in table.paths if b > place), default=None)
            if later is None:
                return False
            if base >= table.live_position:  # a broker deletes from the front only
                piece.findings.append(MISSING.format(log.path_of(place), later))
                piece.holes.setdefault(base, place)
                piece.missing.add(base)
            piece.next = later
            return True
        try:
            window = self._read_window(log, place, base + table.file_bytes)
        except NotFound:
            return False  # deleted since the directory was looked at
        walk = walk_records(window)
        count, after = _leading_whole(window, walk, place)
        is_cut = False
        if confirmed is not None and place + after > confirmed.position:
            ends = place + walk.starts[:count] + walk.sizes[:count]
            counting = int(np.searchsorted(ends, confirmed.position, side="right"))
            counting, newest_ms = _counting(window, walk, counting, count, confirmed.stored_ms)
            is_cut = counting < count
            if is_cut:
                piece.newest_ms = newest_ms
                count = counting
                after = int(ends[count - 1]) - place if count else 0
        self._take(window, walk, count, place, piece)
        if after:
            piece.next = min(place + after, base + table.file_bytes)
            return after == walk.next and not is_cut
        piece.next = place
        if is_cut or not has_begun_later(log, base):
            return False
        self._skip(log, place, base + table.file_bytes, piece)
        piece.holes.setdefault(base, place)
        return True

    def _read_window(self, log: CommitLogFiles, place: int, end: int) -> NDArray[np.uint8]:
        """A window that holds one record at least, if there is a whole one."""
        memory = np.empty(min(self._window_bytes, end - place), np.uint8)
        window = memory[: log.read_into(place, memory)]
        is_full = len(window) == len(memory) >= BlankRecord.SIZE
        if is_full:
            size, magic = BlankRecord.LAYOUT.unpack_from(window.data)
            if magic in _MAGICS and len(memory) < size <= end - place:
                memory = np.empty(size, np.uint8)
                window = memory[: log.read_into(place, memory)]
        is_busy = is_full and bool(window[-BlankRecord.SIZE :].any())
        doubled = min(2 * self._window_bytes, WINDOW_BYTES)
        self._window_bytes = doubled if is_busy else WINDOW_BYTES_MIN
        return window

    def _take(
        self, window: NDArray[np.uint8], walk: Walk, count: int, place: int, piece: Piece
    ) -> None:
        if not count:
            return
        starts, sizes = walk.starts[:count], walk.sizes[:count]
        piece.runs += UnitColumns.read(window, place, starts, sizes).runs()
        start = int(starts[-1])
        piece.last = LastRecord(place + start, window[start : start + HEAD.size].tobytes())

    def _skip(self, log: CommitLogFiles, place: int, end: int, piece: Piece) -> None:
        """Pass over bytes that are no record, up to the next one of this file, or to its end."""
        piece.next = next(records_after(log, place, end), end)
        piece.findings.append(
            f"{log.path_of(place)} holds no record in {piece.next - place} bytes from position "
            f"{place} on, though the log goes on after them: they are passed over."
        )


def _counting(
    window: NDArray[np.uint8], walk: Walk, first: int, count: int, stored_ms: int
) -> tuple[int, int]:
    """How many of `count` records count, if the `first` ones do; the last one's store timestamp."""
    if stored_ms == FOREVER_MS or first == count:
        return count, 0

    def stamp(index: int) -> int:
        return RecordHeader.decode(
            window[int(walk.starts[index]) :].data, path="", position=0
        ).store_timestamp

    last_ms = stamp(count - 1)
    if last_ms <= stored_ms:
        return count, last_ms
    return partition_point(first, count, lambda index: stamp(index) > stored_ms), last_ms


def _leading_whole(window: NDArray[np.uint8], walk: Walk, place: int) -> tuple[int, int]:
    """How many records of a walk are whole, and how far into the window the next one is.

    A record that another one follows is: the broker writes one after the other.
    """
    count = len(walk.starts)
    if count and not window[walk.end : walk.end + BlankRecord.SIZE].any():
        start, size = int(walk.starts[-1]), int(walk.sizes[-1])
        is_last = start + size == walk.next  # else a blank follows it
        if is_last and not is_whole(window[start : start + size].tobytes(), place + start):
            return count - 1, start
    return count, walk.next


@dataclass(frozen=True, slots=True)
class Remembered:
    """Everything of the log below `position` that is to be tiered is durable in the tier."""

    position: int
    last: LastRecord | None
    """The last record that had been read then: the log is the same while it stands there."""

    def holds(self, log: CommitLogFiles) -> bool:
        """Whether the log still is the one that was followed. One small read.

        Where the file of the record was deleted, so was the one that `position` lies in, and
        reading begins at the log's first file whatever was remembered.

        Raises:
            Unavailable, Denied: it cannot be read now.
        """
        if self.last is None or self.position > log.table.end:
            return False
        try:
            return log.peek(self.last.position, HEAD.size) == self.last.head
        except (Corrupt, NotFound):
            return False

    def encode(self) -> bytes:
        """As JSON."""
        last = None if self.last is None else [self.last.position, self.last.head.hex()]
        return orjson.dumps({"position": self.position, "record": last})

    @classmethod
    def decode(cls, raw: bytes) -> Self | None:
        """What was encoded; None if that is anything else, for then all is read again."""
        try:
            said = orjson.loads(raw)
            position, record = int(said["position"]), said["record"]
            if record is None:
                return cls(position, None)
            return cls(position, LastRecord(int(record[0]), bytes.fromhex(record[1])))
        except (ValueError, KeyError, TypeError, IndexError):
            return None
