"""Records and operations as JSON: what the payloads of entries, snapshots and manifests hold.

Every record is an object whose keys are the field names of `metadata/records.py`; a field that has
its default is left out, keys that we do not know are kept in `extra` and written again. Extents,
of which there are many, are arrays (`EXTENT`). An operation is an object with its class's name
under `op`. An operation that we do not know, or a field of one, is refused: leaving it out would
give another state than its writer's.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson

from container.errors import NewerVersion
from container.metadata.field_codecs import (
    INTEGER,
    TEXT,
    Misfit,
    Part,
    json_list,
    json_object,
    listing,
    number_of,
    optional,
    shape,
)
from container.metadata.operations import (
    AddTombstones,
    CommitQueue,
    CutQueue,
    DropIndexFile,
    DropQueue,
    DropTombstones,
    EndAttempt,
    MoveToManifest,
    Operation,
    PutAttempt,
    PutIndexFile,
    PutQueue,
    PutTopic,
    RecordGap,
    SegmentChange,
    SetSegmentState,
    TakeOwnership,
    TrimQueue,
)
from container.metadata.records import (
    Attempt,
    Broker,
    CopyState,
    Extent,
    Gap,
    IndexFile,
    ManifestRef,
    Queue,
    Segment,
    Tombstone,
    Topic,
)
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from provider.errors import Corrupt

EXTENT_FIELDS_MIN = 6
EXTENT_FIELDS_MAX = 8
_EXTENT_TYPES = (int, int, int, int, int, int, str, int)
_CRC_AT = 2


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
            raise Misfit(f"extent with {items[at]!r:.50}")
    return Extent(*items)


def _decode_queue_id(raw: object) -> QueueId:
    items = json_list(raw)
    if len(items) != len(QueueId._fields):
        raise Misfit(f"a queue id of {len(items)} parts")
    return QueueId(TEXT.decode(items[0]), INTEGER.decode(items[1]))


EXTENT = Part(_encode_extent, _decode_extent)
"""[position, length, crc32c or null, first offset, min timestamp, max timestamp], and behind it,
where the bytes do not lie at `position` of the segment's own file, [object name, offset in it]."""

QUEUE_ID = Part(list, _decode_queue_id)
"""[topic, queue id]"""


def _decode_coverage(raw: object) -> tuple[QueueId, int, int]:
    items = json_list(raw)
    if len(items) != len(("queue", "from", "to")):
        raise Misfit(f"a coverage of {len(items)} parts")
    return _decode_queue_id(items[0]), INTEGER.decode(items[1]), INTEGER.decode(items[2])


COVERAGE = Part(lambda covered: [list(covered[0]), covered[1], covered[2]], _decode_coverage)
"""[[topic, queue id], from, to]"""

SEGMENT_TYPE = number_of(SegmentType)
COPY_STATE = number_of(CopyState)
SEGMENT = shape(
    Segment,
    type=SEGMENT_TYPE,
    base=INTEGER,
    created_ms=INTEGER,
    epoch=INTEGER,
    extents=listing(EXTENT),
    sealed_ms=optional(INTEGER),
    state=COPY_STATE,
)
MANIFEST_REF = shape(
    ManifestRef,
    object_name=TEXT,
    type=SEGMENT_TYPE,
    base=INTEGER,
    end=INTEGER,
    segments=INTEGER,
    bytes=INTEGER,
    min_timestamp=INTEGER,
    max_timestamp=INTEGER,
    level=INTEGER,
)
GAP = shape(Gap, start=INTEGER, end=INTEGER, reason=TEXT, found_ms=INTEGER)
QUEUE = shape(
    Queue,
    id=QUEUE_ID,
    min_offset=INTEGER,
    next_offset=INTEGER,
    commit_log=listing(SEGMENT),
    consume_queue=listing(SEGMENT),
    manifests=listing(MANIFEST_REF),
    gaps=listing(GAP),
)
TOPIC = shape(Topic, name=TEXT, topic_id=INTEGER, retention_hours=INTEGER, updated_ms=INTEGER)
BROKER = shape(Broker, cluster=TEXT, name=TEXT, epoch=INTEGER, owner=TEXT)
TOMBSTONE = shape(Tombstone, object_name=TEXT, not_before_ms=INTEGER, reason=TEXT, tries=INTEGER)
ATTEMPT = shape(
    Attempt,
    attempt_id=TEXT,
    kind=TEXT,
    started_ms=INTEGER,
    epoch=INTEGER,
    output_prefix=TEXT,
)
INDEX_FILE = shape(
    IndexFile,
    object_name=TEXT,
    base=INTEGER,
    size=INTEGER,
    begin_timestamp=INTEGER,
    end_timestamp=INTEGER,
    slots=INTEGER,
    items=INTEGER,
    coverage=listing(COVERAGE),
)
SEGMENT_CHANGE = shape(
    SegmentChange,
    type=SEGMENT_TYPE,
    base=INTEGER,
    keep=INTEGER,
    extents=listing(EXTENT),
    created_ms=INTEGER,
    epoch=INTEGER,
    sealed_ms=optional(INTEGER),
)
TOMBSTONES = listing(TOMBSTONE)

