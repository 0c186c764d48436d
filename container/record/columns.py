"""Columns of many records: field positions, topics, lengths, body checksums, tags codes."""

from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from container.record.batch import Bytes, as_bytes, born_host_growth, headers_at, values_at
from container.record.checksum import BODY_CRC_MASK, body_crc_of, crc32
from container.record.header import (
    BORN_HOST_AT,
    HOST_BITS,
    HOST_GROWTH,
    HOST_V4_BYTES,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    RecordShape,
    layout_of,
    locate_parts,
    shape_of,
    unpack_record,
)
from container.record.properties import NAME_END, PAIR_END, TAGS, decode_properties, tag_hash
from provider.errors import Corrupt
from provider.object_store import Buffer

LEAP_BYTES = 32 << 10
"""Bytes that are scanned record by record before a leap is tried."""
SMALL_BYTES = 640
"""Mean record length, in bytes, up to which a leap is faster. A leap reads every byte."""
RECORDS_MAX = 1 << 13
"""Maximum of records in one leap. It limits the loss of a leap that ends early."""
_FIRST_BYTE = MAGIC_V1 >> 24
_SIZE_SHIFT = np.uint64(32)
_MAGIC_MASK = np.uint64(0xFFFF_FFFF)

assert MAGIC_V2 >> 24 == _FIRST_BYTE, "both begin with the byte that is searched"


class Leaps:
    """Finder of runs of adjacent whole records, without a Python step for each record."""

    def __init__(self, raw: NDArray[np.uint8], end: int) -> None:
        self._raw = raw
        self._end = end
        self._found: NDArray[np.int64] | None = None

    def run_from(self, place: int) -> NDArray[np.int64]:
        """Return starts and sizes of adjacent records, the first of which is at `place`.

        They are the first records that a scan from `place` finds. The result is empty if `place`
        holds no record. The first call costs some 80 ns for a record of 300 bytes. Later calls use
        its result.
        """
        if self._found is None:
            self._found = self._find(place)
        first = int(np.searchsorted(self._found[0], place))
        near = self._found[:, first : first + RECORDS_MAX]
        if not near.size or near[0, 0] != place:
            return near[:, :0]
        touches = near[0, :-1] + near[1, :-1] == near[0, 1:]
        return near if touches.all() else near[:, : int(np.argmin(touches)) + 1]

    def _find(self, place: int) -> NDArray[np.int64]:
        """Places from `place` on that have a magic number and a possible size, and these sizes."""
        last = self._end - RECORD_BYTES_MIN
        searched = self._raw[place + MAGIC_AT : max(last + MAGIC_AT + 1, 0)]
        places = np.flatnonzero(searched == _FIRST_BYTE) + place
        heads = values_at(self._raw, ">u8", places).astype(np.uint64)
        magics, sizes = heads & _MAGIC_MASK, (heads >> _SIZE_SHIFT).astype(np.int64)
        good = ((magics == MAGIC_V1) | (magics == MAGIC_V2)) & (sizes >= RECORD_BYTES_MIN)
        good &= places + sizes <= self._end
        return np.stack((places[good], sizes[good]))


TAIL_DTYPE = np.dtype(
    [("reconsume_times", ">i4"), ("prepared_transaction_offset", ">i8"), ("body_length", ">i4")]
)
"""Fields between the store host and the body."""
_TIMESTAMP_BYTES = 8

assert layout_of(0).body - layout_of(0).tail == TAIL_DTYPE.itemsize, (
    "an on-disk format never drifts"
)


Rows = slice | NDArray[np.int64] | NDArray[np.bool_]
"""Row selection: a slice, indices, or a mask."""


