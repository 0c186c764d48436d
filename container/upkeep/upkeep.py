"""What the owner does between entries; without anything to do it asks the store for nothing."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from container.errors import Refused
from container.journal.options import Chance, JournalOptions
from container.journal.reader import Loaded
from container.journal.snapshot import write_snapshot
from container.journal.truncation import (
    DurableBoundary,
    VerifiedSnapshot,
    cut_journal,
    plan_boundary,
    plan_old_boundaries,
)
from container.metadata.operations import AddTombstones, DropTombstones, MoveToManifest, Operation
from container.metadata.records import Segment, Tombstone
from container.metadata.state import StateChange
from container.names.queue_id import QueueId
from container.queue.manifest import ManifestPlan, ManifestReader, plan_manifest, write_manifest
from container.upkeep.deletion import failed_again, plan_burial
from container.upkeep.orphans import NEVER_PUBLISHED, Publisher, StraySearch
from provider.clock import Clock
from provider.errors import Closed, Corrupt, Fenced, StoreError
from provider.object_store import ObjectStore

LAST_ENTRIES_MAX = 32
"""A clean end leaves fewer entries than this behind the newest snapshot."""


class Owner(Publisher, Protocol):
    """The part of `Journal` that housekeeping needs."""

    @property
    def epoch(self) -> int:
        """The owner's epoch."""
        ...

    async def verify_owner(self) -> None:
        """Raise `Fenced` if somebody newer owns the tier."""
        ...


@dataclass(frozen=True, slots=True)
class HousekeepingStatistics:
    """What housekeeping did, and what it could not do."""

    snapshots: int = 0
    manifests: int = 0
    boundary: int = 0
    """Journal entries up to it may be gone."""
    journal_objects_deleted: int = 0
    objects_deleted: int = 0
    """Objects behind tombstones."""
    strays: int = 0
    """Objects of earlier owners that were never published, and have tombstones now."""
    undeletable: int = 0
    """Tombstones that were given up: their objects are still there, and cost money."""
    damaged_snapshots: int = 0
    """Snapshots that could not be used when the ownership was taken."""
    last_error: str = ""
    """Why the last round ended early; empty if it did not."""


