"""Messages of many records at once: the same as one by one, and values that may be kept."""

import pickle
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record.header import COMPRESSED
from container.record.message import TOGETHER_MIN, MessageDecoder, StoredMessage
from provider.errors import Corrupt
from tests.support.messages import make_message, messages
from tieredstore.message import Message, messages_in

NAMES = [name for name in vars(Message) if not name.startswith("_")]
FIELDS = [name for name in NAMES if isinstance(vars(Message)[name], property)]
ZLIB = 3 << 8


def decoder_of(stored: list[StoredMessage]) -> MessageDecoder:
    sizes = np.array([one.size for one in stored], np.int64)
    data = b"".join(one.encode() for one in stored)
    return MessageDecoder(data, np.cumsum(sizes) - sizes, sizes, path="T/0")


def fields(message: Message) -> dict[str, object]:
    return {name: getattr(message, name) for name in FIELDS}


@given(messages(), st.integers(1, 2 * TOGETHER_MIN), st.data())
def test_messages_of_many_records_have_the_fields_of_each_one(
    first: StoredMessage, count: int, data: st.DataObject
) -> None:
    plain = first.sys_flag & ~COMPRESSED
    stored = [
        first._replace(
            queue_offset=offset,
            store_timestamp=data.draw(st.integers(-(1 << 63), (1 << 63) - 1)),
            body=data.draw(st.binary(max_size=20)),
            sys_flag=plain,
        )
        for offset in range(count)
    ]
    start = data.draw(st.integers(0, count))
    found = list(messages_in(decoder_of(stored), slice(start, count), path="T/0"))
    one_by_one = [Message(one, one.body) for one in stored[start:]]
    assert [fields(one) for one in found] == [fields(one) for one in one_by_one]
    assert found == one_by_one
    assert set(map(hash, found)) == set(map(hash, one_by_one))


def compressed(offset: int, body: bytes) -> StoredMessage:
    one = make_message(offset, body=body)
    return one._replace(sys_flag=one.sys_flag | COMPRESSED | ZLIB)


def test_one_compressed_body_among_many_is_decompressed() -> None:
    stored = [make_message(offset, body=b"plain") for offset in range(20)]
    stored[7] = compressed(7, zlib.compress(b"larger"))
    stored[9] = compressed(9, b"")
    found = list(messages_in(decoder_of(stored), slice(0, 20), path="T/0"))
    assert [one.body for one in found] == [
        b"plain" if offset not in {7, 9} else b"larger" if offset == 7 else b""
        for offset in range(20)
    ]
    assert not found[7].sys_flag & COMPRESSED
    stored[12] = compressed(12, b"no zlib")
    rest = messages_in(decoder_of(stored), slice(11, 20), path="T/0")
    assert next(rest).offset == 11
    with pytest.raises(Corrupt, match="compressed body"):
        next(rest)


def test_a_message_is_a_value() -> None:
    stored = make_message(3, body=b"one", properties={"TAGS": "A"})
    message = Message(stored, b"one")
    assert message == Message(stored, b"one") == pickle.loads(pickle.dumps(message))
    assert message != Message(stored, b"other")
    assert message != tuple(message)
    assert message == Message.decode(stored.encode(), path="T/0")
    with pytest.raises(AttributeError):
        message.offset = 4
    with pytest.raises(AttributeError):
        message.other = 4  # type: ignore[attr-defined]
