"""Messages by queue offset, read from the files: what threads do for `HotLog`."""

from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from provider.errors import Corrupt, OutOfRange
from tieredstore.hot.appender import Appender
from tieredstore.hot.recovery import good_record

_unpack_units = ConsumeQueueUnit.LAYOUT.iter_unpack


def first_with_record(appender: Appender, queue: QueueId) -> int:
    """The first offset of a queue whose record was not deleted, or that is not written yet.

    Raises:
        OSError: the units cannot be read.
    """
    least = appender.log.min_position
    return appender.queues.partition_point(
        queue, lambda unit: unit.is_filler or (unit.size > 0 and unit.position < least)
    )


def read_messages(
    appender: Appender, queue: QueueId, offset: int, count: int, bytes_max: int
) -> list[StoredMessage]:
    """Up to `count` messages from `offset` on, of one ConsumeQueue file; at least one.

    Raises:
        OutOfRange: the first was deleted.
        Corrupt: a record is not that of the message.
        OSError: they cannot be read.
    """
    raw = appender.queues.read(queue, offset, count)
    units = [ConsumeQueueUnit(*fields) for fields in _unpack_units(raw)]
    if not units or units[0].is_filler or units[0].position < appender.log.min_position:
        raise OutOfRange("the message was deleted", str(queue), offset)
    assert len(raw) == len(units) * UNIT_BYTES
    messages: list[StoredMessage] = []
    for run in _runs(_within(units, bytes_max), appender.log.file_bytes):
        first = run[0].position
        view = memoryview(appender.log.read(first, run[-1].position + run[-1].size - first))
        for unit in run:
            at = unit.position - first
            message = good_record(view[at : at + unit.size], unit.position)
            expected = offset + len(messages)
            if message is None or _place_of(message) != (*queue, expected):
                path = str(appender.log.path(appender.log.base_of(unit.position)))
                raise Corrupt(f"no record of {queue} at offset {expected}", path, unit.position)
            messages.append(message)
    return messages


def _place_of(message: StoredMessage) -> tuple[str, int, int]:
    return message.topic, message.queue_id, message.queue_offset


def _within(units: list[ConsumeQueueUnit], bytes_max: int) -> list[ConsumeQueueUnit]:
    """As many of the first as fit, and the first in any case."""
    total = 0
    for count, unit in enumerate(units):
        total += unit.size
        if count and total > bytes_max:
            return units[:count]
    return units


def _runs(units: list[ConsumeQueueUnit], file_bytes: int) -> list[list[ConsumeQueueUnit]]:
    """Units whose records lie side by side in one file, together."""
    runs: list[list[ConsumeQueueUnit]] = []
    for unit in units:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and unit.position == last.position + last.size
            and (unit.position // file_bytes == last.position // file_bytes)
        ):
            runs[-1].append(unit)
        else:
            runs.append([unit])
    return runs
