"""Tombstones: deletion of a topic, and the step that deletes objects of due tombstones."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf

from container.check.metadata import refuse_other_second_store
from container.errors import BytesMissing
from container.journal.journal import Journal
from container.metadata.objects import FREED, own_file, references, release_of
from container.metadata.operations import (
    AddTombstones,
    DropQueue,
    DropTombstones,
    Operation,
    PutAttempt,
)
from container.metadata.records import (
    Attempt,
    ManifestRef,
    Queue,
    QueueBasis,
    Segment,
    Tombstone,
)
from container.metadata.state import StateChange, TierState
from container.metadata.tables import TombstoneTable
from container.move.offload_copies import OFFLOADED
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import parse_segment_name
from container.queue.manifest import ManifestReader
from container.steps import (
    NEVER_PUBLISHED,
    Deletions,
    OwnedTier,
    Step,
    failed_again,
    plan_deletions,
    still_due,
)
from container.upkeep.garbage import DROPPED, KIND, attempt_of
from provider.clock import Clock
from provider.errors import Closed, Fenced, StoreError, Unavailable
from provider.object_store import ObjectStore

DELETED = "topic deleted"
"""Reason in tombstones of its files. A queue of that name can begin again once they are gone."""


AT_ONCE = frozenset({DELETED, NEVER_PUBLISHED})
"""Reasons of tombstones of objects without readers: deleted or never published."""
COPIES = frozenset({OFFLOADED, FREED})
"""Reasons of tombstones of objects that may have been offloaded. Parts have the same reason in all
cases."""


class TombstoneStep(Step):
    """Deletes objects whose tombstones are due, unless they are in use again."""

    name = "tombstones"
    finishes_again = True

    def __init__(self, tier: OwnedTier) -> None:
        super().__init__(tier)
        self._deleted = 0
        self._frees_names = False
        self._waiting = [(one.not_before_ms, name) for name, one in tier.state.tombstones.items()]
        """Heap of times and names. Entries of tombstones that have changed since are ignored."""
        heapify(self._waiting)
        self._due: dict[str, None] = {}
        """Due names, in the order of checks."""
        self._of_deleted: set[str] = set()
        """Names whose deletion frees the name of a queue, ..."""
        self._failing: set[str] = set()
        """... and names with enough failed deletions to be reported."""
        for one in tier.state.tombstones.values():
            self._note(one)
        self._began_s, self._began_ms = tier.clock.monotonic_s(), tier.clock.now_ms()
        self._unpublished_s: dict[str, float] = {}
        """Publication times of this owner's tombstones, monotonic seconds. They may be later than
        planned."""
        self.failure: StoreError | None = None
        """Error of the last run that deleted objects. None: it deleted all."""

    @property
    def urgent(self) -> bool:
        """Whether a topic was deleted: a queue of its name waits for the deletion of its files."""
        return self._frees_names

    def published(self, changes: Sequence[StateChange]) -> None:
        """Record files of deleted topics, and the times at which others were unpublished."""
        now_s = self.tier.clock.monotonic_s()
        for change in changes:
            drops = any(queue is None for queue in change.queues.changed.values())
            for name, one in change.tombstones.changed.items():
                for names in (self._of_deleted, self._failing):
                    names.discard(name)
                self._due.pop(name, None)
                if one is not None:
                    heappush(self._waiting, (one.not_before_ms, name))
                    self._note(one)
                if one is None:
                    self._unpublished_s.pop(name, None)
                elif one.reason == DELETED:
                    self._frees_names = True
                else:  # a deleted queue has no readers
                    self._unpublished_s[name] = -inf if drops else now_s

    def _note(self, tombstone: Tombstone) -> None:
        if tombstone.reason == DELETED:
            self._of_deleted.add(tombstone.object_name)
        if tombstone.tries >= self.tier.options.undeletable_after_tries:
            self._failing.add(tombstone.object_name)

    def _candidates(self, *, is_last: bool) -> list[str]:
        """The next due names, up to the limit of one run, or all in the last run.

        Names that have to stay are checked again after the others.
        """
        now_ms, known = self.tier.clock.now_ms(), self.tier.state.tombstones
        while self._waiting and self._waiting[0][0] <= now_ms:
            due_ms, name = heappop(self._waiting)
            if name in known and known[name].not_before_ms == due_ms:
                self._due[name] = None
        count = len(self._due) if is_last else 2 * self.tier.options.tombstones_per_step_max
        found = list(islice(self._due, count))
        for name in found:
            del self._due[name]
            self._due[name] = None
        return found

    def _rests(self, tombstone: Tombstone, *, inherits: bool) -> bool:
        """Whether a reader that opened before the object was unpublished may still rely on it.

        A tombstone has the time of its plan. Its publication may be later, after an outage. An
        owner knows this time for its own tombstones. It treats a recently due tombstone of an
        earlier owner as published just before its own start (`inherits`). So no deletion is early
        if the tombstone was published within a grace time of its plan.
        """
        if tombstone.reason in AT_ONCE or tombstone.tries:
            return False
        clock, grace_s = self.tier.clock, self.tier.options.grace_s
        is_late = tombstone.not_before_ms > self._began_ms - int(1000 * grace_s)
        unknown_s = self._began_s if inherits and is_late else -inf
        unpublished_s = self._unpublished_s.get(tombstone.object_name, unknown_s)
        return unpublished_s + grace_s > clock.monotonic_s()

    async def step(self) -> None:
        """Delete due objects. Six requests, and one more per object if they fail together.

        Raises:
            Unavailable, Denied: some objects could not be deleted. They are due again later.
            Fenced: a newer owner has the tier.
        """
        await self._step(inherits=True)

    async def finish(self) -> None:
        """As `step`, but tombstones of an earlier owner are due at their own times.

        A short-lived owner, such as that of a command, does not wait.
        """
        await self._step(inherits=False)

    async def _step(self, *, inherits: bool) -> None:
        tier, options = self.tier, self.tier.options
        self._frees_names = False
        unclear = tier.deletions.unclear
        candidates = self._candidates(is_last=not inherits)

        def planned(*, copies: bool) -> Deletions:
            return plan_deletions(
                tier.state,
                tier.clock.now_ms(),
                options,
                among=candidates,
                unclear=unclear,
                rests=lambda one: (
                    (not copies and one.reason in COPIES) or self._rests(one, inherits=inherits)
                ),
            )

        due = planned(copies=True)
        unseen = await self._other_copies_unseen(due.delete)
        if unseen is not None:
            due = planned(copies=False)
        if due.drop:
            await tier.journal.publish([DropTombstones(due.drop)])
        wanted = due.delete
        if not wanted:
            if unseen is not None:
                raise unseen
            return
        await tier.journal.verify_owner()
        # A commit may be beginning a segment of such a name, or wait for the journal.
        idle = [one for one in wanted if one.object_name not in tier.deletions.being_begun]
        published = still_due(tier.state, idle, unclear=unclear)
        delete = still_due(tier.journal.planned, published, unclear=unclear)
        if not delete:
            return
        gone, failed, self.failure = await self._delete(delete)
        operations: list[Operation] = []
        if gone:
            operations.append(DropTombstones(tuple(gone)))
        if failed:
            now_ms = tier.clock.now_ms()
            again = tuple(failed_again(one, now_ms, options) for one in failed)
            operations.append(AddTombstones(again))
        await tier.journal.publish(operations)
        self._deleted += len(gone)
        self._frees_names |= bool(gone) and bool(self._of_deleted)
        error = self.failure or unseen
        if error is not None:
            raise error

    async def _other_copies_unseen(self, due: Sequence[Tombstone]) -> StoreError | None:
        """Reason for which due objects may be the last copies. None: they are not.

        Offloaded segments stay in the first store while the second store does not answer, or is
        another one. One read there in a run that would delete some of them.
        """
        tier = self.tier
        if not tier.options.offloads or all(one.reason not in COPIES for one in due):
            return None
        try:
            await refuse_other_second_store(
                tier.store, tier.state.attempts, tier.options.offload_place
            )
        except StoreError as error:
            return error
        return None

    async def _delete(
        self, tombstones: tuple[Tombstone, ...]
    ) -> tuple[list[str], list[Tombstone], StoreError | None]:
        """Delete objects together, or one by one if that fails.

        Return the deleted, the rest, and the error.
        """
        names = [tombstone.object_name for tombstone in tombstones]
        try:
            with self.tier.deletions.asked(names):
                await self.tier.store.delete(names)
        except (Fenced, Closed):
            raise
        except StoreError as error:
            if len(tombstones) == 1:
                return [], [tombstones[0]], error
        else:
            return names, [], None
        gone: list[str] = []
        failed: list[Tombstone] = []
        first: StoreError | None = None
        for tombstone in tombstones:
            names, again, error = await self._delete((tombstone,))
            gone += names
            failed += again
            first = first or error
        return gone, failed, first

    @property
    def figures(self) -> Mapping[str, int]:
        """Objects deleted, and objects with repeated failures, which need an operator."""
        return {"objects_deleted": self._deleted, "undeletable": len(self._failing)}


async def delete_topic(
    journal: Journal,
    store: ObjectStore,
    topic: str,
    *,
    has_segment_names: bool,
    clock: Clock,
    plans_max: int,
) -> int:
    """Unpublish all queues of a topic in one entry, as documented in `Tier.delete_topic`.

    Planned on the newest records, without an await before the publication, so commits do not
    conflict with it. At most `plans_max` attempts, if manifests are merged concurrently.
    """
    manifests = ManifestReader(store)
    planned, now_ms = journal.planned, clock.now_ms()
    listed: dict[str, Sequence[Segment]] = {}
    missing: BytesMissing | None = None
    for _ in range(plans_max):
        left = await _never_published(journal.state, store, topic, now_ms=now_ms)
        known = planned.queues.of_topic(topic) if has_segment_names else ()
        files: dict[QueueId, Sequence[str]] = {}
        with suppress(Unavailable):  # the next owner lists them again
            files = {one.id: await _segment_files(store, f"{one.id}/") for one in known}
        for ref in _unlisted(planned.queues.of_topic(topic), listed):
            try:
                listed[ref.object_name] = await manifests.segments(ref)
            except BytesMissing as error:
                if ref in _unlisted(planned.queues.of_topic(topic), listed):
                    raise
                missing = error  # it was merged with others since
        queues = planned.queues.of_topic(topic)  # no await from here on
        if _unlisted(queues, listed):
            continue
        drops: list[Operation] = []
        for one in queues:
            unknown = [name for name in files.get(one.id, ()) if name not in planned.tombstones]
            drops.append(_drop(one, listed, planned.tombstones, now_ms, unknown))
            if has_segment_names:
                drops.append(_announced(one.id, journal.epoch, now_ms))
        if drops or left:
            await journal.publish([*drops, AddTombstones(left)] if left else drops)
        return len(queues)
    reason = "its manifests change faster than they can be read; try again"
    raise Unavailable(reason, topic) from missing


async def _segment_files(store: ObjectStore, prefix: str) -> list[str]:
    """Files of one queue, published or not. One request."""
    entries = await store.list(prefix)
    return [entry.name for entry in entries if parse_segment_name(entry.name) is not None]


def _unlisted(
    queues: Iterable[Queue], listed: Mapping[str, Sequence[Segment]]
) -> list[ManifestRef]:
    """Manifests of some queues that were not read."""
    return [ref for one in queues for ref in one.manifests if ref.object_name not in listed]


async def _never_published(
    state: TierState, store: ObjectStore, topic: str, *, now_ms: int
) -> tuple[Tombstone, ...]:
    """Files of queues that were begun and never published. One request for each such queue."""
    prefixes = [
        one.output_prefix
        for one in state.attempts.values()
        if one.kind == KIND and one.output_prefix.startswith(f"{topic}/")
    ]
    names = [name for prefix in prefixes for name in await _segment_files(store, prefix)]
    return tuple(Tombstone(name, now_ms, DELETED) for name in names if name not in state.tombstones)


def _announced(queue: QueueId, epoch: int, now_ms: int) -> PutAttempt:
    """Operation that makes the next owner list the files left by a deleted queue."""
    return PutAttempt(Attempt(attempt_of(queue), DROPPED, now_ms, epoch, f"{queue}/"))


def _drop(
    queue: Queue,
    listed: Mapping[str, Sequence[Segment]],
    tombstones: TombstoneTable,
    now_ms: int,
    files: Iterable[str],
) -> DropQueue:
    """Operation that unpublishes a queue. Pure.

    `files` are those in its directories, published or not, that have no tombstones.

    Its files may be deleted at once, as no reader may read them any more. So may its offloaded
    bytes, after the lag.
    """
    old = [segment for ref in queue.manifests for segment in listed[ref.object_name]]
    segments = [segment for kind in FLAT_FILES for segment in queue.segments(kind)] + old
    own_files = [own_file(queue.id, segment) for segment in segments]
    names = [name for name in own_files if name is not None]
    names += [ref.object_name for ref in queue.manifests]
    names += files
    waiting = tombstones.in_directory(str(queue.id))
    names += sorted(name for name in waiting if tombstones[name].reason == OFFLOADED)
    dead = tuple(Tombstone(name, now_ms, DELETED) for name in dict.fromkeys(names))
    return DropQueue(queue.id, dead, QueueBasis.of(queue), release_of(references(old), now_ms))


def still_dying(tombstones: TombstoneTable, queues: Iterable[QueueId]) -> QueueId | None:
    """First of `queues` with remaining files of a deleted topic. Pure.

    O(tombstones of the queues).
    """
    for queue in queues:
        names = tombstones.in_directory(str(queue))
        if any(tombstones[name].reason == DELETED for name in names):
            return queue
    return None
