"""The checker of records names every unit and record that is wrong, and goes on behind each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.check.queue import RecordCheck
from container.errors import Finding
from container.names.queue_id import QueueId
from container.record.batch import encode_units
from container.record.body import BODY_BYTES_MAX, CompressionType, compress
from container.record.properties import tag_hash
from container.record.unit import Units
from provider.ranges import QueueOffset
from tests.support.messages import damages, make_record

QUEUE = QueueId("T", 3)
COUNT = 5


def good_queue() -> tuple[bytearray, Units]:
    """Five messages from offset 10 on, at log position 1,000."""
    log = bytearray()
    rows: list[tuple[int, int, int]] = []
    for offset in range(10, 10 + COUNT):
        place = 1_000 + len(log)
        tags = {"TAGS": "a"}
        record = make_record("T", 3, offset, b"body", properties=tags, physical_offset=place)
        rows.append((place, len(record), tag_hash("a")))
        log += record
    return log, encode_units(*np.array(rows, np.int64).T)


def findings(log: bytes | bytearray, units: Units) -> list[Finding]:
    return list(RecordCheck(QUEUE, 1_000).check(QueueOffset(10), units, log, 1_000))


def test_nothing_is_wrong_with_good_records() -> None:
    assert findings(*good_queue()) == []


@pytest.mark.parametrize(
    ("byte", "kind", "detail"),
    [
        (3, "record", "record of"),
        (7, "record", "unknown magic"),
        (15, "record", "another queue id: 2"),
        (27, "record", "another queue offset: 13"),
        (35, "record", "another physical offset"),
        (87, "record", "body length"),
        (88, "body-crc", "stored"),
        (93, "record", "another topic: b'U'"),
    ],
)
def test_each_damaged_record_is_one_finding_at_its_offset(
    byte: int, kind: str, detail: str
) -> None:
    log, units = good_queue()
    log[2 * int(units["size"][0]) + byte] ^= 0x40 if byte == 87 else 1
    (found,) = findings(log, units)
    assert (found.finding, found.path, found.position) == (kind, "T/3", 12)
    assert detail in found.detail


@pytest.mark.parametrize(
    ("field", "value", "kinds"),
    [
        ("size", 7, {"unit-outside-log", "units-do-not-join"}),
        ("position", -1, {"unit-outside-log", "units-do-not-join"}),
        ("position", 2**62, {"unit-outside-log", "units-do-not-join"}),
        ("tag_hash", 5, {"tag-hash"}),
    ],
)
def test_each_damaged_unit_is_named_and_the_others_are_not(
    field: str, value: int, kinds: set[str]
) -> None:
    log, units = good_queue()
    units = units.copy()
    units[field][2] = value
    found = findings(log, units)
    assert {one.finding for one in found} == kinds
    assert {one.position for one in found} <= {12, 13}


@given(st.data())
def test_damaged_records_give_findings_and_never_an_error(data: st.DataObject) -> None:
    log, units = good_queue()
    for found in findings(data.draw(damages(bytes(log))), units):
        assert 10 <= found.position < 10 + COUNT


@given(st.data())
def test_damaged_places_in_units_are_always_found(data: st.DataObject) -> None:
    log, units = good_queue()
    raw = bytearray(units.tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        unit, byte = data.draw(st.integers(0, COUNT - 1)), data.draw(st.integers(0, 11))
        raw[20 * unit + byte] = data.draw(st.integers(0, 255))
    changed = np.frombuffer(bytes(raw), units.dtype)
    wrong = {10 + int(at) for at in np.flatnonzero(changed != units)}
    assert wrong <= {found.position for found in findings(log, changed)}


@pytest.mark.parametrize("kind", CompressionType)
def test_bodies_that_no_reader_decompresses_are_found(
    kind: CompressionType,
) -> None:
    whole, flags = compress(bytes(1000), kind)
    bomb, _ = compress(bytes(BODY_BYTES_MAX + 1), kind)
    bodies = [whole, whole[:-5], b"no frame", bomb]
    log, rows = bytearray(), list[tuple[int, int, int]]()
    for offset, body in enumerate(bodies, 10):
        place = 1_000 + len(log)
        record = make_record("T", 3, offset, body, sys_flag=flags, physical_offset=place)
        rows.append((place, len(record), 0))
        log += record
    units = encode_units(*np.array(rows, np.int64).T)
    by_head = [(one.finding, one.position) for one in findings(log, units)]
    assert by_head == [("body-compression", 12)], "the first bytes are of no such format"
    check = RecordCheck(QUEUE, 1_000, decompresses=True)
    found = list(check.check(QueueOffset(10), units, log, 1_000))
    assert [(one.finding, one.position) for one in found] == [
        ("body-compression", offset) for offset in (11, 12, 13)
    ]
