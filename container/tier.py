"""Owner's side of a tier: plans commits, makes them durable, publishes them."""

import asyncio
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from random import Random
from types import MappingProxyType
from typing import Self

from container.errors import BytesMissing, Refused
from container.index.options import IndexOptions
from container.journal.journal import Journal
from container.journal.ownership import Permit
from container.lookup.collector import KeyCollector, with_keys
from container.lookup.query import Unsealed
from container.metadata.objects import release_of
from container.metadata.operations import (
    CutQueue,
    Operation,
    PutQueue,
    PutTopic,
    RecordGap,
)
from container.metadata.records import Gap, Queue, Tombstone, Topic
from container.names.queue_id import QueueId
from container.names.tier_objects import KeptName
from container.options import (
    CUT_PLANS_MAX,
    HOUR_MS,
    JournalOptions,
    TierIdentity,
    TierOptions,
    UpkeepOptions,
)
from container.queue.commit_plan import CommitPlan, CutRules, plan_commit
from container.queue.truncate import CUT_REASON, QueueCut, cut_queue
from container.record.batch import MessageBatch
from container.tier_view import TierView
from container.upkeep.garbage import announcements, left_of, taken_up
from container.upkeep.index_files import IndexStep
from container.upkeep.retention import retention_ms
from container.upkeep.tombstones import delete_topic, still_dying
from container.upkeep.upkeep import Upkeep
from provider.clock import Clock
from provider.errors import NotFound, OutOfRange, StoreError, Unavailable
from provider.file_segments import FileSegments, SegmentsDriver
from provider.object_store import ObjectStore
from provider.ranges import QueueOffset
from provider.stores.verified import probe

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
TOPICS_OF_ENTRY_MAX = 1000
"""Records of topics in one journal entry."""