class Spans(NamedTuple):
    """Byte range `[starts, ends)` of one part of each record, in the buffer."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def taken(self, rows: "Rows") -> "Spans":
        """Select some rows."""
        return Spans(self.starts[rows], self.ends[rows])


class RecordColumns(NamedTuple):
    """Fields of many records, by name. Parts of variable length are given by their places."""

    headers: NDArray[np.void]
    """`HEADER_DTYPE`: the fields before the born host."""
    store_timestamps: NDArray[np.int64]
    tails: NDArray[np.void]
    """`TAIL_DTYPE`."""
    born_hosts: Spans
    """Address of 4 or 16 bytes, then port of 4 bytes."""
    store_hosts: Spans
    bodies: Spans
    topics: Spans
    properties: Spans

    def taken(self, rows: Rows) -> "RecordColumns":
        """Select the fields of some records. O(rows)."""
        return RecordColumns(
            self.headers[rows],
            self.store_timestamps[rows],
            self.tails[rows],
            self.born_hosts.taken(rows),
            self.store_hosts.taken(rows),
            self.bodies.taken(rows),
            self.topics.taken(rows),
            self.properties.taken(rows),
        )


def leading_columns(
    data: Buffer | NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[RecordColumns, str]:
    """Return the fields of the leading sound records, and the fault of the next, "" for none.

    Costs as `locate_columns`, and 2 us a record more if one is not sound. Never raises.
    """
    raw = as_bytes(data)
    found = _located(raw, starts, sizes)
    if found is not None:
        return found, ""
    view = raw.data
    for count, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        try:
            unpack_record(view[start : start + size], "", 0)
        except Corrupt as error:
            found = _located(raw, starts[:count], sizes[:count])
            assert found is not None, "the batch kernel and `unpack_record` have one rule"
            return found, error.reason
    raise AssertionError("the batch kernel and `unpack_record` have one rule")


def locate_columns(
    data: Buffer, starts: NDArray[np.int64], sizes: NDArray[np.int64], *, path: str
) -> RecordColumns:
    """Locate the fields of the records of `sizes[i]` bytes at `starts[i]` (`header.unpack_record`).

    Some 0.2 us a record. Topics are located, not compared. Checksums are not verified.

    Raises:
        Corrupt: magic, size or a length of a record contradicts the format. The error names `path`
            and the position that the first such record has in its bytes 28..35.
    """
    raw = as_bytes(data)
    found = _located(raw, starts, sizes)
    if found is None:
        _raise_first(raw, starts, sizes, path)
    return found


def _located(
    raw: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> RecordColumns | None:
    """Return the fields, or None if any record is not sound."""
    if (sizes < RECORD_BYTES_MIN).any():
        return None
    headers = headers_at(raw, starts)
    ends = starts + sizes
    is_v2 = headers["magic"] == MAGIC_V2
    born_ends = starts + BORN_HOST_AT + HOST_V4_BYTES + born_host_growth(headers["sys_flag"])
    store_starts = born_ends + _TIMESTAMP_BYTES
    growth = np.where((headers["sys_flag"] & STORE_HOST_V6) != 0, HOST_GROWTH, 0)
    tail_starts = store_starts + HOST_V4_BYTES + growth
    body_starts = tail_starts + TAIL_DTYPE.itemsize
    room = ends - body_starts - np.where(is_v2, 2, 1) - PROPERTIES_LENGTH_BYTES
    fits = (headers["size"] == sizes) & (is_v2 | (headers["magic"] == MAGIC_V1)) & (room >= 0)
    if not fits.all():
        return None
    tails = values_at(raw, f"V{TAIL_DTYPE.itemsize}", tail_starts).view(TAIL_DTYPE)
    body_ends = body_starts + tails["body_length"]
    room -= tails["body_length"]
    if not ((tails["body_length"] >= 0) & (room >= 0)).all():
        return None
    topic_lengths = values_at(raw, ">i1", body_ends).astype(np.int64)
    topic_lengths[is_v2] = values_at(raw, ">i2", body_ends[is_v2])
    topic_starts = body_ends + np.where(is_v2, 2, 1)
    topic_ends = topic_starts + topic_lengths
    if not ((topic_lengths >= 0) & (topic_lengths <= room)).all():
        return None
    properties = topic_ends + PROPERTIES_LENGTH_BYTES
    if (values_at(raw, ">i2", topic_ends) != ends - properties).any():
        return None
    return RecordColumns(
        headers,
        values_at(raw, ">i8", born_ends).astype(np.int64),
        tails,
        Spans(starts + BORN_HOST_AT, born_ends),
        Spans(store_starts, tail_starts),
        Spans(body_starts, body_ends),
        Spans(topic_starts, topic_ends),
        Spans(properties, ends),
    )


def _raise_first(
    raw: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], path: str
) -> NoReturn:
    view = raw.data
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        record = view[start : start + size]
        place = record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8]
        unpack_record(record, path, int.from_bytes(place, "big", signed=True))
    raise AssertionError("the batch kernel and `unpack_record` have one rule")


ANOTHER_TOPIC = "another topic"
ANOTHER_BODY = "the body differs from its checksum"


class Contents(NamedTuple):
    """Number of leading sound records, and the positions of their properties."""

    good: int
    reason: str
    """Fault of record number `good`. "" if all are sound."""
    shape: RecordShape | None
    """Shape of all records. None if they have several shapes, or if there are no records."""
    properties_at: NDArray[np.int32]
    """First byte of the properties of each sound record, counted from the record's first byte."""


