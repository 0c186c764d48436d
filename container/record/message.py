"""A stored message: the record that lies in CommitLogs, hot and cold.

One record at a time, for single messages, tools and as the meaning that the batch kernels in
`record/kernels.py` are tested against.
"""

import zlib
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import Any, NamedTuple, Self

from container.record.layout import (
    BORN_HOST_V6,
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    SYS_FLAG_AT,
    TOPIC_LENGTH_BYTES,
    TOPIC_UNITS_MAX_V1,
    RecordLayout,
    layout_of,
)
from container.record.properties import PROPERTIES_BYTES_MAX, decode_properties
from provider.errors import Corrupt
from provider.object_store import Buffer

Host = tuple[str, int]
"""Address in text and port."""

BODY_CRC_MASK = 0x7FFF_FFFF
ADDRESSES_KEPT_MAX = 4096
"""Texts of host addresses kept in memory: some 200 bytes each."""

_HOST_KINDS_AT = SYS_FLAG_AT + 3  # the byte that has the bits
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


def _packed(address: str, *, is_v6: bool) -> bytes:
    return (IPv6Address(address) if is_v6 else IPv4Address(address)).packed


@lru_cache(ADDRESSES_KEPT_MAX)
def _address_text(packed: bytes) -> str:
    return str(ip_address(packed))


class RecordHeader(NamedTuple):
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


class RecordParts(NamedTuple):
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
    fixed, parts = _unpacked(raw, path, position)
    return RecordHeader._make((*fixed[:9], fixed[11])), RecordParts._make(parts)


def _unpacked(
    raw: Buffer, path: str, position: int
) -> tuple[tuple[Any, ...], tuple[int, int, int, int, int]]:
    """The fields before the body (`RecordLayout.fixed`), and `RecordParts`; as `locate_parts`."""
    length = len(raw)
    layout = layout_of(raw[_HOST_KINDS_AT]) if length >= RECORD_BYTES_MIN else None
    if layout is None or length < layout.body:
        header = RecordHeader.decode(raw, path=path, position=position)
        raise Corrupt(f"record of {header.size} bytes in {length}", path, position)
    fixed = layout.fixed.unpack_from(raw)
    size, magic, body_length = fixed[0], fixed[1], fixed[-1]
    if size != length or magic not in TOPIC_LENGTH_BYTES:
        RecordHeader.decode(raw, path=path, position=position)
        raise Corrupt(f"record of {size} bytes in {length}", path, position)
    topic_length_bytes = TOPIC_LENGTH_BYTES[magic]
    room = size - layout.body - topic_length_bytes - PROPERTIES_LENGTH_BYTES
    if not 0 <= body_length <= room:
        reason = f"body length {body_length}" if room >= 0 else f"record size {size}"
        raise Corrupt(f"impossible {reason}", path, position)
    room -= body_length
    body_end = layout.body + body_length
    topic_length = _LENGTHS[magic].unpack_from(raw, body_end)[0]
    if not 0 <= topic_length <= room:
        raise Corrupt(f"impossible topic length {topic_length}", path, position)
    room -= topic_length
    topic = body_end + topic_length_bytes
    topic_end = topic + topic_length
    properties_length = _INT16.unpack_from(raw, topic_end)[0]
    if properties_length != room:
        raise Corrupt(f"properties have {properties_length} of {room} bytes", path, position)
    return fixed, (layout.body, body_end, topic, topic_end, topic_end + PROPERTIES_LENGTH_BYTES)


class StoredMessage(NamedTuple):
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
        address, port = self.store_host
        place = _INT32.pack(port) + _INT64.pack(self.physical_offset)
        return (_packed(address, is_v6=is_v6) + place).hex().upper()

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
        fixed = layout_of(self.sys_flag).fixed.pack(
            self.size,
            self.magic,
            self.body_crc,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.physical_offset,
            self.sys_flag,
            self.born_timestamp,
            _packed(self.born_host[0], is_v6=bool(self.sys_flag & BORN_HOST_V6)),
            self.born_host[1],
            self.store_timestamp,
            _packed(self.store_host[0], is_v6=bool(self.sys_flag & STORE_HOST_V6)),
            self.store_host[1],
            self.reconsume_times,
            self.prepared_transaction_offset,
            len(self.body),
        )
        parts = (
            fixed,
            self.body,
            _LENGTHS[self.magic].pack(len(topic)),
            topic,
            _INT16.pack(len(self.properties)),
            self.properties,
        )
        return b"".join(parts)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Read the one record that `raw` is, found at `position` of `path`.

        Copies the body, so that nothing keeps `raw` alive. About 2 us; no field is read later
        than now. Tolerant where RocketMQ is: the body's CRC is not checked here, and properties
        are kept as they are.

        Raises:
            Corrupt: magic, size or a length contradicts the format, or the topic is not UTF-8.
        """
        fixed, (body, body_end, topic_at, topic_end, properties) = _unpacked(raw, path, position)
        view = memoryview(raw)
        try:
            topic = str(view[topic_at:topic_end], "utf-8")
        except UnicodeDecodeError as error:
            place = position + topic_at + error.start
            raise Corrupt("topic is not UTF-8", path, place) from error
        (
            _, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag,
            born_timestamp, born_address, born_port, store_timestamp, store_address, store_port,
            reconsume_times, prepared_transaction_offset, _,
        ) = fixed  # fmt: skip
        values = (
            topic,
            queue_id,
            queue_offset,
            physical_offset,
            view[body:body_end].tobytes(),
            body_crc,
            view[properties:].tobytes(),
            flag,
            sys_flag,
            born_timestamp,
            (_address_text(born_address), born_port),
            store_timestamp,
            (_address_text(store_address), store_port),
            reconsume_times,
            prepared_transaction_offset,
            magic,
        )
        # As `cls(*values)`, whose Python code would cost a sixth of all this.
        return tuple.__new__(cls, values)  # pyright: ignore[reportUnknownMemberType] - fields differ
