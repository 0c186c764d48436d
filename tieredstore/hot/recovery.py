"""Where a store directory ends, and its ConsumeQueues brought to that end.

R1  The CommitLog ends before the first record that is not whole: magic, lengths, position, the
    checksums of body and record, topic. What follows becomes zeros. Properties have a checksum
    only with `enabledAppendPropCRC`; without, a page of them that never reached the disk is
    noticed by its zeros, for the files are sparse.
R2  A queue's units are those of its records before that end, in order. Units that are missing or
    differ are made anew from the records; units beyond the end become zeros.
R3  Records are looked at from the checkpoint on: what lies before it is durable with its units. A
    Java broker's checkpoint is a time, which says that of all files but those from that time on.
R4  Records of a deleted queue below the position that `config/deletedQueues.json` has for it are
    no messages, and files with units of theirs, which a crash amid the deletion left, go.
R5  What is looked at is written anew before it counts as durable: after a sync that failed, the
    kernel has bytes that the disk lacks, and no later sync would write them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from container.names.queue_id import QueueId
from container.record.blank import BLANK_MAGIC, BlankRecord
from container.record.checksum import record_crc_is_valid
from container.record.layout import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from container.record.message import StoredMessage
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from provider.errors import Corrupt
from tieredstore.hot.checkpoint import Checkpoint
from tieredstore.hot.commit_log import CommitLogWriter
from tieredstore.hot.consume_queues import QueueFiles
from tieredstore.hot.deleted_queues import DeletedQueues
from tieredstore.hot.encoding import tag_code_of

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_" + 4 * "X"
"""A Java broker's topic whose units hold a time of delivery in place of a tags code."""
PAGE_BYTES = 4096
"""What reaches a disk wholly or not at all."""
_WITHOUT_UNIT = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
_pack_unit = ConsumeQueueUnit.LAYOUT.pack
_unpack_units = ConsumeQueueUnit.LAYOUT.iter_unpack


class QueueJump(Exception):
    """A record's queue offset is not the next one: units before it are missing."""


@dataclass(slots=True)
class LogEnd:
    """Where the next message goes."""

    position: int = 0
    next_offsets: dict[QueueId, int] = field(default_factory=dict[QueueId, int])
    store_timestamp: int = 0
    """Of the last record that was looked at, Unix ms; 0: of none."""
    messages_scanned: int = 0
    """How many records were looked at."""


@dataclass(slots=True)
class _Scan:
    """The records from a position on."""

    end: int
    units: dict[QueueId, tuple[int, bytearray]] = field(
        default_factory=dict[QueueId, tuple[int, bytearray]]
    )
    """First offset and units of each queue."""
    store_timestamp: int = 0
    messages: int = 0
    deleted: DeletedQueues | None = None

    def note(self, message: StoredMessage, position: int) -> None:
        self.messages += 1
        self.store_timestamp = message.store_timestamp
        self.end = position + message.size
        if message.sys_flag & TRANSACTION_MASK in _WITHOUT_UNIT:
            return
        queue = QueueId(message.topic, message.queue_id)
        if self.deleted is not None and self.deleted.has_record(queue, position):
            return
        first, units = self.units.setdefault(queue, (message.queue_offset, bytearray()))
        if message.queue_offset != first + len(units) // UNIT_BYTES:
            raise QueueJump(f"offset {message.queue_offset} of {queue} at {position}")
        units += _pack_unit(position, message.size, tag_code_of(message.tags))


def recover(
    log: CommitLogWriter,
    queues: QueueFiles,
    *,
    was_closed: bool,
    checkpoint: Checkpoint,
    deleted: DeletedQueues | None = None,
) -> LogEnd:
    """Find the end, cut what is torn, and bring the ConsumeQueues there. Durable afterwards.

    After a clean end it reads some 20 units a queue and what follows the last one's record;
    otherwise each record from the checkpoint on, at some 5 us.

    Raises:
        Corrupt: two records contradict each other; the path and position are the second one's.
        OSError: files cannot be read or written; nothing is lost, and the next attempt goes on.
    """
    start = _start(log, queues, was_closed=was_closed, checkpoint=checkpoint)
    try:
        known, scan = _scanned(log, queues, start, deleted)
    except QueueJump:
        start = (
            log.min_position
        )  # ConsumeQueue files are missing: make their units from all records
        try:
            known, scan = _scanned(log, queues, start, deleted)
        except QueueJump as jump:
            raise Corrupt(f"queue offsets contradict: {jump}", str(log.directory), start) from jump
    log.cut(scan.end)
    if checkpoint.durable_end >= 0:
        log.rewrite(start, scan.end)
    end = LogEnd(scan.end, known, scan.store_timestamp, scan.messages)
    for queue, (first, units) in scan.units.items():
        _bring(queues, queue, known.get(queue, 0), first, units)
        end.next_offsets[queue] = first + len(units) // UNIT_BYTES
    for queue, next_offset in end.next_offsets.items():
        queues.undo(queue, next_offset)
    log.sync(start, max(scan.end, start + 1))
    queues.sync()
    return end


