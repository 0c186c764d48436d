"""Offload: old segments, or those beyond the first store's limit, move to the second store.

Runs by age and size in the background, or on demand up to an offset or a time. Only sealed segments
are offloaded. Open ones of sufficient age are sealed for it. Segments that retention would delete
within the lag are not offloaded.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from container.errors import Refused
from container.metadata import queue_changes
from container.metadata.operations import CommitQueue
from container.metadata.records import Queue
from container.metadata.state import StateChange, TierState
from container.move.offload_copies import Offloader
from container.move.offload_plan import (
    Held,
    HeldSegments,
    Until,
    below,
    beyond_size,
    closing,
    not_expiring,
    older_than,
)
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.options import HOUR_MS, UpkeepOptions
from container.queue.manifest import ManifestReader
from container.steps import QUEUES_PER_TURN, DueQueues, OwnedTier, Step
from container.upkeep.garbage import OffloadedParts
from container.upkeep.retention import retention_ms
from provider.errors import StoreError
from provider.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class OffloadedQueue:
    """Offloaded segments of a queue, real or planned."""

    queue: QueueId
    segments: int
    bytes: int
    errors: tuple[StoreError, ...] = ()
    """Errors of segments that stay because bytes of them are damaged."""


class OffloadStep(Step):
    """Offloads the queues of all topics by age and size, according to the options.

    A run checks queues that changed or are due. If nothing is due it costs only one request for
    each uncached manifest that lists segments in the first store. Otherwise it costs as
    `Offloader`.
    """

    name = "offload"

    def __init__(self, tier: OwnedTier, parts: OffloadedParts) -> None:
        super().__init__(tier)
        self.interval_s = tier.options.offload_interval_s
        manifests = ManifestReader(tier.store, extents_max=10_000)
        self._parts = parts
        self._held = HeldSegments(manifests)
        self._offloader = Offloader(tier, parts, manifests)
        self._passed_over: dict[QueueId, set[tuple[SegmentType, int]]] = {}
        """Segments of each queue with damaged bytes. The next owner retries them."""
        by_size = tier.options.offload_topic_bytes > 0
        self._queues = DueQueues(tier.state.queues, by_size=by_size)
        self._one_at_a_time = asyncio.Lock()
        self._segments = self._bytes = 0

    async def step(self) -> None:
        """Offload due segments.

        Raises:
            Unavailable: a store does not answer. The next run continues.
            Corrupt, Denied, OutOfRange: of a queue, after the others were done; or the second store
                returned other bytes than were written.
            Fenced: a newer owner has the tier.
        """
        options = self.tier.options
        if not options.offload_age_hours and not options.offload_topic_bytes:
            return
        await self._queues.update(self.tier.state.queues, self.tier.clock, self._oldest_due_ms)
        await self._queues.each_topic(self.tier.clock.now_ms(), self._offload_due)

    async def _offload_due(self, topic: str, due: Sequence[QueueId]) -> StoreError | None:
        """Offload due segments of a topic. Return the first error of damaged segments."""
        async with self._one_at_a_time:
            done = await self._offload_topic(topic, due)
        await self.tier.clock.sleep(0)
        return next((error for one in done for error in one.errors), None)

    def published(self, changes: Sequence[StateChange]) -> None:
        """Add the queues of these changes to the next run."""
        for change in changes:
            self._queues.note(change.queues.changed)
            for queue, record in change.queues.changed.items():
                if record is None:
                    self._held.forget(queue)
                    self._passed_over.pop(queue, None)

    def _oldest_due_ms(self, queue: Queue) -> int | None:
        """Earliest time at which a segment of a queue may be old enough. None: never."""
        oldest_ms = self._held.oldest_ms(queue) if self.tier.options.offload_age_hours else None
        return None if oldest_ms is None else self._due_ms(oldest_ms)

    def _due_ms(self, newest_ms: int) -> int:
        """Time at which a segment is old enough, Unix ms.

        `newest_ms` is that of its newest message.
        """
        return newest_ms + HOUR_MS * self.tier.options.offload_age_hours + 1

    async def finish(self) -> None:
        """Do nothing: a clean end does not wait for copies."""

    async def by_hand(self, topic: str, until: Until) -> list[OffloadedQueue]:
        """Offload a topic's messages below `until`. Return the affected queues, in order.

        A segment goes as a whole or not at all. If all messages of a queue are requested, its open
        segments are sealed first. No writer may be appending to it.

        Raises: as `step`.
        """
        async with self._one_at_a_time:
            for queue in self._of_topic(topic):
                closed = closing(queue, until, now_ms=self.tier.clock.now_ms())
                if closed is not None:
                    await self.tier.journal.publish([closed])
            queues = self._of_topic(topic)
            wanted: list[tuple[QueueId, list[Held]]] = []
            for queue in queues:
                held = below(await self._held.of(queue), queue, until)
                wanted.append((queue.id, self._kept(queues, held)))
            found = await self._offload(wanted)
            return [one for one in found if one.segments or one.errors]

    def _of_topic(self, topic: str) -> list[Queue]:
        return self.tier.state.queues.of_topic(topic)

    def _kept(self, queues: Sequence[Queue], held: Sequence[Held]) -> list[Held]:
        """Segments that will not expire within the lag, and are not damaged."""
        tier = self.tier
        kept = staying(
            tier.state,
            tier.options,
            queues,
            held,
            now_ms=tier.clock.now_ms(),
            topic_hours=tier.topic_hours,
        )
        over = self._passed_over
        return [one for one in kept if one.key[1:] not in over.get(one.queue, ())]

    async def _records(self, names: Sequence[QueueId]) -> list[Queue]:
        """Records of the existing queues. Yields to other tasks."""
        found: list[Queue] = []
        for number, name in enumerate(names):
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await self.tier.clock.sleep(0)
            queue = self.tier.state.queues.peek(name)
            found += [] if queue is None else [queue]
        return found

    async def _offload_topic(self, topic: str, due: Sequence[QueueId]) -> list[OffloadedQueue]:
        """Offload due segments of a topic by age and size.

        Checks the due queues, or all queues if the topic's size counts.
        """
        options, names = self.tier.options, due
        if options.offload_topic_bytes or (options.expires and options.topic_bytes_max):
            names = self.tier.state.queues.names_of_topic(topic)
        before_ms = self.tier.clock.now_ms() - HOUR_MS * options.offload_age_hours
        if options.offload_age_hours:
            await self._close(names, before_ms)
        queues = await self._records(names)
        held = await self._all_held(queues)
        self._set_times(due, queues, held, before_ms)
        if not held:
            return []
        going: list[Held] = []
        if options.offload_age_hours:
            going += older_than(held, before_ms)
        if options.offload_topic_bytes:
            logs = (queue.segments(SegmentType.COMMIT_LOG)[-1:] for queue in queues)
            growing = sum(one.size for some in logs for one in some if one.sealed_ms is None)
            going += beyond_size(held, growing, options.offload_topic_bytes)
        keys = {one.key for one in going}
        wanted: dict[QueueId, list[Held]] = {}
        for one in self._kept(queues, [one for one in held if one.key in keys]):
            wanted.setdefault(one.queue, []).append(one)
        return await self._offload(list(wanted.items()))

    def _set_times(
        self,
        due: Sequence[QueueId],
        queues: Sequence[Queue],
        held: Sequence[Held],
        before_ms: int,
    ) -> None:
        """Set the next due times of unchanged queues, by their segments that are too young."""
        later: dict[QueueId, int] = {}
        for one in held:
            if one.newest_ms >= before_ms:
                later[one.queue] = min(later.get(one.queue, one.newest_ms), one.newest_ms)
        for queue in queues:
            for kind in FLAT_FILES:
                for segment in queue.segments(kind)[-1:]:
                    newest_ms = segment.end_timestamp
                    if newest_ms is not None and newest_ms >= before_ms:
                        later[queue.id] = min(later.get(queue.id, newest_ms), newest_ms)
        unchanged = set(due) - set(self._queues.changed)
        for name in due:
            if name in unchanged and self.tier.options.offload_age_hours:
                self._queues.set(name, self._due_ms(later[name]) if name in later else None)

    async def _all_held(self, queues: Sequence[Queue]) -> list[Held]:
        """Segments of queues in the first store. Yields to other tasks."""
        held: list[Held] = []
        for number, queue in enumerate(queues):
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await self.tier.clock.sleep(0)
            held += await self._held.of(queue)
        return held

    async def _close(self, names: Sequence[QueueId], before_ms: int) -> None:
        """Seal the open segments of queues whose newest message was stored before a time.

        The next commit begins others. A segment that would not be offloaded, for example because it
        expires soon, is not sealed. A queue that changes during the call is not idle and is
        skipped.
        """
        journal, now_ms = self.tier.journal, self.tier.clock.now_ms()
        changes: dict[QueueId, CommitQueue] = {}
        closed: list[Queue] = []
        for queue in await self._records(names):
            change = closing(queue, Until(ms=before_ms), now_ms=now_ms)
            if change is not None:
                changes[queue.id] = change
                queue = queue_changes.commit(queue, change)  # noqa: PLW2901 - as it would be
            closed.append(queue)
        if not changes:
            return
        held = await self._all_held(closed)
        going = {one.key for one in self._kept(closed, older_than(held, before_ms))}
        for queue_id, change in changes.items():
            before = journal.planned.queues.get(queue_id)
            if all((queue_id, one.type, one.base) not in going for one in change.changes):
                continue
            try:
                await journal.publish([change])
            except Refused:
                if journal.planned.queues.get(queue_id) is before:
                    raise

    async def _offload(
        self, wanted: Sequence[tuple[QueueId, Sequence[Held]]]
    ) -> list[OffloadedQueue]:
        """Offload segments, one queue after the other. Copies run ahead."""
        all_of_them = [one for _, held in wanted for one in held]
        if not all_of_them:
            return []
        await self._parts.settle()
        found: list[OffloadedQueue] = []
        async with self._offloader.copies(all_of_them) as copies:
            for queue, held in wanted:
                if not held:
                    continue
                done = await self._offloader.offload(queue, held, copies)
                if done.damaged:
                    over = self._passed_over.setdefault(queue, set())
                    over.update((one.type, one.base) for one, _ in done.damaged)
                self._segments += done.segments
                self._bytes += done.bytes
                errors = tuple(error for _, error in done.damaged)
                found.append(OffloadedQueue(queue, done.segments, done.bytes, errors))
        return found

    @property
    def figures(self) -> Mapping[str, int]:
        """Offloaded segments, and their bytes."""
        return {"offloaded_segments": self._segments, "offloaded_bytes": self._bytes}


def staying(
    state: TierState,
    options: UpkeepOptions,
    queues: Sequence[Queue],
    held: Sequence[Held],
    *,
    now_ms: int,
    topic_hours: Mapping[str, int] | None = None,
) -> list[Held]:
    """Segments that retention keeps beyond the lag. `queues` are all of a topic. Pure."""
    if not held:
        return []
    topic = held[0].queue.topic
    kept_ms = retention_ms(state, topic, options, topic_hours or {})
    lag_ms = int(1000 * options.offload_lag_s)
    before_ms = None if kept_ms is None else now_ms + lag_ms - kept_ms
    topic_bytes_max = options.topic_bytes_max if options.expires else 0
    return not_expiring(held, queues, before_ms=before_ms, topic_bytes_max=topic_bytes_max)


async def planned_offload(
    state: TierState,
    store: ObjectStore,
    options: UpkeepOptions,
    topic: str,
    until: Until,
    *,
    now_ms: int,
) -> list[OffloadedQueue]:
    """Plan the result of `OffloadStep.by_hand` for a topic. Changes nothing.

    A request for each manifest. Raises as `HeldSegments.of`.
    """
    find = HeldSegments(ManifestReader(store))
    queues = state.queues.of_topic(topic)
    closed: list[Queue] = []
    for queue in queues:
        change = closing(queue, until, now_ms=now_ms)
        closed.append(queue if change is None else queue_changes.commit(queue, change))
    found: list[OffloadedQueue] = []
    for queue in closed:
        wanted = below(await find.of(queue), queue, until)
        wanted = staying(state, options, closed, wanted, now_ms=now_ms)
        size = sum(one.segment.size for one in wanted)
        found.append(OffloadedQueue(queue.id, len(wanted), size))
    return [one for one in found if one.segments]
