"""Units from CommitLog records, as a broker dispatches them, past damage too."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.batch import encode_units, headers_at
from container.record.checksum import body_crc_of, record_crc_is_valid
from container.record.columns import TagsCodes
from container.record.header import (
    INNER_BATCH,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    RECORD_BYTES_MIN,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    BlankRecord,
    locate_parts,
)
from container.record.properties import decode_properties
from container.record.unit import UNIT_DTYPE, Units
from container.record.verification import ENDS_INSIDE, Walk, walk_records
from provider.errors import Corrupt, NotFound
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.options import WINDOW_BYTES

_BATCH_PROPERTIES = {"INNER_NUM", "INNER_BASE"}
"""Properties that a broker gives every record that holds several messages."""
_UNWANTED = -1


class QueueRun(NamedTuple):
    """Units of one queue with consecutive offsets."""

    queue: QueueId
    first: int
    """Queue offset of the first unit."""
    units: Units
    is_batch: bool
    """Whether one of the records holds several messages, as those of a BatchCQ do."""

    @property
    def end(self) -> int:
        """Queue offset after the last unit."""
        return self.first + len(self.units)


def join_runs(runs: Sequence[QueueRun]) -> QueueRun:
    """Join consecutive runs of one queue; at least one."""
    units = np.concatenate([run.units for run in runs], dtype=UNIT_DTYPE)
    return QueueRun(runs[0].queue, runs[0].first, units, any(run.is_batch for run in runs))


def join_neighbours(runs: Sequence[QueueRun]) -> Iterator[QueueRun]:
    """Yield the runs of one queue, with consecutive ones joined."""
    begin = 0
    for index in range(1, len(runs) + 1):
        if index == len(runs) or runs[index].first != runs[index - 1].end:
            yield join_runs(runs[begin:index])
            begin = index


def split_run(run: QueueRun, count: int) -> tuple[QueueRun, QueueRun]:
    """Split a run after its first `count` units."""
    first = run._replace(units=run.units[:count])
    return first, run._replace(first=run.first + count, units=run.units[count:])


def have_unit(sys_flags: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return a mask of records with a unit: no prepared or rolled-back transactions."""
    transaction = sys_flags & TRANSACTION_MASK
    return (transaction != TRANSACTION_PREPARED) & (transaction != TRANSACTION_ROLLBACK)


@dataclass(frozen=True, slots=True)
class UnitColumns:
    """Unit fields of a part of the log, one entry for each unit, in the order of the log."""

    queues: list[QueueId]
    """Queues that `numbers` index."""
    numbers: NDArray[np.int64]
    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tag_hashes: NDArray[np.int64]
    is_batch: NDArray[np.bool_]

    @classmethod
    def read(
        cls,
        window: NDArray[np.uint8],
        position: int,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        wanted: frozenset[QueueId] | None = None,
    ) -> Self:
        """Decode the records at `starts` of a window that begins at `position`.

        Only those of the `wanted` queues; None: of all. 2 us for each of their records, 0.3 us for
        one of another queue with the same number.

        Prepared and rolled-back transactions have no unit. A record with contradictory lengths has
        none, either: its hole shows in the offsets.
        """
        headers = headers_at(window, starts)
        has_unit = have_unit(headers["sys_flag"])
        if wanted is not None:
            has_unit &= np.isin(headers["queue_id"], [queue.queue_id for queue in wanted])
        rows = np.flatnonzero(has_unit)
        queues: list[QueueId] = []
        known: dict[tuple[bytes, int], int] = {}
        numbers: list[int] = []
        hashes: list[int] = []
        kept: list[int] = []
        fields = zip(
            rows.tolist(),
            starts[rows].tolist(),
            sizes[rows].tolist(),
            headers["queue_id"][rows].tolist(),
            strict=True,
        )
        data = window.data
        codes = TagsCodes()
        for row, start, size, queue_id in fields:
            raw = data[start : start + size]
            try:
                _, parts = locate_parts(raw, path="", position=start)
            except Corrupt:
                continue
            key = (bytes(raw[parts.topic : parts.topic_end]), queue_id)
            number = known.get(key)
            if number is None:
                queue = QueueId(key[0].decode("utf-8", "replace"), queue_id)
                is_wanted = wanted is None or queue in wanted
                number = known[key] = len(queues) if is_wanted else _UNWANTED
                if is_wanted:
                    queues.append(queue)
            if number == _UNWANTED:
                continue
            numbers.append(number)
            hashes.append(codes.of_properties(bytes(raw[parts.properties :])))
            kept.append(row)
        chosen = np.array(kept, np.int64)
        return cls(
            queues,
            np.array(numbers, np.int64),
            headers["queue_offset"][chosen].astype(np.int64),
            starts[chosen] + position,
            sizes[chosen],
            np.array(hashes, np.int64),
            _are_batches(data, headers["sys_flag"][chosen], starts[chosen], sizes[chosen]),
        )

    def runs(self) -> list[QueueRun]:
        """Return the units of each queue, split where its offsets are not consecutive.

        The runs of one queue are in the order of the log.
        """
        if not len(self.numbers):
            return []
        order = np.argsort(self.numbers, kind="stable")
        numbers, offsets = self.numbers[order], self.offsets[order]
        breaks = (np.diff(numbers) != 0) | (np.diff(offsets) != 1)
        edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(order)]
        units = encode_units(self.positions[order], self.sizes[order], self.tag_hashes[order])
        is_batch = self.is_batch[order]
        return [
            QueueRun(
                self.queues[int(numbers[begin])],
                int(offsets[begin]),
                units[begin:end],
                bool(is_batch[begin:end].any()),
            )
            for begin, end in pairwise(edges)
        ]


