"""Between the Java tiered store's metadata and ours, for a tree that stays where it is."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from container.check.index_files import checksum_of
from container.errors import Refused
from container.java.export import export_java_metadata
from container.java.import_tier import queue_with_checksums
from container.java.metadata import encode_java_metadata
from container.java.tier import DAMAGE
from container.metadata.invariants import check_queue
from container.metadata.operations import Operation, PutIndexFile, PutQueue, PutTopic
from container.metadata.records import IndexFile, Queue, Segment
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import INDEX_QUEUE, parse_segment_name
from container.tier_reader import TierReader
from provider.clock import Clock
from provider.errors import Corrupt, StoreError


async def java_metadata_of(
    reader: TierReader, *, clock: Clock, index_files: Sequence[IndexFile] = ()
) -> bytes:
    """The text of a `tieredStoreMetadata.json` with which the Java store opens this tree.

    Reads the manifests, no message. `index_files`: what `rebuild_index` has written for it.

    Raises:
        ValueError: a segment lies in packed objects, which Java does not know.
    """
    segments: dict[QueueId, list[Segment]] = {}
    for queue in sorted(reader.state.queues):
        container = reader.container(queue)
        assert container is not None, "a reader's state does not change by itself"
        segments[queue] = [one for kind in FLAT_FILES for one in await container.segments(kind)]
    exported = export_java_metadata(
        reader.state, segments, now_ms=clock.now_ms(), index_files=index_files
    )
    return encode_java_metadata(exported)


@dataclass(frozen=True, slots=True)
class JavaContents:
    """What a Java tier holds, read, with checksums and times of our own."""

    queues: list[Queue]
    """Those that are whole."""
    index_files: list[IndexFile]
    damage: dict[QueueId, StoreError]
    """Why other queues cannot be imported; `INDEX_QUEUE` stands for an index file."""
    behind: dict[QueueId, StoreError]
    """Queues with messages that the metadata do not know, which lie in other files of the tier."""


async def read_java_tier(
    reader: TierReader,
    *,
    without: AbstractSet[QueueId] = frozenset(),
    extent_bytes_max: int,
    progress: Callable[[int], None],
) -> JavaContents:
    """Read every queue of a Java tier, except some; damage to one ends none of the others.

    Reads every byte twice and index files once, and lists the tier once; `progress` is told the
    bytes of records read since the last call.

    Raises:
        Unavailable: try again.
    """
    found = JavaContents([], [], {}, await _unknown_files(reader))
    for queue in sorted(reader.state.queues.keys() - without):
        container = reader.container(queue)
        assert container is not None, "a reader's state does not change by itself"
        try:
            whole = await queue_with_checksums(
                container, reader.store, extent_bytes_max=extent_bytes_max, progress=progress
            )
            check_queue(whole)
        except (*DAMAGE, Refused) as error:
            found.damage[queue] = error
        else:
            found.queues.append(whole)
    if INDEX_QUEUE in without:
        return found
    for name, file in reader.state.index_files.items():
        try:
            checksum = await checksum_of(reader.store, name, file.size)
        except DAMAGE as error:
            found.damage.setdefault(INDEX_QUEUE, error)
        else:
            found.index_files.append(replace(file, crc32c=checksum))
    return found


async def _unknown_files(reader: TierReader) -> dict[QueueId, StoreError]:
    """Queues with a log file behind all that the metadata know: the metadata are the older ones."""
    found: dict[QueueId, StoreError] = {}
    for entry in await reader.store.list(""):
        name = parse_segment_name(entry.name)
        if name is None or name.type is not SegmentType.COMMIT_LOG or not entry.size_bytes:
            continue
        queue = reader.state.queues.get(name.queue)
        if queue is None and name.queue in reader.queue_damage:
            continue  # its damage is the reason
        if queue is None:
            why = "the metadata do not know this queue; without it: move it out of the tier"
        elif name.base >= queue.flat_end(SegmentType.COMMIT_LOG):
            why = "the metadata are older than this file, and do not know it"
        else:
            continue
        found.setdefault(name.queue, Corrupt(why, entry.name))
    return found


def import_of(reader: TierReader, contents: JavaContents) -> list[Operation]:
    """What makes the topics, queues and index files of a Java tier ours. Pure.

    It is published by the entry that takes the tier: an owner that knew nothing of the files
    would take them for what a dead one left, and write over them.
    """
    topics = sorted(reader.state.topics.values(), key=lambda topic: topic.topic_id)
    operations: list[Operation] = [*map(PutTopic, topics), *map(PutQueue, contents.queues)]
    operations += map(PutIndexFile, contents.index_files)
    return operations
