"""Batch kernels for untrusted bytes: verify units and records, scan a log."""

from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from container.record.batch import (
    HEADER_DTYPE,
    PREFIX_DTYPE,
    Bytes,
    as_bytes,
    headers_at,
    store_timestamps,
    values_at,
    with_record_crc,
)
from container.record.checksum import BODY_CRC_MASK, crc32, record_crc_is_valid
from container.record.columns import LEAP_BYTES, SMALL_BYTES, Leaps, leading_whole
from container.record.header import (
    BLANK_MAGIC,
    BORN_HOST_V6,
    HOST_GROWTH,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    BlankRecord,
    Coda,
    layout_of,
)
from container.record.unit import Units


class Fault(IntEnum):
    """Fault at the position that a unit points to. The first that applies counts."""

    NONE = 0
    OUTSIDE = 1
    CODA = 2
    MAGIC = 3
    SIZE = 4
    QUEUE_ID = 5
    QUEUE_OFFSET = 6
    POSITION = 7

    @property
    def reason(self) -> str:
        """Description of the fault. "" for none."""
        return _REASONS[self]


_REASONS = {
    Fault.NONE: "",
    Fault.OUTSIDE: "record does not lie in the log",
    Fault.CODA: "a coda in place of a record",
    Fault.MAGIC: "unknown magic",
    Fault.SIZE: "size differs from the unit's",
    Fault.QUEUE_ID: "another queue id",
    Fault.QUEUE_OFFSET: "another queue offset",
    Fault.POSITION: "another physical offset",
}

Faults = NDArray[np.int8]
"""A `Fault` for each unit."""


def leading_good(faults: Faults) -> tuple[int, Fault]:
    """Number of records before the first fault, and that fault (`NONE` if all are good)."""
    if not faults.any():
        return len(faults), Fault.NONE
    bad = int(np.argmax(faults != Fault.NONE))
    return bad, Fault(int(faults[bad]))


def judge_records(
    buffer: Bytes,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    *,
    queue_id: int | NDArray[np.int64],
    queue_offsets: NDArray[np.int64],
    positions: NDArray[np.int64],
    heads_only: bool = False,
) -> Faults:
    """Compare each unit's record with the unit and its position in the queue. O(n).

    Checked: that the record lies in the buffer, magic, size, queue id, queue offset, and bytes
    28..35 (`positions`: the log position of each record). Not checked: anything after the header.
    About 100 ns a record.

    A unit that points at a coda (RocketMQ 5.1 and 5.2 left 16 bytes between two segments) means the
    record after it. Repeat the call with the position after the coda, or use `find_records`.

    Args:
        buffer: bytes of a log.
        starts: first byte of each record in `buffer`.
        sizes: length of each record in bytes.
        queue_id: the queue's number, or that of each unit's queue.
        queue_offsets: queue offset of each unit.
        positions: log position of each record.
        heads_only: `buffer` ends after the headers. The records need not be in it as a whole.
    """
    faults, _ = judge_headers(
        buffer,
        starts,
        sizes,
        queue_id=queue_id,
        queue_offsets=queue_offsets,
        positions=positions,
        heads_only=heads_only,
    )
    return faults


