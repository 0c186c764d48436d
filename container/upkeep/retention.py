"""Retention: messages beyond their topic's age or size limit expire.

The order is: unpublished in the journal, with tombstones for the freed objects; deleted after the
grace time by `tombstones.py`, which retries and reports. Nothing expires unless configured.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from container.errors import BytesMissing
from container.metadata import queue_changes
from container.metadata.objects import release_of
from container.metadata.operations import CommitQueue, TrimQueue
from container.metadata.records import ManifestRef, Queue, Segment
from container.metadata.state import StateChange, TierState
from container.names.queue_id import QueueId, SegmentType
from container.options import HOUR_MS, UpkeepOptions
from container.queue.manifest import MANIFEST_SEGMENTS_MAX, ManifestReader
from container.queue.truncate import HeadTrim, is_rolled, oldest_segments, plan_trim, roll
from container.steps import QUEUES_PER_TURN, DueQueues, ManifestWriter, OwnedTier, Step

_Oldest = tuple[int, QueueId, Segment, AsyncIterator[Segment]]
"""Newest time of a queue's oldest segment, the queue, this segment, and those after it."""
EXPIRED = "expired"
"""Reason in tombstones of objects freed by retention."""
SEGMENTS_MAX = 1000
"""Segments of one queue that expire in one transaction, unless a manifest holds more."""
PLANS_MAX = 4
"""Attempts of a trim in one run while manifests are merged."""


def retention_ms(
    state: TierState, topic: str, options: UpkeepOptions, topic_hours: Mapping[str, int]
) -> int | None:
    """Retention of a topic's messages in ms. None: unlimited. Pure.

    `topic_hours` overrides the records of the topics that it names.
    """
    if not options.expires:
        return None
    record = state.topics.get(topic)
    hours = topic_hours.get(topic, -1 if record is None else record.retention_hours)
    return HOUR_MS * (hours if hours > 0 else options.retention_hours)


