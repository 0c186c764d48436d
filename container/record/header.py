"""Layout of a stored record: field positions, flag bits, fixed fields, and all fields at once.

Two bits of the sysFlag decide whether each host takes 8 or 20 bytes, which shifts every field after
the born host. No other module declares such a position.
"""

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import Any, ClassVar, NamedTuple, Self

from container.record.properties import PROPERTIES_BYTES_MAX
from provider.errors import Corrupt
from provider.object_store import Buffer

MAGIC_V1 = 0xDAA3_20A7
"""Version with a topic length of 1 byte."""
MAGIC_V2 = 0xDAA3_20AB
"""Version with a topic length of 2 bytes, for topics over 127 UTF-16 units."""
TOPIC_UNITS_MAX_V1 = 127

COMPRESSED = 0x001
MULTI_TAGS = 0x002
TRANSACTION_MASK = 0x00C
TRANSACTION_PREPARED = 0x004
TRANSACTION_COMMIT = 0x008
TRANSACTION_ROLLBACK = 0x00C
BORN_HOST_V6 = 0x010
STORE_HOST_V6 = 0x020
HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
"""Bits that decide the positions of the fields after the born host."""
NEED_UNWRAP = 0x040
INNER_BATCH = 0x080
COMPRESSION_TYPE_MASK = 0x700

HEAD = Struct(">iIIiiqqiq")
"""Size, magic, body CRC, queue id, flag, queue offset, physical offset, sysFlag, born time."""
TAIL = Struct(">iqi")
"""Reconsume times, prepared transaction offset, body length."""

MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
FLAG_AT = 16
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = HEAD.size

PORT_BYTES = 4
HOST_V4_BYTES = 8
HOST_V6_BYTES = 20
HOST_GROWTH = HOST_V6_BYTES - HOST_V4_BYTES
TOPIC_LENGTH_BYTES = {MAGIC_V1: 1, MAGIC_V2: 2}
PROPERTIES_LENGTH_BYTES = 2


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Field positions, counted from the record's first byte, for one pair of host kinds."""

    born_host_bytes: int
    store_timestamp: int
    store_host: int
    store_host_bytes: int
    tail: int
    """Position of the reconsume times, which begin the tail."""
    body_length: int
    body: int
    fixed: Struct
    """All fields before the body. A host is its address in bytes and its port."""

    def overhead(self, magic: int) -> int:
        """Length in bytes of a record with empty body, topic and properties."""
        return self.body + TOPIC_LENGTH_BYTES[magic] + PROPERTIES_LENGTH_BYTES


def _layout(born_host_bytes: int, store_host_bytes: int) -> RecordLayout:
    store_timestamp = BORN_HOST_AT + born_host_bytes
    store_host = store_timestamp + 8
    tail = store_host + store_host_bytes
    body = tail + TAIL.size
    born, store = (f"{length - PORT_BYTES}si" for length in (born_host_bytes, store_host_bytes))
    fixed = Struct(f"{HEAD.format}{born}q{store}{TAIL.format[1:]}")
    assert fixed.size == body, "fields follow each other"
    return RecordLayout(
        born_host_bytes, store_timestamp, store_host, store_host_bytes, tail, body - 4, body, fixed
    )


_LAYOUTS = tuple(
    _layout(born, store)
    for store in (HOST_V4_BYTES, HOST_V6_BYTES)
    for born in (HOST_V4_BYTES, HOST_V6_BYTES)
)


def layout_of(sys_flag: int) -> RecordLayout:
    """Field positions of a record with this sysFlag, or its lowest byte."""
    return _LAYOUTS[(sys_flag >> 4) & 3]


RECORD_BYTES_MIN = layout_of(0).overhead(MAGIC_V1)
"""Minimal length of a record in bytes."""

assert HEAD.size == 48, "an on-disk format never drifts"  # noqa: PLR2004 - the format's number
assert TAIL.size == 16, "an on-disk format never drifts"  # noqa: PLR2004 - the format's number
assert RECORD_BYTES_MIN == 91, "an on-disk format never drifts"  # noqa: PLR2004 - as above
assert layout_of(BORN_HOST_V6).store_timestamp == 68, "bit 4 is the born host"  # noqa: PLR2004
assert layout_of(STORE_HOST_V6).tail == 84, "bit 5 is the store host"  # noqa: PLR2004


BLANK_MAGIC = 0xCBD4_3194
"""Magic code of blanks and codas, in the place of a record's magic code."""


