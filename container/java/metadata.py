"""The Java tiered store's metadata file, `tieredStoreMetadata.json`: read in, write out.

Read: what RocketMQ 5.1.0 to 5.5.0 write. Written: strict JSON in the field names and order of 5.3,
which its parser loads. Numbers are kept as they stand in the file, Java's garbage included.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from container.java.loose_json import Json, JsonObject, ObjectKey, parse_loose_json
from container.metadata.records import Gap
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import INT64_MAX
from provider.errors import Corrupt
from provider.object_store import Buffer
from provider.ranges import QueueOffset

UNSET_TIMESTAMP = INT64_MAX
"""What Java writes for the timestamps of a segment without messages."""

SEGMENT_TABLES = {
    SegmentType.COMMIT_LOG: "commitLogFileSegmentTable",
    SegmentType.CONSUME_QUEUE: "consumeQueueFileSegmentTable",
    SegmentType.INDEX: "indexFileSegmentTable",
}

OFFSETS_TABLE = "tieredstoreOffsetTable"
"""Ours; RocketMQ passes over it, and leaves it out when it writes the file again."""

_QUEUE_ID = re.compile("[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class JavaSegment:
    """One segment. The fields are in fastjson's order, which is the class's in Java."""

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
    """One queue; the offsets are -1 and not kept up since 5.3."""

    broker_name: str
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    update_timestamp: int


@dataclass(frozen=True, slots=True)
class JavaTopic:
    """One topic."""

    topic_id: int
    topic: str
    status: int
    reserve_time: int
    """Hours; -1 for the default."""
    update_timestamp: int


@dataclass(frozen=True, slots=True)
class FileKey:
    """Which flat file a segment belongs to; its text is the key of a segment table."""

    broker_name: str
    queue: QueueId

    def __str__(self) -> str:
        return f"{self.broker_name}/{self.queue}"


@dataclass(frozen=True, slots=True)
class KnownOffsets:
    """What the files of a queue do not tell: its gaps, and its offsets if it holds no message."""

    min_offset: QueueOffset
    next_offset: QueueOffset
    gaps: tuple[Gap, ...]


SegmentTable = Mapping[FileKey, tuple[JavaSegment, ...]]
"""Segments of each flat file by ascending base."""


@dataclass(frozen=True, slots=True)
class JavaMetadata:
    """The whole file."""

    segments: Mapping[SegmentType, SegmentTable]
    queues: tuple[JavaQueue, ...]
    topics: tuple[JavaTopic, ...]
    topic_serial_number: int = -1
    """The last topic id that was given."""
    offsets: Mapping[FileKey, KnownOffsets] = field(default_factory=dict[FileKey, KnownOffsets])
    """Of those queues of a tier of ours that have gaps or hold no message."""


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
"""Names in the file, in fastjson's order, and ours."""


def parse_java_metadata(raw: Buffer, *, path: str) -> JavaMetadata:
    """Read the contents of the file `path`. O(length).

    Unknown fields are passed over; absent tables are empty, absent numbers 0.

    Raises:
        Corrupt: it is not such a file. Where the text itself is damaged, the position says where.
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
    """Typed access to parsed JSON; whatever has another type is `Corrupt`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def object(self, value: Json, what: str) -> JsonObject:
        if not isinstance(value, dict):
            raise Corrupt(f"{what} is not an object", self.path)
        return value

    def items(self, value: Json, what: str) -> Iterable[tuple[str | ObjectKey, Json]]:
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


def _parse_file_key(reader: _Fields, key: str | ObjectKey) -> FileKey:
    if not isinstance(key, str):  # 5.1.0: the MessageQueue object itself
        fields: JsonObject = dict(key)
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
    """The file as RocketMQ 5.3 and later load it: strict JSON, keys quoted. O(length)."""
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