def _are_batches(
    data: memoryview,
    sys_flags: NDArray[np.int64],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return a mask of records that hold several messages, by both flag and properties.

    No checksum covers the flag, and one wrong bit would refuse the whole queue.
    """
    are = (sys_flags & INNER_BATCH) != 0
    for row in np.flatnonzero(are).tolist():
        raw = data[int(starts[row]) : int(starts[row] + sizes[row])]
        _, parts = locate_parts(raw, path="", position=0)
        are[row] = decode_properties(bytes(raw[parts.properties :])).keys() >= _BATCH_PROPERTIES
    return are


def is_whole(raw: bytes, position: int) -> bool:
    """Whether the last record of a log is completely written, as far as its bytes show.

    The broker may be copying the record into the mapped file, and a crash may leave a part of it.
    So its lengths must agree, its checksums must be right, and its topic and properties, which no
    checksum covers, must have no zero byte, as unwritten bytes are zero. A record with a zero byte
    there counts once another one follows it.
    """
    try:
        header, parts = locate_parts(raw, path="", position=position)
    except Corrupt:
        return False
    return (
        header.physical_offset == position
        and body_crc_of(raw[parts.body : parts.body_end]) == header.body_crc
        and record_crc_is_valid(raw)
        and 0 not in raw[parts.topic : parts.topic_end]
        and 0 not in raw[parts.properties :]
    )


WINDOW_BYTES_MIN = 64 << 10
_MAGICS = (MAGIC_V1, MAGIC_V2)


def has_begun_later(log: CommitLogFiles, base: int) -> bool:
    """Whether a later file has a record, so that this file is complete."""
    for later in sorted(b for b in log.table.paths if b > base):
        try:
            raw = log.peek(later, BlankRecord.SIZE)
        except (NotFound, Corrupt):
            continue
        if len(raw) == BlankRecord.SIZE and BlankRecord.LAYOUT.unpack(raw)[1] in _MAGICS:
            return True
    return False


def records_after(log: CommitLogFiles, place: int, end: int) -> Iterator[int]:
    """Yield positions after `place` at which a record seems to begin, by magic and own position.

    Searches up to `end`, within one file, in growing windows: 1 ms for each MB.

    Raises:
        OutOfRange, Unavailable, Denied: as `CommitLogFiles.read_into`.
    """
    head = PHYSICAL_OFFSET_AT + 8
    at = place + 1
    length = WINDOW_BYTES_MIN
    while end - at >= RECORD_BYTES_MIN:
        window = np.empty(min(length, end - at), np.uint8)
        length = min(2 * length, WINDOW_BYTES)
        raw = window[: log.read_into(at, window)].tobytes()
        found = [
            index
            for magic in _MAGICS
            for index in _places_of(magic.to_bytes(4, "big"), raw)
            if int.from_bytes(raw[index + PHYSICAL_OFFSET_AT : index + head], "big") == at + index
            and RECORD_BYTES_MIN
            <= int.from_bytes(raw[index : index + 4], "big")
            <= end - at - index
        ]
        yield from (at + index for index in sorted(found))
        if len(raw) <= head:
            return
        at += len(raw) - head


def _places_of(magic: bytes, raw: bytes) -> Iterator[int]:
    at = raw.find(magic, MAGIC_AT)
    while at >= 0:
        yield at - MAGIC_AT
        at = raw.find(magic, at + 1)


def units_in(
    log: CommitLogFiles,
    base: int,
    wanted: frozenset[QueueId],
    findings: list[str],
    *,
    window_bytes: int = WINDOW_BYTES,
) -> dict[QueueId, tuple[NDArray[np.int64], Units]]:
    """Return queue offsets and units of the `wanted` queues in the CommitLog file at `base`.

    In the order of the log. Offsets may have holes. Prepared and rolled-back transactions have no
    units. Bytes without a record are skipped up to the next record, once a later file has begun. A
    sentence about them is added to `findings`.

    Reads the file in windows of at least 8 bytes, longer ones for longer records: about 0.4 us for
    each record, 4 us for each wanted one, and 0.6 us for one of another topic with a wanted number.

    Raises:
        OutOfRange: the file does not exist any more, or not yet.
        Unavailable, Denied: it cannot be read.
    """
    pieces: dict[QueueId, list[QueueRun]] = {}
    for position, window, walk in _windows(log, base, window_bytes, findings):
        columns = UnitColumns.read(window, position, walk.starts, walk.sizes, wanted)
        for run in columns.runs():
            pieces.setdefault(run.queue, []).append(run)
    return {queue: _joined(runs) for queue, runs in pieces.items()}


def _joined(runs: Sequence[QueueRun]) -> tuple[NDArray[np.int64], Units]:
    """Return queue offsets and units of one queue's runs."""
    offsets = np.concatenate([np.arange(run.first, run.end) for run in runs])
    return offsets, np.concatenate([run.units for run in runs], dtype=UNIT_DTYPE)


def _windows(
    log: CommitLogFiles, base: int, window_bytes: int, findings: list[str]
) -> Iterator[tuple[int, NDArray[np.uint8], Walk]]:
    """Yield windows that begin at a record, with their position. They share one buffer.

    A record longer than a window makes the windows longer.
    """
    place, end = base, base + log.table.file_bytes
    last = place
    """Position of the last record.

    Its length may be wrong, so a search begins right after its start.
    """
    holes: list[tuple[int, int]] = []
    memory = np.empty(min(window_bytes, end - base), np.uint8)
    while place < end:
        window = memory[: log.read_into(place, memory)]
        walk = walk_records(window)
        if len(walk.starts):
            last = place + int(walk.starts[-1])
            yield place, window, walk
        is_damaged = walk.reason not in {"", ENDS_INSIDE}
        place += walk.next
        if not walk.next and not is_damaged:
            is_full = len(window) == len(memory) >= BlankRecord.SIZE
            size = int(window[:4].view(">i4")[0]) if is_full else 0
            is_damaged = not len(memory) < size <= end - place  # the file ends inside the record
            if not is_damaged:
                memory = np.empty(size, np.uint8)
        if is_damaged:
            found = next(records_after(log, last, end), end) if has_begun_later(log, base) else end
            if found < end:
                holes.append((place, found))
            place = last = found
    if holes:
        findings.append(_passed_over(log, holes))


def _passed_over(log: CommitLogFiles, holes: Sequence[tuple[int, int]]) -> str:
    """Describe the places without a record for an operator; at least one."""
    first = holes[0][0]
    more = f", nor at {len(holes) - 1:,} more" if len(holes) > 1 else ""
    return (
        f"{log.path_of(first)} holds no record at position {first}{more}, though records follow: "
        "units are made of these, and what was there is lost."
    )