class _Parts(NamedTuple):
    """Positions of the parts of records, in the buffer and in each record."""

    bodies: NDArray[np.int64]
    body_ends: NDArray[np.int64]
    properties_at: NDArray[np.int32]


def verify_contents(
    buffer: Bytes,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    headers: NDArray[np.void],
    *,
    topic: bytes,
) -> Contents:
    """Verify the parts that `judge_headers` leaves out: lengths, topic, and the CRC of the body.

    After both, every part of a record is verified except times, hosts, flags, counters and
    properties. A whole-record CRC is not verified: in a tier that RocketMQ wrote, or that was
    imported from it, these CRCs are those of the records' former positions. O(n): some 0.3 us a
    record, and a CRC-32 over its body.

    Args:
        buffer: has a record of `sizes[i]` bytes at `starts[i]`.
        starts: first byte of each record.
        sizes: length of each record in bytes.
        headers: their first fields (`PREFIX_DTYPE`), without a fault.
        topic: the only topic that they may have.
    """
    raw = as_bytes(buffer)
    shapes = _shapes_of(headers, topic)
    parts = None if shapes is None else _parts_of(raw, starts, sizes, headers, shapes)
    if shapes is None or parts is None:  # at least one is not sound: find the first
        count, reason = _first_unsound(raw, starts, sizes, topic)
        sound = verify_contents(raw, starts[:count], sizes[:count], headers[:count], topic=topic)
        return sound if sound.reason else sound._replace(reason=reason)
    count, reason = _leading_intact(raw, headers, parts)
    shape = shapes[0] if len(shapes) == 1 else None
    return Contents(count, reason, shape, parts.properties_at[:count])


def leading_whole(
    raw: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    headers: NDArray[np.void],
    topic: bytes,
) -> tuple[int, str]:
    """Number of leading records of this topic whose lengths add up, and the fault of the next.

    As `verify_contents` without bodies, with the same arguments.
    """
    shapes = _shapes_of(headers, topic)
    if shapes is not None and _parts_of(raw, starts, sizes, headers, shapes) is not None:
        return len(starts), ""
    return _first_unsound(raw, starts, sizes, topic, bodies=False)


def properties_of_all(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    shape: RecordShape,
) -> NDArray[np.int32] | None:
    """Position of the properties in each record. None unless all are sound and of this shape.

    Uses the rule of `header.unpack_record`. The records must lie in `data`. O(n), 0.1 us a record.
    """
    headers = headers_at(data, starts)
    fits = (headers["size"] == sizes) & (headers["magic"] == shape.magic)
    fits &= (headers["sys_flag"] & HOST_BITS) == shape.host_bits
    fits &= sizes >= shape.layout.body + shape.after_body_bytes
    if not fits.all():
        return None
    lengths = values_at(data, ">i4", starts + shape.layout.body_length).astype(np.int64)
    return _properties_of_shape(data, starts, sizes, lengths, shape)


def _properties_of_shape(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    body_lengths: NDArray[np.int64],
    shape: RecordShape,
) -> NDArray[np.int32] | None:
    """As `properties_of_all`, for records whose headers fit the shape."""
    layout, between = shape.layout, shape.after_body_bytes
    room = sizes - (layout.body + between)
    if not ((body_lengths >= 0) & (body_lengths <= room)).all():
        return None
    tails = values_at(data, f"V{between}", starts + body_lengths + layout.body)
    columns = tails.view(np.uint8).reshape(len(starts), between)
    topic_bytes = len(shape.topic_part)
    if (columns[:, :topic_bytes] != np.frombuffer(shape.topic_part, np.uint8)).any():
        return None
    properties_lengths = columns[:, topic_bytes:].copy().view(">i2")[:, 0]
    if (properties_lengths != room - body_lengths).any():
        return None
    return (sizes - properties_lengths).astype(np.int32)


