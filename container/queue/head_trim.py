"""Taking the oldest messages of a queue away: what goes, what remains of manifests, what it frees.

Whole segments go, so that no byte is ever moved. The last segment of a flat file stays, because
the next position follows from it; a queue whose last segment is too old as well is rolled first.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from container.metadata.object_names import own_file
from container.metadata.operations import CommitQueue, SegmentChange
from container.metadata.part_counts import references
from container.metadata.records import ManifestRef, Queue, QueueBasis, Segment
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.queue.message_queue_container import Manifests
from container.record.unit import UNIT_BYTES
from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class FlatTrim:
    """What becomes of one flat file."""

    base: int
    """First byte of the first segment that stays."""
    first_offset: QueueOffset
    """Queue offset of its first message, or the queue's end."""
    kept: tuple[ManifestRef, ...]
    """Manifests that stay as they are."""
    shortened: tuple[ManifestRef, tuple[Segment, ...]] | None
    """The manifest before those, if some of its segments go and these stay: they need a new one."""
    freed: tuple[str, ...]
    """Manifests that go, the shortened one included, and own files of segments."""
    bytes: int
    """Of the segments that go."""
    in_manifests: Counter[str]
    """Per part, how many extents of segments that go name it in manifests."""


@dataclass(frozen=True, slots=True)
class HeadTrim:
    """What a trim leaves of a queue, and what it frees."""

    queue: QueueId
    planned_on: QueueBasis
    """The record that is trimmed; the trim means nothing to another one."""
    expected_offset: QueueOffset
    min_offset: QueueOffset
    messages: int
    """How many go; those in gaps are not counted."""
    log: FlatTrim
    units: FlatTrim

    @property
    def shortened(self) -> list[tuple[ManifestRef, tuple[Segment, ...]]]:
        """The manifests that need a new one, each with the segments of it that stay."""
        flat_files = (self.log, self.units)
        return [one.shortened for one in flat_files if one.shortened is not None]


async def oldest_segments(queue: Queue, manifests: Manifests) -> AsyncIterator[Segment]:
    """The segments of a queue's CommitLog from the oldest on, without the last one.

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
    """The removal of all segments before byte `keep_from` of the CommitLog; None if none goes.

    Returns a manifest that the plan needs and `listed` lacks, one at a time: each that is
    shortened or goes, and the one that begins what stays. Pure, so that a caller who has read them
    plans on the newest record without an await before it publishes. O(segments in them).

    Args:
        queue: the record that is trimmed.
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
    )


def _flat_trim(
    queue: Queue, kind: SegmentType, listed: Mapping[str, Sequence[Segment]], limit: int
) -> FlatTrim | ManifestRef:
    """One flat file without the leading segments that end at or below `limit`."""
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
    """The leading segments that end at or below `limit`, without the one whose base is `last`."""
    count = bisect_right(segments, limit, key=lambda one: one.end)
    while count and segments[count - 1].base == last:
        count -= 1
    return segments[:count]


def _last_base(queue: Queue, kind: SegmentType) -> int:
    """The base of the last segment of a flat file; -1 if a manifest has it, or there is none.

    After a tail cut a manifest may have the last one; then all of that manifest stays, for its
    end is not below any limit.
    """
    live = queue.segments(kind)
    return live[-1].base if live else -1


def roll(queue: Queue, *, now_ms: int, epoch: int) -> CommitQueue:
    """The operation that closes a queue's last segments and begins empty ones behind them. Pure."""
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
            base = UNIT_BYTES * queue.next_offset  # behind a gap that ends the queue
        changes.append(SegmentChange(kind, base, 0, (), created_ms=now_ms, epoch=epoch))
    return CommitQueue(queue.id, queue.next_offset, queue.next_offset, tuple(changes))


def is_rolled(queue: Queue) -> bool:
    """Whether the last segment of the CommitLog is empty, so that nothing is to be rolled."""
    return bool(queue.commit_log) and not queue.commit_log[-1].extents
