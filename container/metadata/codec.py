"""Payloads of entries, snapshots and manifests: records and operations as JSON."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, get_args

import orjson

from container.errors import NewerVersion
from container.metadata.objects import recounted
from container.metadata.operations import Operation
from container.metadata.record_codecs import (
    RECORD_CODECS,
    DecodeError,
    FieldCodec,
    json_integer,
    json_list,
    json_object,
    json_text,
)
from container.metadata.records import Broker, Part, Segment
from container.metadata.state import TierState
from container.metadata.tables import TABLES
from container.names.queue_id import QueueId
from provider.clock import at_once
from provider.errors import Corrupt
from provider.stores.packed_segments import OFFLOAD_PREFIX

QUEUES_PIECE_BYTES = 1 << 18
"""Bytes of a snapshot's queues that are parsed at a time, besides the rest of one record."""
_BEGIN = b',"queues":['
_END = b'],"tombstones":['
_RECORD = b',{"id":["'
"""Separator of records. Inside a JSON text its quotes would be escaped. Inside a record it can
occur only in a field of a newer version: a piece that ends there is not valid JSON."""
_MARK = "@queues"


def queues_apart(payload: bytes) -> tuple[dict[str, Any], Iterator[Any]] | None:
    """Split a snapshot into its fields and an iterator over its queues. None if none are found.

    Iterating raises `orjson.JSONDecodeError` if a piece is not valid JSON.
    """
    begin = payload.find(_BEGIN) + len(_BEGIN)
    end = payload.find(_END, begin)
    if begin < len(_BEGIN) or end <= begin:
        return None
    try:
        rest = b'%b"%b"%b' % (payload[:begin], _MARK.encode(), payload[end:])
        fields = json_object(orjson.loads(rest))
    except (orjson.JSONDecodeError, DecodeError):
        return None
    if fields.get("queues") != [_MARK]:
        return None
    del fields["queues"]
    return fields, _records(payload, begin, end)


def _records(payload: bytes, begin: int, end: int) -> Iterator[Any]:
    while begin < end:
        cut = payload.find(_RECORD, begin + QUEUES_PIECE_BYTES, end)
        stop = end if cut < 0 else cut
        yield from orjson.loads(b"[%b]" % payload[begin:stop])
        begin = stop + 1


ENCODINGS = frozenset({0, 1, 2, 3})
"""Encodings that a payload may have (`encoding_of`)."""
RECORDS_PER_TURN = 64
"""Records encoded or decoded before other tasks get a turn: about 1 ms."""
PIECE_BYTES = 1 << 16
"""Bytes of a manifest decoded before other tasks get a turn: some hundred segments, about 5 ms."""
_SEGMENTS_BEGIN, _NEXT_SEGMENT = b'"segments":[', b',{"type":'
_OFFLOADED = f'"{OFFLOAD_PREFIX}'.encode()
_SHORT_COVERAGE = b'"coverage":["'
_FENCE, _BURIES = b'{"operations":[{"op":"TakeOwnership"', b'{"op":"AddTombstones"'
_PARTS, _QUEUES = "parts", "queues"
_COUNTED_AT = "parts_counted_at"
"""Sequence of the entry after which the parts were counted. If it differs from the snapshot's, an
older program has written the snapshot: that program keeps unknown fields and counts nothing."""

_SEGMENTS = RECORD_CODECS.of(tuple[Segment, ...])
_QUEUE_ID = RECORD_CODECS.of(QueueId)
_BROKER = RECORD_CODECS.of(Broker)
_TABLES = {name: RECORD_CODECS.of(table.record) for name, table in TABLES.items()}

OPERATIONS: dict[type[Any], FieldCodec] = {
    cls: RECORD_CODECS.of(cls) for cls in get_args(Operation)
}
"""Every operation that an entry may hold; the class's name is its `op`."""

_BY_NAME = {cls.__name__: codec for cls, codec in OPERATIONS.items()}


def encoding_of(payload: bytes) -> int:
    """Encoding number of a payload: above 0 if older programs do not know its content.

    1: a coverage in the short form. 2: names of objects in a second store. 3: a fence with
    tombstones. Older programs refuse such an object as written by a newer one. O(length), at the
    speed of memory.
    """
    if payload.startswith(_FENCE) and _BURIES in payload:
        return 3
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
    """Join transactions of `encode_operations` to the payload of an entry."""
    return b'{"operations":[' + b",".join(part for part in transactions if part) + b"]}"


def decode_operations(payload: bytes, *, path: str) -> list[Operation]:
    """Decode the operations of an entry's payload.

    Raises:
        Corrupt: it is not a payload of `join_operations`.
        NewerVersion: it holds an operation that this program does not know.
    """
    with _decoding(path):
        fields = json_object(orjson.loads(payload))
        return [_decode_operation(item) for item in json_list(fields.get("operations"))]


def _decode_operation(raw: object) -> Operation:
    fields = dict(json_object(raw))
    name = json_text(fields.pop("op", None))
    if name not in _BY_NAME:
        raise NewerVersion(f"operation {name:.50} is of a newer version; upgrade this program", "")
    return _BY_NAME[name].decode(fields)


