"""The kernels that trust nothing: verify and walk, on good and on damaged logs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from container.record.batch import encode_units
from container.record.header import BlankRecord, Coda
from container.record.message import StoredMessage
from container.record.unit import Units
from container.record.verification import (
    Verified,
    damaged_bodies,
    verify_records,
    walk_records,
)
from provider.errors import Corrupt
from tests.support.messages import (
    damages,
    make_message,
    queue_records,
    value_or_corrupt,
    with_record_crc,
)

TOPIC = b"TopicTest"


def places(records: list[bytes], start: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    sizes = np.array([len(raw) for raw in records], np.int64)
    return start + np.cumsum(sizes) - sizes, sizes


def units_of(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> Units:
    return encode_units(starts, sizes, np.zeros(len(starts), np.int64))


def good_by_definition(raw: bytes, starts: list[int], sizes: list[int], first: bytes) -> int:
    """What verify_records must count, one record at a time."""
    model = StoredMessage.decode(first, path="", position=0)
    for index, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        piece = raw[start : start + size]
        found = value_or_corrupt(
            lambda piece=piece: StoredMessage.decode(piece, path="", position=0)
        )
        if len(piece) != size or isinstance(found, Corrupt):
            return index
        wanted = (model.topic, model.queue_id, model.queue_offset + index, start)
        if (found.topic, found.queue_id, found.queue_offset, found.physical_offset) != wanted:
            return index
    return len(starts)


@given(queue_records(), st.data())
def test_verifying_counts_what_decoding_each_record_counts(
    records: list[bytes], data: st.DataObject
) -> None:
    starts, sizes = places(records)
    raw = b"".join(records)
    if data.draw(st.booleans()):
        raw = data.draw(damages(raw))
    first = StoredMessage.decode(records[0], path="", position=0)
    found = verify_records(
        raw,
        starts,
        sizes,
        queue_id=first.queue_id,
        queue_offsets=first.queue_offset + np.arange(len(starts)),
        physical_positions=starts,
        topic=first.topic.encode(),
    )
    assert found.count == good_by_definition(raw, starts.tolist(), sizes.tolist(), records[0])
    assert (found.reason == "") == (found.count == len(records))


longs = st.integers(-(2**63), 2**63 - 1)


@given(queue_records(4), st.data())
def test_no_positions_or_sizes_lead_outside(records: list[bytes], data: st.DataObject) -> None:
    raw = data.draw(damages(b"".join(records)))
    near = st.one_of(longs, st.integers(-5, len(raw) + 5))
    rows = data.draw(st.lists(st.tuples(near, st.integers(-(2**31), 2**31 - 1)), max_size=6))
    starts = np.array([row[0] for row in rows], np.int64)
    sizes = np.array([row[1] for row in rows], np.int64)
    found = verify_records(
        raw,
        starts,
        sizes,
        queue_id=0,
        queue_offsets=np.arange(len(rows)),
        physical_positions=starts,
        topic=TOPIC,
    )
    assert 0 <= found.count <= len(rows)


def verify(records: list[bytes], **changes: object) -> Verified:
    starts, sizes = places(records)
    expected: dict[str, object] = {
        "queue_id": 3,
        "queue_offsets": 10 + np.arange(len(starts)),
        "physical_positions": starts,
        "topic": TOPIC,
    }
    return verify_records(b"".join(records), starts, sizes, **{**expected, **changes})  # pyright: ignore[reportArgumentType] - the test's own table


def three(**second: object) -> list[bytes]:
    records: list[bytes] = []
    for number in range(3):
        place = sum(map(len, records))
        message = make_message(10 + number, queue_id=3, topic="TopicTest", physical_offset=place)
        records.append(message._replace(**second if number == 1 else {}).encode())
    return records


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (three(queue_id=4), "another queue id"),
        (three(queue_offset=12), "another queue offset"),
        (three(topic="TopicTesu"), "another topic"),
        (three(topic="TopicTest2"), "another topic"),
        ([*three()[:1], b"\0" * 100, three()[2]], "unknown magic"),
    ],
)
def test_each_lie_has_its_reason_and_ends_the_good_ones(records: list[bytes], reason: str) -> None:
    assert verify(three()) == Verified(3)
    assert verify(records) == Verified(1, reason)


def test_another_place_or_size_is_found() -> None:
    starts, sizes = places(three())
    moved = starts + (starts > 0)
    assert verify(three(), physical_positions=moved) == Verified(1, "another physical offset")
    raw = b"".join(three())
    found = verify_records(
        raw,
        starts,
        sizes - 1,
        queue_id=3,
        queue_offsets=10 + np.arange(len(starts)),
        physical_positions=starts,
        topic=TOPIC,
    )
    assert found == Verified(0, "size differs from the unit's")


def test_damaged_bodies_and_checksums_are_named() -> None:
    records = [with_record_crc(make_message(i, body=b"body")) for i in range(4)]
    starts, sizes = places(records)
    raw = bytearray(b"".join(records))
    assert damaged_bodies(raw, starts, sizes).tolist() == []
    raw[int(starts[1]) + 88] ^= 1  # a byte of the body
    raw[int(starts[3]) + 40] ^= 1  # the born timestamp, covered by the whole-record checksum only
    assert damaged_bodies(raw, starts, sizes).tolist() == [1, 3]


def test_a_walk_passes_codas_and_the_blank_at_the_end_of_a_file() -> None:
    records = three()
    raw = records[0] + Coda(7).encode() + records[1] + BlankRecord(50).encode() + bytes(42)
    found = walk_records(raw)
    assert found.starts.tolist() == [0, len(records[0]) + Coda.SIZE]
    assert (found.end, found.reason) == (len(raw), "")


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (bytes(100), "unknown magic"),
        (b"\0", "log ends inside a record"),
        (three()[0][:-1], "log ends inside a record"),
        (b"\0\0\0\x09" + three()[0][4:], "impossible record size 9"),
    ],
)
def test_a_walk_says_where_and_why_it_stopped(tail: bytes, reason: str) -> None:
    raw = b"".join(three())
    found = walk_records(raw + tail)
    assert len(found.starts) == 3
    assert found.end == len(raw)
    assert reason in found.reason


@given(st.one_of(queue_records().map(b"".join).flatmap(damages), st.binary(max_size=200)))
def test_a_walk_of_any_bytes_stays_inside(raw: bytes) -> None:
    found = walk_records(raw)
    assert 0 <= found.end <= len(raw)
    assert ((found.starts + found.sizes) <= len(raw)).all()
    assert (found.end == len(raw)) or found.reason
