"""Recovery of a store directory: finds the end of the log and brings the ConsumeQueues to it.

R1  Below the durable end (`durableEnds`, else the `checkpoint` of an older version) nothing is
    truncated, zeroed or deleted. Bytes without a sound record there are damage: their messages keep
    their offsets, and reading them raises `Corrupt`.
R2  Above it the CommitLog ends before the first record that is not whole: magic, lengths, position,
    checksums of body and record, topic. The rest is zeroed, and the truncation is logged. If sound
    records follow, the bytes are first copied to a file of their own. Properties have a checksum
    only with `enabledAppendPropCRC`. Without it, a page of them that never reached the disk is
    detected by its zeros, for the files are sparse.
R3  A queue's units are those of its records before that end, in order. Units that are missing or
    differ are rebuilt from the records. Units beyond the end are zeroed.
R4  Records are scanned from the durable end on. If the files of a queue contradict `durableEnds` (a
    hole, a missing or short file, a last unit that is not the record's or a filler that it does not
    know), all records are scanned. A next offset is never lower than in `durableEnds`. A Java
    broker's checkpoint is a time, which covers all files but those from that time on.
R5  Records of a deleted queue below its position in `config/deletedQueues.json` are not messages.
    Files with units of them, left by a crash amid the deletion, are deleted.
R6  Bytes scanned above the durable end are written again before they count as durable: after a
    failed sync the kernel has bytes that the disk lacks, and no later sync would write them.
R7  Without a whole copy of `durableEnds` only a sound log is continued. It was there once: another
    program that ended cleanly, or damage of both copies, is the reason. Where records or units are
    damaged as well, the next offsets are not known, and the start is refused.
R8  Fillers in place of units that are lost are entered in `durableEnds` before they are written: a
    start that meets a filler without that knows that the file is damaged.
R9  ConsumeQueues of a cleanly closed store that go on after the CommitLog's end show that the log
    is an older copy, with its `durableEnds` and `checkpoint`. The log was durable up to their end.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from container.names.queue_id import QueueId
from container.names.rocketmq import INT64_MAX
from container.record.header import RECORD_BYTES_MIN
from container.record.unit import FILLER_SIZE, UNIT_BYTES, ConsumeQueueUnit
from provider.errors import Corrupt
from tieredstore.hot.encoding import SCHEDULE_TOPIC
from tieredstore.hot.log.commit_log import PUT_BACK, REPAIR, CommitLogWriter
from tieredstore.hot.log.consume_queues import FILLER, QueueFiles
from tieredstore.hot.log.deleted_queues import DeletedQueues
from tieredstore.hot.log.durable_ends import Checkpoint, DurableEnds
from tieredstore.hot.log.record_scan import (
    Damage,
    OffsetsContradict,
    Scan,
    Truncation,
    good_record,
    scan_file,
    scan_log,
    truncate,
)

CHECKED_UNITS = 1000
"""Maximum of units of deleted records whose order a start verifies in each queue."""
LOST_BYTES_MAX = 1 << 40
"""Distance from the CommitLog's end within which units may point to lost files."""
LOGGED_MAX = 10
"""Maximum of damaged places that are logged one by one."""
_pack_unit = ConsumeQueueUnit.LAYOUT.pack
_unpack_units = ConsumeQueueUnit.LAYOUT.iter_unpack
LOGGER = logging.getLogger("tieredstore.hot")


@dataclass(slots=True)
class LogEnd:
    """End of the log after recovery."""

    position: int = 0
    next_offsets: dict[QueueId, int] = field(default_factory=dict[QueueId, int])
    store_timestamp: int = 0
    """Store timestamp of the last scanned record, Unix ms; 0: none was scanned."""
    messages_scanned: int = 0
    """Number of scanned records."""
    damages: list[Damage] = field(default_factory=list[Damage])
    """Damage below the durable end that the start met. There may be more."""
    truncation: Truncation | None = None
    """Truncation of the tail; None if there was none."""
    lost_end: int = 0
    """Position before which the whole CommitLog is lost, with all its files; 0: it exists."""