def _start(
    log: CommitLogWriter, queues: QueueFiles, *, was_closed: bool, checkpoint: Checkpoint
) -> int:
    """Where to begin to look at records: R3."""
    if was_closed:
        end = _end_by_units(log, queues)
        if end is not None:
            has_all = end != checkpoint.durable_end or len(queues.bases) == checkpoint.queues
            return end if has_all else log.min_position
    elif log.min_position <= checkpoint.durable_end <= log.end:
        return checkpoint.durable_end
    return _rescan_base(log, checkpoint)


def finish_deletion(queues: QueueFiles, deleted: DeletedQueues) -> set[QueueId]:
    """Delete the files of deleted queues that a crash left: R4. Returns those queues.

    Reads some 20 units for each deleted queue that has files.

    Raises:
        OSError: some cannot be read or deleted.
    """
    known = queues.bases.keys() & deleted.keys()
    left = {queue for queue in known if _is_left(queues, queue, deleted)}
    queues.drop(left)
    queues.remove_empty({queue.topic for queue in deleted})
    return left


def _is_left(queues: QueueFiles, queue: QueueId, deleted: DeletedQueues) -> bool:
    """Whether files have no message of a queue that was made again, whose units are above."""
    first = queues.partition_point(queue, lambda unit: unit.is_filler)
    unit = queues.unit(queue, first)
    return unit.size <= 0 or deleted.has_record(queue, unit.position)


def _scanned(
    log: CommitLogWriter, queues: QueueFiles, start: int, deleted: DeletedQueues | None
) -> tuple[dict[QueueId, int], _Scan]:
    """Next offsets by the units of records before `start`, and the records after it."""
    known = {queue: _next_offset(log, queues, queue, start) for queue in queues.bases}
    scan = _scan(log, start, deleted)
    for queue, (first, _) in scan.units.items():
        if first < known.get(queue, 0):
            raise QueueJump(f"offset {first} of {queue} after {known[queue]}")
        expected = known.get(queue, _beginning_of(queue, deleted))
        if first > expected and start > log.min_position:
            raise QueueJump(f"offset {first} of {queue} after {expected}")
    return known, scan


def _next_offset(log: CommitLogWriter, queues: QueueFiles, queue: QueueId, start: int) -> int:
    """The offset after the last unit whose record lies before `start`; fillers count.

    Units of later records may be torn, and say anything: so the last one is compared with its
    record, and with those before it until one is right.
    """
    first = queues.first_offset(queue)
    end = queues.partition_point(queue, lambda unit: unit.size > 0 and 0 <= unit.position < start)
    while end > first and not _is_good_unit(log, queues, queue, end - 1, start):
        end -= 1
    return end


def _is_good_unit(
    log: CommitLogWriter, queues: QueueFiles, queue: QueueId, offset: int, start: int
) -> bool:
    unit = queues.unit(queue, offset)
    if unit.is_filler:
        return True
    if unit.size <= 0 or not 0 <= unit.position < start:
        return False
    if unit.position < log.min_position:  # its record was deleted
        return not offset or unit.position > queues.unit(queue, offset - 1).position
    message = good_record(memoryview(log.read(unit.position, unit.size)), unit.position)
    place = (*queue, offset)
    return message is not None and place == (message.topic, message.queue_id, message.queue_offset)


def _beginning_of(queue: QueueId, deleted: DeletedQueues | None) -> int:
    """The offset of the first message of a queue that has no files yet."""
    return 0 if deleted is None or queue not in deleted else deleted[queue].next_offset


