"""Consecutive messages of one queue as columns over one buffer, and the kernels on them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from container.record.checksum import RECORD_CRC_BYTES, RECORD_CRC_PREFIX, renew_record_crc
from container.record.header import (
    BORN_HOST_AT,
    BORN_HOST_V6,
    HEAD,
    HOST_GROWTH,
    PHYSICAL_OFFSET_AT,
    RECORD_BYTES_MIN,
    layout_of,
)
from container.record.unit import UNIT_BYTES, UNIT_DTYPE, Units
from provider.errors import Corrupt
from provider.object_store import Buffer
from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Whole stored records of consecutive queue offsets, back to back in one buffer.

    The batch alone owns its buffer: a commit rewrites the records' physical offsets in place.
    """

    first_offset: QueueOffset
    data: NDArray[np.uint8]
    """The records, without anything between them."""
    starts: NDArray[np.int64]
    """First byte of each record in `data`; the first is 0."""
    sizes: NDArray[np.int64]
    """Length of each record in bytes."""
    tag_hashes: NDArray[np.int64]
    """Tags code of each record's local ConsumeQueue unit, copied unchanged."""
    store_timestamps: NDArray[np.int64]
    """Unix ms."""

    def __post_init__(self) -> None:
        count = len(self.starts)
        assert count > 0, "a batch has at least one message"
        assert len(self.sizes) == len(self.tag_hashes) == len(self.store_timestamps) == count
        assert int(self.starts[-1] + self.sizes[-1]) == len(self.data), "records fill the buffer"

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def next_offset(self) -> QueueOffset:
        """The queue offset after the last message."""
        return QueueOffset(self.first_offset + len(self.starts))

    @property
    def bytes(self) -> int:
        """Length of all records together."""
        return len(self.data)


Bytes = Buffer | NDArray[np.uint8]
"""Bytes without a copy, also as an array."""

HEADER_DTYPE = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("body_crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
    ]
)
"""The first 48 bytes of a record, as they lie on disk."""

PREFIX_DTYPE = np.dtype(
    [
        *HEADER_DTYPE.descr,
        ("born_host", "V8"),
        ("store_timestamp", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_length", ">i4"),
    ]
)
"""All that precedes the body, as it lies on disk where both hosts are IPv4 addresses."""

assert HEADER_DTYPE.itemsize == HEAD.size == BORN_HOST_AT, "an on-disk format never drifts"
assert PREFIX_DTYPE.itemsize == layout_of(0).body, "an on-disk format never drifts"

_CRC_PREFIX_START = int.from_bytes(RECORD_CRC_PREFIX[:8], "big")


def as_bytes(buffer: Bytes) -> NDArray[np.uint8]:
    """View the buffer as an array of bytes, without a copy. Writable if the buffer is."""
    if isinstance(buffer, np.ndarray):
        return buffer
    return np.frombuffer(buffer, np.uint8)


def values_at(
    buffer: NDArray[np.uint8], dtype: DTypeLike, positions: NDArray[np.int64]
) -> NDArray[np.generic]:
    """Copy one value of `dtype` from each byte position, aligned or not. 20 to 90 ns each.

    One take over a view whose elements overlap: element `i` begins at byte `i`.
    """
    wanted = np.dtype(dtype)
    count = max(len(buffer) - wanted.itemsize + 1, 0)
    assert len(positions) == 0 or (positions.min() >= 0 and positions.max() < count)
    return np.ndarray((count,), wanted, buffer, strides=(1,))[positions]


def headers_at(
    buffer: Bytes, positions: NDArray[np.int64], dtype: np.dtype[np.void] = HEADER_DTYPE
) -> NDArray[np.void]:
    """Return the first fields of the records at `positions`, as `HEADER_DTYPE` or `PREFIX_DTYPE`.

    O(n).
    """
    # Taken as plain bytes: numpy copies structured fields one by one, which is 15 times slower.
    raw = values_at(as_bytes(buffer), f"V{dtype.itemsize}", positions)
    return raw.view(dtype)  # pyright: ignore[reportReturnType] - a structured dtype gives void


def born_host_growth(sys_flags: NDArray[np.integer]) -> NDArray[np.int64]:
    """Shift of each record's store timestamp, in bytes, against a record with an IPv4 born host."""
    return np.where((sys_flags & BORN_HOST_V6) != 0, HOST_GROWTH, 0)


def store_timestamps(buffer: Bytes, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Store timestamps, in Unix ms, of the records at `positions`. sysFlag decides their place."""
    raw = as_bytes(buffer)
    sys_flags = headers_at(raw, positions)["sys_flag"]
    places = positions + layout_of(0).store_timestamp + born_host_growth(sys_flags)
    return values_at(raw, ">i8", places).astype(np.int64)


def rewrite_positions(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    new_positions: NDArray[np.int64],
) -> None:
    """Set bytes 28..35 of each record in place, and renew whole-record checksums.

    `data` must be writable, and each range a whole, verified record. Costs about 40 ns a record,
    and a CRC-32 over each record that has the checksum property.
    """
    if len(starts) == 0:
        return
    assert sizes.min() >= RECORD_BYTES_MIN
    assert starts.min() >= 0
    assert (starts + sizes).max() <= len(data)
    places = np.ndarray((len(data) - 7,), np.dtype(">i8"), data, strides=(1,))
    places[starts + PHYSICAL_OFFSET_AT] = new_positions
    view = data.data
    for index in with_record_crc(data, starts, sizes):
        start = int(starts[index])
        renew_record_crc(view[start : start + int(sizes[index])])


def with_record_crc(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> list[int]:
    """Indices, in order, of the records that may end with a whole-record checksum. O(n).

    Each record must have at least the minimal length.
    """
    tails = values_at(data, ">u8", starts + sizes - RECORD_CRC_BYTES)
    return np.flatnonzero(tails == _CRC_PREFIX_START).tolist()


def encode_units(
    positions: NDArray[np.int64], sizes: NDArray[np.int64], tag_hashes: NDArray[np.int64]
) -> Units:
    """Build ConsumeQueue units from columns.

    `.tobytes()` or a memoryview of the result goes to disk.
    """
    units = np.empty(len(positions), UNIT_DTYPE)
    units["position"] = positions
    units["size"] = sizes
    units["tag_hash"] = tag_hashes
    return units


def decode_units(raw: Bytes, *, path: str = "", position: int = 0) -> Units:
    """View `raw` as units, without a copy. Their values are not checked.

    Raises:
        Corrupt: the length is not a multiple of 20. `path` and `position` name the source in the
            error.
    """
    if len(raw) % UNIT_BYTES:
        raise Corrupt(f"{len(raw)} bytes are not whole units", path, position)
    return np.frombuffer(raw, UNIT_DTYPE)