@dataclass(frozen=True, slots=True)
class Directory:
    """State of the directory besides the files of the log and of the queues."""

    was_closed: bool
    checkpoint: Checkpoint
    durable: DurableEnds | None = None
    """Content of `durableEnds`; None if there is no such file."""
    deleted: DeletedQueues | None = None
    aside: Path = Path("truncated")
    """Directory for bytes that are truncated although sound records follow them."""
    has_lost_ends: bool = False
    """Whether there are copies of `durableEnds`, and none of them is whole."""
    queues_end: int = -1
    """End of the last record that units point to, if that is after all this: R9. -1: unknown."""

    @property
    def durable_end(self) -> int:
        """Position before which records and units were durable; -1 if it is unknown."""
        stated = -1 if self.durable is None else self.durable.position
        return max(self.checkpoint.durable_end, stated, self.queues_end)

    @property
    def is_lacking(self) -> bool:
        """Whether `durableEnds` existed, and no copy of it is whole."""
        is_lost = self.checkpoint.has_ends or self.has_lost_ends
        return self.durable is None and is_lost and not self.checkpoint.is_foreign

    def next_offsets(self) -> dict[QueueId, int]:
        """Return next offsets of the queues at `durable.position`, without queues deleted since."""
        assert self.durable is not None, "the caller looked"
        position, deleted = self.durable.position, self.deleted
        return {
            queue: offset
            for queue, offset in self.durable.next_offsets.items()
            if deleted is None or queue not in deleted or deleted[queue].position < position
        }


@dataclass(slots=True)
class _Found:
    """Result of the scan of a directory."""

    start: int
    """Position at which the scan began."""
    known: dict[QueueId, int]
    """Next offset of each queue at `start`."""
    scan: Scan
    begun: dict[QueueId, int] = field(default_factory=dict[QueueId, int])
    """Next offset of each queue whose files are begun again."""

    def next_offsets(self) -> dict[QueueId, int]:
        """Return the next offset of each queue after the scan."""
        ends = {
            queue: first + len(units) // UNIT_BYTES
            for queue, (first, units) in self.scan.units.items()
        }
        return self.known | ends


def recover(
    log: CommitLogWriter,
    queues: QueueFiles,
    found: Directory,
    *,
    begin: Callable[[], None],
    enter: Callable[[DurableEnds], None],
    rescan: bool = False,
) -> LogEnd:
    """Find the end, truncate a torn tail, and bring the ConsumeQueues to the end.

    Durable on return. Reads two units and a record for each queue, and the records after the
    durable end, at some 5 us each. Reads all records with `rescan`, or if queues contradict the
    durable state. `begin` marks the store as open, before the first change: a start that is refused
    leaves it closed, for R9. `enter` makes `durableEnds` durable, with fillers that are not yet
    written, and with what R9 found.

    Raises:
        Corrupt: two records contradict each other; path and position are the second one's. Or a
            file below the durable end is missing. Or the log is damaged, and so are both copies of
            `durableEnds`.
        OSError: files cannot be read or written; nothing is lost, and the next attempt continues.
    """
    is_certain = not found.is_lacking
    if not fits(log, found):
        is_certain = not found.was_closed  # another program that ended cleanly left a sound log
        found = replace(found, durable=None)
    know_fillers(queues, found)
    found = with_queues_end(log, queues, found)
    if not log.bases and (lost := _lost_end(queues, found, log.file_bytes)) > 0:
        begin()
        return _after_lost_log(log, queues, found, lost)
    if found.durable_end > log.end:
        raise Corrupt(
            f"the file is missing, though the log was durable up to {found.durable_end}:"
            f" {PUT_BACK}",
            str(log.path(log.end)),
            log.end,
        )
    what = _scanned(log, queues, found, rescan=rescan, is_certain=is_certain)
    scan, first = what.scan, max(what.start, found.durable_end)
    durable = found.durable
    if durable is not None and found.queues_end >= 0:
        durable = replace(durable, position=scan.end, next_offsets=what.next_offsets())
        enter(durable)
    begin()
    truncation = truncate(log, scan.end, aside=found.aside)
    if found.durable_end >= 0 or found.has_lost_ends:
        log.rewrite(first, scan.end)
    _enter_fillers(queues, what, durable, enter)
    for queue, offset in what.begun.items():
        queues.begin(queue, offset)
    end = LogEnd(scan.end, what.known, scan.store_timestamp, scan.messages, scan.damages)
    _bring_all(queues, scan, end.next_offsets)
    end.truncation = _without_rest(log, queues, end, truncation)
    log.sync_files(first, max(scan.end, first + 1))
    queues.sync()
    queues.settle()
    _settle_fillers(queues, end.next_offsets)
    _report(end)
    _report_files(log, found, end)
    return end