@dataclass(frozen=True, slots=True)
class BlankRecord:
    """End of a local CommitLog file. The next record did not fit and is in the next file.

    Only these 8 bytes are written. The rest of the file is arbitrary.
    """

    size: int
    """Bytes from here to the end of the file. 4 bytes, >= 8."""

    LAYOUT: ClassVar[Struct] = Struct(">iI")
    SIZE: ClassVar[int] = 8

    def encode(self) -> bytes:
        """Return the 8 bytes."""
        return self.LAYOUT.pack(self.size, BLANK_MAGIC)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Decode the blank at `position` of `path`.

        Raises:
            Corrupt: the bytes are not a blank record.
        """
        if len(raw) != cls.SIZE:
            raise Corrupt(f"blank record has {len(raw)} of {cls.SIZE} bytes", path, position)
        size, magic = cls.LAYOUT.unpack(raw)
        if magic != BLANK_MAGIC or size < cls.SIZE:
            raise Corrupt(f"no blank record: size={size} magic={magic:#x}", path, position)
        return cls(size)


@dataclass(frozen=True, slots=True)
class Coda:
    """End of a sealed tier CommitLog segment, as written by RocketMQ 5.1.0 to 5.2.0.

    Part of the segment: the next segment's base lies after it. This program reads codas and never
    writes them.
    """

    end_timestamp: int
    """Store timestamp of the segment's last message, Unix ms. 8 bytes."""

    LAYOUT: ClassVar[Struct] = Struct(">iIq")
    SIZE: ClassVar[int] = 16

    def encode(self) -> bytes:
        """Return the 16 bytes: their length, the blank magic, the timestamp."""
        return self.LAYOUT.pack(self.SIZE, BLANK_MAGIC, self.end_timestamp)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Decode the coda at `position` of `path`.

        Raises:
            Corrupt: the bytes are not a coda.
        """
        if len(raw) != cls.SIZE:
            raise Corrupt(f"coda has {len(raw)} of {cls.SIZE} bytes", path, position)
        size, magic, end_timestamp = cls.LAYOUT.unpack(raw)
        if magic != BLANK_MAGIC or size != cls.SIZE:
            raise Corrupt(f"no coda: size={size} magic={magic:#x}", path, position)
        return cls(end_timestamp)


assert BlankRecord.LAYOUT.size == BlankRecord.SIZE, "an on-disk format never drifts"
assert Coda.LAYOUT.size == Coda.SIZE, "an on-disk format never drifts"


SHAPES_KEPT_MAX = 256
"""Limit of cached shapes, each of some 200 bytes and two copies of the topic."""


class RecordShape:
    """Layout that records share if they have the same topic, version and kinds of host."""

    __slots__ = (
        "after_body_bytes", "body_at", "host_bits", "layout", "magic", "topic", "topic_part",
    )  # fmt: skip

    def __init__(self, magic: int, layout: RecordLayout, topic: bytes) -> None:
        """Shape of records with this topic.

        Raises:
            UnicodeDecodeError: the topic is not UTF-8.
        """
        self.magic = magic
        self.layout = layout
        self.body_at = layout.body
        """First byte of the body."""
        self.host_bits = BORN_HOST_V6 if layout.born_host_bytes == HOST_V6_BYTES else 0
        self.host_bits |= STORE_HOST_V6 if layout.store_host_bytes == HOST_V6_BYTES else 0
        self.topic = str(topic, "utf-8")
        self.topic_part = TOPIC_LENGTHS[magic].pack(len(topic)) + topic
        """Bytes after the body: the length of the topic, and the topic."""
        self.after_body_bytes = len(self.topic_part) + PROPERTIES_LENGTH_BYTES
        """Bytes between the body and the properties."""


shape_of = lru_cache(SHAPES_KEPT_MAX)(RecordShape)
"""Shape of a version, a layout and a topic. One object for all records that share it."""


TOPIC_LENGTHS = {MAGIC_V1: Struct(">b"), MAGIC_V2: Struct(">h")}
"""Encoding of the topic's length in each version."""

_HOST_KINDS_AT = SYS_FLAG_AT + 3  # the byte that holds the bits
_INT64 = Struct(">q")
_INT16 = Struct(">h")


class RecordHeader(NamedTuple):
    """Fields of a record before its body. The bytes after the header are not read."""

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
        """Positions of this record's fields."""
        return layout_of(self.sys_flag)

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Decode the header of the record that begins with `raw`, at `position` of `path`. O(1).

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
    """Positions of the parts of variable length, counted from the record's first byte."""

    body: int
    body_end: int
    topic: int
    topic_end: int
    properties: int
    """Last part. It ends with the record."""


def locate_parts(raw: Buffer, *, path: str, position: int) -> tuple[RecordHeader, RecordParts]:
    """Decode the lengths of one whole record and check that they add up. O(1).

    Raises:
        Corrupt: any length is negative or too long, or their sum is not the record's size.
    """
    fixed, parts = unpack_record(raw, path, position)
    return RecordHeader._make((*fixed[:9], fixed[11])), RecordParts._make(parts)


