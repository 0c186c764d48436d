"""Records and operations as JSON: what the payloads of entries, snapshots and manifests hold.

The form follows from the declarations in `metadata/records.py` and `metadata/operations.py`. A
record is an object whose keys are its field names; a field that has its default is left out, and
unknown keys are kept in `extra` and written again. Extents, which are many, are arrays
(`EXTENT`). An operation is an object with its class's name under `op`. An unknown operation, or
an unknown field of an operation, is refused: to ignore it would give another state than that of
its writer.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from sys import intern
from typing import Any, get_args

import orjson

from container.errors import NewerVersion
from container.metadata.field_codecs import (
    DecodeError,
    FieldCodec,
    FieldCodecs,
    json_integer,
    json_list,
    json_object,
    json_text,
)
from container.metadata.operations import Operation
from container.metadata.part_counts import recounted
from container.metadata.records import Broker, Coverage, Extent, Part, Segment
from container.metadata.state import TierState
from container.metadata.tables import TABLES
from container.names.queue_id import QueueId
from provider.errors import Corrupt
from provider.packed_segments import OFFLOAD_PREFIX
from provider.ranges import QueueOffset

ENCODINGS = frozenset({0, 1, 2})
"""Those that a payload may have: `encoding_of`."""
_OFFLOADED = f'"{OFFLOAD_PREFIX}'.encode()
_SHORT_COVERAGE = b'"coverage":["'
EXTENT_FIELDS_MIN = 6
EXTENT_FIELDS_MAX = 8
_EXTENT_TYPES = (int, int, int, int, int, int, str, int)
_CRC_AT, _NAME_AT = 2, 6
_PARTS = "parts"
_COUNTED_AT = "parts_counted_at"
"""The entry behind which the parts were counted. Another one than the snapshot's: an older program
has written it, which keeps unknown fields and counts nothing."""


def _encode_extent(extent: Extent) -> list[Any]:
    raw: list[Any] = [
        extent.position,
        extent.length,
        extent.crc32c,
        extent.first_offset,
        extent.min_timestamp,
        extent.max_timestamp,
    ]
    if extent.object_name or extent.object_offset != extent.position:
        raw += (extent.object_name, extent.object_offset)
    return raw


def _decode_extent(raw: object) -> Extent:
    items = json_list(raw)
    if len(items) == EXTENT_FIELDS_MIN:
        items += ("", items[0])
    if len(items) != EXTENT_FIELDS_MAX:
        raise NewerVersion(f"an extent of {len(items)} fields is of a newer version", "")
    for at, wanted in enumerate(_EXTENT_TYPES):
        if type(items[at]) is not wanted and not (at == _CRC_AT and items[at] is None):
            raise DecodeError(f"extent with {items[at]!r:.50}")
    items[_NAME_AT] = intern(items[_NAME_AT])  # thousands of extents name one part
    return Extent(*items)


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
_CODECS = FieldCodecs({Extent: EXTENT, Coverage: COVERAGE})
_SEGMENTS = _CODECS.of(tuple[Segment, ...])
_QUEUE_ID = _CODECS.of(QueueId)
_BROKER = _CODECS.of(Broker)
_TABLES = {name: _CODECS.of(table.record) for name, table in TABLES.items()}

OPERATIONS: dict[type[Any], FieldCodec] = {cls: _CODECS.of(cls) for cls in get_args(Operation)}
"""Every operation that an entry may hold; the class's name is its `op`."""

_BY_NAME = {cls.__name__: codec for cls, codec in OPERATIONS.items()}


def encoding_of(payload: bytes) -> int:
    """How a payload is written: what older programs do not know makes it higher than 0.

    1 if it has a coverage in the short form, 2 if it names what lies in a second store. So they
    refuse such an object as one of a newer program. O(length), at the speed of memory.
    """
    if _OFFLOADED in payload:
        return 2
    return int(_SHORT_COVERAGE in payload)  # inside a JSON text its quotes would be escaped


def encode_operations(operations: Iterable[Operation]) -> bytes:
    """A transaction as a JSON array, without its brackets, so that several can be joined."""
    raws = [
        {"op": type(operation).__name__, **OPERATIONS[type(operation)].encode(operation)}
        for operation in operations
    ]
    return orjson.dumps(raws)[1:-1]