def with_queues_end(log: CommitLogWriter, queues: QueueFiles, found: Directory) -> Directory:
    """Return `found` with the end of the queues if these go on after the durable end: R9.

    Reads one unit for each queue, and some 20 for each that was deleted or begun since.
    """
    if found.durable is None or not found.was_closed or found.checkpoint.is_foreign:
        return found  # a broker leaves units beyond the end of its log after a crash
    end, known = found.durable_end, found.next_offsets()
    is_older = found.durable.position < end  # a copy of a store with many queues that was open
    for queue in queues.bases:
        after = -1 if is_older else known.get(queue, -1)
        if after < 0:
            after = queues.partition_point(
                queue, lambda unit: unit.size > 0 and unit.position < end
            )
        unit = queues.unit_if_there(queue, after)
        while unit.is_filler:
            after += 1
            unit = queues.unit_if_there(queue, after)
        if end <= unit.position and _can_be_in_lost_file(log, unit):
            return replace(found, queues_end=_lost_end(queues, found, log.file_bytes))
    return found


def _can_be_in_lost_file(log: CommitLogWriter, unit: ConsumeQueueUnit) -> bool:
    """Whether a unit can point to a record of the log, or of files that are lost after its end.

    The files between may have records of deleted queues only. Rot does not look like that.
    """
    place = unit.position % log.file_bytes
    is_size = RECORD_BYTES_MIN <= unit.size <= log.file_bytes - place
    return is_size and unit.position < log.end + LOST_BYTES_MAX


def know_fillers(queues: QueueFiles, found: Directory) -> None:
    """Set the fillers that queues may have. An older version does not record them: any may be."""
    if found.durable is None or found.durable.filled is None:
        queues.filled = dict.fromkeys(queues.bases, INT64_MAX)
    else:
        queues.filled = dict(found.durable.filled)


def _enter_fillers(
    queues: QueueFiles,
    what: _Found,
    durable: DurableEnds | None,
    enter: Callable[[DurableEnds], None],
) -> None:
    """Enter the fillers that the queues will have, before they are written: R8."""
    for queue, (first, units) in what.scan.units.items():
        end = first if first > what.known.get(queue, 0) else 0
        for offset in what.scan.filled.get(queue, ()):
            at = (offset - first) * UNIT_BYTES
            if bytes(units[at : at + UNIT_BYTES]) == FILLER:
                end = offset + 1
        if end > queues.filled.get(queue, 0):
            queues.filled[queue] = end
    if durable is not None and durable.filled is not None and queues.filled != durable.filled:
        enter(replace(durable, filled=dict(queues.filled)))


def _settle_fillers(queues: QueueFiles, next_offsets: Mapping[QueueId, int]) -> None:
    """Forget fillers that are not in the files any more, or that a later message must not be."""
    queues.filled = {
        queue: min(offset, next_offsets.get(queue, 0))
        for queue, offset in queues.filled.items()
        if min(offset, next_offsets.get(queue, 0)) > queues.first_offset(queue)
    }


def fits(log: CommitLogWriter, found: Directory) -> bool:
    """Whether `durableEnds` belongs to this log: no other program has continued below its position.

    If another program may have written the `checkpoint` since, the records of one file must reach
    the position exactly.
    """
    if found.durable is None or not found.checkpoint.is_foreign or not log.bases:
        return True
    end = found.durable.position
    base = log.base_of(max(end - 1, 0))
    if base not in log.bases:
        return False
    reached = base
    for one in scan_file(log, base, base, durable_end=end):
        if not isinstance(one, Damage) and one[1] < end:
            message, position = one
            reached = base + log.file_bytes if message is None else position + message.size
    return reached == end


