"""The fixed fields of a stored record, and where its parts of variable length lie.

The meaning of the format for one record at a time: `record/message.py` reads its fields by it, and
the batch kernels in `record/kernels.py` and `record/decoding.py` are tested against it.
"""

from struct import Struct
from typing import Any, NamedTuple, Self

from container.record.layout import (
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD_BYTES_MIN,
    SYS_FLAG_AT,
    TOPIC_LENGTH_BYTES,
    RecordLayout,
    layout_of,
)
from provider.errors import Corrupt
from provider.object_store import Buffer

TOPIC_LENGTHS = {MAGIC_V1: Struct(">b"), MAGIC_V2: Struct(">h")}
"""How each version writes the length of the topic."""

_HOST_KINDS_AT = SYS_FLAG_AT + 3  # the byte that has the bits
_INT64 = Struct(">q")
_INT16 = Struct(">h")


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
    fixed, parts = unpack_record(raw, path, position)
    return RecordHeader._make((*fixed[:9], fixed[11])), RecordParts._make(parts)


def unpack_record(
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