class Housekeeper:
    """Moves sealed segments to manifests, writes snapshots, cuts the journal, buries objects.

    Every step may fail or be cancelled anywhere: what it leaves is unreferenced, and the next
    round does the step again.
    """

    def __init__(
        self,
        owner: Owner,
        store: ObjectStore,
        loaded: Loaded,
        *,
        clock: Clock,
        rng: Chance,
        options: JournalOptions,
    ) -> None:
        self._owner = owner
        self._store = store
        self._clock = clock
        self._rng = rng
        self._options = options
        self._manifests = ManifestReader(store)
        now_s = clock.monotonic_s()
        snapshot = loaded.snapshot
        self._verified = [VerifiedSnapshot(snapshot, now_s)] if snapshot else []
        self._boundaries: list[DurableBoundary] = []
        self._entries = loaded.state.sequence - (snapshot.sequence if snapshot else 0)
        self._first_entry_s = now_s
        self._touched: dict[QueueId, None] = dict.fromkeys(loaded.state.queues)
        self._search = self._new_search() if loaded.state.broker.epoch > 1 else None
        self._due = asyncio.Event()
        self._finishing = False
        self._finished = asyncio.Event()
        self._done = HousekeepingStatistics(damaged_snapshots=len(loaded.damaged))

    def __repr__(self) -> str:
        return f"<Housekeeper: {self._entries} entries behind the snapshot, {self._done}>"

    def statistics(self) -> HousekeepingStatistics:
        """Counters since the ownership was taken."""
        given_up = sum(
            dead.tries >= self._options.tombstone_tries_max
            for dead in self._owner.state.tombstones.values()
        )
        strays = self._search.found if self._search else 0
        return replace(self._done, undeletable=given_up, strays=strays)

    def landed(self, changes: Iterable[StateChange]) -> None:
        """An entry with these changes was published."""
        for change in changes:
            self._touched.update(dict.fromkeys(change.queues.changed))
        if self._entries == 0:
            self._first_entry_s = self._clock.monotonic_s()
        self._entries += 1
        if self._entries >= self._options.snapshot_entries_max:
            self._due.set()

    async def run(self) -> None:
        """Keep house whenever there may be work, until cancelled or fenced."""
        while True:
            await self._due.wait()
            self._due.clear()
            finishing = self._finishing
            try:
                await self.keep()
                self._done = replace(self._done, last_error="")
            except (Fenced, Closed):
                self._finished.set()
                return
            except StoreError as error:
                self._done = replace(self._done, last_error=str(error))
            if finishing:
                self._finished.set()

    async def finish(self) -> None:
        """Have a last round kept, which also snapshots what a start would have to replay."""
        self._finishing = True
        self._due.set()
        await self._finished.wait()

    async def tick(self) -> None:
        """Look for work every `housekeeping_s`, until cancelled."""
        while True:
            await self._clock.sleep(self._options.housekeeping_s)
            self._due.set()

    async def keep(self) -> None:
        """One round. No request where nothing is due.

        Raises:
            Unavailable: the rest is done in the next round.
            Corrupt: something was read back damaged; it is not used.
            Fenced: somebody newer owns the tier.
        """
        first: StoreError | None = None
        for step in (
            self._move_to_manifests,
            self._snapshot,
            self._find_strays,
            self._cut,
            self._bury,
        ):
            try:
                await step()
            except (Fenced, Closed):
                raise
            except StoreError as error:  # one damaged manifest must not stop the snapshots
                first = first or error
        if first is not None:
            raise first

    async def _move_to_manifests(self) -> None:
        first: Corrupt | None = None
        for queue_id in list(self._touched):
            self._touched.pop(queue_id)
            queue = self._owner.state.queues.get(queue_id)
            try:
                while queue and (plan := plan_manifest(queue, self._options)):
                    await self._move(queue_id, plan)
                    queue = self._owner.state.queues.get(queue_id)
            except Corrupt as damage:  # again at this queue's next commit
                first = first or damage
            except BaseException:
                self._touched[queue_id] = None
                raise
        if first is not None:
            raise first

    async def _move(self, queue: QueueId, plan: ManifestPlan) -> None:
        segments: list[Segment] = list(plan.segments)
        for ref in plan.merged:
            segments += await self._manifests.segments(ref)
        ref = await write_manifest(
            self._store,
            queue,
            plan,
            segments,
            epoch=self._owner.epoch,
            sequence=self._owner.state.sequence,
            rng=self._rng,
        )
        replaced = tuple(old.object_name for old in plan.merged)
        bases = tuple(segment.base for segment in plan.segments)
        graves = tuple(self._tombstone(name, "merged") for name in replaced)
        try:
            await self._owner.publish([MoveToManifest(queue, ref, bases, replaced, graves)])
        except Refused:  # the queue was trimmed or cut meanwhile
            grave = self._tombstone(ref.object_name, NEVER_PUBLISHED)
            await self._owner.publish([AddTombstones((grave,))])
        else:
            self._done = replace(self._done, manifests=self._done.manifests + 1)

    def _tombstone(self, name: str, reason: str) -> Tombstone:
        return Tombstone(name, self._clock.now_ms() + int(self._options.grace_s * 1000), reason)

    async def _snapshot(self) -> None:
        age_s = self._clock.monotonic_s() - self._first_entry_s
        limit = self._options.snapshot_entries_max
        many = self._entries >= (min(limit, LAST_ENTRIES_MAX) if self._finishing else limit)
        if self._entries == 0 or not (many or age_s >= self._options.snapshot_age_s_max):
            return
        before, first_s = self._entries, self._clock.monotonic_s()
        name = await write_snapshot(
            self._store,
            self._owner.state,
            epoch=self._owner.epoch,
            rng=self._rng,
            clock=self._clock,
        )
        self._entries -= before
        self._first_entry_s = first_s
        self._verified.append(VerifiedSnapshot(name, self._clock.monotonic_s()))
        self._done = replace(self._done, snapshots=self._done.snapshots + 1)

    def _new_search(self) -> StraySearch:
        return StraySearch(
            self._owner,
            self._store,
            self._manifests,
            bury=self._tombstone,
            queues_per_step_max=self._options.searched_queues_per_round_max,
        )

    async def _find_strays(self) -> None:
        """What earlier owners never published; not before the first snapshot, so starts are short.

        At a clean end once more, for good. Before the first owner there is no stray.
        """
        if self._search is None:
            return
        if self._finishing:
            await self._search.finish()
        elif self._done.snapshots > 0:
            await self._search.step()

    async def _cut(self) -> None:
        now_s = self._clock.monotonic_s()
        upto = plan_boundary(self._verified, now_s, self._options.grace_s)
        if upto is None or upto.sequence <= self._done.boundary:
            return
        replaced = plan_old_boundaries(self._boundaries, now_s, self._options.listing_s_max)
        gone = await cut_journal(
            self._store, upto, replaced=replaced, epoch=self._owner.epoch, rng=self._rng
        )
        self._boundaries = [one for one in self._boundaries if one.sequence >= replaced]
        self._boundaries.append(DurableBoundary(upto.sequence, self._clock.monotonic_s()))
        self._verified = [one for one in self._verified if one.name.sequence >= upto.sequence]
        deleted = self._done.journal_objects_deleted + gone
        self._done = replace(self._done, boundary=upto.sequence, journal_objects_deleted=deleted)

    async def _bury(self) -> None:
        burial = plan_burial(self._owner.state, self._clock.now_ms(), self._options)
        if burial.drop:
            await self._owner.publish([DropTombstones(burial.drop)])
        if not burial.delete:
            return
        await self._owner.verify_owner()
        gone, failed = await self._delete(burial.delete)
        operations: list[Operation] = []
        if gone:
            operations.append(DropTombstones(tuple(gone)))
        if failed:
            operations.append(AddTombstones(tuple(failed)))
        await self._owner.publish(operations)
        self._done = replace(self._done, objects_deleted=self._done.objects_deleted + len(gone))

    async def _delete(self, graves: tuple[Tombstone, ...]) -> tuple[list[str], list[Tombstone]]:
        """Delete objects together, or one by one if that fails; names that went, and the rest."""
        names = [grave.object_name for grave in graves]
        try:
            await self._store.delete(names)
        except (Fenced, Closed):
            raise
        except StoreError:
            if len(graves) == 1:
                return [], [failed_again(graves[0], self._clock.now_ms(), self._options)]
        else:
            return names, []
        gone: list[str] = []
        failed: list[Tombstone] = []
        for grave in graves:
            names, again = await self._delete((grave,))
            gone += names
            failed += again
        return gone, failed
