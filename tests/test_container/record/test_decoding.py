"""Many records as messages: the same messages and errors as one by one, and nothing kept alive."""

import gc
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record import message
from container.record.message import MessageDecoder, StoredMessage
from container.record.properties import encode_properties
from provider.errors import Corrupt
from tests.support.messages import make_message, messages

PATH = "T/0/COMMIT_LOG"


def decoder_of(records: list[bytes]) -> MessageDecoder:
    sizes = np.array([len(record) for record in records], np.int64)
    return MessageDecoder(b"".join(records), np.cumsum(sizes) - sizes, sizes, path=PATH)


def outcome(found: Iterator[StoredMessage]) -> tuple[list[StoredMessage], str]:
    """The messages before the first error, and that error."""
    good: list[StoredMessage] = []
    try:
        good.extend(found)
    except Corrupt as error:
        return good, str(error)
    return good, ""


def one_by_one(records: list[bytes]) -> Iterator[StoredMessage]:
    for record in records:
        position = int.from_bytes(record[28:36], "big", signed=True)
        yield StoredMessage.decode(record, path=PATH, position=position)


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Records of one topic and one kind of host, enough of them to be checked together."""
    first = draw(messages())
    count = draw(st.integers(message.TOGETHER_MIN, 20))
    return [
        first._replace(
            queue_offset=index,
            physical_offset=1000 * index,
            body=draw(st.binary(max_size=40)),
            properties=draw(st.binary(max_size=20)),
        ).encode()
        for index in range(count)
    ]


@given(alike(), st.data())
def test_messages_that_are_alike_come_as_one_by_one(
    records: list[bytes], data: st.DataObject
) -> None:
    decoder = decoder_of(records)
    assert list(decoder.messages(slice(0, None))) == list(one_by_one(records))
    start = data.draw(st.integers(0, len(records)))
    assert list(decoder.messages(slice(start, None))) == list(one_by_one(records[start:]))
    picked = np.array(sorted(data.draw(st.sets(st.integers(0, len(records) - 1)))), np.int64)
    expected = list(one_by_one([records[index] for index in picked.tolist()]))
    assert list(decoder.messages(picked)) == expected


@given(alike(), st.data())
def test_a_damaged_byte_gives_the_same_error_at_the_same_message(
    records: list[bytes], data: st.DataObject
) -> None:
    bad = data.draw(st.integers(0, len(records) - 1))
    place = data.draw(st.integers(0, len(records[bad]) - 1))
    damaged = bytearray(records[bad])
    damaged[place] ^= data.draw(st.integers(1, 255))
    records[bad] = bytes(damaged)
    assert outcome(decoder_of(records).messages(slice(0, None))) == outcome(one_by_one(records))


@given(st.lists(messages(), min_size=message.TOGETHER_MIN, max_size=12))
def test_messages_that_are_not_alike_come_as_one_by_one(several: list[StoredMessage]) -> None:
    records = [message.encode() for message in several]
    assert list(decoder_of(records).messages(slice(0, None))) == several


@pytest.mark.parametrize("count", [0, 1, message.TOGETHER_MIN, 100])
def test_any_number_of_messages_can_be_asked_for(count: int) -> None:
    records = [make_message(offset, body=bytes(offset)).encode() for offset in range(count)]
    assert list(decoder_of(records).messages(slice(0, None))) == list(one_by_one(records))


def test_the_check_of_a_batch_is_made_once_and_without_a_step_for_each_record() -> None:
    records = [make_message(offset).encode() for offset in range(100)]
    decoder = decoder_of(records)
    assert decoder.is_checked
    records[50] = records[50][:84] + b"\xff" + records[50][85:]  # body length
    assert not decoder_of(records).is_checked


def test_a_message_that_is_kept_holds_its_own_record_only() -> None:
    records = [make_message(offset, body=bytes(1000)).encode() for offset in range(2000)]
    kept: list[StoredMessage] = []
    tracemalloc.start()
    decoder = decoder_of(records)
    kept = [
        message for message in decoder.messages(slice(0, None)) if not message.queue_offset % 100
    ]
    del decoder
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) == 20
    assert held < 20 * 2000


def test_properties_that_are_found_directly_equal_those_of_the_map() -> None:
    message = make_message(0, properties={"KEYS": "a  b", "TAGS": "T", "x": "y"})
    assert (message.tags, message.keys) == ("T", ["a", "b"])
    assert (make_message(0).tags, make_message(0).keys) == ("", [])


pieces = st.sampled_from(
    [
        b"TAGS",
        b"KEYS",
        b"XTAGS",
        b"\x01",
        b"\x02",
        b"\x01",
        b"\x02",
        b"v",
        b" ",
        b"\xe2\x82",
        b"\xac",
    ]
)


@given(st.lists(pieces, max_size=14).map(b"".join), st.binary(max_size=9))
def test_the_value_of_any_properties_is_that_of_the_map(raw: bytes, body: bytes) -> None:
    message = make_message(0, body=body + b"\x02TAGS\x01of the body\x02")._replace(properties=raw)
    found = message.property_map
    assert message.tags == found.get("TAGS", "")
    assert message.keys == [key for key in found.get("KEYS", "").split(" ") if key]


def test_encoded_properties_are_found_too() -> None:
    raw = encode_properties({"WAIT": "true", "TAGS": "订单", "KEYS": "k"})
    message = make_message(0)._replace(properties=raw)
    assert (message.tags, message.keys) == ("订单", ["k"])
