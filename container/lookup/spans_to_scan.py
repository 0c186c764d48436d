"""Which messages without an index are read for a query."""

from collections.abc import Sequence
from itertools import pairwise

from container.lookup.coverage import Span, without
from container.lookup.query import KeyQuery
from container.names.queue_id import SegmentType
from container.queue.message_queue_container import MessageQueueContainer


async def spans_to_scan(
    container: MessageQueueContainer,
    spans: Sequence[Span],
    query: KeyQuery,
    *,
    by_segments: bool,
) -> list[Span]:
    """The parts of spans in whose extents a message of the time asked for may be.

    `by_segments`: none of them lies in two segments of the log. One request for each manifest that
    is not cached.
    """
    segments = await container.segments(SegmentType.COMMIT_LOG)
    extents = [extent for segment in segments for extent in segment.extents]
    ends = [extent.first_offset for extent in extents[1:]] + [container.next_offset]
    outside = [
        (extent.first_offset, end)
        for extent, end in zip(extents, ends, strict=True)
        if extent.max_timestamp < query.begin_ms or extent.min_timestamp > query.end_ms
    ]
    within = without(spans, outside)
    if not by_segments:
        return within
    firsts = [segment.extents[0].first_offset for segment in segments if segment.extents]
    parts: list[Span] = []
    for start, end in within:
        edges = [start, *(first for first in firsts if start < first < end), end]
        parts += pairwise(edges)
    return parts
