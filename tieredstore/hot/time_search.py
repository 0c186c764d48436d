"""The offset that a moment stands for, and when messages were stored: what threads do."""

from container.names.queue_id import QueueId
from container.queue.time_boundary import Boundary, TimeRules, UpperPlace, upper_offset
from container.record.header import RecordHeader
from container.record.layout import BORN_HOST_V6, layout_of
from provider.errors import Corrupt, OutOfRange
from tieredstore.hot.appender import Appender
from tieredstore.hot.reading import first_with_record

_HEAD_BYTES = layout_of(BORN_HOST_V6).store_host
"""Enough of any record for its store timestamp."""


def store_time(appender: Appender, queue: QueueId, offset: int) -> int | None:
    """Store timestamp of one message that is written, Unix ms; None if it was deleted.

    Raises:
        Corrupt: the record is not that of the message.
        OSError: it cannot be read.
    """
    unit = appender.queues.unit(queue, offset)
    if unit.is_filler or not unit.size or unit.position < appender.log.min_position:
        return None
    try:
        raw = appender.log.read(unit.position, min(unit.size, _HEAD_BYTES))
    except OutOfRange:
        return None  # its file went meanwhile
    path = str(appender.log.path(appender.log.base_of(unit.position)))
    header = RecordHeader.decode(raw, path=path, position=unit.position)
    if (header.queue_id, header.queue_offset, header.physical_offset) != (
        queue.queue_id,
        offset,
        unit.position,
    ):
        raise Corrupt(f"no record of {queue} at offset {offset}", path, unit.position)
    return header.store_timestamp


def search_time(  # noqa: PLR0917 - in the order of `HotLog.offset_by_time`
    appender: Appender,
    queue: QueueId,
    end: int,
    moment_ms: int,
    boundary: Boundary,
    rules: TimeRules,
) -> int:
    """The offset of `[min offset, end)` that a moment stands for, or `end`.

    Reads a unit and the head of a record for each of some log2(messages) steps. A message that is
    deleted meanwhile counts as one that was stored before.

    Raises:
        Corrupt: a record that was asked is not that of its message.
        OSError: something cannot be read.
    """
    first = min(first_with_record(appender, queue), end)
    low, high, before_ms = first, end, None
    while low < high:
        middle = (low + high) // 2
        time = store_time(appender, queue, middle)
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
