"""Metadata file of RocketMQ's tiered store, `tieredStoreMetadata.json`, and fastjson's dialect."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from container.metadata.records import Gap
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import INT64_MAX
from container.record.unit import UNIT_BYTES
from provider.errors import Corrupt
from provider.object_store import Buffer
from provider.ranges import QueueOffset

JsonObject = dict[str, "Json"]
Json = None | bool | int | float | str | list["Json"] | JsonObject

_STRING = r'"(?:[^"\\]|\\.)*"'
_LOOSE = re.compile(
    rf'({_STRING})|(\{{(?:{_STRING}|[^{{}}"])*\}}|[\w$.+-]+)(?=\s*:)', re.ASCII | re.DOTALL
)
"""String, which stays as it is, or key without quotes: a number, a word, or an object."""


def parse_loose_json(raw: Buffer, *, path: str) -> Json:
    """Parse `raw`, the contents of the file `path`. O(length).

    Accepts fastjson's keys beyond strict JSON: numbers, words and objects without quotes. Each
    becomes its text. The last of equal keys counts, as in Java.

    Raises:
        Corrupt: any other input, with the byte position.
    """
    data = bytes(raw)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Corrupt("metadata is not UTF-8", path, error.start) from error
    try:
        return orjson.loads(_LOOSE.sub(_quoted, text))
    except orjson.JSONDecodeError as error:
        position = _position(text, error.pos)
        raise Corrupt(f"metadata is not JSON: {error.msg}", path, position) from error


def _quoted(found: re.Match[str]) -> str:
    return found[1] or orjson.dumps(found[2]).decode()


def _position(text: str, quoted_at: int) -> int:
    """Return the byte position in `text` of a character of the text with quoted keys."""
    added = 0
    for found in _LOOSE.finditer(text):
        if found.start() + added >= quoted_at:
            break
        added += len(_quoted(found)) - len(found[0])
    return len(text[: max(quoted_at - added, 0)].encode())


UNSET_TIMESTAMP = INT64_MAX
"""Java's value for the timestamps of a segment without messages."""

SEGMENT_TABLES = {
    SegmentType.COMMIT_LOG: "commitLogFileSegmentTable",
    SegmentType.CONSUME_QUEUE: "consumeQueueFileSegmentTable",
    SegmentType.INDEX: "indexFileSegmentTable",
}

OFFSETS_TABLE = "tieredstoreOffsetTable"
"""Table of ours. RocketMQ ignores it, and drops it when it writes the file again."""

