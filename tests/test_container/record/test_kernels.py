"""The batch kernels equal the single-record functions, and damage never leads them astray."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from container.record import batch as kernels
from container.record.batch import (
    MessageBatch,
    decode_units,
    encode_units,
    headers_at,
    rewrite_positions,
    store_timestamps,
)
from container.record.checksum import record_crc_is_valid, renew_record_crc
from container.record.header import PHYSICAL_OFFSET_AT, RecordHeader
from container.record.unit import ConsumeQueueUnit
from provider.errors import Corrupt
from tests.support.messages import batch_of, batches, queue_records


def i8(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


@given(batches(), st.binary(max_size=9))
def test_header_columns_equal_the_decoded_headers(batch: MessageBatch, before: bytes) -> None:
    buffer = before + batch.data.tobytes()
    starts = batch.starts + len(before)
    columns = headers_at(buffer, starts)
    times = store_timestamps(buffer, starts)
    for index, start in enumerate(starts.tolist()):
        header = RecordHeader.decode(buffer[start:], path="log", position=start)
        for name in kernels.HEADER_DTYPE.names or ():
            assert columns[name][index] == getattr(header, name)
        assert times[index] == header.store_timestamp == batch.store_timestamps[index]


@given(queue_records(), st.integers(0, 2**40), st.binary(max_size=7))
def test_rewriting_a_batch_equals_rewriting_each_record(
    records: list[bytes], base: int, before: bytes
) -> None:
    batch = batch_of(records)
    data = np.frombuffer(bytearray(before) + batch.data.tobytes(), np.uint8)
    positions = base + batch.starts
    rewrite_positions(data, batch.starts + len(before), batch.sizes, positions)
    singles = [bytearray(raw) for raw in records]
    for raw, position in zip(singles, positions.tolist(), strict=True):
        struct.pack_into(">q", raw, PHYSICAL_OFFSET_AT, position)
        renew_record_crc(memoryview(raw))
        assert record_crc_is_valid(raw)
    assert data.tobytes() == before + b"".join(singles)


def test_rewriting_nothing_changes_nothing() -> None:
    data = np.zeros(3, np.uint8)
    rewrite_positions(data, i8([]), i8([]), i8([]))
    assert data.tobytes() == bytes(3)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**63 - 1), st.integers(1, 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
        ),
        max_size=8,
    )
)
def test_unit_columns_are_the_units_bytes(rows: list[tuple[int, int, int]]) -> None:
    units = [ConsumeQueueUnit(*row) for row in rows]
    columns = [i8([row[field] for row in rows]) for field in range(3)]
    raw = encode_units(*columns).tobytes()
    assert raw == b"".join(unit.encode() for unit in units)
    back = decode_units(raw)
    assert [ConsumeQueueUnit(*row) for row in back.tolist()] == units


def test_bytes_that_are_not_whole_units_are_corrupt() -> None:
    with pytest.raises(Corrupt) as caught:
        decode_units(bytes(39), path="cq", position=20)
    assert (caught.value.path, caught.value.position) == ("cq", 20)