def _shapes_of(headers: NDArray[np.void], topic: bytes) -> list[RecordShape] | None:
    """Shapes that occur, nearly always one. None if a version cannot hold this topic."""
    if not len(headers):
        return []
    magics, bits = headers["magic"], headers["sys_flag"] & HOST_BITS
    if (magics == magics[0]).all() and (bits == bits[0]).all():
        kinds = {(int(magics[0]), int(bits[0]))}
    else:
        kinds = set(zip(magics.tolist(), bits.tolist(), strict=True))
    if any(len(topic) > TOPIC_BYTES_MAX[magic] for magic, _ in kinds):
        return None
    return [shape_of(magic, layout_of(kind), topic) for magic, kind in sorted(kinds)]


def _parts_of(
    raw: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    headers: NDArray[np.void],
    shapes: list[RecordShape],
) -> _Parts | None:
    """Locate the parts. None if the lengths or the topic of any record contradict the shapes."""
    if len(shapes) == 1:
        return _parts_of_shape(raw, starts, sizes, headers, shapes[0])
    count = len(starts)
    found = _Parts(np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int32))
    for shape in shapes:
        mine = headers["magic"] == shape.magic
        mine &= (headers["sys_flag"] & HOST_BITS) == shape.host_bits
        parts = _parts_of_shape(raw, starts[mine], sizes[mine], headers[mine], shape)
        if parts is None:
            return None
        for column, part in zip(found, parts, strict=True):
            column[mine] = part
    return found


def _parts_of_shape(
    raw: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    headers: NDArray[np.void],
    shape: RecordShape,
) -> _Parts | None:
    layout = shape.layout
    if sizes.min() < layout.body + shape.after_body_bytes:
        return None
    if shape.host_bits:
        lengths = values_at(raw, ">i4", starts + layout.body_length).astype(np.int64)
    else:
        lengths = headers["body_length"].astype(np.int64)
    properties_at = _properties_of_shape(raw, starts, sizes, lengths, shape)
    if properties_at is None:
        return None
    bodies = starts + layout.body
    return _Parts(bodies, bodies + lengths, properties_at)


def _leading_intact(
    raw: NDArray[np.uint8], headers: NDArray[np.void], parts: _Parts
) -> tuple[int, str]:
    """Number of leading records with a valid body checksum, and the fault of the next."""
    count, reason = len(headers), ""
    view = raw.data
    spans = zip(parts.bodies.tolist(), parts.body_ends.tolist(), strict=True)
    found = np.array([crc32(view[start:end]) for start, end in spans], np.uint32)
    found &= BODY_CRC_MASK
    bad = found != headers["body_crc"]
    if bad.any():
        count, reason = int(np.argmax(bad)), ANOTHER_BODY
    return count, reason


def _first_unsound(
    raw: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    topic: bytes,
    *,
    bodies: bool = True,
) -> tuple[int, str]:
    """Index of the first record with a wrong length, topic or body, and its fault. 2 us each."""
    view = raw.data
    pairs = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    for index, (start, end) in enumerate(pairs):
        record = view[start:end]
        try:
            fixed, (body, body_end, topic_at, topic_end, _) = unpack_record(record, "", 0)
        except Corrupt as error:
            return index, error.reason
        if bytes(record[topic_at:topic_end]) != topic:
            return index, ANOTHER_TOPIC
        if bodies and body_crc_of(record[body:body_end]) != fixed[2]:
            return index, ANOTHER_BODY
    raise AssertionError("the batch kernels and `unpack_record` have one rule")


_PAIR_END = PAIR_END.encode()
_TAGS = TAGS.encode() + NAME_END.encode()
_NAME = int.from_bytes(TAGS.encode(), "big")
PROPERTIES_TOGETHER_MAX = 512
"""Bytes of properties from which a record is looked at alone."""
TAGS_TOGETHER_MAX = 64
"""Bytes of a tag, likewise."""