class RetentionStep(Step):
    """Trims the queues of all topics.

    If nothing expires, a run costs only one request for each manifest whose time span contains the
    expiry time. Otherwise it also costs as `plan_trim`, two requests for each shortened manifest,
    and one entry for each queue. A queue with a damaged manifest is skipped.
    """

    name = "retention"

    def __init__(self, tier: OwnedTier) -> None:
        super().__init__(tier)
        self.interval_s = tier.options.expiry_interval_s
        self._manifests = ManifestReader(tier.store, extents_max=10_000)
        self._writer = ManifestWriter(tier)
        self._queues = DueQueues(tier.state.queues, by_size=tier.options.topic_bytes_max > 0)
        self._hours: dict[str, int] = {}
        """The tier's `topic_hours` that the present due times are based on."""
        self._left_some = False
        self._messages = 0
        self._bytes = 0

    @property
    def urgent(self) -> bool:
        """Whether the last run left expired messages because of its limit."""
        return self._left_some

    def published(self, changes: Sequence[StateChange]) -> None:
        """Add the queues of these changes, and of changed topics, to the next run."""
        for change in changes:
            self._queues.note(change.queues.changed)
            for topic in change.topics.changed:
                self._queues.note(self.tier.state.queues.names_of_topic(topic))

    async def step(self) -> None:
        """Trim expired messages. O(queues that changed or are due), for any size of tier.

        Raises:
            Unavailable: the next run continues.
            Corrupt, Denied, OutOfRange: a manifest of a queue cannot be read. The others are done.
            Fenced: a newer owner has the tier.
        """
        self._left_some = False
        if not self.tier.options.expires:
            return
        await self._writer.tombstone_tried()
        await self._update_times()
        await self._queues.each_topic(self.tier.clock.now_ms(), self._expire)

    async def finish(self) -> None:
        """Do nothing: a clean end does not wait for expiry."""

    async def _update_times(self) -> None:
        """Update the due times of queues that changed, or whose topic's retention changed."""
        hours, known = self.tier.topic_hours, self.tier.state.queues
        if hours != self._hours:
            for topic in {name for name, _ in hours.items() ^ self._hours.items()}:
                self._queues.note(known.names_of_topic(topic))
            self._hours = dict(hours)
        await self._queues.update(known, self.tier.clock, self._due_ms)

    def _due_ms(self, queue: Queue) -> int | None:
        """Earliest time at which messages of a queue may have expired. O(manifests)."""
        logs = (ref for ref in queue.manifests if ref.type == SegmentType.COMMIT_LOG)
        oldest = next(logs, None)
        if oldest is not None:
            stamp: int | None = oldest.min_timestamp
        else:
            stamp = queue.commit_log[0].end_timestamp if queue.commit_log else None
        return None if stamp is None else stamp + self._kept_ms(queue.id.topic) + 1

    def _kept_ms(self, topic: str) -> int:
        kept_ms = retention_ms(self.tier.state, topic, self.tier.options, self.tier.topic_hours)
        assert kept_ms is not None, "nothing expires otherwise"
        return kept_ms

    async def _expire(self, topic: str, due: Sequence[QueueId]) -> None:
        """Trim the due queues of a topic by age, and all of its queues by size."""
        state, options = self.tier.state, self.tier.options
        kept_ms = self._kept_ms(topic)
        before_ms = self.tier.clock.now_ms() - kept_ms
        keep: dict[QueueId, tuple[int, int]] = {}
        for number, queue_id in enumerate(due):
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await self.tier.clock.sleep(0)
            queue = state.queues.get(queue_id)
            if queue is None:
                continue
            place, stays_ms = await self._place_of(queue, before_ms)
            if place is not None:
                keep[queue_id] = queue.generation, place
            if state.queues.get(queue_id) is queue and place is None:
                self._queues.set(queue_id, None if stays_ms is None else stays_ms + kept_ms + 1)
            else:
                self._queues.note([queue_id])
        if options.topic_bytes_max:
            await self._shrink(state.queues.of_topic(topic), keep, options.topic_bytes_max)
        for queue_id, (generation, place) in keep.items():
            self._queues.note([queue_id])
            await self._trim(queue_id, generation, place)

    async def _place_of(self, queue: Queue, before_ms: int) -> tuple[int | None, int | None]:
        """Begin of the CommitLog without messages stored before a time. None if unchanged.

        Also returns the newest store time of the first remaining part. None if no messages remain.
        """
        place: int | None = None
        count = 0
        async for part in _oldest(queue, self._manifests, before_ms):
            if part.max_timestamp >= before_ms:
                return place, part.max_timestamp
            count += part.segments
            if count > SEGMENTS_MAX and place is not None:
                self._left_some = True
                return place, part.max_timestamp
            place = part.end
        last = queue.commit_log[-1] if queue.commit_log else None
        newest_ms = None if last is None else last.end_timestamp
        if newest_ms is not None and newest_ms < before_ms:
            return queue.flat_end(SegmentType.COMMIT_LOG), None
        return place, newest_ms

    async def _shrink(
        self, queues: Sequence[Queue], keep: dict[QueueId, tuple[int, int]], bytes_max: int
    ) -> None:
        """Advance the begins, oldest segments first, until a topic is within `bytes_max`."""
        total, generations = 0, {one.id: one.generation for one in queues}
        heap: list[_Oldest] = []
        for queue in queues:
            _, begin = keep.get(queue.id, (0, queue.flat_begin(SegmentType.COMMIT_LOG)))
            total += queue.flat_end(SegmentType.COMMIT_LOG) - begin
            segments = oldest_segments(queue, self._manifests)
            await _push_next(heap, queue.id, segments, begin)
        count = 0
        while total > bytes_max and heap and count < SEGMENTS_MAX:
            _, queue_id, segment, segments = heappop(heap)
            keep[queue_id] = generations[queue_id], segment.end
            total -= segment.size
            count += 1
            await _push_next(heap, queue_id, segments, segment.end)
        self._left_some |= count == SEGMENTS_MAX

    async def _trim(self, queue: QueueId, generation: int, keep_from: int) -> None:
        """Unpublish the segments of a queue that end at or before byte `keep_from` of its log.

        The plan is made on the newest record, without an await before it is published, so commits
        and moved bytes do not conflict with it. A merge of manifests that it read makes it plan
        again. A truncation of the tail ends it.
        """
        listed: dict[str, Sequence[Segment]] = {}
        made: dict[tuple[str, int], list[ManifestRef]] = {}
        for _ in range(PLANS_MAX):
            trim = await self._planned(queue, generation, keep_from, listed)
            if trim is None:
                break
            missing = [one for one in trim.shortened if _key(one) not in made]
            if not missing:
                await self._publish(trim, made, keep_from)  # no await since it was planned
                break
            for one in missing:
                made[_key(one)] = await self._written(queue, *one)
        else:
            self._left_some = True
        await self._bury_unused(queue, made)

    async def _planned(
        self,
        queue_id: QueueId,
        generation: int,
        keep_from: int,
        listed: dict[str, Sequence[Segment]],
    ) -> HeadTrim | None:
        """Plan the trim on the newest record. None if nothing is left to trim."""
        queues = self.tier.journal.planned.queues
        while True:
            queue = queues.get(queue_id)
            if queue is None or queue.generation != generation:
                return None
            rolled = self._rolled(queue, keep_from)
            after = queue if rolled is None else queue_changes.commit(queue, rolled)
            trim = plan_trim(after, listed, keep_from)
            if not isinstance(trim, ManifestRef):
                return trim
            try:
                listed[trim.object_name] = await self._manifests.segments(trim)
            except BytesMissing:
                now = queues.get(queue_id)
                if now is not None and trim in now.manifests:
                    raise  # it is lost; else it was merged with others since

    async def _written(
        self, queue: QueueId, ref: ManifestRef, segments: Sequence[Segment]
    ) -> list[ManifestRef]:
        """Write manifests of the rest of one. Several if an older program made it longer.

        Yields to other tasks after each, as a store may answer at once.
        """
        written: list[ManifestRef] = []
        for at in range(0, len(segments), MANIFEST_SEGMENTS_MAX):
            piece = segments[at : at + MANIFEST_SEGMENTS_MAX]
            written.append(await self._writer.write(queue, piece, ref.level))
            await self.tier.clock.sleep(0)
        return written

    def _rolled(self, queue: Queue, keep_from: int) -> CommitQueue | None:
        """Operation that seals the last segments, if all of their messages expire too."""
        if keep_from != queue.flat_end(SegmentType.COMMIT_LOG) or is_rolled(queue):
            return None
        return roll(queue, now_ms=self.tier.clock.now_ms(), epoch=self.tier.journal.epoch)

    async def _publish(
        self, trim: HeadTrim, made: Mapping[tuple[str, int], Sequence[ManifestRef]], keep_from: int
    ) -> None:
        tier = self.tier
        rolled = self._rolled(tier.journal.planned.queues[trim.queue], keep_from)
        manifests: list[ManifestRef] = []
        for flat in (trim.log, trim.units):
            if flat.shortened is not None:
                manifests += made[_key(flat.shortened)]
            manifests += flat.kept
        freed = (*trim.log.freed, *trim.units.freed)
        trimmed = TrimQueue(
            trim.queue,
            trim.expected_offset,
            trim.min_offset,
            trim.log.base,
            trim.units.base,
            tuple(manifests),
            tuple(tier.tombstone(name, EXPIRED) for name in freed),
            trim.planned_on,
            release_of(trim.log.in_manifests + trim.units.in_manifests, tier.due_ms()),
            trim.gaps_from,
        )
        await tier.journal.publish([trimmed] if rolled is None else [rolled, trimmed])
        self._messages += trim.messages
        self._bytes += trim.log.bytes

    async def _bury_unused(
        self, queue: QueueId, made: Mapping[tuple[str, int], Sequence[ManifestRef]]
    ) -> None:
        """Add tombstones to manifests that were written for an outdated plan."""
        names = [ref.object_name for refs in made.values() for ref in refs]
        record = self.tier.state.queues.get(queue)
        used = {ref.object_name for ref in record.manifests} if record is not None else set[str]()
        await self.tier.add_tombstones([name for name in names if name not in used])
        self._writer.settled(names)

    @property
    def figures(self) -> Mapping[str, int]:
        """Expired messages, and bytes of their records."""
        return {"expired_messages": self._messages, "expired_bytes": self._bytes}