def _scanned(
    log: CommitLogWriter, queues: QueueFiles, found: Directory, *, rescan: bool, is_certain: bool
) -> _Found:
    """Scan the records after the durable end, or all of them: R4.

    `is_certain`: False refuses a log that is not sound: R7.
    """
    if not is_certain:
        return _by_all_records(log, queues, found, {}, is_certain=False)
    if found.durable is None:
        if rescan or queues.irregular:
            return _by_all_records(log, queues, found, {})
        return _by_units(log, queues, found)
    start, known = found.durable.position, found.next_offsets()
    damages = _damages_of(log, queues, known, start)
    has_extra = _has_extra_filler(queues, known, are_known=found.durable.filled is not None)
    if rescan or damages is None or has_extra or start < log.min_position:
        return _by_all_records(log, queues, found, known)
    for queue in queues.bases.keys() - known.keys():  # begun, without a message yet
        if begin := _next_offset(log, queues, queue, start):
            known[queue] = begin
            if queues.unit(queue, begin - 1).is_filler:
                queues.filled[queue] = begin
    try:
        scan = scan_log(log, Scan(start, queues, found.durable_end, found.deleted, known))
    except OffsetsContradict:
        # A power failure may have removed the first file of a queue that was begun.
        return _by_all_records(log, queues, found, found.next_offsets())
    for queue in queues.bases if scan.damages else ():  # after `durableEnds`, before `checkpoint`
        scan.keep_damaged(queue, known.get(queue, 0))
    scan.damages[:0] = damages
    return _Found(start, known, scan)


def _by_all_records(
    log: CommitLogWriter,
    queues: QueueFiles,
    found: Directory,
    known: dict[QueueId, int],
    *,
    is_certain: bool = True,
) -> _Found:
    """Scan all records of the log. `known` has the queues that lack some.

    Raises:
        Corrupt: two records contradict each other. Or `is_certain` is false, and the log is not
            sound.
    """
    start = log.min_position
    scan = Scan(start, queues, found.durable_end, found.deleted)
    if found.durable is not None and found.durable.position >= start:
        scan.known, scan.certain = known, found.durable.position
    try:
        scan_log(log, scan)
    except OffsetsContradict as error:
        raise Corrupt(
            f"queue offsets contradict: {error}: {REPAIR}", str(log.directory), start
        ) from error
    if not is_certain:
        _refuse_unsound(log, queues, found, scan)
    if scan.spans_durable_end:  # another program continued amid the durable records
        known = {}
    before: dict[QueueId, int] = {}
    begun: dict[QueueId, int] = {}
    for queue in queues.bases.keys() | known.keys() | scan.units.keys():
        by_units = _next_offset(log, queues, queue, start)
        scan.keep_damaged(queue, by_units)
        if queue in scan.units:
            scan.fill(queue, known.get(queue, 0))
            first, _ = scan.units[queue]
            is_whole = queue not in queues.irregular and first >= queues.first_offset(queue)
            before[queue] = min(by_units, first) if is_whole else 0
        else:
            before[queue] = max(by_units, known.get(queue, 0))
            if before[queue] > by_units or queue in queues.irregular:
                begun[queue] = before[queue]
        first, _ = scan.units.get(queue, (before[queue], b""))
        queues.filled[queue] = max(first, queues.filled.get(queue, 0))  # no record lies before it
    return _Found(start, before, scan, begun)


def _refuse_unsound(log: CommitLogWriter, queues: QueueFiles, found: Directory, scan: Scan) -> None:
    """Refuse a log that may lack durable records, and whose `durableEnds` are lost: R7.

    Raises:
        Corrupt: bytes or units without a sound record are there, or a queue is missing.
    """
    end = found.durable_end
    lacks = bool(scan.damages) or bool(scan.filled and not scan.placeholders)
    lacks |= end < 0 and log.data_end(scan.end) > scan.end
    lacks |= len(queues.bases.keys() | scan.units.keys()) < found.checkpoint.queues
    for queue in () if lacks else queues.bases:
        first, units = scan.units.get(queue, (_written(queues, queue), b""))
        after = first + len(units) // UNIT_BYTES
        lacks |= queue in queues.irregular and queue not in scan.units
        position = queues.unit_if_there(queue, after).position
        lacks |= queues.data_end(queue, after) > after and (end < 0 or 0 < position < end)
    if lacks:
        at = scan.damages[0].position if scan.damages else scan.end
        raise Corrupt(
            "the hot log is damaged, and so are durableEnds and durableEnds.copy, so that the next"
            f" offsets are not known: {PUT_BACK}",
            str(log.path(log.base_of(at))),
            at,
        )
    LOGGER.warning(
        "durableEnds and durableEnds.copy of the hot log %s are damaged or missing: they are made"
        " again from its records, all of which are sound",
        log.directory,
    )