class TagsCodes:
    """Computes tags codes. Each distinct value of TAGS is hashed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {b"": 0}

    def __repr__(self) -> str:
        return f"<TagsCodes: {len(self._known)} values>"

    def of_properties(self, properties: bytes) -> int:
        """Tags code of a record with these properties. O(length)."""
        tags = _tags_of(properties)
        code = self._known.get(tags)
        if code is None:
            code = self._known[tags] = tag_hash(tags.decode("utf-8", "replace"))
        return code

    def of_records(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Tags codes of the records at `starts` of `data`. Some 2 us a record.

        Raises:
            Corrupt: the lengths in a record do not add up.
        """
        view = data.data
        codes = np.empty(len(starts), np.int64)
        for index, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            raw = view[start : start + size]
            _, parts = locate_parts(raw, path="", position=start)
            codes[index] = self.of_properties(bytes(raw[parts.properties :]))
        return codes


def _tags_of(properties: bytes) -> bytes:
    """Value of TAGS, empty if there is none. Decodes all pairs if the fast search could err."""
    at = properties.find(_TAGS)
    if at < 0:
        return b""
    if (at and properties[at - 1 : at] != _PAIR_END) or properties.find(_TAGS, at + 1) >= 0:
        return decode_properties(properties).get(TAGS, "").encode("utf-8", "surrogatepass")
    return properties[at + len(_TAGS) :].partition(_PAIR_END)[0]


def tags_codes(raw: NDArray[np.uint8], properties: Spans) -> NDArray[np.int64]:
    """Tags code of each record, whose properties are these bytes of `raw`. Some 0.15 us a record.

    Records with long properties, or with a tag that is long or not ASCII, take 0.7 us each.
    """
    starts, ends = properties
    lengths = ends - starts
    width = int(min(lengths.max(initial=0), PROPERTIES_TOGETHER_MAX))
    together = (lengths <= width) & (starts + width <= len(raw)) & (width > len(_TAGS))
    codes = np.zeros(len(starts), np.int64)
    if together.any():
        rows = np.flatnonzero(together)
        codes[rows], is_odd = _codes_together(raw, starts[rows], lengths[rows], width)
        together[rows] = ~is_odd
    alone, view = TagsCodes(), raw.data
    for row in np.flatnonzero(~together).tolist():
        codes[row] = alone.of_properties(bytes(view[starts[row] : ends[row]]))
    return codes


def _codes_together(
    raw: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Tags codes of properties of at most `width` bytes, and which of them are not right.

    The properties are copied into rows of `width` bytes, that each begin at a multiple of it.
    """
    text = values_at(raw, f"V{width}", starts).view(np.uint8)
    name = len(TAGS)
    marks = np.flatnonzero(text[name:] == ord(NAME_END)) + name
    marks = marks[values_at(text, ">u4", marks - name) == _NAME]
    rows, at = np.divmod(marks, width)
    is_name = (at == name) | ((at > name) & (text[marks - name - 1] == ord(PAIR_END)))
    is_name &= at < lengths[rows]
    values, rows = marks[is_name] + 1, rows[is_name]
    cuts = np.flatnonzero(text == ord(PAIR_END))
    nearest = np.append(cuts, len(text))[np.searchsorted(cuts, values)]
    sizes = np.minimum(nearest, rows * width + lengths[rows]) - values
    values, rows, sizes = values[sizes > 0], rows[sizes > 0], sizes[sizes > 0]
    hashes = np.zeros(len(values), np.int32)
    is_odd = sizes > TAGS_TOGETHER_MAX
    for index in range(int(min(sizes.max(initial=0), TAGS_TOGETHER_MAX))):
        letters = text[np.minimum(values + index, len(text) - 1)]
        inside = index < sizes
        is_odd |= inside & (letters >= 0x80)  # noqa: PLR2004 - not ASCII
        hashes = np.where(inside, hashes * np.int32(31) + letters, hashes)  # as `java_hash`
    codes, odd = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.bool_)
    codes[rows], odd[rows[is_odd]] = hashes, True  # of several tags the last one counts
    return codes, odd
