"""Record search by content, where the chain of records is broken or unknown."""

import re
from collections import deque
from struct import Struct
from typing import NamedTuple

from container.record.checksum import body_crc_of
from container.record.header import unpack_record
from container.record.layout import (
    HEAD,
    HOST_BITS,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    TOPIC_LENGTH_BYTES,
    layout_of,
)
from container.record.properties import PROPERTIES_BYTES_MAX
from provider.errors import Corrupt
from tieredstore.offline.scan.log_window import WINDOW_BYTES, LogWindow
from tieredstore.offline.scan.split import Split

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