def judge_headers(
    buffer: Bytes,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    *,
    queue_id: int | NDArray[np.int64],
    queue_offsets: NDArray[np.int64],
    positions: NDArray[np.int64],
    heads_only: bool = False,
) -> tuple[Faults, NDArray[np.void]]:
    """As `judge_records`. Also returns the first fields of the records that lie in the buffer.

    They are `PREFIX_DTYPE`, which one read returns with the header, or `HEADER_DTYPE` with
    `heads_only`.
    """
    raw = as_bytes(buffer)
    needed = HEADER_DTYPE.itemsize if heads_only else sizes
    inside = (starts >= 0) & (sizes >= RECORD_BYTES_MIN) & (starts <= len(raw) - needed)
    if not inside.all():
        rows = np.flatnonzero(inside)
        faults = np.full(len(starts), Fault.OUTSIDE, np.int8)
        faults[rows], headers = judge_headers(
            raw,
            starts[rows],
            sizes[rows],
            queue_id=queue_id if isinstance(queue_id, int) else queue_id[rows],
            queue_offsets=queue_offsets[rows],
            positions=positions[rows],
            heads_only=heads_only,
        )
        return faults, headers
    headers = headers_at(raw, starts, HEADER_DTYPE if heads_only else PREFIX_DTYPE)
    magics = headers["magic"]
    checks = (
        ((magics == MAGIC_V1) | (magics == MAGIC_V2), Fault.MAGIC),
        (headers["size"] == sizes, Fault.SIZE),
        (headers["queue_id"] == queue_id, Fault.QUEUE_ID),
        (headers["queue_offset"] == queue_offsets, Fault.QUEUE_OFFSET),
        (headers["physical_offset"] == positions, Fault.POSITION),
    )
    faults = np.zeros(len(starts), np.int8)
    for good, fault in reversed(checks):
        if not good.all():
            faults[~good] = fault
    if faults.any():
        faults[magics == BLANK_MAGIC] = Fault.CODA
    return faults, headers


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """Section of a CommitLog, split by the units that point into it."""

    starts: NDArray[np.int64]
    """First byte of each unit's record in the buffer, after a coda if the unit points at one."""
    sizes: NDArray[np.int64]
    faults: Faults
    """Fault of each unit."""


def find_records(
    log: Bytes, log_start: int, units: Units, *, queue_id: int, first_offset: int
) -> FoundRecords:
    """Find the records of `units` in `log`, whose first byte is position `log_start`. O(n).

    Uses the rule of `judge_records`. `units` begin with queue offset `first_offset`.
    """
    sizes = units["size"].astype(np.int64)
    positions = units["position"].astype(np.int64)
    offsets = first_offset + np.arange(len(units))
    judge = partial(judge_records, log, sizes=sizes, queue_id=queue_id, queue_offsets=offsets)
    faults = judge(starts=positions - log_start, positions=positions)
    at_coda = np.flatnonzero(faults == Fault.CODA)
    if len(at_coda):
        positions[at_coda] += Coda.SIZE
        faults = judge(starts=positions - log_start, positions=positions)
    return FoundRecords(positions - log_start, sizes, faults)


_MAGICS = (MAGIC_V1, MAGIC_V2)
_INT64_MAX = np.int64(2**63 - 1)

ENDS_INSIDE = "log ends inside a record"
"""Reason of a scan that stopped where more bytes may help."""


