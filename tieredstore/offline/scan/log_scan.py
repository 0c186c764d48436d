"""Scan of a split: its records, chunk by chunk, and the gaps between them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import SegmentType
from container.names.rocketmq import INT64_MAX
from container.record.batch import values_at
from container.record.checksum import BODY_CRC_MASK, crc32
from container.record.columns import RecordColumns, Rows, leading_columns, tags_codes
from container.record.header import BlankRecord, Coda
from container.record.unit import UNIT_BYTES
from container.record.verification import ENDS_INSIDE, Walk, walk_records
from provider.errors import Corrupt
from provider.sequential import ByteSource
from tieredstore.offline.scan.log_window import (
    WINDOW_BYTES,
    Left,
    LogWindow,
    bytes_needed,
    find_record,
)
from tieredstore.offline.scan.relocation import PlannedQueue, Relocated, Relocator, expired
from tieredstore.offline.scan.split import LogGap, ScanReport, Split

SLACK_BYTES = 64 << 10
"""Read past a split's end with the rest, for its last record."""
CAREFUL_BYTES = 64 << 10
"""Followed at once after damage, so that much damage does not cost much more than little."""
TRUNCATED = "the log ends inside a record"
BLANK = "a blank in place of a record"
QUEUE_OFFSET_MAX = INT64_MAX // UNIT_BYTES
"""Of a message whose unit has a place in a ConsumeQueue; nothing beyond was ever written."""
ANOTHER_BODY = "the body differs from its checksum"

OnGap = Callable[[LogGap], None]
"""Callback for each gap; without it the first gap is raised as `Corrupt`."""
OnExpired = Callable[[Relocated], None]
"""Callback for messages of the split that left the tier; without it `Expired` is raised."""


class FoundRecords(NamedTuple):
    """Sound records of a split that are wanted, as they lie in the window.

    Only until the next chunk is asked for: the buffer is used again.
    """

    raw: NDArray[np.uint8]
    log_start: int
    """Log position of the first byte of `raw`."""
    starts: NDArray[np.int64]
    """First byte of each record in `raw`."""
    sizes: NDArray[np.int64]
    columns: RecordColumns

    @property
    def positions(self) -> NDArray[np.int64]:
        """Log position of each record."""
        return self.starts + self.log_start

    @property
    def queue_offsets(self) -> NDArray[np.int64]:
        """Queue offset of each record."""
        return self.columns.headers["queue_offset"].astype(np.int64)

    @property
    def tags_codes(self) -> NDArray[np.int64]:
        """Tags code of each record."""
        return tags_codes(self.raw, self.columns.properties)

    def taken(self, rows: Rows) -> "FoundRecords":
        """Return the records of these rows."""
        return self._replace(
            starts=self.starts[rows], sizes=self.sizes[rows], columns=self.columns.taken(rows)
        )


