"""Scan of a followed CommitLog in log order, and its trusted replay position."""

from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.columns import leading_columns
from container.record.header import (
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    BlankRecord,
    RecordHeader,
)
from container.record.verification import Walk, walk_records
from provider.errors import Closed, Corrupt, NotFound
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.confirmation import FOREVER_MS, Confirmed
from tieredstore.following.log.record_units import (
    QueueRun,
    UnitColumns,
    has_begun_later,
    have_unit,
    is_whole,
    records_after,
)
from tieredstore.following.options import WINDOW_BYTES
from tieredstore.following.queues.files import partition_point

WINDOW_BYTES_MIN = 64 << 10
"""Size of the first window in bytes. A slowly growing log has little after its known end, and then
zeros."""
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
    """Fingerprint of a record that was read, to check later whether the log is still the same."""

    position: int
    head: bytes
    """First 48 bytes of the record. With queue offset, checksum and time they are unique."""

    def is_there(self, log: CommitLogFiles) -> bool:
        """Whether the record is still there; True if its file was deleted. One small read.

        Raises:
            Unavailable, Denied: it cannot be read now.
        """
        try:
            found = log.peek(self.position, len(self.head))
        except NotFound:
            return True
        except Corrupt:
            return False  # the file was truncated before it
        return found in (b"", self.head)


@dataclass(slots=True)
class ScanStep:
    """Result of one step of the scan."""

    next: int
    """Position of the next step."""
    last: LastRecord | None
    runs: list[QueueRun] = field(default_factory=list[QueueRun])
    """Runs in the order of the log, as far as those of one queue are concerned."""
    findings: list[str] = field(default_factory=list[str])
    holes: dict[int, int] = field(default_factory=dict[int, int])
    """Skipped bytes: first byte of each file, and first position that was skipped in it."""
    missing: set[int] = field(default_factory=set[int])
    """First bytes of the files that were missing amid others."""
    is_all: bool = False
    """Whether there is nothing more to read now."""
    is_cut: bool = False
    """Whether it ends before records that are not confirmed."""
    newest_ms: int = 0
    """Store timestamp of the last unconfirmed record that was read, Unix ms; 0: none was."""


