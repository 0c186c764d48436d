"""The places of all fields, against `unpack_record` and messages, record by record."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from container.record.columns import RecordColumns, Spans, locate_columns
from container.record.message import StoredMessage
from provider.errors import Corrupt
from tests.support.messages import make_record, messages, value_or_corrupt


def placed(records: list[bytes], between: bytes = b"") -> tuple[bytes, np.ndarray, np.ndarray]:
    sizes = np.array([len(record) for record in records], np.int64)
    starts = np.cumsum(sizes + len(between)) - sizes
    return b"".join(between + record for record in records), starts, sizes


def parts(data: bytes, spans: Spans) -> list[bytes]:
    return [data[start:end] for start, end in zip(*map(np.ndarray.tolist, spans), strict=True)]


@given(st.lists(messages(), max_size=6), st.binary(max_size=3))
def test_every_field_lies_where_a_message_finds_it(
    some: list[StoredMessage], between: bytes
) -> None:
    data, starts, sizes = placed([one.encode() for one in some], between)
    found = locate_columns(data, starts, sizes, path="p")
    assert parts(data, found.bodies) == [one.body for one in some]
    assert parts(data, found.topics) == [one.topic.encode() for one in some]
    assert parts(data, found.properties) == [one.properties for one in some]
    assert found.store_timestamps.tolist() == [one.store_timestamp for one in some]
    for name in ("reconsume_times", "prepared_transaction_offset"):
        assert found.tails[name].tolist() == [getattr(one, name) for one in some]
    for name in ("queue_id", "queue_offset", "physical_offset", "sys_flag", "born_timestamp"):
        assert found.headers[name].tolist() == [getattr(one, name) for one in some]
    ports = [
        int.from_bytes(host[-4:], "big", signed=True) for host in parts(data, found.born_hosts)
    ]
    assert ports == [one.born_host[1] for one in some]
    assert [part[-4:] + part[:4] for part in parts(data, found.store_hosts)] == [
        one.encode()[one.shape.layout.tail - 4 : one.shape.layout.tail]
        + one.encode()[one.shape.layout.store_host : one.shape.layout.store_host + 4]
        for one in some
    ]


@given(st.data())
def test_what_one_record_at_a_time_refuses_is_refused(data: st.DataObject) -> None:
    records = [make_record("Topic", 0, offset, b"body" * offset) for offset in range(4)]
    number = data.draw(st.integers(0, 3))
    raw = bytearray(records[number])
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    records[number] = bytes(raw)
    buffer, starts, sizes = placed(records)
    one = value_or_corrupt(lambda: StoredMessage.decode(raw, path="p", position=0))
    found = value_or_corrupt(lambda: locate_columns(buffer, starts, sizes, path="p"))
    if isinstance(one, Corrupt) and "UTF-8" not in one.reason:
        assert isinstance(found, Corrupt)
        assert found.reason == one.reason
    else:
        assert isinstance(found, RecordColumns)
