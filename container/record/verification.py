"""Batch kernels that trust nothing: judge units, verify records, walk a log.

No damaged length can make them read outside the buffer or raise; they say what is wrong and where.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from container.record.blank import BLANK_MAGIC, BlankRecord
from container.record.checksum import BODY_CRC_MASK, crc32, record_crc_is_valid
from container.record.kernels import (
    Bytes,
    as_bytes,
    headers_at,
    store_timestamps,
    values_at,
    with_record_crc,
)
from container.record.layout import (
    BORN_HOST_V6,
    HOST_GROWTH,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    TOPIC_LENGTH_BYTES,
    layout_of,
)
from container.record.leaps import LEAP_BYTES, SMALL_BYTES, Leaps
from container.record.unit_faults import judge_headers, leading_good

_MAGICS = (MAGIC_V1, MAGIC_V2)
_INT64_MAX = np.int64(2**63 - 1)

ENDS_INSIDE = "log ends inside a record"
"""Why a walk stopped where more bytes may help."""


def leading_good_units(positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    """How many leading units can be those of a queue: records ascend and do not overlap. O(n).

    Nothing but the units is looked at.
    """
    good = (sizes >= RECORD_BYTES_MIN) & (positions >= 0) & (positions <= _INT64_MAX - sizes)
    good[1:] &= positions[1:] >= positions[:-1] + sizes[:-1]
    return len(good) if good.all() else int(np.argmin(good))


@dataclass(frozen=True, slots=True)
class Verified:
    """How many leading records are good, and what is wrong with the next one."""

    count: int
    reason: str = ""
    """Why record number `count` is not good; "" when all are."""
    store_timestamps: NDArray[np.int64] = field(
        default_factory=lambda: np.empty(0, np.int64), compare=False
    )
    """Unix ms, of the good records."""


class _Prefix:
    """The leading records that passed every check so far; each check sees only those."""

    def __init__(self, count: int, reason: str) -> None:
        self.count = count
        self.reason = reason

    def keep(self, good: NDArray[np.bool_], reason: str) -> None:
        bad = int(np.argmin(good)) if len(good) else 0
        if len(good) and not good[bad]:
            self.count, self.reason = bad, reason


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
    """Check records of one topic by all that their bytes promise but checksums. O(n).

    The rule of `judge_records`, and besides: lengths that add up exactly, topic. Not checked:
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
    prefix = _Prefix(count, fault.reason)
    _verify_lengths(raw, starts, headers, prefix, topic)
    headers, starts = headers[: prefix.count], starts[: prefix.count]
    stamps = headers["store_timestamp"].astype(np.int64)
    far = np.flatnonzero(headers["sys_flag"] & BORN_HOST_V6)
    stamps[far] = store_timestamps(raw, starts[far])
    return Verified(prefix.count, prefix.reason, stamps)


def _verify_lengths(
    raw: NDArray[np.uint8],
    positions: NDArray[np.int64],
    headers: NDArray[np.void],
    prefix: _Prefix,
    topic: bytes,
) -> None:
    """Every read is inside the record, because the lengths before it were found to fit."""
    headers = headers[: prefix.count]
    positions = positions[: prefix.count]
    is_v2 = headers["magic"] == MAGIC_V2
    growth = np.zeros(len(headers), np.int64)
    for bit in (BORN_HOST_V6, STORE_HOST_V6):
        growth += np.where((headers["sys_flag"] & bit) != 0, HOST_GROWTH, 0)
    topic_length_bytes = np.where(is_v2, TOPIC_LENGTH_BYTES[MAGIC_V2], TOPIC_LENGTH_BYTES[MAGIC_V1])
    fixed = layout_of(0).body + growth + topic_length_bytes + PROPERTIES_LENGTH_BYTES
    room = headers["size"].astype(np.int64) - fixed
    prefix.keep(room >= 0, "record is shorter than its header")

    n = prefix.count
    bodies = positions[:n] + layout_of(0).body + growth[:n]
    body_lengths = headers["body_length"][:n].astype(np.int64)
    far = np.flatnonzero(growth[:n])
    body_lengths[far] = values_at(raw, ">i4", bodies[far] - 4)
    prefix.keep((body_lengths >= 0) & (body_lengths <= room[:n]), "impossible body length")

    n = prefix.count
    topic_lengths_at = bodies[:n] + body_lengths[:n]
    topic_lengths = values_at(raw, ">i1", topic_lengths_at).astype(np.int64)
    wide = np.flatnonzero(is_v2[:n])
    topic_lengths[wide] = values_at(raw, ">i2", topic_lengths_at[wide])
    fits = (topic_lengths == len(topic)) & (topic_lengths <= room[:n] - body_lengths[:n])
    prefix.keep(fits, "another topic length")

    n = prefix.count
    topics_at = topic_lengths_at[:n] + topic_length_bytes[:n]
    properties_lengths = values_at(raw, ">i2", topics_at + len(topic)).astype(np.int64)
    left = room[:n] - body_lengths[:n] - len(topic)
    prefix.keep(properties_lengths == left, "lengths do not add up")
    n = prefix.count
    if topic and n:
        found = values_at(raw, f"S{len(topic)}", topics_at[:n])
        prefix.keep(found == topic, "another topic")


def damaged_bodies(
    buffer: Bytes, positions: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Which of these verified records have a body, or a whole record, that fails its CRC.

    Indices in order. About 0.15 us a record, and one CRC-32 over its body (50 ns per KiB).
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
    """The records of a run of log, found one after the other."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    end: int
    """Where the walk stopped: after the last good record, blank or coda; within the end given."""
    next: int
    """Where the next record would begin: beyond `end` after a blank that reaches beyond it."""
    reason: str = ""
    """Why it stopped before the end it was given; "" when it did not."""


def walk_records(buffer: Bytes, start: int = 0, end: int | None = None) -> Walk:
    """Follow the chain of sizes from `start`; blanks and codas are passed over. Never raises.

    Only magic and size of each record are looked at. About 300 ns a record, 100 ns in runs of
    records of some 300 bytes.
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