OPERATIONS: dict[type[Any], Part] = {
    TakeOwnership: shape(
        TakeOwnership, epoch=INTEGER, owner=TEXT, cluster=TEXT, broker=TEXT, taken_ms=INTEGER
    ),
    PutTopic: shape(PutTopic, topic=TOPIC),
    PutQueue: shape(PutQueue, queue=QUEUE),
    CommitQueue: shape(
        CommitQueue,
        queue=QUEUE_ID,
        expected_offset=INTEGER,
        next_offset=INTEGER,
        changes=listing(SEGMENT_CHANGE),
    ),
    RecordGap: shape(RecordGap, queue=QUEUE_ID, gap=GAP),
    CutQueue: shape(CutQueue, queue=QUEUE, reason=TEXT, tombstones=TOMBSTONES),
    MoveToManifest: shape(
        MoveToManifest,
        queue=QUEUE_ID,
        ref=MANIFEST_REF,
        segment_bases=listing(INTEGER),
        replaced=listing(TEXT),
        tombstones=TOMBSTONES,
    ),
    TrimQueue: shape(
        TrimQueue,
        queue=QUEUE_ID,
        expected_offset=INTEGER,
        min_offset=INTEGER,
        commit_log_base=INTEGER,
        consume_queue_base=INTEGER,
        manifests=listing(MANIFEST_REF),
        tombstones=TOMBSTONES,
    ),
    DropQueue: shape(DropQueue, queue=QUEUE_ID, tombstones=TOMBSTONES),
    SetSegmentState: shape(
        SetSegmentState, queue=QUEUE_ID, type=SEGMENT_TYPE, base=INTEGER, state=COPY_STATE
    ),
    AddTombstones: shape(AddTombstones, tombstones=TOMBSTONES),
    DropTombstones: shape(DropTombstones, object_names=listing(TEXT)),
    PutAttempt: shape(PutAttempt, attempt=ATTEMPT),
    EndAttempt: shape(EndAttempt, attempt_id=TEXT),
    PutIndexFile: shape(PutIndexFile, index_file=INDEX_FILE),
    DropIndexFile: shape(DropIndexFile, object_name=TEXT),
}
"""Every operation that an entry may hold; the class's name is its `op`."""

_BY_NAME = {cls.__name__: part for cls, part in OPERATIONS.items()}


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
    raw = _parsed(payload, path)
    try:
        return [_decode_operation(item) for item in json_list(json_object(raw).get("operations"))]
    except Misfit as error:
        raise Corrupt(str(error), path) from None
    except NewerVersion as error:
        raise NewerVersion(error.reason, path) from None


def _decode_operation(raw: object) -> Operation:
    fields = dict(json_object(raw))
    name = TEXT.decode(fields.pop("op", None))
    if name not in _BY_NAME:
        raise NewerVersion(f"operation {name:.50} is of a newer version; upgrade this program", "")
    return _BY_NAME[name].decode(fields)


def encode_segments(queue: QueueId, segments: Sequence[Segment]) -> bytes:
    """The payload of a manifest."""
    raws = [SEGMENT.encode(segment) for segment in segments]
    return orjson.dumps({"queue": list(queue), "segments": raws})


def decode_segments(payload: bytes, *, path: str) -> tuple[QueueId, tuple[Segment, ...]]:
    """What a manifest's payload holds.

    Raises:
        Corrupt: it is not what `encode_segments` makes.
        NewerVersion: a newer program wrote it.
    """
    raw = _parsed(payload, path)
    try:
        fields = json_object(raw)
        queue = _decode_queue_id(fields.get("queue"))
        return queue, listing(SEGMENT).decode(fields.get("segments"))
    except Misfit as error:
        raise Corrupt(str(error), path) from None
    except NewerVersion as error:
        raise NewerVersion(error.reason, path) from None


TABLES = {
    "topics": TOPIC,
    "queues": QUEUE,
    "tombstones": TOMBSTONE,
    "attempts": ATTEMPT,
    "index_files": INDEX_FILE,
}
"""The tables of a state, each an array of records in a snapshot's payload."""


def state_pieces(state: TierState) -> Iterator[bytes]:
    """The payload of a snapshot in pieces of about one record each; joined they are the payload.

    In pieces, so that a caller can let other tasks run in between: encoding is CPU.
    """
    head = {
        **state.extra,
        "sequence": state.sequence,
        "next_topic_id": state.next_topic_id,
        "broker": BROKER.encode(state.broker),
    }
    yield orjson.dumps(head)[:-1]
    for name, part in TABLES.items():
        yield b',"%b":[' % name.encode()
        for number, record in enumerate(getattr(state, name).values()):
            yield (b"," if number else b"") + orjson.dumps(part.encode(record))
        yield b"]"
    yield b"}"


def decode_state(payload: bytes, *, path: str) -> TierState:
    """The state that a snapshot's payload holds.

    Raises:
        Corrupt: it is not what `state_pieces` makes.
        NewerVersion: a newer program wrote it.
    """
    raw = _parsed(payload, path)
    state = TierState()
    try:
        fields = dict(json_object(raw))
        state.sequence = INTEGER.decode(fields.pop("sequence", None))
        state.next_topic_id = INTEGER.decode(fields.pop("next_topic_id", None))
        state.broker = BROKER.decode(fields.pop("broker", None))
        tables = {
            name: listing(part).decode(fields.pop(name, None)) for name, part in TABLES.items()
        }
    except Misfit as error:
        raise Corrupt(str(error), path) from None
    except NewerVersion as error:
        raise NewerVersion(error.reason, path) from None
    state.topics = {topic.name: topic for topic in tables["topics"]}
    state.queues = {queue.id: queue for queue in tables["queues"]}
    state.tombstones = {dead.object_name: dead for dead in tables["tombstones"]}
    state.attempts = {attempt.attempt_id: attempt for attempt in tables["attempts"]}
    state.index_files = {index.object_name: index for index in tables["index_files"]}
    state.extra = fields
    return state


def _parsed(payload: bytes, path: str) -> object:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"payload is not JSON: {error}", path, error.pos) from None