class Tier(TierView):
    """Tier of one broker, owned by this process until another owner takes over.

    The order is always: data durable, then published in the journal. Unpublished data do not exist:
    a plan that failed half-way is repeated on the published state.
    """

    def __init__(
        self,
        store: ObjectStore,
        segments: FileSegments,
        journal: Journal,
        upkeep: Upkeep,
        *,
        clock: Clock,
        options: TierOptions,
        keys: KeyCollector | None = None,
    ) -> None:
        super().__init__(store, journal)
        self._segments = segments
        self._journal = journal
        self._upkeep = upkeep
        self._clock = clock
        self._options = options
        self._keys = keys
        self._new_topics: dict[str, Topic] = {}
        """Topics with an id that the journal may not have accepted yet."""
        self._next_topic_id = 0
        self._topic_settings: dict[str, str] = {}
        """Settings for the records of new topics."""

    @classmethod
    async def own(
        cls,
        store: ObjectStore,
        identity: TierIdentity,
        *,
        segments: SegmentsDriver,
        clock: Clock,
        rng: Random,
        options: TierOptions | None = None,
        journal_options: JournalOptions | None = None,
        upkeep_options: UpkeepOptions | None = None,
        imported: Sequence[Operation] = (),
        permit: Permit | None = None,
        index: IndexOptions | None = None,
    ) -> Self:
        """Take the ownership of the tier in `store`, or create a tier there.

        Costs the probe's requests, a listing, one snapshot, the journal entries after it, one new
        entry, and the requests of `segments`, which creates the port for commits. An earlier owner
        that is alive gets `Fenced` at its next commit. `index`: keep an index of messages by key.
        `imported`, `permit`: see `Journal.take_ownership`.

        Raises:
            Refused: there is data to import, and the tier has queues already.
            Denied: the storage cannot keep a tier, or the tier belongs to another broker.
            Corrupt: the journal is damaged. The position names the entry.
            Unavailable: retry later.
        """
        shift_ms = await probe(store, rng=rng, clock=clock)
        await segments.prepare()
        journal = await Journal.take_ownership(
            store,
            clock=clock,
            rng=rng,
            owner=identity.owner,
            cluster=identity.cluster,
            broker=identity.broker,
            options=journal_options or JournalOptions(),
            imported=imported,
            permit=permit,
        )
        try:
            written = await segments.open(journal)
        except BaseException:
            await journal.close()
            raise
        options = options or TierOptions()
        keys = KeyCollector(journal, options=index, clock=clock) if index else None
        upkeep = Upkeep.of(
            journal,
            store,
            clock=clock,
            rng=rng,
            options=upkeep_options,
            segments=written,
            cut_grace_ms=options.cut_grace_hours * HOUR_MS,
            keys=keys,
            extent_bytes_max=options.extent_bytes_max,
            storage_shift_ms=shift_ms,
        )
        return cls(store, written, journal, upkeep, clock=clock, options=options, keys=keys)

    def __repr__(self) -> str:
        return f"<Tier epoch {self._journal.epoch}: {len(self.state.queues)} queues>"

    def __del__(self) -> None:
        journal: Journal | None = getattr(self, "_journal", None)  # None if `__init__` failed
        if journal is not None and not journal.is_over:
            warnings.warn(f"unclosed tier {self!r}", ResourceWarning, stacklevel=2, source=self)

    @property
    def journal(self) -> Journal:
        """Journal, for statistics and for jobs that publish by themselves."""
        return self._journal

    @property
    def trouble(self) -> StoreError | None:
        """Error that holds up the commit under way, which is tried again; None while none does."""
        return self._journal.trouble

    @property
    def upkeep(self) -> Upkeep:
        """Background steps of the owner, for statistics."""
        return self._upkeep

    @property
    def unsealed(self) -> Sequence[Unsealed]:
        """Keys that are in no index file yet, for `find_messages`."""
        return () if self._keys is None else (self._keys.unsealed,)

    async def complete_index(self) -> None:
        """Read messages whose keys are missing, until an index file or memory has all keys.

        Returns at once without an index, and early if a read brings no more keys, as of damaged
        messages. `run` must be running. Costs what upkeep would read later. A cancelled call
        leaves the rest to upkeep.

        Raises:
            StoreError: as upkeep's step: some keys cannot be read.
        """
        left = 0 if self._keys is None else self._keys.messages_missing()
        while self._keys is not None and left:
            error = await self._upkeep.run_now(IndexStep.name)
            if error is not None:
                raise error
            before, left = left, self._keys.messages_missing()
            if left >= before:
                return

    async def run(self) -> None:
        """Write the journal and run upkeep until cancelled or closed.

        Without it no commit ends. One call at a time. After a cancellation it may be called again.

        Raises:
            Fenced, Corrupt, Closed: as `Journal.run`.
        """
        over: StoreError | None = None
        async with asyncio.TaskGroup() as group:
            upkeep = group.create_task(self._upkeep.run())
            self._upkeep.expect_run()
            try:
                await self._journal.run()
            except StoreError as error:
                over = error
            upkeep.cancel()
        if over is not None:
            raise over

    async def refresh(self, *, doubted: bool = False) -> bool:  # noqa: ARG002 - as `TierReader`
        """Do nothing: an owner's metadata is always the newest."""
        return False

    async def close(self) -> None:
        """Run upkeep once more and end the journal, each within its own deadline. Idempotent."""
        await self._upkeep.finish()
        await self._journal.close()

    async def settle(self, queue: QueueId) -> None:
        """Wait until the outcome of cancelled calls for a queue is known. See `Journal.settle`."""
        await self._journal.settle(queue)

    def plan_commit(self, queue: QueueId, batch: MessageBatch) -> CommitPlan:
        """Plan the commit of the next messages of a queue. See `commit_plan.plan_commit`.

        A queue that the tier does not have begins at the batch's first offset. Thread-safe.
        """
        record = self.queue(queue) or self._new_queue(queue, batch.first_offset)
        live = (*record.commit_log[-1:], *record.consume_queue[-1:])
        must_roll = any(self._segments.must_roll(segment.epoch) for segment in live)
        rules = CutRules(
            self._options,
            self._journal.epoch,
            self._clock.now_ms(),
            must_roll,
            self._segments.extents_grow,
            retention_ms(self.state, queue.topic, self._upkeep.options, self._upkeep.topic_hours),
        )
        plan = plan_commit(record, batch, rules)
        return plan if self._keys is None else with_keys(plan, batch)

    async def commit(self, plans: Sequence[CommitPlan]) -> None:
        """Make a round of plans durable with one round of syncs, then publish it in one entry.

        Raises:
            Unavailable: the outcome is unknown. Nothing is published before the journal's own retry
                has settled it. Read `queue` and plan again from there.
            Fenced: a newer owner has the tier. Nothing of the round is or will be visible.
            BytesMissing: a segment is missing, or shorter than published. Path names it.

        Cancelling leaves the outcome unknown in the same way. Waits for memory for the keys as
        `KeyCollector.room_for`.
        """
        keys = self._keys
        if keys is None:
            await self._commit(plans)
            return
        async with keys.room_for(plans) as has_room:
            await self._commit(plans)
            keys.committed(plans, has_room=has_room)
        self._upkeep.wake_urgent()

    async def _commit(self, plans: Sequence[CommitPlan]) -> None:
        self._wait_for_deletion(plans)
        slices = [part for plan in plans for part in plan.slices]
        if self._segments.has_segment_names:
            await self._announce([plan.queue for plan in plans])
        begun = {part.segment for part in slices if part.position == 0}
        begun.update(left_of(self._journal.planned, [plan.queue for plan in plans]))
        async with self._upkeep.deletions.begun(begun):
            try:
                placed = await self._segments.write(slices)
            except OutOfRange as error:
                self._explain(plans, error)
                raise BytesMissing.of(error) from error
            placements = iter(placed)
            operations = taken_up(self._journal.planned, [plan.queue for plan in plans])
            for plan in plans:
                if self.queue(plan.queue) is None:
                    operations += self._beginning_of(plan.queue, plan.expected_offset)
                operations.append(plan.published(list(islice(placements, len(plan.slices)))))
            try:
                await self._journal.publish(operations)
            except Refused as error:
                self._segments.abandon(placed)
                self._explain(plans, error)
                raise
            if self._new_topics:
                self._forget_known_topics()

    def _wait_for_deletion(self, plans: Sequence[CommitPlan]) -> None:
        """Refuse to begin a queue while files of a deleted queue of its name exist."""
        begun = [plan.queue for plan in plans if plan.queue not in self._journal.planned.queues]
        dying = still_dying(self._journal.planned.tombstones, begun)
        if dying is not None:
            reason = "files of the deleted topic of that name are not deleted yet; try again"
            raise Unavailable(reason, str(dying))

    def _explain(self, plans: Sequence[CommitPlan], error: StoreError) -> None:
        """Raise `Unavailable` if upkeep or a deletion has changed a queue since it was planned.

        Nothing of the round was published. A new plan is not refused for this reason.
        """
        for plan in plans:
            if self._journal.planned.queues.get(plan.queue) is not plan.planned_on:
                raise Unavailable(
                    "it was changed meanwhile; plan again", str(plan.queue)
                ) from error

    def _forget_known_topics(self) -> None:
        """Drop the ids of topics that the journal has accepted."""
        known = self._journal.planned.topics
        for name in [name for name in self._new_topics if name in known]:
            del self._new_topics[name]

    async def _announce(self, queues: Sequence[QueueId]) -> None:
        """Publish the creation of first files for queues that the tier does not have."""
        epoch, now_ms = self._journal.epoch, self._clock.now_ms()
        operations = announcements(self.state, queues, epoch=epoch, now_ms=now_ms)
        if operations:
            await self._journal.publish(operations)

    async def begin_queue(self, queue: QueueId, offset: QueueOffset) -> None:
        """Publish that a queue the tier does not have begins at `offset`, before its first message.

        Raises:
            Unavailable: a deletion of files of that queue failed, or files of a deleted queue of
                its name still exist. Retry later.
            Fenced: a newer owner has the tier.
        """
        planned = self._journal.planned
        if self.queue(queue) is None and still_dying(planned.tombstones, [queue]) is not None:
            raise Unavailable("files of the deleted topic are not deleted yet", str(queue))
        async with self._upkeep.deletions.begun(left_of(planned, [queue])):
            if self.queue(queue) is None:
                ended = taken_up(planned, [queue])
                await self._journal.publish([*ended, *self._beginning_of(queue, offset)])

    def _new_queue(self, queue: QueueId, first: QueueOffset) -> Queue:
        """Record of a queue that the tier does not have."""
        return Queue(queue, first, first, used_below=self.state.used_below_of_new_queues)

    def _beginning_of(self, queue: QueueId, first: QueueOffset) -> list[Operation]:
        """Operations to publish before the first commit of a queue. O(1).

        The id of a new topic is higher than all assigned ones, including those of failed rounds.
        """
        begun: list[Operation] = [PutQueue(self._new_queue(queue, first))]
        planned, name = self._journal.planned, queue.topic
        if name not in planned.topics:
            if name not in self._new_topics:
                topic_id = max(self._next_topic_id, planned.next_topic_id)
                self._next_topic_id = topic_id + 1
                self._new_topics[name] = Topic(
                    name,
                    topic_id,
                    updated_ms=self._clock.now_ms(),
                    settings=self._topic_settings.get(name, ""),
                )
            begun.insert(0, PutTopic(self._new_topics[name]))
        return begun

    async def record_gap(
        self, queue: QueueId, start: QueueOffset, end: QueueOffset, reason: str
    ) -> None:
        """Publish that `[start, end)` was lost. The next message of the queue has offset `end`.

        Raises:
            Fenced: a newer owner has the tier.
        """
        gap = Gap(start, end, reason, self._clock.now_ms())
        await self._journal.publish([RecordGap(queue, gap)])

    async def delete_topic(self, topic: str) -> int:
        """Unpublish all queues of a topic in one entry. Return their number.

        Upkeep's next run may delete its files. A queue of that name can begin again, in a higher
        generation, once they are gone. One request for each manifest, and if segments are files one
        for each queue.

        Raises:
            BytesMissing, Corrupt: a manifest is lost or damaged.
            Unavailable: the queues kept changing, or a request failed. Retry later.
            Fenced: a newer owner has the tier.
        """
        return await delete_topic(
            self._journal,
            self._store,
            topic,
            has_segment_names=self._segments.has_segment_names,
            clock=self._upkeep.clock,
            plans_max=CUT_PLANS_MAX,
        )

    async def set_topics(
        self, hours: Mapping[str, int], settings: Mapping[str, str] = NO_SETTINGS
    ) -> None:
        """Publish the retention in hours and the settings of topics that the tier has.

        -1: the default retention. No entry without a change. See `apply_topics`.

        Raises:
            Fenced: a newer owner has the tier.
        """
        self.apply_topics(hours, settings)
        while changed := list(islice(self._changed_topics(hours, settings), TOPICS_OF_ENTRY_MAX)):
            await self._journal.publish(changed)

    def apply_topics(
        self, hours: Mapping[str, int], settings: Mapping[str, str] = NO_SETTINGS
    ) -> None:
        """Apply retentions from now on, and enter settings with topics that are new."""
        self._upkeep.topic_hours.update(hours)
        self._topic_settings.update(settings)

    def _changed_topics(
        self, hours: Mapping[str, int], settings: Mapping[str, str]
    ) -> Iterator[PutTopic]:
        now_ms = self._clock.now_ms()
        for name, topic in self.state.topics.items():
            text = settings.get(name, topic.settings)
            if hours.get(name, topic.retention_hours) != topic.retention_hours:
                yield PutTopic(
                    replace(topic, retention_hours=hours[name], updated_ms=now_ms, settings=text)
                )
            elif text != topic.settings:
                yield PutTopic(replace(topic, settings=text))

    async def cut_queue(self, queue: QueueId, next_offset: QueueOffset, reason: str) -> None:
        """Unpublish the messages of a queue at and above `next_offset`.

        Their bytes stay until the grace time is over. Files that are removed as a whole are first
        copied below `@cut/`. Messages published during the call are truncated too: the plan is then
        made again.

        Raises:
            OutOfRange: the queue has no such offset.
            BytesMissing: bytes at the truncation point, or a manifest, are lost.
            Unavailable: the queue kept changing, or a request failed. Retry later.
            Fenced: a newer owner has the tier.
        """
        epoch, sequence = self._journal.epoch, self.state.sequence
        copied: dict[str, int] = {}
        kept: dict[str, None] = {}
        changed: StoreError | None = None
        for _ in range(CUT_PLANS_MAX):
            container = self.container(queue)
            if container is None:
                raise NotFound("the tier has no such queue", str(queue))
            planned_on, now_ms = container.record, self._clock.now_ms()
            try:
                cut = await cut_queue(container, self._store, next_offset, now_ms=now_ms)
            except BytesMissing as error:  # perhaps of a manifest that was merged with others
                if self.queue(queue) is planned_on:
                    raise
                changed = error
                continue
            files = [file for file in cut.files if copied.get(file.name, -1) < file.bytes]
            if files:
                names = {file.name: str(KeptName(epoch, sequence, file.name)) for file in files}
                kept.update(dict.fromkeys(await self._segments.preserve(names)))
                copied.update(files)
                continue
            names = (*cut.manifests, *(file.name for file in cut.files), *kept)
            try:
                await self._journal.publish([self._cut_operation(cut, reason, names)])
            except Refused as error:  # a commit, or upkeep, has changed the record since
                changed = error
                await self._journal.settle(queue)
            else:
                return
        raise Unavailable(
            "the queue changes faster than it can be cut; stop what tiers it, then try again",
            str(queue),
        ) from changed

    def _cut_operation(self, cut: QueueCut, reason: str, freed: Sequence[str]) -> CutQueue:
        """Operation that publishes a truncation.

        Freed objects stay for the grace time of truncations.
        """
        not_before_ms = self._upkeep.clock.now_ms() + self._options.cut_grace_hours * HOUR_MS
        tombstones = tuple(Tombstone(name, not_before_ms, CUT_REASON) for name in freed)
        release = release_of(cut.in_manifests, not_before_ms)
        return CutQueue(cut.queue, reason, tombstones, cut.planned_on, release)
