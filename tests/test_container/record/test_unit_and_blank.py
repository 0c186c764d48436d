"""The small fixed records: ConsumeQueue units, blanks and codas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record.header import BlankRecord, Coda
from container.record.unit import FILLER_SIZE, ConsumeQueueUnit
from provider.errors import Corrupt
from tests.support.messages import value_or_corrupt

longs = st.integers(-(2**63), 2**63 - 1)


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**31 - 1), longs)
def test_a_unit_comes_back_equal(position: int, size: int, tag_hash: int) -> None:
    unit = ConsumeQueueUnit(position, size, tag_hash)
    assert ConsumeQueueUnit.decode(unit.encode(), path="cq", position=40) == unit


def test_units_are_big_endian() -> None:
    raw = bytes.fromhex("000000000000010200000003ffffffff80000000")
    unit = ConsumeQueueUnit.decode(raw, path="cq", position=0)
    assert unit == ConsumeQueueUnit(0x102, 3, -(2**31))


def test_a_filler_is_recognised() -> None:
    assert ConsumeQueueUnit(0, FILLER_SIZE, 0).is_filler
    assert not ConsumeQueueUnit(0, 200, 0).is_filler


@pytest.mark.parametrize("unit", [ConsumeQueueUnit(-1, 5, 0), ConsumeQueueUnit(0, 0, 0)])
def test_an_impossible_unit_is_corrupt(unit: ConsumeQueueUnit) -> None:
    with pytest.raises(Corrupt, match="impossible") as caught:
        ConsumeQueueUnit.decode(unit.encode(), path="cq", position=40)
    assert (caught.value.path, caught.value.position) == ("cq", 40)


@given(st.integers(8, 2**31 - 1), longs)
def test_blanks_and_codas_come_back_equal(size: int, timestamp: int) -> None:
    blank, coda = BlankRecord(size), Coda(timestamp)
    assert BlankRecord.decode(blank.encode(), path="log", position=0) == blank
    assert Coda.decode(coda.encode(), path="log", position=0) == coda


@given(st.sampled_from([BlankRecord, Coda, ConsumeQueueUnit]), st.binary(max_size=24))
def test_any_bytes_are_a_value_or_corrupt(
    kind: type[BlankRecord | Coda | ConsumeQueueUnit], raw: bytes
) -> None:
    found = value_or_corrupt(lambda: kind.decode(raw, path="log", position=5))
    if isinstance(found, Corrupt):
        assert (found.path, found.position) == ("log", 5)
    else:
        assert found.encode() == raw
