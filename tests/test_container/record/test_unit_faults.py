"""What units point at: found behind codas too, and every record that is not theirs is named."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from container.record.batch import encode_units
from container.record.header import BlankRecord, Coda
from container.record.verification import (
    Fault,
    FoundRecords,
    find_records,
    judge_records,
    leading_good,
)
from tests.support.messages import damages, make_batch, make_record, queue_records

SIZE = len(make_record("T", 3, 0))


def log_of(*gaps: bytes) -> tuple[bytes, NDArray[np.int64]]:
    """Queue 3's records from offset 10 on with these bytes before each, and where each begins."""
    log, starts = b"", list[int]()
    for number, gap in enumerate(gaps):
        log += gap
        starts.append(len(log))
        log += make_record("T", 3, 10 + number, physical_offset=len(log))
    return log, np.array(starts, np.int64)


def found_in(log: bytes, starts: NDArray[np.int64], log_start: int = 0) -> FoundRecords:
    units = encode_units(starts, np.full(len(starts), SIZE), np.zeros(len(starts), np.int64))
    return find_records(log, log_start, units, queue_id=3, first_offset=10)


def faults(found: FoundRecords) -> list[Fault]:
    return [Fault(number) for number in found.faults.tolist()]


def test_each_unit_without_its_record_has_its_fault_and_hides_no_other() -> None:
    batch = make_batch(0, 9, 50, random.Random(2), physical_offset=1000)
    raw = bytearray(batch.data.tobytes())
    units = encode_units(batch.starts + 1000, batch.sizes, np.zeros(9, np.int64))
    for number, byte in {1: 4, 3: 15, 4: 27, 5: 35}.items():
        raw[int(batch.starts[number]) + byte] ^= 1
    units["size"][2] += 1
    units["position"][7] = 999
    found = find_records(bytes(raw[:-1]), 1000, units, queue_id=0, first_offset=0)
    good = Fault.NONE
    assert faults(found) == [
        good, Fault.MAGIC, Fault.SIZE, Fault.QUEUE_ID, Fault.QUEUE_OFFSET, Fault.POSITION, good,
        Fault.OUTSIDE, Fault.OUTSIDE,
    ]  # fmt: skip
    assert leading_good(found.faults) == (1, Fault.MAGIC)
    assert leading_good(found.faults[:1]) == (1, Fault.NONE)
    assert leading_good(found.faults[:0]) == (0, Fault.NONE)


def test_a_unit_that_points_at_a_coda_means_the_record_behind_it() -> None:
    log, starts = log_of(b"", Coda(7).encode(), b"", Coda(8).encode())
    at_codas = starts - [0, Coda.SIZE, 0, Coda.SIZE]
    for places in (starts, at_codas):
        found = found_in(log, places)
        assert found.starts.tolist() == starts.tolist()
        assert set(faults(found)) == {Fault.NONE}
    assert faults(found_in(log[:-1], at_codas))[2:] == [Fault.NONE, Fault.OUTSIDE]


def test_two_codas_in_a_row_and_blanks_are_no_records() -> None:
    log, starts = log_of(b"", 2 * Coda(7).encode(), BlankRecord(16).encode(), b"")
    found = found_in(log, starts - [0, 2 * Coda.SIZE, BlankRecord.SIZE, 0])
    assert faults(found) == [Fault.NONE, Fault.CODA, Fault.MAGIC, Fault.NONE]


def test_a_head_alone_is_judged_like_a_record_that_is_not_all_there() -> None:
    log, starts = log_of(b"")
    for heads_only, fault in ((True, Fault.NONE), (False, Fault.OUTSIDE)):
        found = judge_records(
            log[:48],
            starts,
            np.array([SIZE]),
            queue_id=3,
            queue_offsets=np.array([10]),
            positions=starts,
            heads_only=heads_only,
        )
        assert found.tolist() == [fault]


def test_records_of_several_queues_are_judged_each_for_its_own() -> None:
    log = make_record("T", 1, 7) + make_record("T", 2, 9, physical_offset=SIZE)
    starts = np.array([0, SIZE])
    for ids, wanted in (([1, 2], [Fault.NONE] * 2), ([1, 1], [Fault.NONE, Fault.QUEUE_ID])):
        found = judge_records(
            log,
            starts,
            np.array([SIZE, SIZE]),
            queue_id=np.array(ids),
            queue_offsets=np.array([7, 9]),
            positions=starts,
        )
        assert found.tolist() == wanted


def test_no_units_are_no_faults() -> None:
    assert len(found_in(b"", np.empty(0, np.int64)).faults) == 0


@pytest.mark.parametrize("position", [-(2**63), -1, 2**63 - 17, 2**63 - 1])
def test_an_impossible_position_lies_outside(position: int) -> None:
    log, _ = log_of(b"")
    assert faults(found_in(log, np.array([position]), 5)) == [Fault.OUTSIDE]


longs = st.integers(-(2**63), 2**63 - 1)


@given(queue_records(4), st.data())
def test_what_is_found_lies_inside_whatever_the_units_say(
    records: list[bytes], data: st.DataObject
) -> None:
    raw = data.draw(damages(b"".join(records)))
    near = st.one_of(longs, st.integers(-5, len(raw) + 5))
    rows = data.draw(st.lists(st.tuples(near, st.integers(-(2**31), 2**31 - 1)), max_size=6))
    positions = np.array([row[0] for row in rows], np.int64)
    sizes = np.array([row[1] for row in rows], np.int64)
    units = encode_units(positions, sizes, sizes)
    log_start = data.draw(st.integers(0, 9))
    found = find_records(raw, log_start, units, queue_id=0, first_offset=0)
    assert len(found.faults) == len(found.starts) == len(found.sizes) == len(rows)
    good = found.faults == Fault.NONE
    assert (found.starts[good] >= 0).all()
    assert (found.starts[good] + found.sizes[good] <= len(raw)).all()