def _by_units(log: CommitLogWriter, queues: QueueFiles, found: Directory) -> _Found:
    """Scan the records after those that units and the `checkpoint` cover, without `durableEnds`."""
    start = _start(log, queues, found)
    if start is None:
        return _by_all_records(log, queues, found, {})
    known = {queue: _next_offset(log, queues, queue, start) for queue in queues.bases}
    if any(_is_next_below(queues, queue, known[queue], found.durable_end) for queue in known):
        return _by_all_records(log, queues, found, {})  # the record of that unit is damaged
    deleted = found.deleted
    try:
        scan = scan_log(log, Scan(start, queues, found.durable_end, deleted))
    except OffsetsContradict:
        return _by_all_records(log, queues, found, {})
    for queue, (first, _) in scan.units.items():
        expected = known.get(queue, _beginning_of(queue, deleted))
        if first < known.get(queue, 0) or (first > expected and start > log.min_position):
            return _by_all_records(log, queues, found, {})
    return _Found(start, known, scan)


def _is_next_below(queues: QueueFiles, queue: QueueId, offset: int, end: int) -> bool:
    """Whether the unit at `offset` points to a record before `end`."""
    unit = queues.unit_if_there(queue, offset)
    return unit.size > 0 and not unit.is_filler and 0 <= unit.position < end


def _start(log: CommitLogWriter, queues: QueueFiles, found: Directory) -> int | None:
    """Return the position at which a scan of records begins; None: scan all of them."""
    checkpoint = found.checkpoint
    if found.was_closed:
        end = _end_by_units(log, queues)
        if end is None and checkpoint.durable_end >= 0:
            return None
        if end is not None:
            has_all = end != checkpoint.durable_end or len(queues.bases) == checkpoint.queues
            return end if has_all else None
    elif log.min_position <= checkpoint.durable_end <= log.end:
        return checkpoint.durable_end
    return _rescan_base(log, checkpoint)


def _damages_of(
    log: CommitLogWriter, queues: QueueFiles, known: dict[QueueId, int], end: int
) -> list[Damage] | None:
    """Return damaged records that last units point to; None if queue files contradict `known`."""
    if queues.irregular:
        return None
    files: dict[int, list[Damage]] = {}
    damages: set[Damage] = set()
    for queue in sorted(queues.bases.keys() | known.keys()):
        last = known.get(queue, 0) - 1
        if last < 0:
            unit = queues.unit(queue, queues.first_offset(queue))
            if unit.size > 0 and not unit.is_filler and unit.position < end:
                return None
            continue
        if _is_live(log, queues, queue) or last < queues.first_offset(queue):
            return None
        if _hides_messages(log, queues, queue):
            return None
        if _is_good_unit(log, queues, queue, last, end):
            continue
        damage = _damage_of(log, queues, queues.unit(queue, last), end, files)
        if damage is None:
            return None
        damages.add(damage)
    return sorted(damages, key=lambda one: one.position)


def _has_extra_filler(queues: QueueFiles, known: Mapping[QueueId, int], *, are_known: bool) -> bool:
    """Whether the last unit of a queue is an unknown filler, or one follows the known ones."""
    for queue, end in known.items():
        filled = queues.filled.get(queue, 0) if are_known else end - 1
        for offset in {filled, end - 1}:
            if filled <= offset < end and queues.unit_if_there(queue, offset).is_filler:
                return True
    return False


def _is_live(log: CommitLogWriter, queues: QueueFiles, queue: QueueId) -> bool:
    """Whether the files begin above 0 with an existing message: an older file was deleted."""
    first = queues.first_offset(queue)
    if not first:
        return False
    unit = queues.unit(queue, first)
    return not unit.is_filler and unit.position >= log.min_position


