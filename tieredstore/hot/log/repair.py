"""Repair of a hot log: finds its damage, and replaces it so that the log continues without it.

P1  The search for damage changes nothing.
P2  Every position and every queue offset stays. Damaged bytes are first copied to files of their
    own. Then a placeholder replaces them, a sound record without a unit, or the blank record that
    ends a file.
P3  A unit whose record is lost becomes a filler. Any other unit is that of its record.
P4  Each step is durable before the next one, the next offsets first. After a kill at any moment the
    same call continues, and a start gives no offset again.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.names.rocketmq import INT64_MAX
from container.record.header import RECORD_BYTES_MIN, TRANSACTION_ROLLBACK, BlankRecord
from container.record.unit import (
    FILLER_SIZE,
    UNIT_BYTES,
    UNIT_DTYPE,
    ConsumeQueueUnit,
    Units,
)
from provider.clock import Clock
from provider.errors import Denied
from provider.names import is_directory
from provider.posix.files import posix_errors
from tieredstore.hot.encoding import SCHEDULE_TOPIC, NewMessage, encode_message, plan_append
from tieredstore.hot.log.commit_log import CommitLogWriter
from tieredstore.hot.log.consume_queues import FILLER, QueueFiles
from tieredstore.hot.log.deleted_queues import DeletedQueues
from tieredstore.hot.log.directory import StoreDirectory
from tieredstore.hot.log.durable_ends import DurableEnds, DurableEndsFile
from tieredstore.hot.log.files import sync_directories
from tieredstore.hot.log.record_scan import (
    PLACEHOLDER_FLAG,
    PLACEHOLDER_TOPIC,
    Damage,
    OffsetsContradict,
    Scan,
    keep,
    scan_log,
)
from tieredstore.hot.log.recovery import (
    Directory,
    fits,
    is_left,
    know_fillers,
    with_codes_of,
    with_queues_end,
)
from tieredstore.hot.log.topics import TopicsFile
from tieredstore.hot.options import HotWriteOptions

PLACEHOLDER_BYTES_MIN = RECORD_BYTES_MIN + len(PLACEHOLDER_TOPIC)
PLACEHOLDER_BYTES_MAX = 1 << 20
_NO_HOST = ("0.0.0.0", 0)  # noqa: S104 - of a record, nothing listens there
Ranges = Sequence[tuple[int, int]]
"""Offsets `[first, end)`, ascending."""


@dataclass(slots=True)
class DamagedPlace:
    """CommitLog bytes without a sound record, and the messages that are lost there."""

    damage: Damage
    stamp: int
    """Store timestamp of the record before, Unix ms."""
    is_missing: bool
    """Whether the whole file is missing."""
    lost: dict[QueueId, Ranges] = field(default_factory=dict[QueueId, Ranges])
    kept: Sequence[Path] = ()
    """Files with copies of the bytes."""


@dataclass(slots=True)
class WrongUnits:
    """Units of one queue that differ from those of its records."""

    queue: QueueId
    path: str
    """Directory of its ConsumeQueue."""
    units: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    """First offsets, and the right units from there on."""
    mended: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Offsets `[first, end)` of sound records that the units did not point to."""


@dataclass(slots=True)
class HotDamage:
    """Damage of a store directory."""

    places: list[DamagedPlace] = field(default_factory=list[DamagedPlace])
    units: list[WrongUnits] = field(default_factory=list[WrongUnits])
    ends: DurableEnds | None = None
    """Watermarks to write, because both copies of `durableEnds` are lost, or older than the
    queues or the lost messages; None: they are sound."""

    filled: dict[QueueId, int] = field(default_factory=dict[QueueId, int])
    """Offset of each queue before which fillers replace the units of lost messages."""

    def __bool__(self) -> bool:
        return bool(self.places or self.units or self.ends or self.filled)

    @property
    def mended(self) -> list[WrongUnits]:
        """Queues with units that do not point to their sound records."""
        return [one for one in self.units if one.mended]


