"""Reads of the hot log by queue offset and by time, as threads run them."""

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

from container.names.queue_id import QueueId
from container.queue.positions import Boundary, TimeRules, UpperPlace, upper_offset
from container.record.header import BORN_HOST_V6, RecordHeader, layout_of
from container.record.message import StoredMessage
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from provider.errors import Corrupt, OutOfRange, Unavailable
from tieredstore.hot.appender import Appender
from tieredstore.hot.log.commit_log import REPAIR
from tieredstore.hot.log.consume_queues import QueueFiles
from tieredstore.hot.log.files import is_estimated_resident
from tieredstore.hot.log.record_scan import good_record

CHECKED_UNITS = 64
"""Units before a queue's first one that are checked for deleted records."""
HERE_UNITS_MAX = 64
HERE_BYTES_MAX = 256 << 10
"""Largest read on the event loop: units, and bytes of records. It takes some 0.2 ms."""
_unpack_units = ConsumeQueueUnit.LAYOUT.iter_unpack


T_co = TypeVar("T_co", covariant=True)


class Read(Protocol[T_co]):
    """Read that can be asked not to wait for a device."""

    def __call__(self, *, waits: bool) -> T_co:
        """Read. Raises BlockingIOError if `waits` is false and it might have to wait."""
        ...


class Bounds(NamedTuple):
    """Readable offsets of one queue: `[min_offset, max_offset)`."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Picks:
    """Units that a read returns, and the next offset."""

    indices: Sequence[int]
    """Indices of the units, ascending."""
    next_offset: int
    """Offset of the next read."""
    is_removing: bool = False
    """Whether requested records were deleted."""


Choose = Callable[[Sequence[ConsumeQueueUnit], int, int], Picks]
"""Function that chooses from units, given the CommitLog's first byte and its end."""


def first_with_record(appender: Appender, queue: QueueId) -> int:
    """Return the first offset of a queue whose record was not deleted, or that is not written yet.

    Reads some 100 units, or all of them if damaged units mislead the search.

    Raises:
        OSError: the units cannot be read.
    """
    queues = appender.queues
    while True:
        bases = queues.bases.get(queue)
        found = _search_first(queues, queue, appender.log.min_position)
        if queues.bases.get(queue) is bases:  # else a file that was deleted may have misled it
            return found


def _search_first(queues: QueueFiles, queue: QueueId, least: int) -> int:
    """Return the first offset of a queue whose record begins at `least` or later."""

    def is_gone(unit: ConsumeQueueUnit) -> bool:
        return unit.is_filler or (unit.size > 0 and unit.position < least)

    def is_live(offset: int) -> bool:
        unit = queues.unit(queue, offset)
        return not is_gone(unit) or queues.is_lost(queue, offset, unit)

    found = queues.partition_point(queue, is_gone)
    start = queues.first_offset(queue)
    near = [found - back for back in range(1, CHECKED_UNITS)]
    far = [found - (CHECKED_UNITS << power) for power in range(48)]
    is_misled = any(offset >= start and is_live(offset) for offset in near + far)
    if not is_misled and found > start and queues.unit(queue, found - 1).is_filler:
        is_misled = not queues.unit(queue, start).is_filler  # fillers of a repair
    return next(filter(is_live, range(start, found)), found) if is_misled else found


def read_messages(
    appender: Appender,
    queue: QueueId,
    offset: int,
    count: int,
    bytes_max: int,
    *,
    waits: bool = True,
) -> list[StoredMessage]:
    """Read up to `count` messages from `offset` on, of one ConsumeQueue file; at least one.

    Raises:
        OutOfRange: the first was deleted.
        Corrupt: a record is not that of the message.
        BlockingIOError: `waits` is false, and the read might wait, or is large.
        OSError: they cannot be read.
    """
    units = units_from(appender, queue, offset, count, waits=waits)
    if units and appender.queues.is_lost(queue, offset, units[0]):
        raise _lost(appender, queue, offset)
    if not units or units[0].is_filler or units[0].position < appender.log.min_position:
        raise OutOfRange("the message was deleted", str(queue), offset)
    wanted = list(enumerate(_within(units, bytes_max), offset))
    return _records_of(appender, queue, wanted, waits=waits)


