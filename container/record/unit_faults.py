"""The one rule for what a ConsumeQueue unit points at, by whole batches.

RocketMQ's readers pass over a unit at whose place no such record is, so that its message is lost
in silence. Ours never do: a reader stops before it and names it, and reads what follows when it is
asked for the next offset. Fetcher, checker, import and dispatcher all judge by this rule.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from container.record.blank import BLANK_MAGIC, Coda
from container.record.kernels import HEADER_DTYPE, PREFIX_DTYPE, Bytes, as_bytes, headers_at
from container.record.layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from container.record.unit import Units


class Fault(IntEnum):
    """What is wrong at the place that a unit points to; the first that applies counts."""

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
        """The fault in words; "" for none."""
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
    """How many records come before the first fault, and which that is (`NONE`: all are good)."""
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
    """Compare what lies at each unit's place with the unit and its place in the queue. O(n).

    Looked at: that the record lies in the buffer, magic, size, queue id, queue offset, and bytes
    28..35 (`positions`: where in its log each record lies). Not looked at: what follows the
    header. About 100 ns a record.

    A unit that points at a coda (RocketMQ 5.1 and 5.2 left 16 bytes between two segments) means
    the record after it: ask again with the place after the coda, or use `find_records`.

    Args:
        buffer: bytes of a log.
        starts: first byte of each record in `buffer`.
        sizes: length of each record in bytes.
        queue_id: the queue's number, or that of each unit's queue.
        queue_offsets: queue offset of each unit.
        positions: log position of each record.
        heads_only: `buffer` ends after the headers; the records need not lie in it whole.
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
    """As `judge_records`; also the first fields of those records that lie in the buffer.

    They are `PREFIX_DTYPE`, which one read gets with the header; `HEADER_DTYPE` with `heads_only`.
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
    """A run of a CommitLog, split by the units that point into it."""

    starts: NDArray[np.int64]
    """First byte in the buffer of each unit's record, after a coda if the unit points at one."""
    sizes: NDArray[np.int64]
    faults: Faults
    """What is wrong with each."""


def find_records(
    log: Bytes, log_start: int, units: Units, *, queue_id: int, first_offset: int
) -> FoundRecords:
    """Find the records of `units` in `log`, whose first byte is position `log_start`. O(n).

    By the rule of `judge_records`; `units` are those of the queue offsets from `first_offset` on.
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