_QUEUE_ID = re.compile("[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class JavaSegment:
    """Segment record. The fields are in fastjson's order, which is the class's in Java."""

    path: str
    """`<broker>/<topic>/<queue id>`; 5.1.0: the provider's full path."""
    type: int
    """0 CommitLog, 1 ConsumeQueue, 2 index."""
    base_offset: int
    """First byte in the flat file."""
    status: int
    """0 new, 1 sealed, 2 deleted; since 5.3 always 0."""
    size: int
    """Committed bytes."""
    create_timestamp: int
    """Unix ms."""
    begin_timestamp: int
    """Unix ms; UNSET_TIMESTAMP while empty."""
    end_timestamp: int
    """Unix ms; UNSET_TIMESTAMP while empty."""
    seal_timestamp: int
    """Unix ms; 0 while it may grow."""


@dataclass(frozen=True, slots=True)
class JavaQueue:
    """Queue record. The offsets are -1 and not maintained since 5.3."""

    broker_name: str
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    update_timestamp: int


@dataclass(frozen=True, slots=True)
class JavaTopic:
    """Topic record."""

    topic_id: int
    topic: str
    status: int
    reserve_time: int
    """Hours. -1 for the default."""
    update_timestamp: int


@dataclass(frozen=True, slots=True)
class FileKey:
    """Identity of a segment's flat file. Its text is the key of a segment table."""

    broker_name: str
    queue: QueueId

    def __str__(self) -> str:
        return f"{self.broker_name}/{self.queue}"


@dataclass(frozen=True, slots=True)
class KnownOffsets:
    """Facts that a queue's files do not show: its gaps, and its offsets if it has no message."""

    min_offset: QueueOffset
    next_offset: QueueOffset
    gaps: tuple[Gap, ...]


SegmentTable = Mapping[FileKey, tuple[JavaSegment, ...]]
"""Segments of each flat file by ascending base."""


@dataclass(frozen=True, slots=True)
class JavaMetadata:
    """Contents of the whole file."""

    segments: Mapping[SegmentType, SegmentTable]
    queues: tuple[JavaQueue, ...]
    topics: tuple[JavaTopic, ...]
    topic_serial_number: int = -1
    """Last topic id that was assigned."""
    offsets: Mapping[FileKey, KnownOffsets] = field(default_factory=dict[FileKey, KnownOffsets])
    """Offsets of those queues of our tier that have gaps or hold no message."""

    def all_offsets(self) -> dict[FileKey, KnownOffsets]:
        """Return the offsets of every queue; those of queues without gaps by their units."""
        units = self.segments[SegmentType.CONSUME_QUEUE]
        found = {
            key: KnownOffsets(
                QueueOffset(files[0].base_offset // UNIT_BYTES),
                QueueOffset((files[-1].base_offset + files[-1].size) // UNIT_BYTES),
                (),
            )
            for key, files in units.items()
            if files
        }
        return found | dict(self.offsets)


SEGMENT_FIELDS = {
    "path": "path",
    "type": "type",
    "baseOffset": "base_offset",
    "status": "status",
    "size": "size",
    "createTimestamp": "create_timestamp",
    "beginTimestamp": "begin_timestamp",
    "endTimestamp": "end_timestamp",
    "sealTimestamp": "seal_timestamp",
}
"""Field names in the file, in fastjson's order, and ours."""


def parse_java_metadata(raw: Buffer, *, path: str) -> JavaMetadata:
    """Decode the contents of the file `path`. O(length).

    Unknown fields are ignored. Missing tables are empty, missing numbers 0.

    Raises:
        Corrupt: it is no such file. If the text itself is damaged, the error has the position.
    """
    reader = _Fields(path)
    root = reader.object(parse_loose_json(raw, path=path), "the file")
    segments = {
        kind: _parse_table(reader, root.get(name), name) for kind, name in SEGMENT_TABLES.items()
    }
    queues: list[JavaQueue] = []
    for topic, by_id in reader.items(root.get("queueMetadataTable"), "queueMetadataTable"):
        for _, value in reader.items(by_id, f"queues of {topic}"):
            queues.append(_parse_queue(reader, value))
    topics = [
        _parse_topic(reader, value)
        for _, value in reader.items(root.get("topicMetadataTable"), "topicMetadataTable")
    ]
    serial = reader.integer(root, "topicSerialNumber", -1)
    if "maxTopicId" in root:  # 5.1.0 writes the next id, not the last one
        serial = reader.integer(root, "maxTopicId") - 1
    offsets = {
        _parse_file_key(reader, key): _parse_offsets(reader, value)
        for key, value in reader.items(root.get(OFFSETS_TABLE), OFFSETS_TABLE)
    }
    return JavaMetadata(segments, tuple(queues), tuple(topics), serial, offsets)


class _Fields:
    """Typed access to parsed JSON. A value of another type raises `Corrupt`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def object(self, value: Json, what: str) -> JsonObject:
        if not isinstance(value, dict):
            raise Corrupt(f"{what} is not an object", self.path)
        return value

    def items(self, value: Json, what: str) -> Iterable[tuple[str, Json]]:
        return () if value is None else self.object(value, what).items()

    def integer(self, fields: JsonObject, name: str, default: int = 0) -> int:
        value = fields.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise Corrupt(f"{name} is not an integer: {value!r}", self.path)
        if not -INT64_MAX - 1 <= value <= INT64_MAX:
            raise Corrupt(f"{name} does not fit 64 bits: {value}", self.path)
        return value

    def text(self, fields: JsonObject, name: str) -> str:
        value = fields.get(name)
        if not isinstance(value, str):
            raise Corrupt(f"{name} is not a string: {value!r}", self.path)
        return value


def _parse_table(reader: _Fields, value: Json, what: str) -> SegmentTable:
    table: dict[FileKey, tuple[JavaSegment, ...]] = {}
    for key, by_base in reader.items(value, what):
        file_key = _parse_file_key(reader, key)
        found = [_parse_segment(reader, one) for _, one in reader.items(by_base, str(file_key))]
        table[file_key] = tuple(sorted(found, key=lambda segment: segment.base_offset))
    return table


def _parse_file_key(reader: _Fields, key: str) -> FileKey:
    if key.startswith("{") and key.endswith("}"):  # 5.1.0: the MessageQueue object itself
        fields = reader.object(parse_loose_json(key.encode(), path=reader.path), "a file's key")
        queue_id = reader.integer(fields, "queueId")
        queue = QueueId(reader.text(fields, "topic"), queue_id)
        return FileKey(reader.text(fields, "brokerName"), queue)
    broker, _, rest = key.partition("/")
    topic, _, queue_text = rest.rpartition("/")
    if not broker or not topic or not _QUEUE_ID.fullmatch(queue_text):
        raise Corrupt(f"no file path: {key!r}", reader.path)
    return FileKey(broker, QueueId(topic, int(queue_text)))


def _parse_segment(reader: _Fields, value: Json) -> JavaSegment:
    fields = reader.object(value, "a segment")
    numbers = {
        ours: reader.integer(fields, theirs)
        for theirs, ours in SEGMENT_FIELDS.items()
        if theirs != "path"
    }
    return JavaSegment(path=reader.text(fields, "path"), **numbers)


def _parse_queue(reader: _Fields, value: Json) -> JavaQueue:
    fields = reader.object(value, "a queue")
    queue = reader.object(fields.get("queue"), "the queue of a queue")
    return JavaQueue(
        broker_name=reader.text(queue, "brokerName"),
        topic=reader.text(queue, "topic"),
        queue_id=reader.integer(queue, "queueId"),
        min_offset=reader.integer(fields, "minOffset"),
        max_offset=reader.integer(fields, "maxOffset"),
        update_timestamp=reader.integer(fields, "updateTimestamp"),
    )


def _parse_offsets(reader: _Fields, value: Json) -> KnownOffsets:
    fields = reader.object(value, "offsets of a queue")
    gaps: list[Gap] = []
    for _, one in reader.items(fields.get("gaps"), "gaps of a queue"):
        gap = reader.object(one, "a gap")
        gaps.append(
            Gap(
                QueueOffset(reader.integer(gap, "start")),
                QueueOffset(reader.integer(gap, "end")),
                reader.text(gap, "reason"),
                reader.integer(gap, "foundTimestamp"),
            )
        )
    gaps.sort(key=lambda gap: gap.start)
    low, high = reader.integer(fields, "minOffset"), reader.integer(fields, "nextOffset")
    at = 0
    for gap in gaps:
        if not at <= gap.start < gap.end <= high:
            raise Corrupt(f"impossible gap [{gap.start}, {gap.end})", reader.path)
        at = gap.end
    if not 0 <= low <= high:
        raise Corrupt(f"impossible offsets [{low}, {high})", reader.path)
    return KnownOffsets(QueueOffset(low), QueueOffset(high), tuple(gaps))


def _parse_topic(reader: _Fields, value: Json) -> JavaTopic:
    fields = reader.object(value, "a topic")
    return JavaTopic(
        topic_id=reader.integer(fields, "topicId"),
        topic=reader.text(fields, "topic"),
        status=reader.integer(fields, "status"),
        reserve_time=reader.integer(fields, "reserveTime", -1),
        update_timestamp=reader.integer(fields, "updateTimestamp"),
    )


def encode_java_metadata(metadata: JavaMetadata) -> bytes:
    """Encode the file for RocketMQ 5.3 and later: strict JSON, quoted keys. O(length)."""
    root: dict[str, Any] = {
        name: {
            str(key): {str(s.base_offset): _segment_object(s) for s in segments}
            for key, segments in metadata.segments.get(kind, {}).items()
        }
        for kind, name in SEGMENT_TABLES.items()
    }
    queues: dict[str, dict[str, Any]] = {}
    for queue in metadata.queues:
        queues.setdefault(queue.topic, {})[str(queue.queue_id)] = {
            "queue": {
                "brokerName": queue.broker_name,
                "queueId": queue.queue_id,
                "topic": queue.topic,
            },
            "minOffset": queue.min_offset,
            "maxOffset": queue.max_offset,
            "updateTimestamp": queue.update_timestamp,
        }
    root["queueMetadataTable"] = queues
    root["topicMetadataTable"] = {
        topic.topic: {
            "topicId": topic.topic_id,
            "topic": topic.topic,
            "status": topic.status,
            "reserveTime": topic.reserve_time,
            "updateTimestamp": topic.update_timestamp,
        }
        for topic in metadata.topics
    }
    root["topicSerialNumber"] = metadata.topic_serial_number
    if metadata.offsets:
        root[OFFSETS_TABLE] = {
            str(key): _offsets_object(known) for key, known in metadata.offsets.items()
        }
    return orjson.dumps(root, option=orjson.OPT_INDENT_2)


def _offsets_object(known: KnownOffsets) -> dict[str, Any]:
    gaps = {
        str(gap.start): {
            "start": gap.start,
            "end": gap.end,
            "reason": gap.reason,
            "foundTimestamp": gap.found_ms,
        }
        for gap in known.gaps
    }
    return {"minOffset": known.min_offset, "nextOffset": known.next_offset, "gaps": gaps}


def _segment_object(segment: JavaSegment) -> dict[str, int | str]:
    return {theirs: getattr(segment, ours) for theirs, ours in SEGMENT_FIELDS.items()}