def join_operations(transactions: Sequence[bytes]) -> bytes:
    """The payload of an entry: what `encode_operations` gave for each of its transactions."""
    return b'{"operations":[' + b",".join(part for part in transactions if part) + b"]}"


def decode_operations(payload: bytes, *, path: str) -> list[Operation]:
    """The operations of an entry's payload.

    Raises:
        Corrupt: it is not what `join_operations` makes.
        NewerVersion: it holds an operation that this program does not know.
    """
    with _decoding(payload, path) as fields:
        return [_decode_operation(item) for item in json_list(fields.get("operations"))]


def _decode_operation(raw: object) -> Operation:
    fields = dict(json_object(raw))
    name = json_text(fields.pop("op", None))
    if name not in _BY_NAME:
        raise NewerVersion(f"operation {name:.50} is of a newer version; upgrade this program", "")
    return _BY_NAME[name].decode(fields)


def encode_segments(queue: QueueId, segments: Sequence[Segment]) -> bytes:
    """The payload of a manifest."""
    return orjson.dumps({"queue": _QUEUE_ID.encode(queue), "segments": _SEGMENTS.encode(segments)})


def decode_segments(payload: bytes, *, path: str) -> tuple[QueueId, tuple[Segment, ...]]:
    """What a manifest's payload holds.

    Raises:
        Corrupt: it is not what `encode_segments` makes.
        NewerVersion: a newer program wrote it.
    """
    with _decoding(payload, path) as fields:
        queue = _QUEUE_ID.decode(fields.get("queue"))
        return queue, _SEGMENTS.decode(fields.get("segments"))


def state_pieces(state: TierState) -> Iterator[bytes]:
    """The payload of a snapshot in pieces of about one record each; joined they are the payload.

    In pieces, so that a caller can let other tasks run in between: encoding is CPU.
    """
    head = {
        **state.extra,
        "sequence": state.sequence,
        "next_topic_id": state.next_topic_id,
        "next_generation": state.next_generation,
        "broker": _BROKER.encode(state.broker),
    }
    if has_parts := state.parts_counted and bool(state.parts):
        head[_COUNTED_AT] = state.sequence
    yield orjson.dumps(head)[:-1]
    for name, codec in _TABLES.items():
        if name == _PARTS and not has_parts:
            continue
        yield b',"%b":[' % name.encode()
        for number, record in enumerate(getattr(state, name).values()):
            yield (b"," if number else b"") + orjson.dumps(codec.encode(record))
        yield b"]"
    yield b"}"


def decode_state(payload: bytes, *, path: str) -> TierState:
    """The state that a snapshot's payload holds.

    Raises:
        Corrupt: it is not what `state_pieces` makes.
        NewerVersion: a newer program wrote it.
    """
    with _decoding(payload, path) as fields:
        state = TierState(
            sequence=json_integer(fields.pop("sequence", None)),
            next_topic_id=json_integer(fields.pop("next_topic_id", None)),
            next_generation=json_integer(fields.pop("next_generation", 0)),
            broker=_BROKER.decode(fields.pop("broker", None)),
        )
        counted = fields.pop(_COUNTED_AT, None) == state.sequence
        if not counted:
            fields[_PARTS] = []
        for name, codec in _TABLES.items():
            key = TABLES[name].key
            records = map(codec.decode, json_list(fields.pop(name, None)))
            setattr(state, name, {getattr(record, key): record for record in records})
        state.extra = fields
        if not counted:
            _count_without_manifests(state)
        return state


def _count_without_manifests(state: TierState) -> None:
    """Count the parts of a snapshot without counts, or with an older program's copy of old ones.

    What manifests refer to it does not say: their owner counts (`operations.CountParts`).
    """
    state.parts_counted = not any(queue.manifests for queue in state.queues.values())
    if state.parts_counted:
        counts = recounted(state.queues.values(), {})
        state.parts = {name: Part(name, number) for name, number in counts.items()}


@contextmanager
def _decoding(payload: bytes, path: str) -> Generator[dict[str, Any]]:
    """The fields of a payload; names `path` in what is wrong with it."""
    try:
        yield json_object(orjson.loads(payload))
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"payload is not JSON: {error}", path, error.pos) from None
    except DecodeError as error:
        raise Corrupt(str(error), path) from None
    except NewerVersion as error:
        raise NewerVersion(error.reason, path) from None
