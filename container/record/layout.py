"""Field positions, flag bits and magic numbers of a stored message, all declared here.

Two bits of the sysFlag decide whether each host takes 8 or 20 bytes, which shifts every field after
the born host. No other module declares such a position.
"""

from dataclasses import dataclass
from struct import Struct

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
