"""Segment lookups of a queue, after Kafka's KIP-405 metadata manager."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from container.metadata.objects import is_away, names_of_queue
from container.metadata.records import CopyState, ManifestRef, Segment, after_gaps, gap_at
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import parse_segment_name, segment_name
from container.queue.message_queue_container import Manifests, MessageQueueContainer
from container.record.unit import UNIT_BYTES
from provider.ranges import QueueOffset
from provider.stores.packed_segments import PartName


class EpochStart(NamedTuple):
    """First message of an owner in a segment."""

    epoch: int
    first_offset: QueueOffset


@dataclass(frozen=True, slots=True)
class TieredSegment:
    """Known facts of one segment of a queue."""

    queue: QueueId
    type: SegmentType
    base: int
    """First byte in the flat file."""
    path: str
    """RocketMQ's name of it. The bytes may lie in other objects."""
    state: CopyState
    size_bytes: int | None = None
    """None if only its tombstone is known."""
    epochs: tuple[EpochStart, ...] = ()
    """Owners of its bytes, in order. Empty if unknown."""
    end_offset: QueueOffset | None = None
    """End of its messages' queue offsets, exclusive. None if unknown."""
    is_sealed: bool = True
    begin_timestamp: int | None = None
    end_timestamp: int | None = None
    is_offloaded: bool = False
    """Whether its bytes lie in the second store."""

    @property
    def first_offset(self) -> QueueOffset | None:
        """Queue offset of its first message. None if unknown."""
        return self.epochs[0].first_offset if self.epochs else None


