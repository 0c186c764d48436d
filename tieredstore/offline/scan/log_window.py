"""Window that moves over the log of a split, and the search for records in it by content.

One buffer is used again and again. The search is for a log whose chain of records is broken or
unknown.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.errors import BytesMissing
from container.record.checksum import body_crc_of
from container.record.header import (
    HEAD,
    HOST_BITS,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    TOPIC_LENGTH_BYTES,
    layout_of,
    unpack_record,
)
from container.record.properties import PROPERTIES_BYTES_MAX
from provider.encryption.frames import CONTENT_BYTES
from provider.errors import Corrupt
from provider.sequential import ByteSource, ObjectRange
from tieredstore.offline.scan.relocation import Relocated, Relocator
from tieredstore.offline.scan.split import MISSING_BYTES, LogPiece, Split

WINDOW_BYTES = 4 << 20
"""Bytes of a log that a scan holds, unless a record is longer. A buffer of this size mostly stays
in the processor's cache, and is long enough for calls of numpy (2 to 4 MiB measured best)."""
REFUSED_FRAMES_MAX = 32
"""Changed frames of one read that are separated from the sound ones between them."""


class Left(Exception):
    """Planned bytes left the tier; `found` has the places of the rest."""

    def __init__(self, found: Relocated) -> None:
        super().__init__(found)
        self.found = found


class _Lost(NamedTuple):
    """Log positions `[start, end)` of unreadable bytes, with the reason."""

    start: int
    end: int
    reason: str


