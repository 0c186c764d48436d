"""The offset that a moment stands for, and when messages were stored: small reads.

What is not to wait (`waits`) is done on the loop, as far as the page cache has it.
"""

import errno

from container.names.queue_id import QueueId
from container.queue.time_index import Boundary, TimeRules, UpperPlace, upper_offset
from container.record.header import RecordHeader
from container.record.layout import BORN_HOST_V6, layout_of
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from provider.errors import Corrupt, OutOfRange, Unavailable
from tieredstore.hot.appender import Appender
from tieredstore.hot.commit_log import REPAIR
from tieredstore.hot.reading import first_with_record

_HEAD_BYTES = layout_of(BORN_HOST_V6).store_host
"""Enough of any record for its store timestamp."""
UNITS_AT_ONCE = 256
"""Units that are read together once so few are left: 5 KiB cost as much as two single ones."""
_unpack = ConsumeQueueUnit.LAYOUT.unpack_from


def store_time(
    appender: Appender, queue: QueueId, offset: int, *, waits: bool = True
) -> int | None:
    """Store timestamp of one message that is written, Unix ms; None if it was deleted.

    Raises:
        Corrupt: the record is not that of the message.
        BlockingIOError: it is not to wait (`waits`), but might.
        OSError: it cannot be read.
    """
    return _Times(appender, queue, waits=waits).of(offset)


class _Times:
    """Store times of the messages of one queue, each by two small reads. Errors as `store_time`."""

    def __init__(self, appender: Appender, queue: QueueId, *, waits: bool) -> None:
        self._appender = appender
        self._queue = queue
        self._waits = waits
        self._first = 0
        self._units = b""

    def keep_units(self, low: int, high: int) -> None:
        """Read the units of `[low, high)`, as far as one file has them, for those asked for."""
        read = self._appender.queues.read
        self._first, self._units = low, read(self._queue, low, high - low, waits=self._waits)

    def of(self, offset: int) -> int | None:
        """That of one message; None if it was deleted."""
        at = (offset - self._first) * UNIT_BYTES
        units = self._units
        if not 0 <= at < len(units):
            at, units = 0, self._appender.queues.read(self._queue, offset, 1, waits=self._waits)
            if not units:
                return None
        log = self._appender.log
        unit = ConsumeQueueUnit(*_unpack(units, at))
        position = unit.position
        if not unit.size or unit.is_filler or position < log.min_position:
            return None
        try:
            (raw,) = log.read_each([(position, min(unit.size, _HEAD_BYTES))], waits=self._waits)
        except OutOfRange:
            return None  # its file went meanwhile
        try:
            header = RecordHeader.decode(raw, path="", position=position)
        except Corrupt as error:
            raise self._corrupt(error.reason, position) from error
        place = header.queue_id, header.queue_offset, header.physical_offset
        if place != (self._queue.queue_id, offset, position):
            raise self._corrupt(f"no record of {self._queue} at offset {offset}", position)
        return header.store_timestamp

    def _corrupt(self, reason: str, position: int) -> Corrupt:
        log = self._appender.log
        return Corrupt(f"{reason}: {REPAIR}", str(log.path(log.base_of(position))), position)


def _refuse_missing(appender: Appender, queue: QueueId, offset: int, *, waits: bool) -> None:
    """Raise `Unavailable` unless a message that is not there was deleted by age."""
    if not waits:
        raise BlockingIOError(errno.EAGAIN, "many units")
    if offset >= first_with_record(appender, queue):
        raise Unavailable("a file of the hot log is missing", str(queue), offset)


def search_time(  # noqa: PLR0917 - in the order of `HotLog.offset_by_time`
    appender: Appender,
    queue: QueueId,
    end: int,
    moment_ms: int,
    boundary: Boundary,
    rules: TimeRules,
    first: int | None = None,
    *,
    waits: bool = True,
) -> int:
    """The offset of `[min offset, end)` that a moment stands for, or `end`.

    Reads a unit and the head of a record for each of some log2(messages) steps; the last units
    together. Some 4 us a step. A message that is deleted meanwhile counts as one that was stored
    before. `first` is the minimum offset, where that is known.

    Raises:
        Unavailable: a file is missing.
        Corrupt: a record that was asked is not that of its message.
        BlockingIOError: it is not to wait (`waits`), but might.
        OSError: something cannot be read.
    """
    first = min(first_with_record(appender, queue) if first is None else first, end)
    low, high, before_ms = first, end, None
    times, are_kept = _Times(appender, queue, waits=waits), False
    while low < high:
        if not are_kept and high - low <= UNITS_AT_ONCE:
            are_kept = True
            times.keep_units(low, high)
        middle = (low + high) // 2
        time = times.of(middle)
        if time is None:
            _refuse_missing(appender, queue, middle, waits=waits)
        is_before = time is None or (
            time < moment_ms if boundary is Boundary.LOWER else time <= moment_ms
        )
        if is_before:
            low, before_ms = middle + 1, time
        else:
            high = middle
    if boundary is Boundary.LOWER:
        return low
    before = None if before_ms is None else low - 1
    place = UpperPlace(before, before_ms == moment_ms, low)
    return upper_offset(place, rules, min_offset=first)
