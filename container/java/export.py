"""Our metadata as the Java tiered store keeps its own, so that it can open our tree."""

from collections.abc import Mapping, Sequence

from container.java.metadata import (
    UNSET_TIMESTAMP,
    FileKey,
    JavaMetadata,
    JavaQueue,
    JavaSegment,
    JavaTopic,
    KnownOffsets,
)
from container.metadata.records import IndexFile, Segment
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import INDEX_QUEUE

JAVA_NEW = 0
"""The only status that Java 5.3 and later write."""


def export_java_metadata(
    state: TierState,
    segments: Mapping[QueueId, Sequence[Segment]],
    *,
    now_ms: int,
    index_files: Sequence[IndexFile] = (),
) -> JavaMetadata:
    """The metadata of Java's tiered store for the same tree. Pure.

    `segments` holds all segments of every queue, those in manifests included. Only segments that
    lie whole in a file of their own can be told to Java. Index files of ours are left out: Java
    reads only those that have as many slots as it is configured with; `index_files` are such
    (`index_export.py`). Gaps stand in a table of ours, for an import: Java passes over it.

    Raises:
        ValueError: a segment lies in packed objects.
    """
    tables: dict[SegmentType, dict[FileKey, tuple[JavaSegment, ...]]] = {
        kind: {} for kind in SegmentType
    }
    broker = state.broker.name
    for queue, found in segments.items():
        key = FileKey(broker, queue)
        for kind in FLAT_FILES:
            rows = [_java_segment(str(key), segment) for segment in found if segment.type == kind]
            tables[kind][key] = tuple(rows)
    index_key = FileKey(broker, INDEX_QUEUE)
    java_index = [file for file in state.index_files.values() if not file.coverage]
    java_index += index_files
    if java_index:
        tables[SegmentType.INDEX][index_key] = tuple(
            JavaSegment(
                path=str(index_key),
                type=int(SegmentType.INDEX),
                base_offset=file.base,
                status=JAVA_NEW,
                size=file.size,
                create_timestamp=file.begin_timestamp,
                begin_timestamp=file.begin_timestamp,
                end_timestamp=file.end_timestamp,
                seal_timestamp=0,
            )
            for file in sorted(java_index, key=lambda file: file.base)
        )
    queues = tuple(
        JavaQueue(broker, q.id.topic, q.id.queue_id, q.min_offset, q.next_offset, now_ms)
        for q in state.queues.values()
    )
    topics = tuple(
        JavaTopic(t.topic_id, t.name, JAVA_NEW, t.retention_hours, t.updated_ms)
        for t in state.topics.values()
    )
    offsets = {
        FileKey(broker, q.id): KnownOffsets(q.min_offset, q.next_offset, q.gaps)
        for q in state.queues.values()
        if q.gaps or q.min_offset == q.next_offset
    }
    return JavaMetadata(tables, queues, topics, state.next_topic_id - 1, offsets)


def _java_segment(path: str, segment: Segment) -> JavaSegment:
    if any(extent.object_name for extent in segment.extents):
        raise ValueError(f"{path}: the segment at {segment.base} has no file of its own")
    begin, end = segment.begin_timestamp, segment.end_timestamp
    return JavaSegment(
        path=path,
        type=int(segment.type),
        base_offset=segment.base,
        status=JAVA_NEW,
        size=segment.size,
        create_timestamp=segment.created_ms,
        begin_timestamp=UNSET_TIMESTAMP if begin is None else begin,
        end_timestamp=UNSET_TIMESTAMP if end is None else end,
        seal_timestamp=segment.sealed_ms or 0,
    )