class LogWindow:
    """Bytes `[start, end)` of a log, which only moves forward.

    Bytes that are not at their planned place are read from their place in the newest metadata.
    Bytes of changed encrypted frames are zeros; `lost_from` is the position of the first one.
    Memory: `WINDOW_BYTES`, or the longest requested stretch.
    """

    def __init__(
        self,
        source: ByteSource,
        pieces: Sequence[LogPiece],
        start: int,
        limit: int,
        *,
        relocator: Relocator | None = None,
        keeps_missing: bool = False,
        room: NDArray[np.uint8] | None = None,
    ) -> None:
        """Begin at `start`; nothing is read yet.

        Args:
            source: reads objects.
            pieces: where the bytes lie by the plan.
            start: first log position.
            limit: log position that the window never passes.
            relocator: looks up bytes that are not at their place; None where no metadata can.
            keeps_missing: bytes that are published and not in the storage are zeros, as damaged
                ones are. Otherwise they are `BytesMissing`.
            room: the buffer, as long as it is long enough; None: one of its own.
        """
        self._source = source
        self._relocator = relocator
        self._keeps_missing = keeps_missing
        self._pieces = [piece for piece in pieces if piece.end > start]
        self._next_piece = 0
        self._limit = limit
        self._raw = np.empty(min(WINDOW_BYTES, limit - start), np.uint8) if room is None else room
        self._filled = 0
        self._lost: list[_Lost] = []
        self._expected_until = start
        self.start = start
        """Log position of the first byte."""

    @property
    def end(self) -> int:
        """Log position after the last byte."""
        return self.start + self._filled

    @property
    def limit(self) -> int:
        """Log position that the window never passes."""
        return self._limit

    @property
    def raw(self) -> NDArray[np.uint8]:
        """The bytes; what was taken from it is overwritten when the window moves."""
        return self._raw[: self._filled]

    @property
    def lost_from(self) -> int:
        """Position of the first byte in the window that cannot be read; else `end`."""
        return self.lost_behind(self.start)

    def lost_behind(self, position: int) -> int:
        """Position of the first unreadable byte at or after another; else `end`."""
        return next((max(a, position) for a, b, _ in self._lost if b > position), self.end)

    @property
    def lost_reason(self) -> str:
        """Why the byte at `lost_from` cannot be read."""
        return next((why for _, b, why in self._lost if b > self.start), MISSING_BYTES)

    def has_all(self, start: int, end: int) -> bool:
        """Whether every byte of `[start, end)`, which the window holds, could be read."""
        return not any(a < end and start < b for a, b, _ in self._lost)

    def expect(self, until: int) -> None:
        """Announce to the source that everything up to `until` will be read."""
        self._expected_until = until
        ranges = [
            ObjectRange(
                piece.object_name,
                piece.object_offset + max(self.end - piece.position, 0),
                min(piece.end, until) - max(piece.position, self.end),
            )
            for piece in self._pieces[self._next_piece :]
            if piece.end > self.end and max(piece.position, self.end) < until
        ]
        self._source.expect(ranges)

    def move(self, start: int, wanted: int) -> None:
        """Begin at `start`, within what it holds, and hold `wanted` bytes if the log has them.

        Raises:
            Left: bytes of the plan left the tier.
            BytesMissing: published bytes are not in the storage; names the object.
            Unavailable, Denied: as `ByteSource.read_into`.
            Corrupt: a data key of an encrypted tier was changed.
        """
        assert self.start <= start <= self.end, "a window moves forward within what it holds"
        kept = self.end - start
        wanted = min(wanted, self._limit - start)
        held = self._raw
        if wanted > len(held):
            self._raw = np.empty(wanted, np.uint8)
        if kept and (start > self.start or self._raw is not held):
            self._raw[:kept] = held[self._filled - kept : self._filled]
        self.start, self._filled = start, kept
        self._lost = [one for one in self._lost if one.end > start]
        view = self._raw.data
        while self._filled < wanted:
            self._read(view[self._filled : wanted])

    def _read(self, room: memoryview) -> None:
        """Read from one piece, as much as it has or `room` takes."""
        while self._pieces[self._next_piece].end <= self.end:
            self._next_piece += 1
        piece = self._pieces[self._next_piece]
        view = room[: piece.end - self.end]
        begin = piece.object_offset + self.end - piece.position
        try:
            count = self._source.read_into(piece.object_name, begin, view)
        except Corrupt as error:
            _refuse_other(piece, error)
            self._source.expect(())  # the next bytes are not the announced ones
            lost = [*self._read_around(piece, begin, view)]
            self._filled += len(view)
            self.expect(self._expected_until)
        else:
            lost = []
            if count < len(view):
                found = self._moved(piece, begin + count)
                if found is not None:
                    self._filled += count
                    self._follow(found)
                    return
                lost = [(begin + count, begin + len(view), MISSING_BYTES)]
            self._filled += len(view)
        for low, high, reason in lost:
            view[low - begin : high - begin] = bytes(high - low)
            shift = piece.position - piece.object_offset
            self._lost.append(_Lost(low + shift, high + shift, reason))

    def restart(self, found: Relocated) -> None:
        """Begin again, empty, at the first byte that is left of the log."""
        assert found.pieces, "nothing is left to begin at"
        self.start, self._filled, self._lost = found.pieces[0].position, 0, []
        self._pieces, self._next_piece = list(found.pieces), 0
        self.expect(self._expected_until)

    def _moved(self, piece: LogPiece, at: int) -> Relocated | None:
        """Find the new place of bytes missing at byte `at` of a piece's object; None: zeros."""
        found = None if self._relocator is None else self._relocator.moved(piece, at)
        if found is None and not self._keeps_missing:
            raise BytesMissing("published bytes are not in the storage", piece.object_name, at)
        return found

    def _follow(self, found: Relocated) -> None:
        """Read the rest from its present place."""
        if not found.pieces or found.pieces[0].position > self.end:
            raise Left(found)
        assert found.pieces[-1].end >= self._limit, "a log has no holes and keeps its generation"
        self._pieces, self._next_piece = list(found.pieces), 0
        self.expect(self._expected_until)

    def _read_around(self, piece: LogPiece, begin: int, view: memoryview) -> Iterator[_Lost]:
        """Read bytes some of which are in changed frames; yields those, by the object's bytes.

        Halves what is refused until it is one frame: 2 requests for each halving, some 20 for one
        frame of 4 MiB. Behind `REFUSED_FRAMES_MAX` frames all counts as lost: then an object was
        replaced, or its data key is gone, and the rest is not worth a request a frame.
        """
        left, refused = [(begin, begin + len(view))], 0
        while left:
            low, high = left.pop()
            try:
                count = self._source.read_into(
                    piece.object_name, low, view[low - begin : high - begin]
                )
            except Corrupt as error:
                _refuse_other(piece, error)
                middle = (low + high) // 2 // CONTENT_BYTES * CONTENT_BYTES
                if middle <= low:
                    middle = (low // CONTENT_BYTES + 1) * CONTENT_BYTES
                if middle < high:
                    left += [(middle, high), (low, middle)]
                    continue
                refused += 1
                if refused == REFUSED_FRAMES_MAX:
                    high, left = begin + len(view), []
                yield _Lost(low, high, error.reason)
            else:
                if low + count < high:
                    yield _Lost(low + count, high, MISSING_BYTES)


def _refuse_other(piece: LogPiece, error: Corrupt) -> None:
    """Raise what is no damage of the piece's own object: nothing can be read without a data key."""
    if error.path != piece.object_name:
        raise error


RECORD_BYTES_MAX = 128 << 20
"""No message is as long; a longer size is damage."""
SHIFTED_MIN = 2
"""Whole records in a row with one shift, which say that bytes before them were lost or put in."""

_MAGIC = re.compile(b"|".join(re.escape(m.to_bytes(4, "big")) for m in (MAGIC_V1, MAGIC_V2)))
_INT32 = Struct(">i")
_FIXED_BYTES_MAX = layout_of(HOST_BITS).body
_KEPT_BYTES = MAGIC_AT + len(MAGIC_V1.to_bytes(4, "big")) - 1
"""Bytes at the end of a searched window that may begin a record whose magic is not in it."""


class Shifted(NamedTuple):
    """Consecutive intact records whose own position is another one."""

    by: int
    """Bytes by which they are after their own position."""
    records: int


class Resync(NamedTuple):
    """Position of the next sound record."""

    position: int
    """Log position; the split's limit if there is none before it."""
    offset: int | None
    """Its queue offset; None at the limit."""
    shifted: Shifted | None
    """Displacement of intact but misplaced records on the way, if any."""


def bytes_needed(head: memoryview, room: int) -> int:
    """Return the length of the record that begins with `head`, by its fixed fields; 0: no record.

    `room` is the number of bytes to the end of the log. A damaged size rarely agrees with the
    length of the body, so it rarely causes a useless read.
    """
    if len(head) < HEAD.size:
        return 0
    size, magic, sys_flag = _head(head)
    layout = layout_of(sys_flag)
    fits = magic in TOPIC_LENGTH_BYTES and RECORD_BYTES_MIN <= size <= min(room, RECORD_BYTES_MAX)
    if not fits or len(head) < layout.body:
        return 0
    body_bytes = _INT32.unpack_from(head, layout.body_length)[0]
    rest = size - layout.overhead(magic) - body_bytes
    topic_bytes_max = (1 << (8 * TOPIC_LENGTH_BYTES[magic] - 1)) - 1
    return size if body_bytes >= 0 and 0 <= rest <= topic_bytes_max + PROPERTIES_BYTES_MAX else 0


def find_record(window: LogWindow, split: Split, position: int) -> Resync:
    """The first sound record of the split's queue at or after `position`.

    The window moves with the search and holds the record afterwards. Searches some 5 GB/s, and
    looks at what has a record's magic: 3 us each, and the checksum of its body.

    Raises:
        Unavailable, Denied: as `ByteSource.read_into`.
    """
    topic = split.queue.topic.encode()
    counted = _ShiftCount()
    window.move(position, WINDOW_BYTES)
    while True:
        searched_to = window.end
        for match in _MAGIC.finditer(window.raw.data[: searched_to - window.start]):
            place = match.start() - MAGIC_AT
            if place >= 0:
                counted.places.append(window.start + place)
        while counted.places:
            at = counted.places.popleft()
            stands = _record_at(window, (split.queue.queue_id, topic), at)
            if stands is None:
                continue
            size, offset, says = stands
            if says == at:
                window.move(at, size)
                return Resync(at, offset, counted.shifted)
            counted.add(at, size, offset, at - says)
        if searched_to >= window.limit:
            return Resync(window.limit, None, counted.shifted)
        window.move(searched_to - _KEPT_BYTES, WINDOW_BYTES)


def find_any_record(window: LogWindow, position: int) -> int:
    """Return the position of the first sound record of any queue from `position` on, or the limit.

    As `find_record`, but a record may have any log position of its own: without a directory it is
    the only source of that position.

    Raises:
        Unavailable, Denied: as `ByteSource.read_into`.
    """
    at = position
    while True:
        found = _MAGIC.search(window.raw.data, max(at - window.start, 0) + MAGIC_AT)
        if found is not None:
            at = window.start + found.start() - MAGIC_AT
            if _record_at(window, None, at) is not None:
                return at
            at += 1
        elif window.end >= window.limit:
            return window.limit
        else:
            at = max(at, window.end - _KEPT_BYTES)
            window.move(min(at, window.end), WINDOW_BYTES)


def _record_at(
    window: LogWindow, queue: tuple[int, bytes] | None, at: int
) -> tuple[int, int, int] | None:
    """Size, queue offset and own position of a sound record of the queue there; else None.

    `queue` is its id and topic; None: of any.

    The window moves only if the record reaches beyond it.
    """
    room = window.limit - at
    if window.end < min(at + _FIXED_BYTES_MAX, window.limit):
        window.move(at, _FIXED_BYTES_MAX)
    head = window.raw.data[at - window.start :][:_FIXED_BYTES_MAX]
    needed = bytes_needed(head, room)
    if not needed:
        return None
    if window.end < at + needed:
        del head
        window.move(at, needed)
    if not window.has_all(at, at + needed):
        return None
    stands = _judged(window.raw.data[at - window.start :][:needed], queue)
    return None if stands is None else (needed, *stands)


def _judged(record: memoryview, queue: tuple[int, bytes] | None) -> tuple[int, int] | None:
    """Return the queue offset and the own position of a sound record of the queue; else None."""
    try:
        fixed, (body, body_end, topic_at, topic_end, _) = unpack_record(record, "", 0)
    except Corrupt:
        return None
    crc, found_queue_id, offset, says = fixed[2], fixed[3], fixed[5], fixed[6]
    if queue is not None and (found_queue_id, bytes(record[topic_at:topic_end])) != queue:
        return None
    return (offset, says) if body_crc_of(record[body:body_end]) == crc else None


def _head(raw: memoryview) -> tuple[int, int, int]:
    fields = HEAD.unpack_from(raw)
    return fields[0], fields[1], fields[7]


class _ShiftCount:
    """Counts whole records that follow one another in place and offset, with one shift."""

    def __init__(self) -> None:
        self.places: deque[int] = deque()
        """Log positions that are still to be searched."""
        self._expected = (-1, -1, 0)
        self._records = 0
        self._longest = Shifted(0, 0)

    @property
    def shifted(self) -> Shifted | None:
        """The longest row, if it is long enough to mean anything."""
        return self._longest if self._longest.records >= SHIFTED_MIN else None

    def add(self, position: int, size: int, offset: int, shift: int) -> None:
        """Note an intact record that is `shift` bytes after its own position."""
        if position < self._expected[0]:
            return  # inside a whole record: a copy in its body
        follows = self._expected == (position, offset, shift)
        self._records = self._records + 1 if follows else 1
        self._expected = (position + size, offset + 1, shift)
        if self._records > self._longest.records:
            self._longest = Shifted(shift, self._records)
