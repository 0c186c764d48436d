"""Names of the objects that hold the bytes of segments. No other module resolves extents to names.

An extent names its object. If the name is empty, the bytes lie in the segment's own file, whose
name is that of the segment. The name of a segment alone does not give the place of its bytes.
"""

from collections.abc import Iterable, Iterator

from container.metadata.operations import SegmentChange
from container.metadata.records import Extent, Queue, Segment
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import segment_name


def object_name(queue: QueueId, segment: Segment | SegmentChange, extent: Extent) -> str:
    """Name of the object that holds an extent of a queue's segment."""
    return extent.object_name or segment_name(queue, segment.type, segment.base)


def own_file(queue: QueueId, segment: Segment | SegmentChange) -> str | None:
    """Name of a segment's own file. None if all of its bytes lie in other objects."""
    if segment.extents and all(extent.object_name for extent in segment.extents):
        return None
    return segment_name(queue, segment.type, segment.base)


def object_names(queue: QueueId, segments: Iterable[Segment | SegmentChange]) -> Iterator[str]:
    """Names of all objects that the segments refer to, some more than once. O(extents)."""
    for segment in segments:
        name = own_file(queue, segment)
        if name is not None:
            yield name
        yield from (extent.object_name for extent in segment.extents if extent.object_name)


def names_of_queue(queue: Queue) -> Iterator[str]:
    """Names of all objects that the segments in a queue's record refer to. O(extents)."""
    for kind in FLAT_FILES:
        yield from object_names(queue.id, queue.segments(kind))
