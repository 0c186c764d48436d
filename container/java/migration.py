"""Between the Java tiered store's metadata and ours, for a tree that stays where it is."""

from collections.abc import Callable

from container.java.export import export_java_metadata
from container.java.import_tier import queue_with_checksums
from container.java.metadata import encode_java_metadata
from container.metadata.operations import Operation, PutIndexFile, PutQueue, PutTopic
from container.metadata.records import Queue, Segment
from container.names.queue_id import FLAT_FILES, QueueId
from container.tier_reader import TierReader
from provider.clock import Clock


async def java_metadata_of(reader: TierReader, *, clock: Clock) -> bytes:
    """The text of a `tieredStoreMetadata.json` with which the Java store opens this tree.

    Reads the manifests, no message.

    Raises:
        ValueError: a segment lies in packed objects, which Java does not know.
    """
    segments: dict[QueueId, list[Segment]] = {}
    for queue in sorted(reader.state.queues):
        container = reader.container(queue)
        assert container is not None, "a reader's state does not change by itself"
        segments[queue] = [one for kind in FLAT_FILES for one in await container.segments(kind)]
    return encode_java_metadata(export_java_metadata(reader.state, segments, now_ms=clock.now_ms()))


async def read_java_queues(
    reader: TierReader, *, extent_bytes_max: int, progress: Callable[[int], None]
) -> list[Queue]:
    """Every queue of a Java tier, with checksums and times of our own.

    Reads every byte twice; `progress` is told the bytes of records read since the last call.

    Raises:
        Corrupt, OutOfRange: units and records of a queue do not fit together.
    """
    found: list[Queue] = []
    for queue in sorted(reader.state.queues):
        container = reader.container(queue)
        assert container is not None, "a reader's state does not change by itself"
        found.append(
            await queue_with_checksums(
                container, reader.store, extent_bytes_max=extent_bytes_max, progress=progress
            )
        )
    return found


def import_of(reader: TierReader, queues: list[Queue]) -> list[Operation]:
    """What makes the topics, queues and index files of a Java tier ours. Pure.

    It is published by the entry that takes the tier: an owner that knew nothing of the files
    would take them for what a dead one left, and write over them.
    """
    topics = sorted(reader.state.topics.values(), key=lambda topic: topic.topic_id)
    operations: list[Operation] = [*map(PutTopic, topics), *map(PutQueue, queues)]
    operations += map(PutIndexFile, reader.state.index_files.values())
    return operations
