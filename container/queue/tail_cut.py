"""Taking the newest messages of a queue away again: the record that remains, and what it frees."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from container.errors import BytesMissing
from container.metadata.object_names import object_name, own_file
from container.metadata.part_counts import references
from container.metadata.records import Extent, ManifestRef, Queue, QueueBasis, Segment
from container.names.queue_id import SegmentType
from container.queue.message_queue_container import MessageQueueContainer
from container.record.crc32c import crc32c
from container.record.unit import UNIT_BYTES
from provider.disk_cache.use import cache_use
from provider.errors import Corrupt, OutOfRange
from provider.object_store import ObjectStore
from provider.ranges import ByteRange, QueueOffset

CUT_REASON = "cut"


READ_BYTES_MAX = 8 << 20


class DamagedExtent(Corrupt):
    """A cut goes through an extent whose bytes fail its checksum: nothing is derived from them."""

    first_offset = QueueOffset(0)
    """A cut there leaves nothing of the extent."""

    @classmethod
    def of(cls, name: str, extent: Extent) -> Self:
        """That of an extent in the object `name`."""
        error = cls(
            f"CRC-32C of {extent.length} bytes of {name} is not that of their extent, which the "
            f"cut would shorten: put a sound copy back, or cut at offset {extent.first_offset}",
            name,
            extent.object_offset,
        )
        error.first_offset = extent.first_offset
        return error


class FreedFile(NamedTuple):
    """The own file of a segment that a cut frees whole."""

    name: str
    bytes: int
    """Its published size."""


@dataclass(frozen=True, slots=True)
class QueueCut:
    """What a cut leaves of a queue, and what it frees."""

    planned_on: QueueBasis
    """The record that was cut; the cut means nothing to another one."""
    before: Queue
    """That record."""
    queue: Queue
    """The record after the cut."""
    manifests: tuple[str, ...]
    """Manifests that the record no longer refers to."""
    files: tuple[FreedFile, ...]
    """Own files of segments that go whole; a later segment may have the name of one of them.
    Other objects of such segments may be shared with other queues: only their references go."""
    in_manifests: Counter[str]
    """Per part, the extents that name it in those manifests."""


async def cut_queue(
    container: MessageQueueContainer,
    store: ObjectStore,
    next_offset: QueueOffset,
    *,
    now_ms: int,
) -> QueueCut:
    """The queue as it is now, without its messages at and above `next_offset`.

    The segments that the cut goes through are sealed where it goes: the next commit begins new
    ones, so the bytes after the cut stay where they are. A gap that the cut goes through ends
    there. Reads one unit, and the extents that the cut goes through, whole and past caches: the
    checksum of what stays of one is derived from bytes that were verified. Publishes nothing.

    Raises:
        OutOfRange: the queue has no such offset.
        BytesMissing: a manifest was replaced and deleted meanwhile, or bytes are lost.
        DamagedExtent: the cut goes through bytes that fail their checksum.
    """
    with cache_use(past=True):
        return await _cut_queue(container, store, next_offset, now_ms=now_ms)


async def _cut_queue(
    container: MessageQueueContainer, store: ObjectStore, next_offset: QueueOffset, *, now_ms: int
) -> QueueCut:
    queue = container.record
    container = container.as_of(queue)
    if not queue.min_offset <= next_offset < queue.next_offset:
        reason = f"{queue.id} has [{queue.min_offset}, {queue.next_offset}): nothing to cut"
        raise OutOfRange(reason, str(queue.id), next_offset)
    ends = {
        SegmentType.COMMIT_LOG: await _log_end(container, next_offset),
        SegmentType.CONSUME_QUEUE: UNIT_BYTES * next_offset,
    }
    kept: dict[SegmentType, tuple[Segment, ...]] = {}
    refs: list[ManifestRef] = []
    manifests: list[str] = []
    files: list[FreedFile] = []
    in_manifests = Counter[str]()
    for kind, end in ends.items():
        refs_kept = [ref for ref in queue.manifests if ref.type == kind and ref.end <= end]
        manifests += [
            ref.object_name for ref in queue.manifests if ref.type == kind and ref.end > end
        ]
        begin = max((ref.end for ref in refs_kept), default=-1)
        segments: list[Segment] = []
        live = {segment.base for segment in queue.segments(kind)}
        for segment in await container.segments(kind):
            if segment.base >= begin and segment.base not in live:
                in_manifests.update(references([segment]))
            if segment.base >= end:
                name = own_file(queue.id, segment)
                files += [FreedFile(name, segment.size)] if name is not None else []
            elif segment.base >= begin:
                segments.append(await _cut_segment(store, queue, segment, end, now_ms=now_ms))
        refs += refs_kept
        kept[kind] = tuple(segments)
    remaining = replace(
        queue,
        next_offset=next_offset,
        commit_log=kept[SegmentType.COMMIT_LOG],
        consume_queue=kept[SegmentType.CONSUME_QUEUE],
        manifests=tuple(refs),
        gaps=tuple(
            replace(gap, end=min(gap.end, next_offset))
            for gap in queue.gaps
            if gap.start < next_offset
        ),
    )
    return QueueCut(
        QueueBasis.of(queue), queue, remaining, tuple(manifests), tuple(files), in_manifests
    )


async def _log_end(container: MessageQueueContainer, next_offset: QueueOffset) -> int:
    """Where the records of the messages below `next_offset` end."""
    queue = container.record
    for gap in queue.gaps:
        if gap.start <= next_offset < gap.end:
            next_offset = gap.end  # its first record lies where the last before the gap ends
    if next_offset == queue.next_offset:
        return queue.flat_end(SegmentType.COMMIT_LOG)
    units = await container.units(next_offset, QueueOffset(next_offset + 1), verified=True)
    return int(units["position"][0])


async def _cut_segment(
    store: ObjectStore, queue: Queue, segment: Segment, end: int, *, now_ms: int
) -> Segment:
    """The segment up to byte `end` of its flat file, closed for good."""
    size = min(segment.size, end - segment.base)
    sealed_ms = segment.sealed_ms or now_ms
    if size == segment.size:
        return replace(segment, sealed_ms=sealed_ms)
    extents = [
        extent
        if extent.end <= size
        else await _cut_extent(store, object_name(queue.id, segment, extent), extent, size)
        for extent in segment.extents
        if extent.position < size
    ]
    return replace(segment, extents=tuple(extents), sealed_ms=sealed_ms)


async def _cut_extent(store: ObjectStore, name: str, extent: Extent, size: int) -> Extent:
    """An extent of object `name` up to byte `size` of its segment. Its times stay true bounds.

    Without a checksum, as in a Java tier that was opened without reading it, it stays without.
    """
    length = size - extent.position
    if extent.crc32c is None:
        return extent._replace(length=length)
    at = sum_ = kept_sum = 0
    while at < extent.length:
        end = min(at + READ_BYTES_MAX, length if at < length else extent.length)
        place = ByteRange(extent.object_offset + at, extent.object_offset + end)
        try:
            sum_ = crc32c(await store.read(name, place), sum_)
        except OutOfRange as error:
            raise BytesMissing.of(error) from error
        at = end
        kept_sum = sum_ if at == length else kept_sum
    if sum_ != extent.crc32c:
        raise DamagedExtent.of(name, extent)
    return extent._replace(length=length, crc32c=kept_sum)
