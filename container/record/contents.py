"""Topic, lengths and body checksums of many records at once: what their headers do not prove."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.record.checksum import BODY_CRC_MASK, body_crc_of, crc32
from container.record.fields import TOPIC_BYTES_MAX
from container.record.header import unpack_record
from container.record.kernels import (
    Bytes,
    as_bytes,
    headers_at,
    values_at,
)
from container.record.layout import HOST_BITS, layout_of
from container.record.shape import RecordShape, shape_of
from provider.errors import Corrupt

ANOTHER_TOPIC = "another topic"
ANOTHER_BODY = "the body differs from its checksum"


class Contents(NamedTuple):
    """How many leading records are sound, and where their properties begin."""

    good: int
    reason: str
    """Why record number `good` is not sound; "" when all are."""
    shape: RecordShape | None
    """The shape of all of them; None if they have several, or if there are none."""
    properties_at: NDArray[np.int32]
    """First byte of the properties of each sound record, counted from the record's first."""


class _Parts(NamedTuple):
    """Where the parts of records lie in the buffer, and in each record."""

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
    """Check what `judge_headers` did not: lengths, topic, and the CRC of the body.

    With it everything in a record is compared with something else, except times, hosts, flags,
    counters and properties. (A CRC over the whole record, where there is one, is not compared: a
    tier that RocketMQ wrote, or that was taken over from it, has those of the records' former
    places.) O(n): some 0.3 us a record and a CRC-32 over its body.

    Args:
        buffer: has a record of `sizes[i]` bytes at `starts[i]`.
        starts: first byte of each record.
        sizes: length of each record in bytes.
        headers: their first fields (`PREFIX_DTYPE`), without a fault.
        topic: the only one that they may have.
    """
    raw = as_bytes(buffer)
    shapes = _shapes_of(headers, topic)
    parts = None if shapes is None else _parts_of(raw, starts, sizes, headers, shapes)
    if shapes is None or parts is None:  # one of them is not sound: which?
        count, reason = _first_unsound(raw, starts, sizes, topic)
        sound = verify_contents(raw, starts[:count], sizes[:count], headers[:count], topic=topic)
        return sound if sound.reason else sound._replace(reason=reason)
    count, reason = _leading_intact(raw, headers, parts)
    shape = shapes[0] if len(shapes) == 1 else None
    return Contents(count, reason, shape, parts.properties_at[:count])


def properties_of_all(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    shape: RecordShape,
) -> NDArray[np.int32] | None:
    """Where the properties begin in each record; None unless all are sound and of this shape.

    By the rule of `header.unpack_record`. The records must lie in `data`. O(n), 0.1 us a record.
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
    """As `properties_of_all`, of records whose headers fit the shape."""
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
    """The shapes that occur, nearly always one; None if a version cannot have this topic."""
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
    """Where the parts lie; None if the lengths or the topic of any record contradict them."""
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
    """How many leading records have the checksum that their body gives, and why not the next."""
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
    raw: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], topic: bytes
) -> tuple[int, str]:
    """Which record is the first whose lengths, topic or body are not right, and why; 2 us each."""
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
        if body_crc_of(record[body:body_end]) != fixed[2]:
            return index, ANOTHER_BODY
    raise AssertionError("the batch kernels and `unpack_record` have one rule")
