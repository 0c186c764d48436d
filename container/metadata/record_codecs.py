"""How the records of the metadata become JSON values and back (`metadata/codec.py`)."""

from sys import intern
from typing import Any

from container.errors import NewerVersion
from container.metadata.field_codecs import (
    DecodeError,
    FieldCodec,
    FieldCodecs,
    json_integer,
    json_list,
    json_text,
)
from container.metadata.records import Coverage, Extent
from container.names.queue_id import QueueId
from provider.ranges import QueueOffset

EXTENT_FIELDS_MIN = 6
EXTENT_FIELDS_MAX = 8
_NAME_AT = 6
_EXTENT_TYPES = (
    (int, int, int, int, int, int, str, int),
    (int, int, type(None), int, int, int, str, int),
)


def _encode_extent(extent: Extent) -> list[Any]:
    raw: list[Any] = [*extent[:EXTENT_FIELDS_MIN]]
    if extent.object_name or extent.object_offset != extent.position:
        raw += (extent.object_name, extent.object_offset)
    return raw


def _decode_extent(raw: object) -> Extent:
    items = json_list(raw)
    if len(items) == EXTENT_FIELDS_MIN:
        items += ("", items[0])
    if len(items) != EXTENT_FIELDS_MAX:
        raise NewerVersion(f"an extent of {len(items)} fields is of a newer version", "")
    if tuple(map(type, items)) not in _EXTENT_TYPES:
        raise DecodeError(f"extent with other values than {items!r:.200} may have")
    items[_NAME_AT] = intern(items[_NAME_AT])  # thousands of extents name one part
    return Extent._make(items)


EXTENT = FieldCodec(_encode_extent, _decode_extent)
"""[position, length, crc32c or null, first offset, min timestamp, max timestamp], followed, where
the bytes do not lie at `position` of the segment's own file, by [object name, offset in it]."""


def _encode_coverage(coverage: Coverage) -> list[Any]:
    raw: list[Any] = []
    for queue, start, end in coverage:
        if not raw or raw[-2] != queue.topic:
            raw += (queue.topic, [])
        raw[-1] += (queue.queue_id, start, end)
    return raw


def _decode_coverage(raw: object) -> Coverage:
    items = json_list(raw)
    if items and type(items[0]) is list:  # as older programs wrote it, in any order
        return tuple(sorted(_OLD_COVERAGE.decode(raw)))
    if len(items) % 2:
        raise DecodeError(f"a coverage of {len(items)} parts")
    rows: list[tuple[QueueId, QueueOffset, QueueOffset]] = []
    for topic, numbers in zip(items[::2], items[1::2], strict=True):
        name, triples = json_text(topic), [json_integer(one) for one in json_list(numbers)]
        if len(triples) % _ROW_NUMBERS:
            raise DecodeError(f"a coverage of {len(triples)} numbers of a topic")
        of_rows = zip(triples[::3], triples[1::3], triples[2::3], strict=True)
        rows += ((QueueId(name, one), QueueOffset(a), QueueOffset(b)) for one, a, b in of_rows)
    return tuple(rows)


_ROW_NUMBERS = 3
COVERAGE = FieldCodec(_encode_coverage, _decode_coverage)
"""[topic, [queue id, from, to, queue id, from, to, ...], topic, [...], ...]: some 20 bytes a row.
Older programs wrote [[[topic, queue id], from, to], ...], which is read too."""

_OLD_COVERAGE = FieldCodecs({}).of(Coverage)
RECORD_CODECS = FieldCodecs({Extent: EXTENT, Coverage: COVERAGE})
"""Those of records, and of what they are made of."""