class LogScan:
    """Follows the chain of records through one split. Iterate over it once.

    A record is sound if its magic, size and inner lengths add up, its queue id, topic and own
    position (bytes 28..35) are right, and its queue offset is possible. An unsound record begins a
    gap up to the next sound one (`log_window.find_record`), where the chain continues. Costs
    about 0.6 us a record. Memory: the window (4 MiB, or the longest record) and columns of its
    records.
    """

    def __init__(
        self,
        source: ByteSource,
        split: Split,
        *,
        report: ScanReport | None = None,
        on_gap: OnGap | None = None,
        on_expired: OnExpired | None = None,
        verify_bodies: bool = False,
        keeps_missing: bool = False,
        room: NDArray[np.uint8] | None = None,
    ) -> None:
        """Prepare a scan; nothing is read yet.

        Args:
            source: where the bytes are.
            split: which records.
            report: is filled while the scan runs.
            on_gap: is called with each gap.
            on_expired: is called where messages of the split were trimmed, truncated or deleted
                after it was planned; the scan continues with the oldest that is left.
            verify_bodies: compare the checksum of each body, 0.15 us a record and 50 ns per KiB; a
                record whose body differs is a gap of its own.
            keeps_missing: published bytes that the storage lacks are a gap, too: for jobs that
                judge or mend the storage. Otherwise they are `BytesMissing`.
            room: buffer of the window, as long as it is long enough; None: one of its own.
        """
        self.report = report or ScanReport(split)
        self._split = split
        self._on_expired = on_expired
        self._topic = np.frombuffer(split.queue.topic.encode(), np.uint8)
        self._window = LogWindow(
            source,
            split.pieces,
            split.first_byte,
            split.limit,
            relocator=relocator_of(split),
            keeps_missing=keeps_missing,
            room=room,
        )
        self._on_gap = on_gap
        self._verify_bodies = verify_bodies
        self._careful_until = 0
        self._last_offset: int | None = None

    def __iter__(self) -> Iterator[FoundRecords]:
        """The records of the split, in order.

        Raises:
            Corrupt: there is a gap, and no `on_gap`: path and position name the gap. Or a data key
                of an encrypted tier was changed.
            Expired: messages of the split left the tier, and there is no `on_expired`.
            BytesMissing: published bytes are not in the storage; path names the object.
            Unavailable: try again.
            Denied: the storage refuses.
        """
        split, window = self._split, self._window
        window.expect(min(split.end + SLACK_BYTES, split.limit))
        at: int | None = None
        while at is None or at < split.end:
            try:
                if at is None:
                    at = split.first_byte
                    if split.anchor is None:
                        at = find_record(window, split, at).position
                yield from self._followed(at)
            except Left as left:
                at = self._behind_expired(left.found)
            else:
                return

    def _followed(self, at: int) -> Iterator[FoundRecords]:
        """The records of the split from one that begins at `at`."""
        split = self._split
        at = self._behind_coda(at)
        self._came_by(at)
        while at < split.end:
            found, at, reason = self._chunk(at)
            if len(found.starts):
                yield from self._wanted(found)
            at = self._behind_coda(at)
            self._came_by(at)
            if reason:
                at = self._passed(at, reason)
        self.report.end = at

    def _behind_expired(self, found: Relocated) -> int:
        """Return the position of the oldest remaining record; the split's end if none is left."""
        if self._on_expired is None:
            raise expired(self._split.queue, found)
        self._on_expired(found)
        if not found.pieces or found.pieces[0].position >= self._split.end:
            self.report.end = self._split.end
            return self._split.end
        self._window.restart(found)
        return found.pieces[0].position

    def _chunk(self, at: int) -> tuple[FoundRecords, int, str]:
        """The next sound records from `at` on, where they end, and why none follows there.

        "" where one may follow, or the log ends.
        """
        window, split = self._window, self._split
        bytes_max = CAREFUL_BYTES if at < self._careful_until else WINDOW_BYTES
        window.move(at, min(split.end - at + SLACK_BYTES, bytes_max))
        walk = walk_records(window.raw)
        if not len(walk.starts) and walk.reason == ENDS_INSIDE and window.end < window.limit:
            window.move(at, bytes_needed(window.raw.data, window.limit - at))
            walk = walk_records(window.raw)
            if not len(walk.starts):
                return self._found(walk.starts, walk.sizes)[0], at, "impossible record size"
        ends = walk.starts + walk.sizes
        follow = np.concatenate(([0], ends[:-1])) == walk.starts
        touching = len(follow) if follow.all() else int(np.argmin(follow))
        kept = int(np.searchsorted(ends, window.lost_from - at, side="right"))
        owned = int(np.searchsorted(walk.starts, split.end - at))
        count = min(touching, kept, owned)
        found, reason = self._found(walk.starts[:count], walk.sizes[:count])
        end = at + (int(ends[len(found.starts) - 1]) if len(found.starts) else 0)
        if reason or end >= split.end:
            return found, end, reason
        if kept == count < len(ends):
            return found, end, window.lost_reason
        if touching == count < len(ends):
            return found, end, BLANK
        return found, end, self._why_it_ends(end, walk)

    def _why_it_ends(self, end: int, walk: Walk) -> str:
        """Why no record follows the last one of a walk, at `end`; "" if one may, or a coda does."""
        window = self._window
        if walk.reason and window.lost_from < min(window.end, end + BlankRecord.SIZE + 1):
            return window.lost_reason
        behind = window.start + walk.next
        if walk.reason == ENDS_INSIDE:
            if window.end < window.limit and end > window.start:
                return ""
            return window.lost_reason if window.lost_from < window.end else TRUNCATED
        if walk.reason or behind == end:
            return walk.reason
        goes_on = behind > window.end and end > window.start  # the blank is in the next window
        is_last = end + Coda.SIZE == window.end == window.limit
        is_coda = is_last and _is_coda(window.raw[end - window.start :])
        return "" if goes_on or is_coda else BLANK

    def _behind_coda(self, at: int) -> int:
        """The end of the log if nothing but a coda is left of it, else `at`.

        So a place in the chain has the same position for each scan that reaches it.
        """
        window = self._window
        if at + Coda.SIZE != window.limit:
            return at
        window.move(at, Coda.SIZE)
        return window.limit if _is_coda(window.raw) else at

    def _found(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> tuple[FoundRecords, str]:
        """The leading sound ones of these records, and why the next is not."""
        raw, start = self._window.raw, self._window.start
        columns, reason = leading_columns(raw, starts, sizes)
        count = len(columns.headers)
        good = columns.headers["physical_offset"] == starts[:count] + start
        reasons = [(good, "another physical offset")]
        offsets = columns.headers["queue_offset"]
        reasons.append(((offsets >= 0) & (offsets <= QUEUE_OFFSET_MAX), "impossible queue offset"))
        reasons.append((columns.headers["queue_id"] == self._split.queue.queue_id, "another queue"))
        lengths = columns.topics.ends - columns.topics.starts
        same = lengths == len(self._topic)
        if same.any():
            texts = values_at(raw, f"V{len(self._topic)}", columns.topics.starts[same])
            bytes_of = texts.view(np.uint8).reshape(-1, len(self._topic))
            same[same] = (bytes_of == self._topic).all(axis=1)
        reasons.append((same, "another topic"))
        for fits, why in reasons:
            if not fits[:count].all():
                count, reason = int(np.argmin(fits[:count])), why
        found = FoundRecords(raw, start, starts[:count], sizes[:count], columns)
        return found._replace(columns=columns.taken(slice(count))), reason

    def _wanted(self, found: FoundRecords) -> Iterator[FoundRecords]:
        """Yield the records that the split owns and the caller wants; update the report."""
        split, report = self._split, self.report
        owned = found.positions >= split.start
        offsets = found.columns.headers["queue_offset"]
        self._last_offset = int(offsets[-1])
        if not owned.all():
            found, offsets = found.taken(owned), offsets[owned]
            if not len(offsets):
                return
        self._came_by(int(found.positions[0]))
        report.records += len(offsets)
        report.bytes += int(found.sizes.sum())
        if report.first_offset is None:
            report.first_offset = int(offsets[0])
        report.last_offset = int(offsets[-1])
        times = found.columns.store_timestamps
        wanted = _within(offsets, split.offsets) & _within(times, split.times_ms)
        if self._verify_bodies:
            wanted &= self._intact(found, wanted)
        if wanted.all():
            yield found
        elif wanted.any():
            yield found.taken(wanted)

    def _intact(self, found: FoundRecords, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether the body of each record matches its checksum. Other wanted records are gaps."""
        view = found.raw.data
        spans = zip(*(bound.tolist() for bound in found.columns.bodies), strict=True)
        sums = np.array([crc32(view[start:end]) for start, end in spans], np.uint32)
        intact = (sums & BODY_CRC_MASK) == found.columns.headers["body_crc"]
        for row in np.flatnonzero(wanted & ~intact).tolist():
            offset = int(found.columns.headers["queue_offset"][row])
            place, size = int(found.positions[row]), int(found.sizes[row])
            self._tell(LogGap(self._split.queue, place, size, ANOTHER_BODY, offset - 1, offset + 1))
        return intact

    def _came_by(self, place: int) -> None:
        if self.report.first is None and place >= self._split.start:
            self.report.first = place

    def _passed(self, position: int, reason: str) -> int:
        """Return the position at which the chain continues after damage at `position`."""
        split = self._split
        behind = find_record(self._window, split, position + 1)
        self._careful_until = behind.position + WINDOW_BYTES // 4
        self._came_by(behind.position)
        if position >= split.start:
            shifted = behind.shifted
            self._tell(
                LogGap(
                    split.queue,
                    position,
                    behind.position - position,
                    reason,
                    self._last_offset,
                    behind.offset,
                    *(shifted or ()),
                )
            )
        return behind.position

    def _tell(self, gap: LogGap) -> None:
        self.report.gaps.append(gap)
        if self._on_gap is None:
            raise Corrupt(str(gap), *self._split.place_of(gap.position))
        self._on_gap(gap)


def relocator_of(split: Split) -> Relocator | None:
    """Lookup of a split's bytes that moved; None without a journal."""
    if split.generation is None:
        return None
    planned = PlannedQueue(split.queue, split.generation, split.seen)
    return Relocator(split.place, planned, SegmentType.COMMIT_LOG, split.limit)


def _within(values: NDArray[np.int64], bounds: tuple[int, int]) -> NDArray[np.bool_]:
    """Whether each value is in `[from, to)`; the largest int64 is no bound."""
    low, high = bounds
    return (values >= low) & ((values < high) | (high == INT64_MAX))


def _is_coda(raw: NDArray[np.uint8]) -> bool:
    try:
        Coda.decode(raw.tobytes(), path="", position=0)
    except Corrupt:
        return False
    return True
