"""Plan of an offload: sealed segments and their pieces. Pure except for reading manifests."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from container.metadata.objects import is_away
from container.metadata.operations import ALL_EXTENTS, CommitQueue, SegmentChange
from container.metadata.records import Extent, Queue, Segment
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.queue.manifest import ManifestReader
from container.record.checksum import crc32c
from container.record.columns import leading_columns
from container.record.unit import UNIT_BYTES
from container.record.verification import ENDS_INSIDE, walk_records
from provider.disk_cache.use import cache_use
from provider.errors import Corrupt
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange, QueueOffset


class Held(NamedTuple):
    """Sealed segment of a queue with its bytes in the first store."""

    queue: QueueId
    segment: Segment

    @property
    def key(self) -> tuple[QueueId, SegmentType, int]:
        """Identity of the segment: queue, type and base."""
        return self.queue, self.segment.type, self.segment.base

    @property
    def newest_ms(self) -> int:
        """Store time of its newest message, Unix ms."""
        return self.segment.end_timestamp or 0

    @property
    def is_log(self) -> bool:
        """Whether it belongs to the CommitLog."""
        return self.segment.type is SegmentType.COMMIT_LOG


class Until(NamedTuple):
    """Requested end of an offload on demand. None: no such limit."""

    offset: int | None = None
    """Messages of each queue below this offset."""
    ms: int | None = None
    """Messages stored before this time, Unix ms."""


class HeldSegments:
    """Finds segments in the first store. Remembers the manifests that list none.

    One request for each manifest, repeated only if it lists some. Memory: the names of manifests,
    and 10,000 extents.
    """

    def __init__(self, manifests: ManifestReader) -> None:
        self._manifests = manifests
        self._away: dict[QueueId, set[str]] = {}
        """Manifests of each queue that list no segment in the first store."""

    def __repr__(self) -> str:
        manifests = sum(map(len, self._away.values()))
        return f"<HeldSegments: {manifests} manifests of {len(self._away)} queues list none>"

    def forget(self, queue: QueueId) -> None:
        """Drop the data of a deleted queue."""
        self._away.pop(queue, None)

    def oldest_ms(self, queue: Queue) -> int | None:
        """Lower bound of the newest store time of the first candidate. None without candidates.

        Pure. O(manifests and segments in the snapshot).
        """
        away = self._away.get(queue.id, ())
        stamps: list[int | None] = [
            ref.min_timestamp for ref in queue.manifests if ref.object_name not in away
        ]
        segments = (one for kind in FLAT_FILES for one in queue.segments(kind))
        stamps += [one.end_timestamp for one in segments if one.extents and not is_away(one)]
        return min((stamp for stamp in stamps if stamp is not None), default=None)

    async def of(self, queue: Queue) -> list[Held]:
        """Return the sealed segments of a queue in the first store, CommitLog first, in order.

        Raises:
            BytesMissing, Corrupt: a manifest is lost or damaged.
            Unavailable: retry later.
        """
        found: list[Held] = []
        known = self._away.get(queue.id, set[str]())
        away = {ref.object_name for ref in queue.manifests if ref.object_name in known}
        for kind in FLAT_FILES:
            for ref in queue.manifests:
                if ref.type != kind or ref.object_name in away:
                    continue
                segments = _held(queue.id, await self._manifests.segments(ref))
                found += segments
                if not segments:
                    away.add(ref.object_name)
            found += _held(queue.id, queue.segments(kind))
        if away:
            self._away[queue.id] = away
        else:
            self._away.pop(queue.id, None)
        return found


def _held(queue: QueueId, segments: Iterable[Segment]) -> list[Held]:
    return [
        Held(queue, one)
        for one in segments
        if one.sealed_ms is not None and one.is_readable and one.extents and not is_away(one)
    ]


def older_than(held: Sequence[Held], before_ms: int) -> list[Held]:
    """Segments whose newest message was stored before a time."""
    return [one for one in held if one.newest_ms < before_ms]


def beyond_size(held: Sequence[Held], open_bytes: int, bytes_max: int) -> list[Held]:
    """Oldest segments, until the first store keeps at most `bytes_max` of the topic's records.

    `held` is of all queues of a topic, and `open_bytes` the length of its open CommitLog segments.
    ConsumeQueue segments go once they are as old as the CommitLog segments that go.
    """
    logs = sorted((one for one in held if one.is_log), key=lambda one: (one.newest_ms, one.queue))
    left = open_bytes + sum(one.segment.size for one in logs)
    gone: dict[QueueId, int] = {}
    found: list[Held] = []
    for one in logs:
        if left <= bytes_max:
            break
        left -= one.segment.size
        gone[one.queue] = one.newest_ms
        found.append(one)
    units = (one for one in held if not one.is_log)
    return found + [one for one in units if one.newest_ms <= gone.get(one.queue, -1)]


def not_expiring(
    held: Sequence[Held], queues: Sequence[Queue], *, before_ms: int | None, topic_bytes_max: int
) -> list[Held]:
    """Segments that retention still keeps when the first store's copy may be deleted.

    `before_ms`: older messages expire by age then. None: nothing expires by age. `topic_bytes_max`:
    the oldest bytes of a topic beyond this number expire by size. 0: none.
    """
    if before_ms is not None:
        held = [one for one in held if one.newest_ms >= before_ms]
    if not topic_bytes_max:
        return list(held)
    log = SegmentType.COMMIT_LOG
    total = sum(queue.flat_end(log) - queue.flat_begin(log) for queue in queues)
    logs = sorted((one for one in held if one.is_log), key=lambda one: (one.newest_ms, one.queue))
    open_bytes = sum(one.size for queue in queues for one in queue.segments(log)[-1:])
    away = total - open_bytes - sum(one.segment.size for one in logs)
    excess = total - topic_bytes_max - max(0, away)
    expiring: set[tuple[QueueId, SegmentType, int]] = set()
    for one in logs:
        if excess <= 0:
            break
        expiring.add(one.key)
        excess -= one.segment.size
    return [one for one in held if one.key not in expiring]


def below(held: Sequence[Held], queue: Queue, until: Until) -> list[Held]:
    """Segments of a queue whose messages all lie within the requested end.

    With an offset limit, a CommitLog segment with unknown offsets stays.
    """
    found = list(held)
    if until.ms is not None:
        found = older_than(found, until.ms)
    if until.offset is not None:
        ends = _ends(held, queue)
        found = [one for one in found if ends(one) <= until.offset]
    return found


def _ends(held: Sequence[Held], queue: Queue) -> Callable[[Held], int]:
    """Function for the end offset of a segment. Too high by a little if neighbours were removed."""
    logs = [one.segment for one in held if one.is_log]
    logs += queue.segments(SegmentType.COMMIT_LOG)
    starts = {one.base: _first_offset(one) for one in logs if one.extents}
    bases = sorted(starts)
    ends: Mapping[int, int] = {
        base: starts[bases[number + 1]] if number + 1 < len(bases) else queue.next_offset
        for number, base in enumerate(bases)
    }

    def end(one: Held) -> int:
        if not one.is_log:
            return one.segment.end // UNIT_BYTES
        if one.segment.extents[0].crc32c is None:
            return queue.next_offset
        return ends[one.segment.base]

    return end


def _first_offset(segment: Segment) -> int:
    return segment.extents[0].first_offset


def closing(queue: Queue, until: Until, *, now_ms: int) -> CommitQueue | None:
    """Operation that seals the open segments of a queue, if all of its messages are to go.

    The next commit begins others.
    """
    open_ones = [
        segment
        for kind in FLAT_FILES
        for segment in queue.segments(kind)[-1:]
        if segment.sealed_ms is None and segment.extents
    ]
    newest_ms = max((one.end_timestamp or 0 for one in open_ones), default=0)
    is_wanted = (until.offset is None or until.offset >= queue.next_offset) and (
        until.ms is None or newest_ms < until.ms
    )
    if not open_ones or not is_wanted:
        return None
    changes = tuple(
        SegmentChange(one.type, one.base, ALL_EXTENTS, (), sealed_ms=now_ms) for one in open_ones
    )
    return CommitQueue(queue.id, queue.next_offset, queue.next_offset, changes)


def runs_of(extents: Sequence[Extent], bytes_max: int) -> list[list[Extent]]:
    """Groups of adjacent extents for one object each, of at most `bytes_max` if it has several."""
    runs: list[list[Extent]] = []
    for extent in extents:
        if runs and extent.end - runs[-1][0].position <= bytes_max:
            runs[-1].append(extent)
        else:
            runs.append([extent])
    return runs


class Piece(NamedTuple):
    """Part of an extent, with its metadata. Its place is still that of the whole extent."""

    extent: Extent
    body: Buffer


class _Cut(NamedTuple):
    """End of a piece, and the metadata of its records."""

    length: int
    first_offset: QueueOffset | None
    """None if no record begins in it."""
    next_offset: QueueOffset
    times: tuple[int, int]


async def pieces_of_extent(
    store: ObjectStore,
    kind: SegmentType,
    own: str,
    extent: Extent,
    bytes_max: int,
    *,
    is_lost: bool = False,
) -> AsyncIterator[Piece]:
    """Read the pieces of an extent in order. The checksum of the whole is verified after the last.

    One read for each piece, of at most `bytes_max` bytes, and more if a single record is longer.
    Memory is twice that. `own`: the segment's own file. `is_lost`: the extent begins in a gap and
    holds no message. Then no piece holds one, and all of them begin with the same lost message.

    Raises:
        Corrupt: its bytes have another checksum, or are no records.
        OutOfRange, NotFound, Denied, Unavailable: as `ObjectStore.read`.
    """
    name, at, sum_ = extent.object_name or own, 0, 0
    following = _Cut(0, None, extent.first_offset, (extent.min_timestamp, extent.min_timestamp))
    while at < extent.length:
        cut, room = None, bytes_max
        body: Buffer = b""
        while cut is None:  # a record is longer than the room
            end = min(at + room, extent.length)
            place = extent.object_offset
            with cache_use(past=True):
                body = await store.read(name, ByteRange(place + at, place + end))
            is_last = end == extent.length
            if is_lost:
                times = (extent.min_timestamp, extent.max_timestamp)
                cut = _Cut(len(body), extent.first_offset, extent.first_offset, times)
            else:
                cut = _cut(kind, body, extent, at, following, is_last=is_last, name=name)
            room *= 2
        body = memoryview(body)[: cut.length]
        sum_ = crc32c(body, sum_)
        first = following.next_offset if cut.first_offset is None else cut.first_offset
        low, high = cut.times
        yield Piece(
            extent._replace(
                position=extent.position + at,
                length=cut.length,
                crc32c=crc32c(body),
                first_offset=extent.first_offset if not at else first,
                min_timestamp=low,
                max_timestamp=high,
                object_offset=extent.object_offset + at,
            ),
            body,
        )
        at += cut.length
        following = cut
    if extent.crc32c not in {None, sum_}:
        reason = f"CRC-32C of {extent.length} bytes is not that of its extent"
        raise Corrupt(reason, name, extent.object_offset)


def _cut(
    kind: SegmentType,
    body: Buffer,
    extent: Extent,
    at: int,
    before: _Cut,
    *,
    is_last: bool,
    name: str,
) -> _Cut | None:
    """Find the end of the piece that begins `body`. None: a record is longer than it. Pure."""
    if kind is not SegmentType.COMMIT_LOG:
        count = len(body) // UNIT_BYTES
        first = QueueOffset(extent.first_offset + at // UNIT_BYTES)
        length = len(body) if is_last else count * UNIT_BYTES
        times = (extent.min_timestamp, extent.max_timestamp)  # units have no times
        return _Cut(length, first, QueueOffset(first + count), times) if length else None
    walk = walk_records(body)
    columns, reason = leading_columns(body, walk.starts, walk.sizes)
    if walk.reason not in {"", ENDS_INSIDE} or reason or (is_last and walk.reason):
        fault = reason or walk.reason
        raise Corrupt(f"an extent is no run of records: {fault}", name, extent.object_offset + at)
    if not len(walk.starts):
        time_ms = before.times[1]
        none = _Cut(len(body), None, before.next_offset, (time_ms, time_ms))
        return none if is_last else None
    offsets = columns.headers["queue_offset"]
    times = columns.store_timestamps
    length = len(body) if is_last else int(walk.starts[-1] + walk.sizes[-1])
    return _Cut(
        length,
        QueueOffset(int(offsets[0])),
        QueueOffset(int(offsets[-1]) + 1),
        (int(times.min()), int(times.max())),
    )