def _hides_messages(log: CommitLogWriter, queues: QueueFiles, queue: QueueId) -> bool:
    """Whether units of deleted records are out of order: existing records may be theirs.

    Reads some 20 units, and the last of those before the log.
    """
    if queues.unit(queue, queues.first_offset(queue)).position >= log.min_position:
        return False
    end = queues.partition_point(queue, lambda unit: unit.position < log.min_position)
    file_units = queues.file_bytes // UNIT_BYTES
    start = max(end - CHECKED_UNITS, (end - 1) // file_units * file_units, 0)
    units = _unpack_units(queues.read(queue, start, end - start))
    positions = [position for position, size, _ in units if size != FILLER_SIZE]
    return any(one >= other for one, other in pairwise(positions))


def _damage_of(
    log: CommitLogWriter,
    queues: QueueFiles,
    unit: ConsumeQueueUnit,
    end: int,
    files: dict[int, list[Damage]],
) -> Damage | None:
    """Return the damage of the record that a unit correctly points to; None if the unit is wrong.

    Each file is scanned once.
    """
    if unit.size <= 0 or not log.min_position <= unit.position < end:
        return None
    position, base = unit.position, log.base_of(unit.position)
    message = good_record(memoryview(log.read(position, unit.size)), position)
    if message is not None:  # of another queue or offset, which have no checksum
        other = queues.unit_if_there(QueueId(message.topic, message.queue_id), message.queue_offset)
        is_other = (other.position, other.size) == (position, unit.size)
        return None if is_other else Damage(str(log.path(base)), position, position + unit.size)
    if base not in files:
        found = scan_file(log, base, base, durable_end=end)
        files[base] = [one for one in found if isinstance(one, Damage)]
    return next((one for one in files[base] if one.position <= position < one.end), None)


def _lost_end(queues: QueueFiles, found: Directory, file_bytes: int) -> int:
    """Return the end of a log without files; 0 if it had no message."""
    end = max(found.durable_end, 0)
    for queue in queues.bases:
        count = _written(queues, queue)
        unit = queues.unit(queue, count - 1) if count else ConsumeQueueUnit(0, 0, 0)
        if 0 < unit.size <= file_bytes:  # else it is torn, or a filler
            end = max(end, unit.position + unit.size)
    return end


def _written(queues: QueueFiles, queue: QueueId) -> int:
    """Return the offset after a queue's last unit."""
    return queues.partition_point(queue, lambda unit: unit.size > 0 and unit.position >= 0)


def _after_lost_log(
    log: CommitLogWriter, queues: QueueFiles, found: Directory, lost_end: int
) -> LogEnd:
    """Continue after a log that is lost with all its files, as if its messages had expired."""
    position = -(-lost_end // log.file_bytes) * log.file_bytes
    known = found.next_offsets() if found.durable is not None else {}
    for queue in sorted(queues.bases.keys() | known.keys()):
        written = _written(queues, queue)
        known[queue] = max(known.get(queue, 0), written)
        if written < known[queue] or queue in queues.irregular:
            queues.begin(queue, known[queue])
    log.begin(position)
    queues.sync()
    queues.settle()
    LOGGER.warning(
        "the CommitLog %s is lost with all its files, up to position %d: its messages are gone from"
        " the hot log, and %d queues go on at their next offsets",
        log.directory,
        lost_end,
        len(known),
    )
    return LogEnd(position, known, lost_end=lost_end)


def finish_deletion(queues: QueueFiles, deleted: DeletedQueues) -> set[QueueId]:
    """Delete the files of deleted queues that a crash left: R5. Return those queues.

    Reads some 20 units for each deleted queue that has files.

    Raises:
        OSError: some cannot be read or deleted.
    """
    known = queues.bases.keys() & deleted.keys()
    left = {queue for queue in known if is_left(queues, queue, deleted)}
    queues.drop(left)
    queues.remove_empty({queue.topic for queue in deleted})
    return left


def is_left(queues: QueueFiles, queue: QueueId, deleted: DeletedQueues) -> bool:
    """Whether files hold no message of a recreated queue, whose units are above the old ones."""
    first = queues.partition_point(queue, lambda unit: unit.is_filler)
    unit = queues.unit(queue, first)
    return unit.size <= 0 or deleted.has_record(queue, unit.position)


def _beginning_of(queue: QueueId, deleted: DeletedQueues | None) -> int:
    """Return the offset of the first message of a queue without files."""
    return 0 if deleted is None or queue not in deleted else deleted[queue].next_offset


def _end_by_units(log: CommitLogWriter, queues: QueueFiles) -> int | None:
    """Return the end of the record of the overall last unit; None if a last unit is wrong."""
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


def _next_offset(log: CommitLogWriter, queues: QueueFiles, queue: QueueId, start: int) -> int:
    """Return the offset after the last unit whose record lies before `start`. Fillers count.

    Units of later records may be torn and hold any bytes. So units are compared with their records,
    from the last one back, until one is right.
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


def _rescan_base(log: CommitLogWriter, checkpoint: Checkpoint) -> int:
    """Return the newest file whose first message is not after `rescan_before`, else the oldest."""
    for base in reversed(log.bases):
        with log.mapped(base) as view:
            message = good_record(view, base)
        if message is not None and message.store_timestamp <= checkpoint.rescan_before:
            return base
    return log.min_position


def _bring_all(queues: QueueFiles, scan: Scan, next_offsets: dict[QueueId, int]) -> None:
    """Write the units of scanned records. Update `next_offsets`."""
    for queue, (first, units) in scan.units.items():
        known = next_offsets.get(queue, 0)
        if first > known > 0:
            queues.fill(queue, known, first)
        elif first > known:
            queues.begin(queue, first)
        if queue.topic == SCHEDULE_TOPIC:
            there = b""
            while len(there) < len(units) and (
                more := queues.read(queue, first + len(there) // UNIT_BYTES, len(units))
            ):
                there += more
            there = there[: len(units)].ljust(len(units), b"\0")
            queues.write(queue, first, with_codes_of(units, there))
        else:
            queues.write(queue, first, units)
        queues.touch(queue)
        next_offsets[queue] = first + len(units) // UNIT_BYTES


def _without_rest(
    log: CommitLogWriter, queues: QueueFiles, end: LogEnd, truncation: Truncation | None
) -> Truncation | None:
    """Zero the units beyond the end. Return the truncation with their offsets."""
    for queue in list(queues.bases.keys() | end.next_offsets.keys()):
        next_offset = end.next_offsets.get(queue, 0)
        dropped = queues.undo(queue, next_offset)
        if dropped > next_offset:
            if truncation is None:
                truncation = Truncation(str(log.path(log.base_of(end.position))), end.position, 0)
            truncation.offsets[queue] = next_offset, dropped
    return truncation


def _report(end: LogEnd) -> None:
    """Log damage, the truncation, and lost files."""
    if end.truncation is not None:
        LOGGER.warning("%s", end.truncation)
    for damage in end.damages[:LOGGED_MAX]:
        LOGGER.warning(
            "the CommitLog is damaged: %d bytes from position %d on hold no sound record (%s);"
            " reading their messages is an error, the others are there; %s",
            damage.end - damage.position,
            damage.position,
            damage.path,
            REPAIR,
        )
    if (more := len(end.damages) - LOGGED_MAX) > 0:
        LOGGER.warning("the CommitLog is damaged at %d more places", more)


def _report_files(log: CommitLogWriter, found: Directory, end: LogEnd) -> None:
    """Log files of other lengths, ages and numbers than the directory was left with."""
    for base, size in log.short.items():
        LOGGER.warning(
            "the last file of the CommitLog has %d bytes and not %d (%s), as after a crash while it"
            " was made, or because its end was lost: messages that were there are gone",
            size,
            log.file_bytes,
            log.path(base),
        )
    left_at = replace(found, queues_end=-1).durable_end
    if found.was_closed and not found.checkpoint.is_foreign and -1 < left_at < end.position:
        is_whole = not end.damages
        LOGGER.warning(
            "the state of the hot log %s (durableEnds, checkpoint) is older than its %s, as"
            " from a copy: %stopics that were deleted since may be back with the messages that the"
            " CommitLog still has",
            log.directory,
            "CommitLog" if is_whole else "ConsumeQueues",
            "no message is missing, but " if is_whole else "",
        )
    if found.durable is not None and found.durable.min_position < log.min_position:
        LOGGER.warning(
            "the CommitLog lacks its files from position %d to %d (%s): their messages are gone"
            " from the hot log",
            found.durable.min_position,
            log.min_position,
            log.directory,
        )


def with_codes_of(units: bytearray, there: bytes) -> bytearray:
    """Return the units with the codes of existing units that point to the same record."""
    merged = bytearray()
    for mine, other in zip(_unpack_units(bytes(units)), _unpack_units(there), strict=True):
        merged += _pack_unit(*(other if mine[:2] == other[:2] else mine))
    return merged
