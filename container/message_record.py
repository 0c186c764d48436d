"""A stored message: the record that lies in CommitLogs, hot and cold.

One record at a time, for single messages, tools and as the meaning that the batch kernels in
`record_kernels.py` are tested against.
"""

import zlib
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from struct import Struct
from typing import Self

from container.message_properties import PROPERTIES_BYTES_MAX, decode_properties
from container.record_layout import (
    BORN_HOST_AT,
    BORN_HOST_V6,
    HEAD,
    HOST_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    STORE_HOST_V6,
    TAIL,
    TOPIC_LENGTH_BYTES,
    TOPIC_UNITS_MAX_V1,
    RecordLayout,
    layout_of,
)
from provider.errors import Corrupt
from provider.object_store import Buffer

Host = tuple[str, int]
"""Address in text and port."""

BODY_CRC_MASK = 0x7FFF_FFFF
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_INT16 = Struct(">h")
_LENGTHS = {MAGIC_V1: Struct(">b"), MAGIC_V2: Struct(">h")}
_TOPIC_BYTES_MAX = {MAGIC_V1: 127, MAGIC_V2: 32767}


def body_crc_of(body: Buffer) -> int:
    """CRC-32 of a body as it is stored (compressed), without the sign bit; 0 for an empty one."""
    return zlib.crc32(body) & BODY_CRC_MASK


def magic_for(topic: str) -> int:
    """Which version the broker writes for a topic: v2 when it has over 127 UTF-16 units.

    A shorter topic whose UTF-8 form does not fit v1's one signed byte is v2 too: Java's own
    encoder would write a length that no reader accepts.
    """
    units = len(topic.encode("utf-16-le")) // 2
    fits = len(topic.encode()) <= _TOPIC_BYTES_MAX[MAGIC_V1]
    return MAGIC_V1 if units <= TOPIC_UNITS_MAX_V1 and fits else MAGIC_V2


def _encode_host(host: Host, *, is_v6: bool) -> bytes:
    address = IPv6Address(host[0]) if is_v6 else IPv4Address(host[0])
    return address.packed + _INT32.pack(host[1])


def _decode_host(raw: Buffer, layout_bytes: int) -> Host:
    ip = bytes(raw[:-4])
    address = IPv4Address(ip) if layout_bytes == HOST_V4_BYTES else IPv6Address(ip)
    return str(address), _INT32.unpack(raw[-4:])[0]


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """The fields of a record that stand before its body, without a look at what follows."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    store_timestamp: int

    @property
    def layout(self) -> RecordLayout:
        """Where this record's fields lie."""
        return layout_of(self.sys_flag)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Read the header of the record that begins with `raw`, at `position` of `path`. O(1).

        Raises:
            Corrupt: the magic is unknown, the size impossible, or `raw` ends inside the header.
        """
        if len(raw) < HEAD.size:
            raise Corrupt(f"record header has {len(raw)} bytes", path, position)
        head = HEAD.unpack_from(raw)
        size, magic, sys_flag = head[0], head[1], head[7]
        if magic not in TOPIC_LENGTH_BYTES:
            raise Corrupt(f"unknown magic {magic:#010x}", path, position)
        layout = layout_of(sys_flag)
        if size < layout.overhead(magic):
            raise Corrupt(f"impossible record size {size}", path, position)
        if len(raw) < layout.store_host:
            raise Corrupt(f"record header has {len(raw)} bytes", path, position)
        return cls(*head, *_INT64.unpack_from(raw, layout.store_timestamp))


@dataclass(frozen=True, slots=True)
class RecordParts:
    """Where the parts of variable length lie, counted from the record's first byte."""

    body: int
    body_end: int
    topic: int
    topic_end: int
    properties: int
    """The last part: it ends with the record."""


