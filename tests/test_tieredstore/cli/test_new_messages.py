"""Lines of `read --json` and bodies become the messages that they were."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record.message import StoredMessage
from container.record.properties import encode_properties
from tieredstore.cli.appending import GivenFields, message_of_body, message_of_line, properties_of
from tieredstore.cli.message_printer import message_row
from tieredstore.hot.encoding import MessageRefused, NewMessage
from tieredstore.message import Message

NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)
HOSTS = st.tuples(st.ip_addresses().map(str), st.integers(0, 65535))


@given(
    topic=NAMES,
    queue_id=st.integers(0, 2**31 - 1),
    body=st.binary(max_size=40) | st.text(max_size=20).map(str.encode),
    properties=st.dictionaries(NAMES, NAMES, max_size=3),
    flag=st.integers(-(2**31), 2**31 - 1),
    born_timestamp=st.integers(0, 2**50),
    born_host=HOSTS,
    store_host=HOSTS,
    reconsume_times=st.integers(0, 100),
)
def test_a_line_of_read_makes_the_message_again(
    topic: str, queue_id: int, body: bytes, properties: dict[str, str], **others: Any
) -> None:
    raw = encode_properties(properties)
    stored = StoredMessage.compose(
        topic, queue_id, 17, body=body, properties=raw, store_timestamp=5, **others
    )
    line = json.dumps(message_row(Message(stored, body), digest=False)).encode()
    made = message_of_line(line, GivenFields())
    assert (made.topic, made.queue_id, made.body) == (topic, queue_id, body)
    assert made.properties == properties
    again = StoredMessage.compose(
        made.topic,
        made.queue_id,
        17,
        body=made.body,
        properties=encode_properties(properties),
        flag=made.flag,
        sys_flag=made.sys_flag & ~0x30,
        born_timestamp=made.born_timestamp or 0,
        born_host=made.born_host or ("", 0),
        store_timestamp=5,
        store_host=made.store_host or ("", 0),
        reconsume_times=made.reconsume_times,
        prepared_transaction_offset=made.prepared_transaction_offset,
    )
    assert again.encode() == stored.encode()


def test_what_the_command_line_says_wins_over_the_line() -> None:
    line = b'{"topic": "A", "queue_id": 3, "body": "x", "properties": {"k": "1", "TAGS": "T"}}'
    made = message_of_line(line, GivenFields("B", 5, {"k": "2", "KEYS": "a b"}))
    assert made == NewMessage("B", 5, b"x", {"k": "2", "TAGS": "T", "KEYS": "a b"})
    assert message_of_line(line, GivenFields()).queue_id == 3
    assert message_of_line(b'{"body": "x"}', GivenFields("B")).queue_id == 0
    assert message_of_body(b"x", GivenFields("B")) == NewMessage("B", 0, b"x", {})
    assert properties_of([("k", "1"), ("TAGS", "x")], "T", None) == {"k": "1", "TAGS": "T"}


def test_the_checksum_of_the_old_record_is_left_out() -> None:
    line = b'{"topic": "A", "body": "x", "properties": {"__CRC32#": "0123456789", "k": "1"}}'
    assert message_of_line(line, GivenFields()).properties == {"k": "1"}


def row(**changes: object) -> bytes:
    return json.dumps({"topic": "A", "body": "x", **changes}).encode()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"hello", "no JSON"),
        (b"[1]", "no JSON object"),
        (b"\xff", "no JSON"),
        (b'{"body": "x"}', "names no topic"),
        (row(topic=1), "names no topic"),
        (b'{"topic": "A"}', "has no body"),
        (row(body=None), "has no body"),
        (b'{"topic": "A", "body_sha256": "00"}', "--digest"),
        (b'{"topic": "A", "body_base64": "*"}', "no Base64"),
        (row(queue_id="1"), "queue_id is no whole number"),
        (row(flag=True), "flag is no whole number"),
        (row(born_timestamp=1.5), "born_timestamp is no whole number"),
        (row(properties=["k"]), "properties is no object"),
        (row(properties={"k": 1}), "property k is no text"),
        (row(born_host="10.0.0.1"), "born_host is no address and port"),
        (row(store_host=1), "store_host is no address and port"),
        (row(store_host="a:\u0661"), "store_host is no address and port"),
    ],
)
def test_a_line_that_is_no_message_is_refused_in_a_sentence(line: bytes, words: str) -> None:
    with pytest.raises(MessageRefused, match=words):
        message_of_line(line, GivenFields())


def test_a_body_that_is_no_text_goes_through_base64() -> None:
    raw = bytes(range(256))
    encoded = base64.b64encode(raw).decode()
    line = json.dumps({"topic": "A", "body_base64": encoded}).encode()
    assert message_of_line(line, GivenFields()).body == raw
