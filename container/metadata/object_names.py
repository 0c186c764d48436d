"""Which objects hold the bytes of segments: the one place that knows how extents name them.

An extent names its object, or none: then its bytes lie in the segment's own file, whose name is the
segment's. A segment's name alone says nothing of where its bytes are.
"""

from collections.abc import Iterable, Iterator

from container.metadata.operations import SegmentChange
from container.metadata.records import Extent, Queue, Segment
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import segment_name


def object_name(queue: QueueId, segment: Segment | SegmentChange, extent: Extent) -> str:
    """The object that holds an extent of a queue's segment."""
    return extent.object_name or segment_name(queue, segment.type, segment.base)


def own_file(queue: QueueId, segment: Segment | SegmentChange) -> str | None:
    """The name of a segment's own file; None where all of its bytes lie in other objects."""
    if segment.extents and all(extent.object_name for extent in segment.extents):
        return None
    return segment_name(queue, segment.type, segment.base)


def object_names(queue: QueueId, segments: Iterable[Segment | SegmentChange]) -> Iterator[str]:
    """Every object that the segments refer to, some more than once. O(extents)."""
    for segment in segments:
        name = own_file(queue, segment)
        if name is not None:
            yield name
        yield from (extent.object_name for extent in segment.extents if extent.object_name)


def names_of_queue(queue: Queue) -> Iterator[str]:
    """Every object that the segments in a queue's record refer to. O(extents)."""
    for kind in FLAT_FILES:
        yield from object_names(queue.id, queue.segments(kind))