class TieredSegments:
    """Segment lookups of one queue. Each uses the newest metadata, and keeps none of it."""

    def __init__(
        self, container: MessageQueueContainer, state: TierState, manifests: Manifests
    ) -> None:
        self._container = container
        self._state = state
        self._manifests = manifests

    def __repr__(self) -> str:
        return f"<TieredSegments of {self._container.id}>"

    @property
    def first_offset(self) -> QueueOffset | None:
        """First tiered offset (Kafka: EARLIEST). None if the queue has no tiered message."""
        container = self._container
        first = after_gaps(container.gaps, container.min_offset)
        return first if first < container.next_offset else None

    async def at(self, offset: int) -> TieredSegment | None:
        """Return the CommitLog segment of the message at `offset`. None if it is not tiered.

        No request for segments in the record. One request for each of at most `log2` manifests that
        are not cached. In a tier that RocketMQ's own store wrote, one for the message's unit.

        Raises:
            BytesMissing, Corrupt, Unavailable: of a manifest, or of the unit.
        """
        container, first = self._container, self.first_offset
        record = container.record
        if first is None or not first <= offset < record.next_offset:
            return None
        if gap_at(record.gaps, offset) is not None:
            return None
        live = [one for one in record.readable(SegmentType.COMMIT_LOG) if one.extents]
        if live and live[0].extents[0].crc32c is None:
            return await self._by_unit(QueueOffset(offset))
        if live and live[0].extents[0].first_offset <= offset:
            return self._holder(live, offset, record.next_offset)
        refs = [ref for ref in record.manifests if ref.type == SegmentType.COMMIT_LOG]
        return await self._in_manifests(refs, live, offset)

    async def listed(self, states: Collection[CopyState] | None = None) -> list[TieredSegment]:
        """Return all segments in these states (None: in any), by flat file and base.

        A request for each manifest that is not cached. Raises as `at`.
        """
        found: list[TieredSegment] = []
        for kind in FLAT_FILES:
            segments = await self._container.segments(kind)
            ends = self._ends(segments, self._container.next_offset)
            found += [self._described(one, end) for one, end in zip(segments, ends, strict=True)]
        found += self._dying()
        found.sort(key=lambda one: (one.type, one.base, one.state))
        return [one for one in found if states is None or one.state in states]

    async def _by_unit(self, offset: QueueOffset) -> TieredSegment:
        """Segment that the unit of a message points into. Its offsets are unknown."""
        units = await self._container.units(offset, QueueOffset(offset + 1))
        at = int(units["position"][0])
        segment = await self._container.segment_at(SegmentType.COMMIT_LOG, at)
        return self._described(segment, None)

    async def _in_manifests(
        self, refs: Sequence[ManifestRef], live: Sequence[Segment], offset: int
    ) -> TieredSegment | None:
        """Bisect the manifests. Only the first segment of each gives its offsets."""
        low, high = 0, len(refs)
        end = live[0].extents[0].first_offset if live else self._container.next_offset
        found: Sequence[Segment] = ()
        while low < high:
            middle = (low + high) // 2
            held = [one for one in await self._manifests.segments(refs[middle]) if one.extents]
            if held and held[0].extents[0].first_offset <= offset:
                found, low = held, middle + 1
            else:
                high = middle
                end = held[0].extents[0].first_offset if held else end
        return self._holder(found, offset, end)

    def _holder(
        self, segments: Sequence[Segment], offset: int, end: QueueOffset
    ) -> TieredSegment | None:
        ends = self._ends(segments, end)
        for segment, segment_end in zip(segments, ends, strict=True):
            if (
                segment.extents[0].first_offset <= offset
                and segment_end is not None
                and offset < segment_end
            ):
                return self._described(segment, segment_end)
        return None

    def _ends(self, segments: Sequence[Segment], end: QueueOffset) -> list[QueueOffset | None]:
        """End offset of each segment, before the gap that may follow it."""
        gaps = {gap.end: gap.start for gap in self._container.gaps}
        ends: list[QueueOffset | None] = []
        bound: QueueOffset = end
        for segment in reversed(segments):
            ends.append(gaps.get(bound, bound) if _knows_offsets(segment) else None)
            if _knows_offsets(segment):
                bound = segment.extents[0].first_offset
        return ends[::-1]

    def _described(self, segment: Segment, end: QueueOffset | None) -> TieredSegment:
        queue = self._container.id
        return TieredSegment(
            queue,
            segment.type,
            segment.base,
            segment_name(queue, segment.type, segment.base),
            segment.state,
            segment.size,
            epochs_of(segment) if _knows_offsets(segment) else (),
            end,
            segment.sealed_ms is not None,
            segment.begin_timestamp,
            segment.end_timestamp,
            is_away(segment),
        )

    def _dying(self) -> Iterator[TieredSegment]:
        """Files of segments that are unpublished and not deleted yet."""
        queue, record = self._container.id, self._container.record
        live = set(names_of_queue(record))
        for name in dying_files(self._state, queue):
            parsed = parse_segment_name(name)
            if parsed is not None and name not in live:
                state = CopyState.DELETE_STARTED
                yield TieredSegment(queue, parsed.type, parsed.base, name, state)


def dying_files(state: TierState, queue: QueueId) -> Iterable[str]:
    """Files of a queue's segments that have a tombstone. O(tombstones)."""
    prefix = f"{queue}/"
    return sorted(name for name in state.tombstones if name.startswith(prefix))


def epochs_of(segment: Segment) -> tuple[EpochStart, ...]:
    """Owners of a segment's bytes, with the first offset of each, in order. Pure.

    The name of a part has its owner's epoch. Bytes in the segment's own file, and offloaded bytes,
    count as those of the owner that began the segment. Early bytes that a later owner has rewritten
    count as those of the earliest possible owner.
    """
    starts: list[EpochStart] = []
    epoch: int | None = None
    for extent in reversed(segment.extents):
        part = PartName.parse(extent.object_name)
        known = segment.epoch if part is None or part.home else part.epoch
        epoch = known if epoch is None else min(known, epoch)
        starts.append(EpochStart(epoch, extent.first_offset))
    starts.reverse()
    return tuple(
        one
        for number, one in enumerate(starts)
        if not number or starts[number - 1].epoch != one.epoch
    )


def _knows_offsets(segment: Segment) -> bool:
    """Whether its extents have their offsets. Those of a CommitLog that Java wrote do not."""
    if not segment.extents:
        return False
    first = segment.extents[0]
    if segment.type is SegmentType.CONSUME_QUEUE:
        return UNIT_BYTES * first.first_offset == segment.base
    return first.crc32c is not None
