"""Sound records of a CommitLog in order, and truncation of its torn tail."""

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Final

from container.names.queue_id import QueueId, check_path_component
from container.names.rocketmq import INT32_MAX, INT64_MAX, local_file_name
from container.record.checksum import record_crc_is_valid
from container.record.header import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    BlankRecord,
)
from container.record.message import StoredMessage
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from provider.errors import Corrupt
from provider.names import is_there
from tieredstore.hot.encoding import SCHEDULE_TOPIC, tag_code_of, unit_code
from tieredstore.hot.log.commit_log import CommitLogWriter
from tieredstore.hot.log.consume_queues import FILLER, QueueFiles
from tieredstore.hot.log.deleted_queues import DeletedQueues
from tieredstore.hot.log.files import CHUNK_BYTES, FLAGS, sync_directories, write_all

PAGE_BYTES = 4096
"""Unit of a disk's writes in bytes: a page reaches it wholly or not at all."""
PLACEHOLDER_TOPIC = "-"
PLACEHOLDER_FLAG = 0x4C6F_7374
"""Flag of the placeholder records that `repair` writes in place of damage. They are rolled-back
transactions, which have no unit and no queue."""
GAP_MAX = 100_000
"""Largest jump of a queue's offsets between two records without a unit.

A larger one marks a damaged queue offset.
"""
_WITHOUT_UNIT = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
_MAGIC: Final = re.compile(
    b"|".join(re.escape((magic & 0xFFFFFFFF).to_bytes(4)) for magic in (MAGIC_V1, MAGIC_V2))
)
_MAGIC_AT = 4
"""Offset of the magic number in a record, in bytes."""
_pack_unit = ConsumeQueueUnit.LAYOUT.pack
_unpack_unit = ConsumeQueueUnit.LAYOUT.unpack


class OffsetsContradict(Exception):
    """Error: a record's queue offset is not above those of earlier records of its queue."""

    def __init__(self, reason: str, end: int) -> None:
        super().__init__(reason)
        self.end = end
        """Position after that record."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Damaged bytes `[position, end)` of one CommitLog file, without a sound record."""

    path: str
    position: int
    end: int

    def unit(self) -> bytes:
        """Return the unit of a lost message. Reading it raises `Corrupt` with this position."""
        size = min(max(self.end - self.position, RECORD_BYTES_MIN), INT32_MAX - 1)
        return _pack_unit(self.position, size, 0)