def pick_messages(
    appender: Appender,
    queue: QueueId,
    offset: int,
    count: int,
    choose: Choose,
    *,
    waits: bool = True,
) -> tuple[Picks, list[StoredMessage]] | None:
    """Read the messages that `choose` picks of up to `count` units from `offset` on.

    Ends before a deleted or damaged record, unless it is the first. Returns None if no file has the
    units.

    Raises:
        OutOfRange: the first chosen record was deleted meanwhile.
        Corrupt: the first record is not that of the message.
        BlockingIOError, OSError: as `read_messages`.
    """
    units = units_from(appender, queue, offset, count, waits=waits)
    if not units:
        return None
    picks = choose(units, appender.log.min_position, appender.end)
    if picks.is_removing and appender.queues.is_lost(queue, offset, units[0]):
        raise _lost(appender, queue, offset)
    chosen = [(offset + index, units[index]) for index in picks.indices]
    messages = _records_of(appender, queue, chosen, waits=waits)
    if len(messages) < len(chosen):
        taken = len(messages)
        picks = Picks(picks.indices[:taken], chosen[taken][0], picks.is_removing)
    return picks, messages


def units_from(
    appender: Appender, queue: QueueId, offset: int, count: int, *, waits: bool = True
) -> list[ConsumeQueueUnit]:
    """Read up to `count` units from `offset` on, of one ConsumeQueue file.

    Raises:
        BlockingIOError: `waits` is false, and the read might wait, or is large.
        OSError: they cannot be read.
    """
    if not waits and count > HERE_UNITS_MAX:
        raise BlockingIOError(errno.EAGAIN, "many units")
    raw = appender.queues.read(queue, offset, count, waits=waits)
    assert len(raw) % UNIT_BYTES == 0, "whole units are read"
    units = [ConsumeQueueUnit(*fields) for fields in _unpack_units(raw)]
    if min([unit.size for unit in units], default=0) < 0:  # damaged: no record has it
        units = [replace(unit, size=max(unit.size, 0)) for unit in units]
    return units


def _records_of(
    appender: Appender,
    queue: QueueId,
    numbered: Sequence[tuple[int, ConsumeQueueUnit]],
    *,
    waits: bool,
) -> list[StoredMessage]:
    """Read the records of units, each with its queue offset. Adjacent records take one read.

    Ends before a deleted or damaged record, but returns at least one. Errors as `pick_messages`.
    """
    if not waits and sum([unit.size for _, unit in numbered]) > HERE_BYTES_MAX:
        raise BlockingIOError(errno.EAGAIN, "many bytes")
    runs = _runs(numbered, appender.log.file_bytes)
    spans = [(run[0][1].position, sum([unit.size for _, unit in run])) for run in runs]
    messages: list[StoredMessage] = []
    for run, raw in zip(runs, _there(appender, spans, waits=waits), strict=False):
        view, at = memoryview(raw), 0
        for offset, unit in run:
            message = good_record(view[at : at + unit.size], unit.position)
            if message is None or _place_of(message) != (*queue, offset):
                if messages:
                    return messages
                path = str(appender.log.path(appender.log.base_of(unit.position)))
                reason = f"no record of {queue} at offset {offset}: {REPAIR}"
                raise Corrupt(reason, path, unit.position)
            messages.append(message)
            at += unit.size
    return messages


def _lost(appender: Appender, queue: QueueId, offset: int) -> Corrupt:
    queues = appender.queues
    place = offset * UNIT_BYTES
    base = place - place % queues.file_bytes
    reason = f"the unit of {queue} at offset {offset} is lost: {REPAIR}"
    return Corrupt(reason, str(queues.path(queue, base)), place - base)


def _there(appender: Appender, spans: Sequence[tuple[int, int]], *, waits: bool) -> list[bytes]:
    """Read spans up to the first whose file was deleted; at least one."""
    try:
        return appender.log.read_each(spans, waits=waits)
    except OutOfRange:
        if len(spans) == 1:
            raise
    found: list[bytes] = []
    for span in spans:
        try:
            found += appender.log.read_each([span], waits=waits)
        except OutOfRange:
            if not found:
                raise
            break
    return found


def _place_of(message: StoredMessage) -> tuple[str, int, int]:
    return message.topic, message.queue_id, message.queue_offset


def _within(units: list[ConsumeQueueUnit], bytes_max: int) -> list[ConsumeQueueUnit]:
    """Return the first units that fit, and at least one."""
    total = 0
    for count, unit in enumerate(units):
        total += unit.size
        if count and total > bytes_max:
            return units[:count]
    return units


