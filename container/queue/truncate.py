"""Truncation of a queue's head and tail: the remaining record, and the freed objects."""

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from container.errors import BytesMissing
from container.metadata.objects import object_name, own_file, references
from container.metadata.operations import CommitQueue, SegmentChange
from container.metadata.records import (
    Extent,
    ManifestRef,
    Queue,
    QueueBasis,
    Segment,
    after_gaps,
)
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.queue.message_queue_container import Manifests, MessageQueueContainer
from container.record.checksum import crc32c
from container.record.unit import UNIT_BYTES
from provider.disk_cache.use import cache_use
from provider.errors import Corrupt, OutOfRange
from provider.object_store import ObjectStore
from provider.ranges import ByteRange, QueueOffset


@dataclass(frozen=True, slots=True)
class FlatTrim:
    """Effect of a head truncation on one flat file."""

    base: int
    """First byte of the first remaining segment."""
    first_offset: QueueOffset
    """Queue offset of its first message, or the queue's end."""
    kept: tuple[ManifestRef, ...]
    """Manifests that stay unchanged."""
    shortened: tuple[ManifestRef, tuple[Segment, ...]] | None
    """Manifest before those that loses some segments, with the rest. It needs a replacement."""
    freed: tuple[str, ...]
    """Removed manifests, including the shortened one, and own files of segments."""
    bytes: int
    """Size of the removed segments."""
    in_manifests: Counter[str]
    """Per part, the number of extents in manifests that name it and are removed."""


@dataclass(frozen=True, slots=True)
class HeadTrim:
    """Result of a head truncation: the removed messages, and the freed objects."""

    queue: QueueId
    planned_on: QueueBasis
    """Record that the plan is for. It is invalid for any other."""
    expected_offset: QueueOffset
    min_offset: QueueOffset
    messages: int
    """Number of removed messages, without those in gaps."""
    log: FlatTrim
    units: FlatTrim
    gaps_from: int
    """As in `TrimQueue`: no message that stays lies below. 0 if no gap ends below."""

    @property
    def shortened(self) -> list[tuple[ManifestRef, tuple[Segment, ...]]]:
        """Manifests that need a replacement, each with its remaining segments."""
        flat_files = (self.log, self.units)
        return [one.shortened for one in flat_files if one.shortened is not None]


async def oldest_segments(queue: Queue, manifests: Manifests) -> AsyncIterator[Segment]:
    """Iterate over the segments of a queue's CommitLog from the oldest, without the last one.

    One request for each manifest that is reached and not cached.
    """
    last = _last_base(queue, SegmentType.COMMIT_LOG)
    for ref in queue.manifests:
        if ref.type == SegmentType.COMMIT_LOG:
            for segment in await manifests.segments(ref):
                if segment.base != last:
                    yield segment
    for segment in queue.commit_log:
        if segment.base != last:
            yield segment


