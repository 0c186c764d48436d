"""The stored message: round trips, versions, hosts, and damage."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record.checksum import (
    has_record_crc,
    record_crc_is_valid,
)
from container.record.header import MAGIC_V1, MAGIC_V2, MessageFields, RecordHeader
from container.record.message import StoredMessage
from provider.errors import Corrupt
from tests.support.messages import (
    damages,
    make_message,
    make_record,
    messages,
    value_or_corrupt,
    with_record_crc,
)


def decode(raw: bytes) -> StoredMessage:
    return StoredMessage.decode(raw, path="log", position=700)


@given(messages())
def test_every_message_comes_back_equal(message: StoredMessage) -> None:
    raw = message.encode()
    assert len(raw) == message.size
    assert decode(raw) == message
    assert decode(raw).body_is_intact


@given(messages())
def test_a_decoded_message_is_its_own_and_from_any_kind_of_buffer(message: StoredMessage) -> None:
    raw = bytearray(message.encode())
    view = memoryview(raw)
    found = StoredMessage.decode(view, path="log", position=0)
    view.release()
    raw.clear()
    assert found == message


@given(messages())
def test_the_header_alone_says_what_the_whole_record_says(message: StoredMessage) -> None:
    raw = message.encode()
    header = RecordHeader.decode(raw[:76], path="log", position=0)
    for name, value in header._asdict().items():
        assert value == getattr(message, name)


@given(messages().flatmap(lambda m: damages(m.encode())))
def test_damage_gives_a_value_or_corrupt_with_its_place(raw: bytes) -> None:
    found = value_or_corrupt(lambda: decode(raw))
    if isinstance(found, Corrupt):
        assert found.path == "log"
        assert 700 <= found.position <= 700 + len(raw)
    else:
        assert found.encode() == found._replace().encode() == raw


@given(messages().flatmap(lambda m: st.tuples(st.just(m.encode()), st.integers(0, m.size - 1))))
def test_a_record_that_ends_early_is_corrupt(cut: tuple[bytes, int]) -> None:
    with pytest.raises(Corrupt):
        decode(cut[0][: cut[1]])


@pytest.mark.parametrize(
    ("topic", "magic"),
    [
        ("t" * 127, MAGIC_V1),
        ("t" * 128, MAGIC_V2),
        ("é" * 63, MAGIC_V1),
        ("é" * 64, MAGIC_V2),  # 64 units, but 128 bytes do not fit one signed byte
        ("😀" * 64, MAGIC_V2),
    ],
)
def test_the_version_follows_the_topic(topic: str, magic: int) -> None:
    message = make_message(0, topic=topic)
    assert message.magic == magic
    assert decode(message.encode()).topic == topic


def test_ipv6_hosts_set_their_bits_and_move_the_rest() -> None:
    message = make_message(3, born_host=("fe80::1", 1), store_host=("::1", 2))
    assert message.sys_flag == 0x30
    assert message.size == make_message(3).size + 24
    assert message.message_id == "0" * 31 + "1" + "00000002" + "0" * 16


def test_the_message_id_is_store_host_and_physical_offset() -> None:
    assert make_message(0, physical_offset=255).message_id == "7F00000100002A9F00000000000000FF"


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (4, b"\0\0\0\0", "unknown magic"),
        (0, b"\0\0\0\x10", "impossible record size"),
        (84, b"\xff\xff\xff\xff", "impossible body length"),
        (84, b"\x7f\xff\xff\xff", "impossible body length"),
        (92, b"\x80", "impossible topic length"),
        (92, b"\x08", "properties have"),
        (93, b"\xff", "not UTF-8"),
    ],
)
def test_each_damage_has_its_reason(place: int, value: bytes, reason: str) -> None:
    raw = bytearray(make_record("TopicTest", 0, 0, b"body"))
    raw[place : place + len(value)] = value
    with pytest.raises(Corrupt, match=reason):
        decode(bytes(raw))


def test_a_changed_body_is_read_but_not_intact() -> None:
    raw = bytearray(make_record("TopicTest", 0, 0, b"body"))
    raw[88] ^= 1
    assert not decode(bytes(raw)).body_is_intact


def test_what_does_not_fit_is_refused_on_writing() -> None:
    with pytest.raises(ValueError, match="properties"):
        make_message(0)._replace(properties=bytes(32768)).encode()
    with pytest.raises(ValueError, match="topic"):
        make_message(0)._replace(topic="t" * 128).encode()


@given(messages())
def test_the_record_checksum_sees_every_changed_byte(message: StoredMessage) -> None:
    raw = bytearray(with_record_crc(message))
    if has_record_crc(raw):  # not behind properties that do not end in a separator
        assert record_crc_is_valid(raw)
        raw[30] ^= 4
        assert not record_crc_is_valid(raw)


def test_a_property_that_only_ends_like_the_checksum_is_none() -> None:
    raw = with_record_crc(make_message(0, properties={"a": "b"}))
    assert has_record_crc(raw)
    cut = raw.replace(b"b\x02__CRC32#", b"bx__CRC32#")
    assert cut != raw
    assert not has_record_crc(cut)


@given(messages())
def test_all_fields_at_once_are_the_fields_one_by_one(message: StoredMessage) -> None:
    fields = message.fields()
    for name, value in fields._asdict().items():
        assert getattr(message, name) == value
    assert repr(message) == repr(fields).replace("MessageFields(", "StoredMessage(", 1)
    assert message._replace(**fields._asdict()) == message


@given(messages(), messages())
def test_messages_are_values(one: StoredMessage, other: StoredMessage) -> None:
    again = decode(one.encode())
    assert (again, hash(again)) == (one, hash(one))
    assert (one == other) == (one.fields() == other.fields())
    assert one != one.encode()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(one, protocol)) == one
    assert copy.deepcopy(one) == copy.copy(one) == one


@pytest.mark.parametrize("name", [*MessageFields._fields, "size", "tags", "another"])
def test_a_message_cannot_be_changed(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(make_message(0), name, 0)
