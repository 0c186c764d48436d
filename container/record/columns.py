"""Where every field of many records lies: what columns are made of, without one object a record."""

from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from container.record.header import unpack_record
from container.record.kernels import as_bytes, born_host_growth, headers_at, values_at
from container.record.layout import (
    BORN_HOST_AT,
    HOST_GROWTH,
    HOST_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    layout_of,
)
from provider.errors import Corrupt
from provider.object_store import Buffer

TAIL_DTYPE = np.dtype(
    [("reconsume_times", ">i4"), ("prepared_transaction_offset", ">i8"), ("body_length", ">i4")]
)
"""What lies between the store host and the body."""
_TIMESTAMP_BYTES = 8

assert layout_of(0).body - layout_of(0).tail == TAIL_DTYPE.itemsize, (
    "an on-disk format never drifts"
)


Rows = slice | NDArray[np.int64] | NDArray[np.bool_]
"""Some of many records: a slice, their indices, or a mask."""


class Spans(NamedTuple):
    """A part of each record: first byte, and the one behind the last, in the buffer."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def taken(self, rows: "Rows") -> "Spans":
        """Those of some records."""
        return Spans(self.starts[rows], self.ends[rows])


class RecordColumns(NamedTuple):
    """The fields of many records, by name; parts of variable length as their places."""

    headers: NDArray[np.void]
    """`HEADER_DTYPE`: the fields before the born host."""
    store_timestamps: NDArray[np.int64]
    tails: NDArray[np.void]
    """`TAIL_DTYPE`."""
    born_hosts: Spans
    """Address of 4 or 16 bytes, and port of 4."""
    store_hosts: Spans
    bodies: Spans
    topics: Spans
    properties: Spans

    def taken(self, rows: Rows) -> "RecordColumns":
        """The fields of some of the records. O(rows)."""
        return RecordColumns(
            self.headers[rows],
            self.store_timestamps[rows],
            self.tails[rows],
            self.born_hosts.taken(rows),
            self.store_hosts.taken(rows),
            self.bodies.taken(rows),
            self.topics.taken(rows),
            self.properties.taken(rows),
        )


def leading_columns(
    data: Buffer | NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[RecordColumns, str]:
    """The fields of the leading sound records, and why the next is not; "" when all are.

    As `locate_columns`, and 2 us a record more where one is not sound. Never raises.
    """
    raw = as_bytes(data)
    found = _located(raw, starts, sizes)
    if found is not None:
        return found, ""
    view = raw.data
    for count, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        try:
            unpack_record(view[start : start + size], "", 0)
        except Corrupt as error:
            found = _located(raw, starts[:count], sizes[:count])
            assert found is not None, "the batch kernel and `unpack_record` have one rule"
            return found, error.reason
    raise AssertionError("the batch kernel and `unpack_record` have one rule")


def locate_columns(
    data: Buffer, starts: NDArray[np.int64], sizes: NDArray[np.int64], *, path: str
) -> RecordColumns:
    """The fields of the records of `sizes[i]` bytes at `starts[i]`, by `header.unpack_record`.

    Some 0.2 us a record. Topics are located, not compared; nor are checksums.

    Raises:
        Corrupt: a record's magic, size or a length contradicts the format; names `path` and the
            position that the first of them has in its bytes 28..35.
    """
    raw = as_bytes(data)
    found = _located(raw, starts, sizes)
    if found is None:
        _raise_first(raw, starts, sizes, path)
    return found


def _located(
    raw: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> RecordColumns | None:
    """The fields; None if any record is not sound."""
    if (sizes < RECORD_BYTES_MIN).any():
        return None
    headers = headers_at(raw, starts)
    ends = starts + sizes
    is_v2 = headers["magic"] == MAGIC_V2
    born_ends = starts + BORN_HOST_AT + HOST_V4_BYTES + born_host_growth(headers["sys_flag"])
    store_starts = born_ends + _TIMESTAMP_BYTES
    growth = np.where((headers["sys_flag"] & STORE_HOST_V6) != 0, HOST_GROWTH, 0)
    tail_starts = store_starts + HOST_V4_BYTES + growth
    body_starts = tail_starts + TAIL_DTYPE.itemsize
    room = ends - body_starts - np.where(is_v2, 2, 1) - PROPERTIES_LENGTH_BYTES
    fits = (headers["size"] == sizes) & (is_v2 | (headers["magic"] == MAGIC_V1)) & (room >= 0)
    if not fits.all():
        return None
    tails = values_at(raw, f"V{TAIL_DTYPE.itemsize}", tail_starts).view(TAIL_DTYPE)
    body_ends = body_starts + tails["body_length"]
    room -= tails["body_length"]
    if not ((tails["body_length"] >= 0) & (room >= 0)).all():
        return None
    topic_lengths = values_at(raw, ">i1", body_ends).astype(np.int64)
    topic_lengths[is_v2] = values_at(raw, ">i2", body_ends[is_v2])
    topic_starts = body_ends + np.where(is_v2, 2, 1)
    topic_ends = topic_starts + topic_lengths
    if not ((topic_lengths >= 0) & (topic_lengths <= room)).all():
        return None
    properties = topic_ends + PROPERTIES_LENGTH_BYTES
    if (values_at(raw, ">i2", topic_ends) != ends - properties).any():
        return None
    return RecordColumns(
        headers,
        values_at(raw, ">i8", born_ends).astype(np.int64),
        tails,
        Spans(starts + BORN_HOST_AT, born_ends),
        Spans(store_starts, tail_starts),
        Spans(body_starts, body_ends),
        Spans(topic_starts, topic_ends),
        Spans(properties, ends),
    )


def _raise_first(
    raw: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], path: str
) -> NoReturn:
    view = raw.data
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        record = view[start : start + size]
        place = record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8]
        unpack_record(record, path, int.from_bytes(place, "big", signed=True))
    raise AssertionError("the batch kernel and `unpack_record` have one rule")
