"""Stored messages and batches for tests: builders, and hypothesis strategies."""

import random
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from container.record.batch import MessageBatch
from container.record.checksum import RECORD_CRC_BYTES, encode_record_crc
from container.record.header import COMPRESSED, TRANSACTION_MASK, Host
from container.record.message import StoredMessage
from container.record.properties import TAGS, decode_properties, encode_properties, tag_hash
from provider.errors import Corrupt
from provider.ranges import QueueOffset

FIRST_STORE_TIMESTAMP = 1_700_000_000_000
TOPIC = "TopicTest"
T = TypeVar("T")


def value_or_corrupt(read: Callable[[], T]) -> T | Corrupt:
    """What `read` returns, or the `Corrupt` that it raises; any other exception is the test's."""
    try:
        return read()
    except Corrupt as error:
        return error


def make_message(
    queue_offset: int,
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    body: bytes = b"body",
    properties: Mapping[str, str] | None = None,
    store_timestamp: int | None = None,
    physical_offset: int = 0,
    sys_flag: int = 0,
    flag: int = 0,
    born_host: Host = ("10.0.0.7", 40001),
    store_host: Host = ("127.0.0.1", 10911),
) -> StoredMessage:
    """A message whose store timestamp, unless given, is one millisecond after its predecessor's."""
    if store_timestamp is None:
        store_timestamp = FIRST_STORE_TIMESTAMP + queue_offset
    return StoredMessage.compose(
        topic,
        queue_id,
        queue_offset,
        body=body,
        properties=encode_properties(properties or {}),
        sys_flag=sys_flag,
        flag=flag,
        born_timestamp=store_timestamp - 1,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        physical_offset=physical_offset,
    )


def make_record(
    topic: str, queue_id: int, queue_offset: int, body: bytes = b"body", **changes: object
) -> bytes:
    """The record of `make_message` with the same arguments."""
    return make_message(
        queue_offset,
        topic=topic,
        queue_id=queue_id,
        body=body,
        **changes,  # pyright: ignore[reportArgumentType] - checked by make_message
    ).encode()


def with_record_crc(message: StoredMessage) -> bytes:
    """The record of a message, ended by the whole-record checksum property."""
    placeholder = message.properties + bytes(RECORD_CRC_BYTES)
    grown = message._replace(properties=placeholder).encode()
    covered = grown[:-RECORD_CRC_BYTES]
    return covered + encode_record_crc(covered)


def batch_of(records: list[bytes]) -> MessageBatch:
    """A batch of records of consecutive queue offsets, with a buffer of its own."""
    messages = [StoredMessage.decode(raw, path="test", position=0) for raw in records]
    sizes = np.array([len(raw) for raw in records], np.int64)
    tags = [tag_hash(decode_properties(m.properties).get(TAGS, "")) for m in messages]
    return MessageBatch(
        first_offset=QueueOffset(messages[0].queue_offset),
        data=np.frombuffer(bytearray(b"".join(records)), np.uint8),
        starts=np.cumsum(sizes) - sizes,
        sizes=sizes,
        tag_hashes=np.array(tags, np.int64),
        store_timestamps=np.array([m.store_timestamp for m in messages], np.int64),
    )


def make_batch(
    first_offset: int,
    count: int,
    body_bytes: int,
    rng: random.Random,
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    physical_offset: int = 0,
) -> MessageBatch:
    """`count` messages with bodies of 0 to `2 body_bytes`, tags TagA to TagC and a key each.

    The physical offset of the first is `physical_offset`; the others follow without a gap.
    """
    records: list[bytes] = []
    for offset in range(first_offset, first_offset + count):
        record = make_record(
            topic,
            queue_id,
            offset,
            rng.randbytes(rng.randint(0, 2 * body_bytes)),
            properties={"TAGS": rng.choice(["TagA", "TagB", "TagC"]), "KEYS": f"key-{offset}"},
            physical_offset=physical_offset,
        )
        physical_offset += len(record)
        records.append(record)
    return batch_of(records)


def _int(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


hosts: st.SearchStrategy[Host] = st.tuples(
    st.ip_addresses().map(str), st.one_of(st.integers(0, 65535), _int(32))
)
_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"))
property_maps = st.dictionaries(_texts.filter(bool), _texts.filter(bool), max_size=5)
topics = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.text("aé漢😀", min_size=60, max_size=200),
)
timestamps = st.integers(0, 2**63 - 1)


@st.composite
def messages(draw: st.DrawFn, topic: str | None = None) -> StoredMessage:
    """Any message that the format can hold; bodies small and not compressed."""
    sys_flags = st.integers(0, 0x7FF).map(lambda bits: bits & ~COMPRESSED)
    return StoredMessage.compose(
        draw(topics) if topic is None else topic,
        draw(_int(32)),
        draw(_int(64)),
        body=draw(st.binary(max_size=200)),
        properties=draw(st.one_of(property_maps.map(encode_properties), st.binary(max_size=60))),
        flag=draw(_int(32)),
        sys_flag=draw(sys_flags),
        born_timestamp=draw(_int(64)),
        born_host=draw(hosts),
        store_timestamp=draw(_int(64)),
        store_host=draw(hosts),
        physical_offset=draw(_int(64)),
        reconsume_times=draw(_int(32)),
        prepared_transaction_offset=draw(_int(64)),
    )


@st.composite
def queue_records(draw: st.DrawFn, count_max: int = 8) -> list[bytes]:
    """Records of consecutive offsets of one queue; some end with a whole-record checksum."""
    topic = draw(topics)
    queue_id = draw(st.integers(0, 2**31 - 1))
    first = draw(st.integers(0, 2**62))
    records: list[bytes] = []
    place = 0
    for index in range(draw(st.integers(1, count_max))):
        any_message = draw(messages(topic))
        message = StoredMessage.compose(
            topic,
            queue_id,
            first + index,
            body=any_message.body,
            properties=draw(property_maps.map(encode_properties)),
            sys_flag=any_message.sys_flag & ~TRANSACTION_MASK,
            born_host=any_message.born_host,
            store_host=any_message.store_host,
            store_timestamp=draw(timestamps),
            physical_offset=place,
        )
        records.append(with_record_crc(message) if draw(st.booleans()) else message.encode())
        place += len(records[-1])
    return records


@st.composite
def batches(draw: st.DrawFn, count_max: int = 8) -> MessageBatch:
    """Any batch."""
    return batch_of(draw(queue_records(count_max)))


@st.composite
def damages(draw: st.DrawFn, raw: bytes) -> bytes:
    """`raw` with a few bytes changed, cut off or put in."""
    damaged = bytearray(raw)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(damaged) - 1, 0)))
        match draw(st.sampled_from(["change", "cut", "insert", "drop"])):
            case "change" if damaged:
                damaged[place] = draw(st.integers(0, 255))
            case "cut":
                del damaged[place:]
            case "insert":
                damaged[place:place] = draw(st.binary(min_size=1, max_size=9))
            case _:
                del damaged[place : place + draw(st.integers(1, 9))]
    return bytes(damaged)