def locate_parts(raw: Buffer, *, path: str, position: int) -> tuple[RecordHeader, RecordParts]:
    """Read the lengths of one whole record and check that they add up. O(1).

    Raises:
        Corrupt: any length is negative or too long, or their sum is not the record's size.
    """
    header = RecordHeader.decode(raw, path=path, position=position)
    if header.size != len(raw):
        raise Corrupt(f"record of {header.size} bytes in {len(raw)}", path, position)
    layout = header.layout
    room = header.size - layout.overhead(header.magic)
    body_length = _INT32.unpack_from(raw, layout.body_length)[0]
    if not 0 <= body_length <= room:
        raise Corrupt(f"impossible body length {body_length}", path, position)
    room -= body_length
    body_end = layout.body + body_length
    topic_length = _LENGTHS[header.magic].unpack_from(raw, body_end)[0]
    if not 0 <= topic_length <= room:
        raise Corrupt(f"impossible topic length {topic_length}", path, position)
    room -= topic_length
    topic = body_end + TOPIC_LENGTH_BYTES[header.magic]
    topic_end = topic + topic_length
    properties_length = _INT16.unpack_from(raw, topic_end)[0]
    if properties_length != room:
        raise Corrupt(f"properties have {properties_length} of {room} bytes", path, position)
    properties = topic_end + PROPERTIES_LENGTH_BYTES
    return header, RecordParts(layout.body, body_end, topic, topic_end, properties)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message with everything that its record says. `compose` makes a new one.

    The fields mirror the record; body and properties are as stored (compressed, encoded).
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    body_crc: int
    """As stored; `body_is_intact` compares."""
    properties: bytes
    flag: int
    """The user's own number."""
    sys_flag: int
    born_timestamp: int
    """Unix ms."""
    born_host: Host
    store_timestamp: int
    """Unix ms."""
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    magic: int

    @classmethod
    def compose(
        cls,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        body: bytes = b"",
        properties: bytes = b"",
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: Host = ("127.0.0.1", 0),
        store_timestamp: int = 0,
        store_host: Host = ("127.0.0.1", 10911),
        physical_offset: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> Self:
        """A new message: version, host bits of `sys_flag` and body CRC follow from the rest."""
        sys_flag &= ~(BORN_HOST_V6 | STORE_HOST_V6)
        sys_flag |= BORN_HOST_V6 if ":" in born_host[0] else 0
        sys_flag |= STORE_HOST_V6 if ":" in store_host[0] else 0
        return cls(
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            body=body,
            body_crc=body_crc_of(body),
            properties=properties,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp=born_timestamp,
            born_host=born_host,
            store_timestamp=store_timestamp,
            store_host=store_host,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
            magic=magic_for(topic),
        )

    @property
    def size(self) -> int:
        """Length of the record in bytes."""
        overhead = layout_of(self.sys_flag).overhead(self.magic)
        return overhead + len(self.body) + len(self.topic.encode()) + len(self.properties)

    @property
    def body_is_intact(self) -> bool:
        """Whether the body has the CRC that was stored with it."""
        return body_crc_of(self.body) == self.body_crc

    @property
    def property_map(self) -> dict[str, str]:
        """The properties by name; parsed anew each time."""
        return decode_properties(self.properties)

    @property
    def message_id(self) -> str:
        """The offset message id: store host, port and physical offset in upper-case hex."""
        is_v6 = bool(self.sys_flag & STORE_HOST_V6)
        host = _encode_host(self.store_host, is_v6=is_v6)
        return (host + _INT64.pack(self.physical_offset)).hex().upper()

    def encode(self) -> bytes:
        """The record's bytes.

        Raises:
            ValueError: the topic or the properties are too long, or a host does not fit sysFlag.
        """
        topic = self.topic.encode()
        if len(topic) > _TOPIC_BYTES_MAX[self.magic]:
            raise ValueError(f"topic of {len(topic)} bytes")
        if len(self.properties) > PROPERTIES_BYTES_MAX:
            raise ValueError(f"properties of {len(self.properties)} bytes")
        head = HEAD.pack(
            self.size,
            self.magic,
            self.body_crc,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.physical_offset,
            self.sys_flag,
            self.born_timestamp,
        )
        parts = (
            head,
            _encode_host(self.born_host, is_v6=bool(self.sys_flag & BORN_HOST_V6)),
            _INT64.pack(self.store_timestamp),
            _encode_host(self.store_host, is_v6=bool(self.sys_flag & STORE_HOST_V6)),
            TAIL.pack(self.reconsume_times, self.prepared_transaction_offset, len(self.body)),
            self.body,
            _LENGTHS[self.magic].pack(len(topic)),
            topic,
            _INT16.pack(len(self.properties)),
            self.properties,
        )
        return b"".join(parts)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Read the one record that `raw` is, found at `position` of `path`. Copies the body.

        Tolerant where RocketMQ is: the body's CRC is not checked here, and properties are kept
        as they are.

        Raises:
            Corrupt: magic, size or a length contradicts the format, or the topic is not UTF-8.
        """
        header, parts = locate_parts(raw, path=path, position=position)
        layout = header.layout
        try:
            topic = bytes(raw[parts.topic : parts.topic_end]).decode()
        except UnicodeDecodeError as error:
            place = position + parts.topic + error.start
            raise Corrupt("topic is not UTF-8", path, place) from error
        reconsume_times, prepared, _ = TAIL.unpack_from(raw, layout.tail)
        born_end = BORN_HOST_AT + layout.born_host_bytes
        return cls(
            topic=topic,
            queue_id=header.queue_id,
            queue_offset=header.queue_offset,
            physical_offset=header.physical_offset,
            body=bytes(raw[parts.body : parts.body_end]),
            body_crc=header.body_crc,
            properties=bytes(raw[parts.properties :]),
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=_decode_host(raw[BORN_HOST_AT:born_end], layout.born_host_bytes),
            store_timestamp=header.store_timestamp,
            store_host=_decode_host(raw[layout.store_host : layout.tail], layout.store_host_bytes),
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared,
            magic=header.magic,
        )