class FollowScan:
    """Scan of records up to a position. One thread at a time.

    R1  Every record of the log below `position` was in a piece, once and in order.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.last: LastRecord | None = None
        self._window_bytes = WINDOW_BYTES_MIN
        self._holes: dict[int, int] = {}
        """Holes of the log below `position`, as in `ScanStep`; the first of each file."""
        self._missing: set[int] = set()
        """First bytes of the files among `_holes` that are missing as a whole."""

    def __repr__(self) -> str:
        return f"<FollowScan at {self.position}>"

    def read(self, log: CommitLogFiles, confirmed: Confirmed | None, *, bytes_max: int) -> ScanStep:
        """Read the records from `position` on, some `bytes_max` bytes of them. Changes nothing.

        Args:
            log: the CommitLog.
            confirmed: bounds of the records that count; None: all do.
            bytes_max: bytes after which to stop; one window is always read.

        Raises:
            Closed: records that were read before do not exist any more.
            Unavailable, Denied: the log cannot be read now.
        """
        if self.last is not None and not self.last.is_there(log):
            raise Closed(LOST_TAIL, log.path_of(self.last.position), self.last.position)
        piece = ScanStep(self.position, self.last)
        while piece.next - self.position < bytes_max:
            if not self._step(log, confirmed, piece):
                piece.is_all = True
                break
        return piece

    def accept(self, piece: ScanStep) -> None:
        """Accept a piece: advance `position` to its end."""
        assert piece.next >= self.position, f"R1: {self}, {piece.next}"
        self.position, self.last = piece.next, piece.last
        self._holes = {**piece.holes, **self._holes}
        self._missing |= piece.missing

    def first_hole(self, log: CommitLogFiles) -> int | None:
        """Return the first position below which all is read; None: that is `position`.

        A later start may find a hole readable again, until the broker deletes files after it.
        O(holes), of which each file has one at most.
        """
        live = log.table.live_position
        self._holes = {base: at for base, at in self._holes.items() if base >= live}
        self._missing &= self._holes.keys()
        return min(self._holes.values(), default=None)

    def files_again(self, log: CommitLogFiles) -> list[str]:
        """Return a sentence for each missing file that was restored since the last call."""
        again = sorted(self._missing & log.table.paths.keys())
        self._missing.difference_update(again)
        return [AGAIN.format(log.path_of(base)) for base in again]

    def _step(self, log: CommitLogFiles, confirmed: Confirmed | None, piece: ScanStep) -> bool:
        """Read one window. Return whether there may be more."""
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
            return False  # deleted since the directory was scanned
        walk = walk_records(window)
        count, after = _leading_whole(window, walk, place)
        is_cut = False
        if confirmed is not None and place + after > confirmed.position:
            ends = place + walk.starts[:count] + walk.sizes[:count]
            counting = int(np.searchsorted(ends, confirmed.position, side="right"))
            counting, newest_ms = _counting(window, walk, counting, count, confirmed.stored_ms)
            is_cut = counting < count
            if is_cut:
                piece.is_cut, piece.newest_ms = True, newest_ms
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
        """Read a window with one record at least, if there is a whole one."""
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
        self, window: NDArray[np.uint8], walk: Walk, count: int, place: int, piece: ScanStep
    ) -> None:
        if not count:
            return
        starts, sizes = walk.starts[:count], walk.sizes[:count]
        self._decode(window, place, starts, sizes, piece)
        start = int(starts[-1])
        piece.last = LastRecord(place + start, window[start : start + HEAD.size].tobytes())

    def _decode(
        self,
        window: NDArray[np.uint8],
        place: int,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        piece: ScanStep,
    ) -> None:
        """Add the messages of a window that begins at `place` to a piece."""
        piece.runs += UnitColumns.read(window, place, starts, sizes).runs()

    def _skip(self, log: CommitLogFiles, place: int, end: int, piece: ScanStep) -> None:
        """Skip bytes without a record, up to the next one of this file, or to its end."""
        piece.next = next(records_after(log, place, end), end)
        piece.findings.append(
            f"{log.path_of(place)} holds no record in {piece.next - place} bytes from position "
            f"{place} on, though the log goes on after them: they are passed over."
        )


def _counting(
    window: NDArray[np.uint8], walk: Walk, first: int, count: int, stored_ms: int
) -> tuple[int, int]:
    """Return how many of `count` records count, if `first` do, and the last store timestamp."""
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
    """Return the number of whole records of a walk, and the offset of the next one in the window.

    A record that is followed by another one is whole, for the broker writes them in order.
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
    """Replay position, below which all messages to tier are durable in the tier."""

    position: int
    last: LastRecord | None
    """Last record that had been read. The log is the same while the record is there."""
    owner: str = ""
    """Owner of the tier that kept it, as in its fence; empty while it is not kept."""

    def holds(self, log: CommitLogFiles) -> bool:
        """Whether the log still is the followed one. One small read.

        If the file of the record was deleted, so was the file of `position`. Reading then begins at
        the log's first file in any case.

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
        """Encode as JSON."""
        last = None if self.last is None else [self.last.position, self.last.head.hex()]
        return orjson.dumps({"position": self.position, "record": last, "owner": self.owner})

    @classmethod
    def decode(cls, raw: bytes) -> Self | None:
        """Decode a replay position; None if it is invalid, so that all is read again.

        One without an owner, as older versions wrote, is invalid: nothing shows that its writer's
        entries are those of the journal.
        """
        try:
            said = orjson.loads(raw)
            position, record, owner = int(said["position"]), said["record"], str(said["owner"])
            if record is None:
                return cls(position, None, owner)
            return cls(position, LastRecord(int(record[0]), bytes.fromhex(record[1])), owner)
        except (ValueError, KeyError, TypeError, IndexError):
            return None


def _int64s() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class _Waiting:
    """Unconfirmed messages of one queue, in the order of the log. 16 bytes each."""

    positions: "array[int]" = field(default_factory=_int64s)
    stamps: "array[int]" = field(default_factory=_int64s)
    """Store timestamps, Unix ms."""


class UnconfirmedScan(FollowScan):
    """Scan of the records after those that count. It finds how many wait, and since when.

    It decodes topic, queue id and store timestamp alone: a third of the cost of a unit. Each
    record is read once, and the scan of confirmed records reads it again later.
    """

    def __init__(self, is_wanted: Callable[[QueueId], bool]) -> None:
        super().__init__()
        self._is_wanted = is_wanted
        self._queues: dict[QueueId, _Waiting] = {}
        self._found: dict[QueueId, _Waiting] = {}
        """Messages that the present `read` has found."""
        self.newest_ms = 0
        """Store timestamp of the newest record that was read, Unix ms."""
        self.has_more = False
        """Whether unconfirmed records were left unread."""

    @property
    def queues(self) -> set[QueueId]:
        """Queues with unconfirmed messages."""
        return set(self._queues)

    def waiting(self, queue: QueueId) -> tuple[int, int]:
        """Return the number of unconfirmed messages, and the first one's store timestamp, Unix ms.

        Both are 0 without such messages.
        """
        waiting = self._queues.get(queue)
        return (len(waiting.stamps), waiting.stamps[0]) if waiting else (0, 0)

    def follow(self, log: CommitLogFiles, confirmed: ScanStep, *, bytes_max: int) -> set[QueueId]:
        """Drop the messages that count now, and read unconfirmed ones after them.

        Args:
            log: the CommitLog.
            confirmed: the last step of the scan of confirmed records.
            bytes_max: as in `read`.

        Returns:
            The queues whose unconfirmed messages changed.

        Raises:
            Unavailable, Denied: the log cannot be read now.
        """
        self.has_more = False
        touched = self._drop_below(confirmed.next)
        if not confirmed.is_cut:
            return touched if not confirmed.is_all else touched | self._clear()
        if self.position < confirmed.next:
            self.position, self.last = confirmed.next, confirmed.last
        try:
            step = self._read_anew(log, bytes_max)
        except Closed:  # an election took them back
            touched |= self._clear()
            self.position, self.last = confirmed.next, confirmed.last
            step = self._read_anew(log, bytes_max)
        self.accept(step)
        self.has_more = not step.is_all
        for queue, found in self._found.items():
            waiting = self._queues.setdefault(queue, _Waiting())
            waiting.positions += found.positions
            waiting.stamps += found.stamps
        return touched | self._found.keys()

    def _read_anew(self, log: CommitLogFiles, bytes_max: int) -> ScanStep:
        self._found = {}
        return self.read(log, None, bytes_max=bytes_max)

    def _decode(
        self,
        window: NDArray[np.uint8],
        place: int,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        piece: ScanStep,
    ) -> None:
        del piece
        known: dict[tuple[bytes, int], _Waiting | None] = {}
        while len(starts):
            columns, _ = leading_columns(window, starts, sizes)
            count = len(columns.headers)
            rows = np.flatnonzero(have_unit(columns.headers["sys_flag"]))
            for topic_start, topic_end, queue_id, start, stamp in zip(
                columns.topics.starts[rows].tolist(),
                columns.topics.ends[rows].tolist(),
                columns.headers["queue_id"][rows].tolist(),
                starts[rows].tolist(),
                columns.store_timestamps[rows].tolist(),
                strict=True,
            ):
                key = (window[topic_start:topic_end].tobytes(), queue_id)
                if key not in known:
                    known[key] = self._found_of(*key)
                waiting = known[key]
                if waiting is not None:
                    waiting.positions.append(place + start)
                    waiting.stamps.append(stamp)
            if count:
                self.newest_ms = max(self.newest_ms, int(columns.store_timestamps[-1]))
            starts, sizes = starts[count + 1 :], sizes[count + 1 :]  # past one that is not sound

    def _found_of(self, topic: bytes, queue_id: int) -> _Waiting | None:
        queue = QueueId(topic.decode("utf-8", "replace"), queue_id)
        return self._found.setdefault(queue, _Waiting()) if self._is_wanted(queue) else None

    def _drop_below(self, position: int) -> set[QueueId]:
        """Drop the messages below a position. Return their queues. O(queues)."""
        touched: set[QueueId] = set()
        for queue, waiting in list(self._queues.items()):
            count = bisect_left(waiting.positions, position)
            if count:
                touched.add(queue)
                del waiting.positions[:count], waiting.stamps[:count]
                if not waiting.positions:
                    del self._queues[queue]
        return touched

    def _clear(self) -> set[QueueId]:
        touched, self._queues = set(self._queues), {}
        return touched