def _runs(
    numbered: Iterable[tuple[int, ConsumeQueueUnit]], file_bytes: int
) -> list[list[tuple[int, ConsumeQueueUnit]]]:
    """Group units whose records are adjacent in one file."""
    runs: list[list[tuple[int, ConsumeQueueUnit]]] = []
    for offset, unit in numbered:
        last = runs[-1][-1][1] if runs else None
        if (
            last is not None
            and unit.position == last.position + last.size
            and (unit.position // file_bytes == last.position // file_bytes)
        ):
            runs[-1].append((offset, unit))
        else:
            runs.append([(offset, unit)])
    return runs


def are_resident(
    appender: Appender, queue: QueueId, offset: int, count: int, estimated_share: float
) -> bool:
    """Whether the records of `count` messages from `offset` on are in the page cache.

    Missing messages do not count. If the first is missing, or a unit points out of the log, the
    result is False. If the kernel does not report residency, RocketMQ's estimate decides, by a
    share of the memory.

    Raises:
        OSError: units cannot be read.
    """
    log, least, end = appender.log, appender.log.min_position, appender.end
    units = units_from(appender, queue, offset, count)
    there = [unit for unit in units if unit.size > 0 and not unit.is_filler]
    if not there or units[0] is not there[0]:
        return False
    if any(not least <= one.position <= end - one.size for one in there):
        return False
    for run in _runs(enumerate(there), log.file_bytes):
        start, (_, last) = run[0][1].position, run[-1]
        answer = log.is_resident(start, last.position + last.size - start)
        if answer is None:
            answer = is_estimated_resident(start, end, estimated_share)
        if not answer:
            return False
    return True


_HEAD_BYTES = layout_of(BORN_HOST_V6).store_host
"""Length of a record's head that includes its store timestamp, in bytes."""
UNITS_AT_ONCE = 256
"""Bisection reads the remaining units at once when so few are left: 5 KiB cost as much as two
units."""
_unpack = ConsumeQueueUnit.LAYOUT.unpack_from


def store_time(
    appender: Appender, queue: QueueId, offset: int, *, waits: bool = True
) -> int | None:
    """Return the store timestamp of one written message, Unix ms; None if it was deleted.

    Raises:
        Corrupt: the record is not that of the message.
        BlockingIOError: `waits` is false, and the read might wait.
        OSError: it cannot be read.
    """
    return _Times(appender, queue, waits=waits).of(offset)


class _Times:
    """Store times of the messages of one queue, by two small reads each. Errors as `store_time`."""

    def __init__(self, appender: Appender, queue: QueueId, *, waits: bool) -> None:
        self._appender = appender
        self._queue = queue
        self._waits = waits
        self._first = 0
        self._units = b""

    def keep_units(self, low: int, high: int) -> None:
        """Read and keep the units of `[low, high)`, as far as one file has them."""
        read = self._appender.queues.read
        self._first, self._units = low, read(self._queue, low, high - low, waits=self._waits)

    def of(self, offset: int) -> int | None:
        """Return the store time of one message; None if it was deleted."""
        at = (offset - self._first) * UNIT_BYTES
        units = self._units
        if not 0 <= at < len(units):
            at, units = 0, self._appender.queues.read(self._queue, offset, 1, waits=self._waits)
            if not units:
                return None
        log = self._appender.log
        unit = ConsumeQueueUnit(*_unpack(units, at))
        position = unit.position
        if self._appender.queues.is_lost(self._queue, offset, unit):
            raise _lost(self._appender, self._queue, offset)
        if not unit.size or unit.is_filler or position < log.min_position:
            return None
        try:
            (raw,) = log.read_each([(position, min(unit.size, _HEAD_BYTES))], waits=self._waits)
        except OutOfRange:
            return None  # its file was deleted meanwhile
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
    """Raise `Unavailable` unless a missing message was deleted by age."""
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
    """Return the offset for a time, in `[min offset, end)`, or `end`.

    Reads a unit and the head of a record for each of some log2(messages) steps, and the last units
    together. Costs some 4 us a step. A message that is deleted meanwhile counts as stored earlier.
    `first` is the minimum offset, if it is known.

    Raises:
        Unavailable: a file is missing.
        Corrupt: a record on the way is not that of its message.
        BlockingIOError: `waits` is false, and the search might wait.
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