def unpack_record(
    raw: Buffer, path: str, position: int
) -> tuple[tuple[Any, ...], tuple[int, int, int, int, int]]:
    """Return the fields before the body (`RecordLayout.fixed`), and `RecordParts`.

    As `locate_parts`.
    """
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
    topic_length = TOPIC_LENGTHS[magic].unpack_from(raw, body_end)[0]
    if not 0 <= topic_length <= room:
        raise Corrupt(f"impossible topic length {topic_length}", path, position)
    room -= topic_length
    topic = body_end + topic_length_bytes
    topic_end = topic + topic_length
    properties_length = _INT16.unpack_from(raw, topic_end)[0]
    if properties_length != room:
        raise Corrupt(f"properties have {properties_length} of {room} bytes", path, position)
    return fixed, (layout.body, body_end, topic, topic_end, topic_end + PROPERTIES_LENGTH_BYTES)


Host = tuple[str, int]
"""Address as text, and port."""

ADDRESSES_KEPT_MAX = 4096
"""Limit of cached address texts, some 200 bytes each."""

TOPIC_BYTES_MAX = {MAGIC_V1: 127, MAGIC_V2: 32767}
"""Longest topic of each version, in bytes of UTF-8."""


def magic_for(topic: str) -> int:
    """Magic of the version that the broker writes for a topic: v2 above 127 UTF-16 units.

    A shorter topic whose UTF-8 form does not fit v1's one signed byte is v2 too. For such a topic,
    Java's own encoder would write a length that no reader accepts.
    """
    units = len(topic.encode("utf-16-le")) // 2
    fits = len(topic.encode()) <= TOPIC_BYTES_MAX[MAGIC_V1]
    return MAGIC_V1 if units <= TOPIC_UNITS_MAX_V1 and fits else MAGIC_V2


@lru_cache(ADDRESSES_KEPT_MAX)
def packed_address(address: str, *, is_v6: bool) -> bytes:
    """Pack the text of an address to 4 or 16 bytes.

    Raises:
        ValueError: it is not an address, or one of the other kind.
    """
    return (IPv6Address(address) if is_v6 else IPv4Address(address)).packed


@lru_cache(ADDRESSES_KEPT_MAX)
def address_text(packed: bytes) -> str:
    """Text of a packed address of 4 or 16 bytes."""
    return str(ip_address(packed))


class MessageFields(NamedTuple):
    """All fields of a record. Body and properties are as stored (compressed, encoded)."""

    topic: str
    queue_id: int
    queue_offset: int
    """Position of the message in its queue."""
    physical_offset: int
    """First byte of the record in its CommitLog. In a tier, the queue's CommitLog."""
    body: bytes
    body_crc: int
    """Stored checksum, whether or not the body matches it."""
    properties: bytes
    flag: int
    """Number set by the user."""
    sys_flag: int
    """RocketMQ's flag bits: compression, transaction, kinds of host."""
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
    def decode(cls, record: bytes, shape: RecordShape, properties_at: int) -> "MessageFields":
        """Decode the fields of a verified record: 0.8 us, a third of reading them one by one."""
        layout = shape.layout
        (
            _, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag,
            born_timestamp, born_address, born_port, store_timestamp, store_address, store_port,
            reconsume_times, prepared_transaction_offset, _,
        ) = layout.fixed.unpack_from(record)  # fmt: skip
        return cls(
            shape.topic,
            queue_id,
            queue_offset,
            physical_offset,
            record[layout.body : properties_at - shape.after_body_bytes],
            body_crc,
            record[properties_at:],
            flag,
            sys_flag,
            born_timestamp,
            (address_text(born_address), born_port),
            store_timestamp,
            (address_text(store_address), store_port),
            reconsume_times,
            prepared_transaction_offset,
            magic,
        )

    def encode(self) -> tuple[bytes, RecordShape, int]:
        """Encode to the record's bytes, its shape, and the position of its properties.

        Raises:
            ValueError: the topic or the properties are too long, or a host does not fit `sys_flag`.
        """
        topic = self.topic.encode()
        if len(topic) > TOPIC_BYTES_MAX[self.magic]:
            raise ValueError(f"topic of {len(topic)} bytes")
        if len(self.properties) > PROPERTIES_BYTES_MAX:
            raise ValueError(f"properties of {len(self.properties)} bytes")
        shape = shape_of(self.magic, layout_of(self.sys_flag), topic)
        properties_at = shape.layout.body + len(self.body) + shape.after_body_bytes
        fixed = shape.layout.fixed.pack(
            properties_at + len(self.properties),
            self.magic,
            self.body_crc,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.physical_offset,
            self.sys_flag,
            self.born_timestamp,
            packed_address(self.born_host[0], is_v6=bool(self.sys_flag & BORN_HOST_V6)),
            self.born_host[1],
            self.store_timestamp,
            packed_address(self.store_host[0], is_v6=bool(self.sys_flag & STORE_HOST_V6)),
            self.store_host[1],
            self.reconsume_times,
            self.prepared_transaction_offset,
            len(self.body),
        )
        properties_length = _INT16.pack(len(self.properties))
        parts = (fixed, self.body, shape.topic_part, properties_length, self.properties)
        return b"".join(parts), shape, properties_at