class HotRepair:
    """Repair of a store directory. See `open_repair`."""

    def __init__(self, directory: StoreDirectory, options: HotWriteOptions, clock: Clock) -> None:
        self._directory = directory
        self._options = options
        self._clock = clock
        self._log = CommitLogWriter(
            directory.commit_log, options.commit_log_bytes, takes_damage=True
        )
        self._queues = QueueFiles(
            directory.consume_queue, options.queue_file_bytes, options.files_open_max
        )

    def __repr__(self) -> str:
        return f"<HotRepair of {self._directory.root}>"

    def look(self) -> HotDamage:
        """Find the damage. Reads all records, at some 5 us each, and all units.

        Raises:
            Corrupt: the file of the deleted queues is damaged.
            OSError: a file cannot be read.
        """
        if not self._log.bases:  # lost as a whole: a start continues after it
            return HotDamage()
        found, is_lacking = self._found()
        deleted = found.deleted
        assert deleted is not None, "`_found` reads it"
        know_fillers(self._queues, found)
        known: Mapping[QueueId, int] = {}
        certain = -1
        if found.durable is not None and found.durable.position >= self._log.min_position:
            known, certain = found.next_offsets(), found.durable.position
        end = max(found.durable_end, self._log.last_hole_end)
        scan = _scanned(self._log, self._queues, deleted, end, known, certain)
        if is_lacking and (tail := self._log.data_end(scan.end)) > scan.end:
            file_end = self._log.base_of(tail - 1) + self._log.file_bytes
            end = min(tail + PLACEHOLDER_BYTES_MIN, file_end)
            scan = _scanned(self._log, self._queues, deleted, end, known, certain)
        places = [
            DamagedPlace(one, stamp, self._log.base_of(one.position) not in self._log.bases)
            for one, stamp in zip(scan.damages, scan.stamps, strict=True)
        ]
        damage = HotDamage(places)
        is_older = found.durable is not None and found.durable.position < found.durable_end
        knows_less = is_lacking or found.queues_end >= 0
        units_end = INT64_MAX if knows_less else found.durable_end if is_older else 0
        ends: dict[QueueId, int] = {}
        for queue in sorted(self._queues.bases.keys() | scan.units.keys()):
            least = self._end_of_units(queue, known.get(queue, 0), units_end)
            if queue in scan.units:
                scan.fill(queue, least)
            self._look_at(queue, scan, damage)
            first, units = scan.units.get(queue, (least, b""))
            if queue in scan.units or not is_left(self._queues, queue, deleted):
                ends[queue] = first + len(units) // UNIT_BYTES
        if found.durable is None or found.durable.filled is None:
            damage.filled.clear()  # it has no place for them
        if is_lacking and (found.is_lacking or damage or self._queues.irregular):
            damage.ends = DurableEnds(scan.end, ends, self._log.min_position)
        elif found.durable is not None and (found.queues_end >= 0 or (is_older and damage)):
            filled = found.durable.filled
            filled = None if filled is None else {**filled, **damage.filled}
            damage.ends = replace(
                found.durable, position=scan.end, next_offsets=ends, filled=filled
            )
        return damage

    def _found(self) -> tuple[Directory, bool]:
        """Return the state of the directory, and whether a start needs a sound log: R7."""
        directory = self._directory
        file = DurableEndsFile(directory.durable_ends)
        durable = file.read()
        found = Directory(
            directory.was_closed,
            directory.checkpoint(),
            durable,
            DeletedQueues(directory.deleted_queues, durable),
            has_lost_ends=file.is_damaged,
        )
        if fits(self._log, found):
            return with_queues_end(self._log, self._queues, found), found.is_lacking
        return replace(found, durable=None), found.was_closed

    def _end_of_units(self, queue: QueueId, least: int, end: int) -> int:
        """Return the offset after the last unit of a record before `end`; at least `least`.

        A crash leaves units after `end`, and zeros between them.
        """
        offset = self._queues.data_end(queue, least) if end else least
        while offset > least:
            unit = self._queues.unit(queue, offset - 1)
            if unit.position < end and unit != ConsumeQueueUnit(0, 0, 0):
                break
            offset -= 1
        return offset

    def _look_at(self, queue: QueueId, scan: Scan, damage: HotDamage) -> None:
        """Compare a queue's units with those of its records."""
        there_first, there = self._units_of(queue)
        first, units = scan.units.get(queue, (there_first + len(there), bytearray()))
        start = min(first, there_first) if len(there) else first
        present = np.zeros(max(first + len(units) // UNIT_BYTES - start, 0), UNIT_DTYPE)
        overlap = there[: max(len(present) - (there_first - start), 0)]
        present[there_first - start : there_first - start + len(overlap)] = overlap
        wanted = present.copy()
        if units:
            if queue.topic == SCHEDULE_TOPIC:
                units = with_codes_of(units, present[first - start :].tobytes())
            wanted[first - start :] = np.frombuffer(bytes(units), UNIT_DTYPE)
        for place in damage.places:
            rows = np.flatnonzero(_are_within(wanted, [place.damage]))
            if len(rows):
                place.lost[queue] = _ranges(rows + start)
        seen = Damage("", self._log.min_position, INT64_MAX)  # a sound record is in the scan
        lost = _are_within(wanted, [seen])
        is_sound = np.zeros(len(wanted), bool)
        is_sound[first - start :] = True
        is_sound[np.array(scan.filled.get(queue, []), np.int64) - start] = False
        lost &= ~is_sound
        wanted[lost] = np.frombuffer(FILLER, UNIT_DTYPE)[0]
        differ = wanted != present
        is_filler = (wanted["position"] == 0) & (wanted["size"] == FILLER_SIZE)
        wrong = WrongUnits(queue, str(self._queues.path(queue, 0).parent))
        wrong.mended = _ranges(np.flatnonzero(differ & ~is_filler) + start)
        wrong.units = [
            (one, wanted[one - start : end - start].tobytes())
            for one, end in _ranges(np.flatnonzero(differ) + start)
        ]
        if wrong.units:
            damage.units.append(wrong)
        fillers = np.flatnonzero(is_filler[first - start :]) + first
        if len(fillers) and fillers[-1] >= self._queues.filled.get(queue, 0):
            damage.filled[queue] = int(fillers[-1]) + 1

    def _units_of(self, queue: QueueId) -> tuple[int, Units]:
        """Return the first offset of a queue's files, and all units that they have room for."""
        raws = [
            self._queues.read(queue, base // UNIT_BYTES, self._queues.file_bytes // UNIT_BYTES)
            for base in self._queues.bases.get(queue, ())
        ]
        room = self._queues.file_bytes
        raw = b"".join(one.ljust(room, b"\0") for one in raws)
        return self._queues.first_offset(queue), np.frombuffer(raw, UNIT_DTYPE)

    def carry_out(self, damage: HotDamage) -> None:
        """Replace the damage so that the log continues without it: P2, P3.

        Durable on return. Repeatable. Sets `kept` of each place to the copies of its bytes.

        Raises:
            Denied: a damaged place is too small for a record; nothing was changed.
            OSError: a file cannot be read or written.
        """
        for place in damage.places:
            self._refuse_small(place.damage)
        for place in damage.places:
            if not place.is_missing:
                one = place.damage
                place.kept = keep(self._log, one.position, one.end, self._directory.truncated)
        if damage.ends is not None:  # first, so that a start after a kill gives no offset again
            self._log.sync_files(self._log.min_position, damage.ends.position)
            DurableEndsFile(self._directory.durable_ends).write_both(damage.ends)
        for place in damage.places:
            self._replace(place)
        for place in damage.places:
            self._log.sync_files(place.damage.position, place.damage.end)
        sync_directories([self._directory.commit_log])
        self._enter_fillers(damage)  # before they are written, so that a kill leaves none unknown
        for wrong in damage.units:
            for first, units in wrong.units:
                self._write_units(wrong.queue, first, units)
        self._queues.sync()

    def _enter_fillers(self, damage: HotDamage) -> None:
        file = DurableEndsFile(self._directory.durable_ends)
        durable = file.read()
        if durable is not None and durable.filled is not None and damage.filled:
            file.write_both(replace(durable, filled={**durable.filled, **damage.filled}))

    def _refuse_small(self, damage: Damage) -> None:
        is_last = damage.end == self._log.base_of(damage.position) + self._log.file_bytes
        least = BlankRecord.SIZE if is_last else PLACEHOLDER_BYTES_MIN
        if damage.end - damage.position < least:
            raise Denied(
                f"the {damage.end - damage.position} damaged bytes at position {damage.position}"
                " are too few for a record that could take their place: restore the file from a"
                " backup",
                damage.path,
            )

    def _replace(self, place: DamagedPlace) -> None:
        """Write placeholders, or the blank record of a file's end, over the damage."""
        at, end = place.damage.position, place.damage.end
        if end == self._log.base_of(at) + self._log.file_bytes:
            parts: list[bytes] = []
            if end - at >= PLACEHOLDER_BYTES_MIN + BlankRecord.SIZE:  # else no record was there
                parts.append(self._placeholder(at, PLACEHOLDER_BYTES_MIN, place.stamp))
            blank = BlankRecord(end - at - sum(map(len, parts))).encode()
            self._log.write(at, [*parts, blank])
            return
        while at < end:
            size = min(end - at, PLACEHOLDER_BYTES_MAX)
            if 0 < end - at - size < PLACEHOLDER_BYTES_MIN:
                size -= PLACEHOLDER_BYTES_MIN
            self._log.write(at, [self._placeholder(at, size, place.stamp)])
            at += size

    def _placeholder(self, position: int, size: int, stamp: int) -> bytes:
        body = bytes(size - PLACEHOLDER_BYTES_MIN)
        message = NewMessage(
            PLACEHOLDER_TOPIC,
            0,
            body,
            flag=PLACEHOLDER_FLAG,
            sys_flag=TRANSACTION_ROLLBACK,
            born_timestamp=stamp,
            born_host=_NO_HOST,
            store_host=_NO_HOST,
        )
        options = HotWriteOptions(
            commit_log_bytes=self._options.commit_log_bytes,
            message_bytes_max=PLACEHOLDER_BYTES_MAX,
        )
        record = encode_message(message, stamp, options)
        plan = plan_append(position, {}, [record], file_bytes=self._log.file_bytes)
        (file,) = plan.files
        raw = b"".join(file.parts)
        assert (file.position, len(raw)) == (position, size), "it fits its place"
        return raw

    def _write_units(self, queue: QueueId, first: int, units: bytes) -> None:
        """Write units to existing files of the queue. A start creates the others."""
        for at in range(0, len(units), UNIT_BYTES):
            base = (first * UNIT_BYTES + at) // self._queues.file_bytes * self._queues.file_bytes
            if base in self._queues.bases.get(queue, ()):
                self._queues.write(queue, first + at // UNIT_BYTES, units[at : at + UNIT_BYTES])

    def close(self) -> None:
        """Close all files. Idempotent."""
        self._log.close()
        self._queues.close()


def _scanned(  # noqa: PLR0917 - the start of a scan
    log: CommitLogWriter,
    queues: QueueFiles,
    deleted: DeletedQueues,
    durable_end: int,
    known: Mapping[QueueId, int],
    certain: int,
) -> Scan:
    """Scan all records, and the damage between them. A record that contradicts others is damage."""
    while True:
        scan = Scan(log.min_position, queues, durable_end, deleted, known, certain)
        try:
            return scan_log(log, scan)
        except OffsetsContradict as error:
            durable_end = max(error.end, durable_end + 1)


def _are_within(units: Units, places: Sequence[Damage]) -> NDArray[np.bool_]:
    """Return a mask of the units that point into one of `places`, which are ascending or few."""
    found = np.zeros(len(units), bool)
    for one in places:
        found |= (units["position"] >= one.position) & (units["position"] < one.end)
    is_filler = (units["position"] == 0) & (units["size"] == FILLER_SIZE)
    return found & (units["size"] > 0) & ~is_filler


def _ranges(rows: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return ascending numbers as ranges `[first, end)`."""
    groups = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [(int(one[0]), int(one[-1]) + 1) for one in groups if len(one)]


@contextmanager
def open_repair(root: Path, options: HotWriteOptions, clock: Clock) -> Generator[HotRepair]:
    """Lock a store directory for the block, to find and repair its damage. Blocks.

    Raises:
        InUse: a process writes it.
        Denied: there is no store; or a broker keeps queues of other kinds in it; or files have
            other lengths than `options` say.
        Corrupt, Unavailable: as opening the store.
    """
    with posix_errors(str(root)):
        where = Path(options.commit_log_path) if options.commit_log_path else None
        if not is_directory(where or root / "commitlog"):
            raise Denied("there is no hot log here (storePathRootDir)", str(root))
        directory = StoreDirectory(root, where)
        try:
            topics = TopicsFile(directory.topics)
            directory.refuse_other_queues(lambda topic: topics.has({topic}))
            repair = HotRepair(directory, options, clock)
            try:
                yield repair
            finally:
                repair.close()
        finally:
            directory.close()