@dataclass(slots=True)
class Scan:
    """Records found from a position on, and the units that they need."""

    end: int
    """Position after the last record."""
    queues: QueueFiles
    """Queue files, which have units for messages whose records are damaged."""
    durable_end: int = -1
    deleted: DeletedQueues | None = None
    known: Mapping[QueueId, int] = field(default_factory=dict[QueueId, int])
    """Next offset of each queue at the start of the scan.

    Before `certain`: an offset above all of the queue's offsets.
    """
    certain: int = -1
    """Position before which each record belongs to a queue of `known`."""
    units: dict[QueueId, tuple[int, bytearray]] = field(
        default_factory=dict[QueueId, tuple[int, bytearray]]
    )
    """First offset and units of each queue."""
    filled: dict[QueueId, list[int]] = field(default_factory=dict[QueueId, list[int]])
    """Offsets of `units` without a sound record."""
    damages: list[Damage] = field(default_factory=list[Damage])
    stamps: list[int] = field(default_factory=list[int])
    """Store timestamp of the record before each damage, Unix ms; 0: there is none."""
    placeholders: list[Damage] = field(default_factory=list[Damage])
    """Placeholder records of `repair`."""
    store_timestamp: int = 0
    messages: int = 0
    spans_durable_end: bool = False
    """Whether one record lies on both sides of the durable end. Then another program wrote it."""

    def take(self, message: StoredMessage, position: int, path: str) -> bool:
        """Add a sound record. Return False if the log ends before it.

        Queue and offset have no checksum. Below the durable end, a record with an impossible queue
        or offset is damage.

        Raises:
            OffsetsContradict: an earlier record has its queue offset.
        """
        end = position + message.size
        has_unit = message.sys_flag & TRANSACTION_MASK not in _WITHOUT_UNIT
        queue = QueueId(message.topic, message.queue_id)
        if has_unit and not (self.deleted and self.deleted.has_record(queue, position)):
            if not self._fits(queue, message, position):
                if position >= self.durable_end:
                    return False
                self.add_damage(Damage(path, position, end))
                return True
            self._add(queue, message, position)
        elif is_placeholder(message):
            self.placeholders.append(Damage(path, position, end))
        self.messages += 1
        self.store_timestamp = message.store_timestamp
        self.spans_durable_end |= position < self.durable_end < end
        self.end = end
        return True

    def _fits(self, queue: QueueId, message: StoredMessage, position: int) -> bool:
        """Whether the record can be the next one of its queue."""
        is_certain = position < self.certain
        if queue not in self.known and queue not in self.units and not _can_be(message):
            return False
        if is_certain and message.queue_offset >= self.known.get(queue, 0):
            return False
        expected = self._expected(queue, position)
        if expected < 0 or message.queue_offset == expected:
            return True
        if message.queue_offset < expected:
            if position < self.durable_end:
                return False
            raise OffsetsContradict(
                f"offset {message.queue_offset} of {queue} at {position}", position + message.size
            )
        may_lack = self._last_after(queue, self.placeholders) is not None
        if is_certain:
            may_lack |= self._damage_after(queue) is not None
        else:
            may_lack |= message.queue_offset - expected <= GAP_MAX
        return may_lack or self._has_unit(queue, message, position)

    def _expected(self, queue: QueueId, position: int) -> int:
        """Return the queue's next offset; -1 if its first record may have any."""
        if queue in self.units:
            first, units = self.units[queue]
            return first + len(units) // UNIT_BYTES
        return -1 if position < self.certain else self.known.get(queue, -1)

    def _has_unit(self, queue: QueueId, message: StoredMessage, position: int) -> bool:
        unit = self.queues.unit_if_there(queue, message.queue_offset)
        return (unit.position, unit.size) == (position, message.size)

    def _add(self, queue: QueueId, message: StoredMessage, position: int) -> None:
        expected = self._expected(queue, position)
        if expected < 0:
            expected = message.queue_offset
        _, units = self.units.setdefault(queue, (expected, bytearray()))
        self.fill(queue, message.queue_offset)
        code = tag_code_of(message.tags)
        if message.topic == SCHEDULE_TOPIC:
            stored_ms = message.store_timestamp
            code = unit_code(message.topic, message.tags, message.property_map, stored_ms)
        units += _pack_unit(position, message.size, code)

    def fill(self, queue: QueueId, end: int) -> None:
        """Add units for offsets of `queue` below `end` that have no sound record.

        Each is the unit of the queue file, else a unit of damage between the records, else a
        filler.
        """
        first, units = self.units[queue]
        for offset in range(first + len(units) // UNIT_BYTES, end):
            unit = self.queues.unit_if_there(queue, offset)
            damage = self._damage_after(queue)
            self.filled.setdefault(queue, []).append(offset)
            if unit.size > 0 and not self.queues.is_lost(queue, offset, unit):
                units += unit.encode()
            else:
                units += FILLER if damage is None else damage.unit()

    def keep_damaged(self, queue: QueueId, next_offset: int) -> None:
        """Add the units of the queue file around its sound records that point to damage.

        `next_offset`: the queue's next offset at the start of the scan.
        """
        first, units = self.units.get(queue, (next_offset, bytearray()))
        before = self._damaged(queue, range(first - 1, next_offset - 1, -1))
        end = first + len(units) // UNIT_BYTES
        after = self._damaged(queue, range(end, INT64_MAX))
        if before or after:
            units = bytearray().join([*reversed(before), units, *after])
            self.units[queue] = first - len(before), units
            kept = self.filled.setdefault(queue, [])
            kept += [*range(first - len(before), first), *range(end, end + len(after))]

    def _damaged(self, queue: QueueId, offsets: Iterable[int]) -> list[bytes]:
        """Return the units of the queue file up to the first that does not point to damage."""
        units = (self.queues.unit_if_there(queue, offset) for offset in offsets)
        return [unit.encode() for unit in takewhile(self._is_damaged, units)]

    def _is_damaged(self, unit: ConsumeQueueUnit) -> bool:
        """Whether the record of a unit begins in damage."""
        at = bisect_right(self.damages, unit.position, key=lambda one: one.position)
        return unit.size > 0 and at > 0 and unit.position < self.damages[at - 1].end

    def _damage_after(self, queue: QueueId) -> Damage | None:
        """Return the damage after the last unit of a queue, or any if it has no unit."""
        return self._last_after(queue, self.damages)

    def _last_after(self, queue: QueueId, places: Sequence[Damage]) -> Damage | None:
        if not places:
            return None
        _, units = self.units.get(queue, (0, b""))
        last: int = _unpack_unit(units[-UNIT_BYTES:])[0] if units else -1
        return places[-1] if places[-1].position >= last else None

    def add_damage(self, damage: Damage) -> None:
        """Record damage, and continue after it."""
        self.damages.append(damage)
        self.stamps.append(self.store_timestamp)
        self.end = damage.end


def scan_log(log: CommitLogWriter, scan: Scan) -> Scan:
    """Add all records from `scan.end` on, where a record must begin. Costs some 5 us each.

    Raises:
        OffsetsContradict: two records of a queue have one offset.
        OSError: a file cannot be read.
    """
    for base in [base for base in log.bases if base + log.file_bytes > scan.end]:
        _pass_missing(log, scan, min(base, scan.durable_end))
        if scan.end < base:
            break  # the previous file ended early
        path = str(log.path(base))
        for found in scan_file(log, base, scan.end, durable_end=scan.durable_end):
            if isinstance(found, Damage):
                scan.add_damage(found)
            elif found[0] is None:
                scan.end = base + log.file_bytes
            elif not scan.take(found[0], found[1], path):
                return scan
    _pass_missing(log, scan, scan.durable_end)
    return scan


def _pass_missing(log: CommitLogWriter, scan: Scan, end: int) -> None:
    """Record missing files before `end` as damage."""
    while scan.end < end:
        base = log.base_of(scan.end)
        stop = min(base + log.file_bytes, end)
        scan.add_damage(Damage(str(log.path(base)), scan.end, stop))


def is_placeholder(message: StoredMessage) -> bool:
    """Whether a record without a unit is a placeholder of `repair`."""
    return message.flag == PLACEHOLDER_FLAG and message.topic == PLACEHOLDER_TOPIC


def scan_file(
    log: CommitLogWriter, base: int, start: int, *, durable_end: int
) -> Iterator[tuple[StoredMessage | None, int] | Damage]:
    """Yield the records of one file from `start` on with their positions, and damage between them.

    The blank record that ends a file is yielded as None.

    Raises:
        OSError: the file cannot be read.
    """
    with log.mapped(base) as view:
        place, end = start, base + len(view)
        while place < end:
            message = good_record(view[place - base :], place)
            if message is not None:
                yield message, place
                place += message.size
            elif _has_blank(view, place - base):
                yield None, place
                return
            elif place < durable_end:
                after = min(end, durable_end)
                for _, position in sound_records(view, base, place + 1, after):
                    after = position
                    break
                yield Damage(str(log.path(base)), place, after)
                place = after
            else:
                return


def sound_records(
    view: memoryview, base: int, start: int, end: int
) -> Iterator[tuple[StoredMessage, int]]:
    """Yield sound records that begin anywhere in `[start, end)`, found by their magic."""
    place = start
    while match := _MAGIC.search(view, place - base + _MAGIC_AT, end - base):
        position = base + match.start() - _MAGIC_AT
        message = good_record(view[position - base :], position)
        place = position + (1 if message is None else message.size)
        if message is not None:
            yield message, position


def good_record(view: memoryview, position: int) -> StoredMessage | None:
    """Return the record that begins `view`; None unless it is whole and belongs at `position`."""
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


def _can_be(message: StoredMessage) -> bool:
    """Whether a queue can have the record's topic and queue id, and a file its offset."""
    is_name = not check_path_component(message.topic)
    is_offset = 0 <= message.queue_offset <= INT64_MAX // UNIT_BYTES
    return is_name and 0 <= message.queue_id <= INT32_MAX and is_offset


def _lacks_page(message: StoredMessage, position: int) -> bool:
    """Whether a page that begins in the properties, or their end, is zeros.

    Losses before the properties show in the lengths. `prepare` refuses properties with such zeros.
    """
    raw, properties_bytes = message.encode(), len(message.properties)
    if properties_bytes and not raw[-1]:
        return True
    end = position + len(raw)
    first = -(-(end - properties_bytes) // PAGE_BYTES) * PAGE_BYTES
    if first >= end:  # nearly always
        return False
    pages = range(first - position, len(raw), PAGE_BYTES)
    return any(not any(raw[at : at + PAGE_BYTES]) for at in pages)


def _has_blank(view: memoryview, at: int) -> bool:
    """Whether a blank record fills the rest of a file."""
    if len(view) - at < BlankRecord.SIZE:
        return False
    size, magic = BlankRecord.LAYOUT.unpack_from(view, at)
    return magic == BLANK_MAGIC and size == len(view) - at


QUEUES_MAX = 8
"""Maximum of queues that the report of a truncation names."""


@dataclass(slots=True)
class Truncation:
    """Truncation of the log's tail at a start."""

    path: str
    """CommitLog file with the new end."""
    position: int
    """New end, a CommitLog position."""
    bytes: int
    """Bytes from there to the last one that was not zero."""
    kept: list[Path] = field(default_factory=list[Path])
    """Files with copies of the bytes. Copied if sound records follow the torn one."""
    offsets: dict[QueueId, tuple[int, int]] = field(default_factory=dict[QueueId, tuple[int, int]])
    """Offsets `[first, end)` of the dropped units of each queue."""

    def __str__(self) -> str:
        """Describe the truncation in one sentence."""
        said = f"the CommitLog ends at {self.position} ({self.path})"
        if self.bytes:
            said += f": it was truncated there, for the {self.bytes} bytes after it begin with no"
            said += " whole record"
        if self.offsets:
            named = [
                f"{queue} {first} to {end - 1}"
                for queue, (first, end) in sorted(self.offsets.items())[:QUEUES_MAX]
            ]
            more = len(self.offsets) - len(named)
            said += f"; offsets without a record were dropped: {', '.join(named)}" + (
                f", and those of {more} more queues" if more else ""
            )
        if self.kept:
            said += "; sound records follow, so the bytes are kept in "
            said += ", ".join(map(str, self.kept))
        return said


def truncate(log: CommitLogWriter, end: int, *, aside: Path) -> Truncation | None:
    """Truncate the log at `end`. Durable on return. None if only zeros followed.

    If sound records are among the bytes, they are copied to `aside` first.

    Raises:
        OSError: a file cannot be read or written; the log is unchanged, or truncated in part.
    """
    found = None
    data_end = log.data_end(end)
    if data_end > end:
        found = Truncation(str(log.path(log.base_of(end))), end, data_end - end)
        if _has_sound_record(log, end):
            found.kept = keep(log, end, data_end, aside)
    log.cut(end)
    return found


def keep(log: CommitLogWriter, start: int, end: int, aside: Path) -> list[Path]:
    """Copy the bytes `[start, end)` of the log to files below `aside`. Durable on return.

    Raises:
        OSError: one cannot be read or written.
    """
    kept: list[Path] = []
    aside.mkdir(exist_ok=True)
    while start < end:
        base = log.base_of(start)
        stop = min(end, base + log.file_bytes)
        path = _new_name(aside, start)
        fd = os.open(path, FLAGS | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            for at in range(start, stop, CHUNK_BYTES):
                write_all(fd, at - start, log.read(at, min(CHUNK_BYTES, stop - at)))
            os.fsync(fd)
        finally:
            os.close(fd)
        kept.append(path)
        start = stop
    sync_directories([aside, aside.parent])
    return kept


def _new_name(aside: Path, position: int) -> Path:
    path, number = aside / local_file_name(position), 0
    while is_there(path):
        number += 1
        path = aside / f"{local_file_name(position)}.{number}"
    return path


def _has_sound_record(log: CommitLogWriter, start: int) -> bool:
    for base in [base for base in log.bases if base + log.file_bytes > start]:
        with log.mapped(base) as view:
            end = base + len(view)
            if any(True for _ in sound_records(view, base, max(start, base), end)):
                return True
    return False