def leading_good_units(positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    """Number of leading units that can belong to one queue. O(n).

    Their records ascend and do not overlap. Checks only the units.
    """
    good = (sizes >= RECORD_BYTES_MIN) & (positions >= 0) & (positions <= _INT64_MAX - sizes)
    good[1:] &= positions[1:] >= positions[:-1] + sizes[:-1]
    return len(good) if good.all() else int(np.argmin(good))


@dataclass(frozen=True, slots=True)
class Verified:
    """Number of leading good records, and the fault of the next one."""

    count: int
    reason: str = ""
    """Fault of record number `count`. "" if all are good."""
    store_timestamps: NDArray[np.int64] = field(
        default_factory=lambda: np.empty(0, np.int64), compare=False
    )
    """Unix ms, of the good records."""


def verify_records(
    buffer: Bytes,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    *,
    queue_id: int | NDArray[np.int64],
    queue_offsets: NDArray[np.int64],
    physical_positions: NDArray[np.int64],
    topic: bytes,
) -> Verified:
    """Verify records of one topic except their checksums. O(n).

    Adds to the rule of `judge_records`: lengths that add up exactly, and the topic. Not verified:
    bodies (`damaged_bodies`) and whole-record checksums. About 200 ns a record.
    """
    raw = as_bytes(buffer)
    faults, headers = judge_headers(
        raw,
        starts,
        sizes,
        queue_id=queue_id,
        queue_offsets=queue_offsets,
        positions=physical_positions,
    )
    count, fault = leading_good(faults)
    whole, reason = leading_whole(raw, starts[:count], sizes[:count], headers[:count], topic)
    headers, starts = headers[:whole], starts[:whole]
    stamps = headers["store_timestamp"].astype(np.int64)
    far = np.flatnonzero(headers["sys_flag"] & BORN_HOST_V6)
    stamps[far] = store_timestamps(raw, starts[far])
    return Verified(whole, reason or fault.reason, stamps)


def damaged_bodies(
    buffer: Bytes, positions: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Indices, in order, of the verified records whose body or whole record fails its CRC.

    About 0.15 us a record, and one CRC-32 over its body (50 ns per KiB).
    """
    raw = as_bytes(buffer)
    headers = headers_at(raw, positions)
    bodies = positions + layout_of(0).body
    for bit in (BORN_HOST_V6, STORE_HOST_V6):
        bodies += np.where((headers["sys_flag"] & bit) != 0, HOST_GROWTH, 0)
    ends = bodies + values_at(raw, ">i4", bodies - 4).astype(np.int64)
    view = raw.data
    spans = zip(bodies.tolist(), ends.tolist(), strict=True)
    found = np.array([crc32(view[start:end]) for start, end in spans], np.uint32)
    bad = (found & BODY_CRC_MASK) != headers["body_crc"]
    for index in with_record_crc(raw, positions, sizes):
        start = int(positions[index])
        bad[index] |= not record_crc_is_valid(view[start : start + int(sizes[index])])
    return np.flatnonzero(bad)


@dataclass(frozen=True, slots=True)
class Walk:
    """Records of a section of a log, found one after the other."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    end: int
    """End of the scan: after the last good record, blank or coda, and not beyond the given end."""
    next: int
    """Start of the next record. Beyond `end` after a blank that reaches beyond it."""
    reason: str = ""
    """Why the scan stopped before the given end. "" if it did not."""


def walk_records(buffer: Bytes, start: int = 0, end: int | None = None) -> Walk:
    """Follow the chain of sizes from `start`, past blanks and codas. Never raises.

    Checks only magic and size of each record. About 300 ns a record, or 100 ns in runs of records
    of some 300 bytes.
    """
    raw = as_bytes(buffer)
    end = len(raw) if end is None else min(end, len(raw))
    unpack = BlankRecord.LAYOUT.unpack_from
    view, leaps = raw.data, Leaps(raw, end)
    parts: list[NDArray[np.int64]] = []
    starts: list[int] = []
    sizes: list[int] = []
    place, reason = max(start, 0), ""
    begun, leap_at = place, place + LEAP_BYTES
    while place < end:
        if place >= leap_at:
            if place - begun <= SMALL_BYTES * len(starts):
                run = leaps.run_from(place)
                parts += [np.array((starts, sizes), np.int64), run]
                starts, sizes = [], []
                place = begun = int(run[:, -1].sum()) if run.size else place
            leap_at = place + LEAP_BYTES
            continue
        if end - place < BlankRecord.SIZE:
            reason = ENDS_INSIDE
            break
        size, magic = unpack(view, place)
        if magic in _MAGICS:
            if size < RECORD_BYTES_MIN:
                reason = f"impossible record size {size}"
                break
            if size > end - place:
                reason = ENDS_INSIDE
                break
            starts.append(place)
            sizes.append(size)
        elif magic != BLANK_MAGIC or size < BlankRecord.SIZE:
            reason = f"unknown magic {magic:#010x}"
            break
        place += size
    columns = np.concatenate((*parts, np.array((starts, sizes), np.int64)), axis=1)
    return Walk(columns[0], columns[1], min(place, end), place, reason)