def encode_segments(queue: QueueId, segments: Sequence[Segment]) -> bytes:
    """Encode the payload of a manifest."""
    return orjson.dumps({"queue": _QUEUE_ID.encode(queue), "segments": _SEGMENTS.encode(segments)})


def decode_segments(payload: bytes, *, path: str) -> tuple[QueueId, tuple[Segment, ...]]:
    """Decode a manifest's payload to its queue and segments.

    Raises:
        Corrupt: it is not a payload of `encode_segments`.
        NewerVersion: a newer program wrote it.
    """
    with _decoding(path):
        fields = json_object(orjson.loads(payload))
        queue = _QUEUE_ID.decode(fields.get("queue"))
        return queue, _SEGMENTS.decode(fields.get("segments"))


def decoding_segments(
    payload: bytes, *, path: str
) -> Generator[None, None, tuple[QueueId, tuple[Segment, ...]]]:
    """As `decode_segments`, with a pause after each `PIECE_BYTES`."""
    with _decoding(path):
        segments: list[Segment] = []
        with suppress(orjson.JSONDecodeError):  # else the end of the segments was misjudged
            queue: object = None
            for piece in _manifest_pieces(payload):
                fields = json_object(orjson.loads(piece))
                queue = fields.get("queue")
                segments += _SEGMENTS.decode(fields.get("segments"))
                yield
            return _QUEUE_ID.decode(queue), tuple(segments)
    return decode_segments(payload, path=path)


def _manifest_pieces(payload: bytes) -> Iterator[bytes]:
    """Split a manifest's payload into payloads of some segments each. A short one stays whole.

    The separator occurs only between two segments: inside a JSON text its quotes would be escaped.
    In a field of a newer version it may occur too, and then a piece is not valid JSON.
    """
    begin = payload.find(_SEGMENTS_BEGIN) + len(_SEGMENTS_BEGIN)
    if len(payload) <= 2 * PIECE_BYTES or begin < len(_SEGMENTS_BEGIN):
        yield payload
        return
    head, start = payload[:begin], begin
    while (cut := payload.find(_NEXT_SEGMENT, start + PIECE_BYTES)) >= 0:
        yield b"%b%b]}" % (head, payload[start:cut])
        start = cut + 1
    yield head + payload[start:]


def state_pieces(state: TierState) -> Iterator[bytes]:
    """Encode a snapshot's payload in pieces of about one record each. Joined, they are the payload.

    Encoding is CPU-bound: between pieces a caller can yield to other tasks.
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
        raws = (codec.encode(record) for record in getattr(state, name).values())
        for number, raw in enumerate(state.queues.raws() if name == _QUEUES else raws):
            yield (b"," if number else b"") + orjson.dumps(raw)
        yield b"]"
    yield b"}"


def decode_state(payload: bytes, *, path: str) -> TierState:
    """Decode a snapshot's payload.

    Raises:
        Corrupt: it is not a payload of `state_pieces`.
        NewerVersion: a newer program wrote it.
    """
    return at_once(decoding_state(payload, path=path))


def decoding_state(payload: bytes, *, path: str) -> Generator[None, None, TierState]:
    """As `decode_state`, with a pause after each `RECORDS_PER_TURN` queues."""
    with _decoding(path):
        apart = queues_apart(payload)
        if apart is not None:
            with suppress(orjson.JSONDecodeError):  # else the end of the queues was misjudged
                return (yield from _state_of(*apart))
        fields = json_object(orjson.loads(payload))
        queues = iter(json_list(fields.pop(_QUEUES, None)))
        return (yield from _state_of(fields, queues))


def _state_of(fields: dict[str, Any], queues: Iterator[Any]) -> Generator[None, None, TierState]:
    """Build the state of a snapshot with these fields and these queues."""
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
        if name == _QUEUES:
            while some := list(islice(queues, RECORDS_PER_TURN)):
                state.queues.add_raws(some)
                if len(some) == RECORDS_PER_TURN:
                    yield
            continue
        key = TABLES[name].key
        records = map(codec.decode, json_list(fields.pop(name, None)))
        table = {getattr(record, key): record for record in records}
        setattr(state, name, type(getattr(state, name))(table))
    state.extra = fields
    if not counted:
        _count_without_manifests(state)
    return state


def _count_without_manifests(state: TierState) -> None:
    """Count the parts of a snapshot whose counts are missing, or stale from an older program.

    The snapshot lacks the references in manifests. If there are manifests, the owner counts
    (`operations.CountParts`).
    """
    state.parts_counted = not any(queue.manifests for queue in state.queues.values())
    if state.parts_counted:
        counts = recounted(state.queues.values(), {})
        state.parts = {name: Part(name, number) for name, number in counts.items()}


@contextmanager
def _decoding(path: str) -> Generator[None]:
    """Raise decoding errors as `Corrupt` with `path`."""
    try:
        yield
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"payload is not JSON: {error}", path, error.pos) from None
    except DecodeError as error:
        raise Corrupt(str(error), path) from None
    except NewerVersion as error:
        raise NewerVersion(error.reason, path) from None
