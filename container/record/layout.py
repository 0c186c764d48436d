"""Field positions, flag bits and magic numbers of a stored message, all declared here.

Two bits of the sysFlag decide whether each host takes 8 or 20 bytes, which shifts every field after
the born host. No other module declares such a position.
"""

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Self

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