class _Part(NamedTuple):
    """Adjacent segments of a CommitLog: one, or all of a manifest."""

    end: int
    max_timestamp: int
    segments: int


async def _oldest(queue: Queue, manifests: ManifestReader, before_ms: int) -> AsyncIterator[_Part]:
    """Parts of a CommitLog from the oldest on, without its last segment in the snapshot."""
    for ref in queue.manifests:
        if ref.type != SegmentType.COMMIT_LOG:
            continue
        if ref.min_timestamp < before_ms <= ref.max_timestamp:
            for segment in await manifests.segments(ref):
                yield _part_of(segment)
        else:
            yield _Part(ref.end, ref.max_timestamp, ref.segments)
    for segment in queue.commit_log[:-1]:
        yield _part_of(segment)


def _part_of(segment: Segment) -> _Part:
    newest_ms = segment.end_timestamp
    return _Part(segment.end, 0 if newest_ms is None else newest_ms, 1)


async def _push_next(
    heap: list[_Oldest], queue: QueueId, segments: AsyncIterator[Segment], begin: int
) -> None:
    """Put the queue's next segment from `begin` on into the heap, if it has one."""
    async for segment in segments:
        if segment.base >= begin:
            heappush(heap, (segment.end_timestamp or 0, queue, segment, segments))
            return


def _key(shortened: tuple[ManifestRef, tuple[Segment, ...]]) -> tuple[str, int]:
    """Key of a shortened manifest: its name, and the number of its remaining segments."""
    ref, segments = shortened
    return ref.object_name, len(segments)