def _end_by_units(log: CommitLogWriter, queues: QueueFiles) -> int | None:
    """Where the record of the last unit of all ends; None where a last unit is not right."""
    end = log.min_position
    for queue in queues.bases:
        count = queues.partition_point(queue, lambda unit: unit.size > 0 and unit.position >= 0)
        if count == queues.first_offset(queue):
            continue
        if not _is_good_unit(log, queues, queue, count - 1, log.end):
            return None
        unit = queues.unit(queue, count - 1)
        if not unit.is_filler:
            end = max(end, unit.position + unit.size)
    return end


def _rescan_base(log: CommitLogWriter, checkpoint: Checkpoint) -> int:
    """The newest file whose first message is not younger than the checkpoint; else the oldest."""
    for base in reversed(log.bases):
        with log.mapped(base) as view:
            message = good_record(view, base)
        if message is not None and message.store_timestamp <= checkpoint.rescan_before:
            return base
    return log.min_position


def _scan(log: CommitLogWriter, start: int, deleted: DeletedQueues | None) -> _Scan:
    scan = _Scan(start, deleted=deleted)
    place = start
    for base in [base for base in log.bases if base + log.file_bytes > start]:
        if place != max(base, start):
            break  # the file before ended early, or is missing
        with log.mapped(base) as view:
            for message, position in _records(view, base, place):
                scan.note(message, position)
                place = scan.end
            if _has_blank(view, place - base):
                scan.end = place = base + log.file_bytes
    return scan


def _records(view: memoryview, base: int, place: int) -> Iterator[tuple[StoredMessage, int]]:
    while place < base + len(view):
        message = good_record(view[place - base :], place)
        if message is None:
            return
        yield message, place
        place += message.size


def good_record(view: memoryview, position: int) -> StoredMessage | None:
    """The record that begins with `view`, if it is whole and belongs at `position`; else None."""
    if len(view) < RECORD_BYTES_MIN:
        return None
    size, magic = BlankRecord.LAYOUT.unpack_from(view)
    if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= len(view):
        return None
    try:
        message = StoredMessage.decode(view[:size], path="", position=position)
    except Corrupt:
        return None
    if message.physical_offset != position or not message.body_is_intact:
        return None
    is_good = record_crc_is_valid(message.encode()) and not _lacks_page(message, position)
    return message if is_good else None


def _lacks_page(message: StoredMessage, position: int) -> bool:
    """Whether a page that begins in the properties, or their end, is zeros.

    What is lost before them shows in the lengths. Such properties are refused by `prepare`.
    """
    raw, properties_bytes = message.encode(), len(message.properties)
    if properties_bytes and not raw[-1]:
        return True
    end = position + len(raw)
    first = -(-(end - properties_bytes) // PAGE_BYTES) * PAGE_BYTES
    if first >= end:  # as nearly always
        return False
    pages = range(first - position, len(raw), PAGE_BYTES)
    return any(not any(raw[at : at + PAGE_BYTES]) for at in pages)


def _has_blank(view: memoryview, at: int) -> bool:
    """Whether a blank record takes the rest of a file."""
    if len(view) - at < BlankRecord.SIZE:
        return False
    size, magic = BlankRecord.LAYOUT.unpack_from(view, at)
    return magic == BLANK_MAGIC and size == len(view) - at


def _bring(queues: QueueFiles, queue: QueueId, known: int, first: int, units: bytearray) -> None:
    """Write the units of scanned records."""
    if first > known:
        queues.begin(queue, first)
    if queue.topic == SCHEDULE_TOPIC:
        there = b""
        while len(there) < len(units) and (
            more := queues.read(queue, first + len(there) // UNIT_BYTES, len(units))
        ):
            there += more
        units = _with_codes_of(units, there[: len(units)].ljust(len(units), b"\0"))
    queues.write(queue, first, units)
    queues.touch(queue)


def _with_codes_of(units: bytearray, there: bytes) -> bytearray:
    """The units, with the codes of those that are there and say the same of the record."""
    merged = bytearray()
    for mine, other in zip(_unpack_units(bytes(units)), _unpack_units(there), strict=True):
        merged += _pack_unit(*(other if mine[:2] == other[:2] else mine))
    return merged
