"""The offset that a moment stands for, and when messages were stored: what threads do."""

from container.names.queue_id import QueueId
from container.queue.time_boundary import Boundary, TimeRules, UpperPlace, upper_offset
from container.record.header import RecordHeader
from container.record.layout import BORN_HOST_V6, layout_of
from provider.errors import Corrupt
from tieredstore.hot.appender import Appender
from tieredstore.hot.held_files import HeldFiles
from tieredstore.hot.reading import first_with_record

_HEAD_BYTES = layout_of(BORN_HOST_V6).store_host
"""Enough of any record for its store timestamp."""


def store_time(appender: Appender, queue: QueueId, offset: int) -> int | None:
    """Store timestamp of one message that is written, Unix ms; None if it was deleted.

    Raises:
        Corrupt: the record is not that of the message.
        OSError: it cannot be read.
    """
    with HeldFiles(appender, queue) as files:
        return _store_time(files, offset)


def _store_time(files: HeldFiles, offset: int) -> int | None:
    unit = files.unit(offset)
    if unit.is_filler or not unit.size or unit.position < files.appender.log.min_position:
        return None
    raw = files.log(unit.position, min(unit.size, _HEAD_BYTES))
    if raw is None:
        return None  # its file went meanwhile
    path = str(files.log_path(unit.position))
    header = RecordHeader.decode(raw, path=path, position=unit.position)
    if (header.queue_id, header.queue_offset, header.physical_offset) != (
        files.queue.queue_id,
        offset,
        unit.position,
    ):
        raise Corrupt(f"no record of {files.queue} at offset {offset}", path, unit.position)
    return header.store_timestamp


def search_time(  # noqa: PLR0917 - in the order of `HotLog.offset_by_time`
    appender: Appender,
    queue: QueueId,
    end: int,
    moment_ms: int,
    boundary: Boundary,
    rules: TimeRules,
    first: int | None = None,
) -> int:
    """The offset of `[min offset, end)` that a moment stands for, or `end`.

    Reads the head of a record for each of some log2(messages) steps, and units for the first of
    them. A message that is deleted meanwhile counts as one that was stored before. `first` is the
    minimum offset, where that is known.

    Raises:
        Corrupt: a record that was asked is not that of its message.
        OSError: something cannot be read.
    """
    first = min(first_with_record(appender, queue) if first is None else first, end)
    low, high, before_ms = first, end, None
    with HeldFiles(appender, queue) as files:
        while low < high:
            middle = (low + high) // 2
            time = _store_time(files, middle)
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
