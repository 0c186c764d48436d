"""The assertions of FileSegmentTypeTest, MessageFormatUtilTest and MessageStoreUtilTest."""

import numpy as np
import pytest

from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import hash8, index_name, parse_segment_name, segment_name
from container.record.header import Coda
from container.record.message import StoredMessage
from container.record.unit import UNIT_DTYPE, Units
from container.record.verification import Fault, find_records
from tests.support.messages import make_record

QUEUE = QueueId("T", 4)


def test_file_segment_type_codes_0_1_2() -> None:
    assert [int(kind) for kind in SegmentType] == [0, 1, 2]
    assert [SegmentType(code).name for code in range(3)] == ["COMMIT_LOG", "CONSUME_QUEUE", "INDEX"]


def test_message_format_fields_of_the_fixture() -> None:
    raw = make_record(
        "T",
        4,
        6,
        b"",
        flag=5,
        store_timestamp=11,
        physical_offset=7,
        store_host=("127.0.0.1", 65535),
        properties={"UNIQ_KEY": "uk", "UserKey": "UserValue0"},
    )
    message = StoredMessage.decode(raw, path="", position=0)
    assert (message.size, message.queue_id, message.flag) == (len(raw), 4, 5)
    assert (message.queue_offset, message.physical_offset, message.store_timestamp) == (6, 7, 11)
    assert message.property_map == {"UNIQ_KEY": "uk", "UserKey": "UserValue0"}
    assert message.message_id == "7F0000010000FFFF0000000000000007"


def units(*rows: tuple[int, int]) -> Units:
    return np.array([(position, size, 0) for position, size in rows], UNIT_DTYPE)


def two_records(between: bytes = b"") -> tuple[bytes, int]:
    first = make_record("T", 4, 0, b"body")
    second = make_record("T", 4, 1, b"body", physical_offset=len(first) + len(between))
    return first + between + second, len(first)


@pytest.mark.parametrize(
    ("at", "size", "starts"),
    [
        ("behind the coda", 0, [0, 16]),
        ("at the coda", 0, [0, 16]),
        ("behind the coda", -10, [0]),
        ("behind the coda", 1000, [0]),
    ],
)
def test_message_format_records_are_found_by_their_units(
    at: str, size: int, starts: list[int]
) -> None:
    coda = Coda(11).encode()
    log, length = two_records(coda)
    second = length + (Coda.SIZE if at == "behind the coda" else 0)
    rows = units((0, length), (second, len(log) - length - Coda.SIZE + size))
    found = find_records(np.frombuffer(log, np.uint8), 0, rows, queue_id=4, first_offset=0)
    good = found.faults == Fault.NONE
    assert found.starts[good].tolist() == [0, *(start + length for start in starts[1:])]


def test_message_format_a_record_without_its_magic_hides_no_other() -> None:
    log, length = two_records()
    damaged = bytearray(log)
    damaged[4:8] = b"lost"
    rows = units((0, length), (length, len(log) - length))
    found = find_records(damaged, 0, rows, queue_id=4, first_offset=0)
    assert found.starts[found.faults == Fault.NONE].tolist() == [length]


def test_store_util_names() -> None:
    assert hash8("BrokerName") == hash8("BrokerName").lower()
    assert segment_name(QUEUE, SegmentType.COMMIT_LOG, 0) == (
        "T/4/COMMIT_LOG/cfcd208400000000000000000000"
    )
    assert index_name(0) == "rmq_sys_INDEX/0/INDEX/cfcd208400000000000000000000"
    for base in (0, 1000, 1_073_741_824, 2**62):
        name = segment_name(QUEUE, SegmentType.CONSUME_QUEUE, base)
        parsed = parse_segment_name(name)
        assert parsed is not None
        assert (parsed.queue, parsed.base) == (QUEUE, base)
        assert name[-20:] == f"{base:020d}"
        assert name.isascii()