def plan_trim(
    queue: Queue, listed: Mapping[str, Sequence[Segment]], keep_from: int
) -> HeadTrim | ManifestRef | None:
    """Plan the removal of all segments before byte `keep_from` of the CommitLog. None if none goes.

    Returns a manifest if the plan needs its segments and `listed` lacks them, one at a time: each
    shortened or removed manifest, and the one that begins the rest. Pure, so a caller that has read
    them can plan on the newest record without an await before it publishes. O(segments in them).

    Args:
        queue: the record to truncate.
        listed: segments of manifests, by object name.
        keep_from: the base of a segment, or the end of all.
    """
    log = _flat_trim(queue, SegmentType.COMMIT_LOG, listed, keep_from)
    if isinstance(log, ManifestRef):
        return log
    min_offset = max(queue.min_offset, log.first_offset)
    units = _flat_trim(queue, SegmentType.CONSUME_QUEUE, listed, UNIT_BYTES * min_offset)
    if isinstance(units, ManifestRef):
        return units
    if not log.freed and not units.freed and min_offset == queue.min_offset:
        return None
    first = min(min_offset, log.first_offset, units.base // UNIT_BYTES)
    lost = sum(
        max(0, min(gap.end, min_offset) - max(gap.start, queue.min_offset)) for gap in queue.gaps
    )
    return HeadTrim(
        queue.id,
        QueueBasis.of(queue),
        queue.min_offset,
        min_offset,
        min_offset - queue.min_offset - lost,
        log,
        units,
        first if any(gap.end < first for gap in queue.gaps) else 0,
    )


def _flat_trim(
    queue: Queue, kind: SegmentType, listed: Mapping[str, Sequence[Segment]], limit: int
) -> FlatTrim | ManifestRef:
    """Plan one flat file without the leading segments that end at or below `limit`."""
    last, gone, freed = _last_base(queue, kind), list[Segment](), list[str]()
    in_manifests = Counter[str]()
    refs = [ref for ref in queue.manifests if ref.type == kind]
    rest: Sequence[Segment] = ()
    shortened: tuple[ManifestRef, tuple[Segment, ...]] | None = None
    kept = refs
    while kept and kept[0].base < limit and not rest:
        segments = listed.get(kept[0].object_name)
        if segments is None:
            return kept[0]
        leaving = _leaving(segments, limit, last)
        gone += leaving
        in_manifests.update(references(leaving))
        rest = segments[len(leaving) :]
        if leaving:
            freed.append(kept[0].object_name)
            shortened = (kept[0], tuple(rest)) if rest else None
            kept = kept[1:]
    if not rest and kept:
        rest = listed.get(kept[0].object_name, ())
        if not rest:
            return kept[0]
    live = queue.segments(kind)
    if not rest:
        leaving = _leaving(live, limit, last)
        gone += leaving
        rest = live[len(leaving) :]
    freed += [name for one in gone if (name := own_file(queue.id, one)) is not None]
    first = rest[0] if rest else None
    return FlatTrim(
        first.base if first is not None else queue.flat_end(kind),
        first.extents[0].first_offset if first is not None and first.extents else queue.next_offset,
        tuple(kept),
        shortened,
        tuple(freed),
        sum(one.size for one in gone),
        in_manifests,
    )


def _leaving(segments: Sequence[Segment], limit: int, last: int) -> Sequence[Segment]:
    """Leading segments that end at or below `limit`, without the one whose base is `last`."""
    count = bisect_right(segments, limit, key=lambda one: one.end)
    while count and segments[count - 1].base == last:
        count -= 1
    return segments[:count]


def _last_base(queue: Queue, kind: SegmentType) -> int:
    """Base of the last segment of a flat file. -1 if it is in a manifest, or there is none.

    After a tail truncation the last segment may be in a manifest. Then all of that manifest stays,
    as its end is not below any limit.
    """
    live = queue.segments(kind)
    return live[-1].base if live else -1


def roll(queue: Queue, *, now_ms: int, epoch: int) -> CommitQueue:
    """Operation that closes a queue's last segments and begins empty ones after them. Pure."""
    changes: list[SegmentChange] = []
    for kind in FLAT_FILES:
        live = queue.segments(kind)
        if live and live[-1].sealed_ms is None:
            open_one = live[-1]
            changes.append(
                SegmentChange(
                    kind,
                    open_one.base,
                    len(open_one.extents),
                    (),
                    created_ms=open_one.created_ms,
                    epoch=open_one.epoch,
                    sealed_ms=now_ms,
                )
            )
        base = queue.flat_end(kind)
        if kind == SegmentType.CONSUME_QUEUE:
            base = UNIT_BYTES * queue.next_offset  # after a gap that ends the queue
        changes.append(SegmentChange(kind, base, 0, (), created_ms=now_ms, epoch=epoch))
    return CommitQueue(queue.id, queue.next_offset, queue.next_offset, tuple(changes))


def is_rolled(queue: Queue) -> bool:
    """Whether the last segment of the CommitLog is empty, so that no roll is needed."""
    return bool(queue.commit_log) and not queue.commit_log[-1].extents


CUT_REASON = "cut"


READ_BYTES_MAX = 8 << 20


class DamagedExtent(Corrupt):
    """Truncation through an extent with a wrong checksum. Nothing is derived from its bytes."""

    first_offset = QueueOffset(0)
    """Offset of a truncation that removes the whole extent."""

    @classmethod
    def of(cls, name: str, extent: Extent) -> Self:
        """Error for an extent in the object `name`."""
        error = cls(
            f"CRC-32C of {extent.length} bytes of {name} is not that of their extent, which the "
            f"cut would shorten: put a sound copy back, or cut at offset {extent.first_offset}",
            name,
            extent.object_offset,
        )
        error.first_offset = extent.first_offset
        return error


class FreedFile(NamedTuple):
    """Own file of a segment that a truncation removes as a whole."""

    name: str
    bytes: int
    """Published size in bytes."""


@dataclass(frozen=True, slots=True)
class QueueCut:
    """Result of a tail truncation: the remaining record, and the freed objects."""

    planned_on: QueueBasis
    """Record that the plan is for. It is invalid for any other."""
    before: Queue
    """Record before the truncation."""
    queue: Queue
    """Record after the truncation."""
    manifests: tuple[str, ...]
    """Manifests that the record no longer refers to."""
    files: tuple[FreedFile, ...]
    """Own files of removed segments. A later segment may reuse the name of one. Other objects of
    such segments may be shared with other queues: only their references go."""
    in_manifests: Counter[str]
    """Per part, the number of extents that name it in those manifests."""


async def cut_queue(
    container: MessageQueueContainer,
    store: ObjectStore,
    next_offset: QueueOffset,
    *,
    now_ms: int,
) -> QueueCut:
    """Plan the queue without its messages at and above `next_offset`.

    The segments that contain the truncation point are sealed there. The next commit begins new
    ones, so the bytes after the point stay where they are. A gap that contains the point ends
    there. Reads one unit, and the extents that contain the point, as a whole and without caches:
    the checksum of the remaining bytes of an extent is derived from verified bytes. Publishes
    nothing.

    Raises:
        OutOfRange: the queue has no such offset.
        BytesMissing: a manifest was replaced and deleted since, or bytes are lost.
        DamagedExtent: an extent that contains the point fails its checksum.
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
    """End of the records of the messages below `next_offset`, exclusive."""
    queue = container.record
    # the first record after a gap lies where the last one before the gap ends
    next_offset = after_gaps(queue.gaps, next_offset)
    if next_offset == queue.next_offset:
        return queue.flat_end(SegmentType.COMMIT_LOG)
    units = await container.units(next_offset, QueueOffset(next_offset + 1), verified=True)
    return int(units["position"][0])


async def _cut_segment(
    store: ObjectStore, queue: Queue, segment: Segment, end: int, *, now_ms: int
) -> Segment:
    """Segment up to byte `end` of its flat file, sealed."""
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
    """Extent of object `name` up to byte `size` of its segment. Its times remain valid bounds.

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
