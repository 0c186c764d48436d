"""Garbage of earlier owners: orphans and unreferenced parts of both stores get tombstones."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

from container.check.metadata import lacking_text, mark, refuse_other_second_store
from container.metadata.objects import (
    home_attempt,
    home_of,
    mark_name,
    names_of_queue,
    object_names,
    place_of,
    references,
)
from container.metadata.operations import (
    AddTombstones,
    CountParts,
    DropTombstones,
    EndAttempt,
    Operation,
    PutAttempt,
)
from container.metadata.records import Attempt, ManifestRef, Queue
from container.metadata.state import StateChange, TierState
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import (
    BASE_DIGITS,
    parse_local_file_name,
    parse_segment_name,
)
from container.names.tier_objects import KEPT_PREFIX, MANIFEST_PREFIX
from container.queue.manifest import ManifestReader
from container.steps import (
    NEVER_PUBLISHED,
    OwnedTier,
    Step,
    may_come_back,
    names_in_use,
    never_published,
)
from container.upkeep.snapshots import SnapshotStep
from provider.errors import (
    AlreadyExists,
    Corrupt,
    Denied,
    NotFound,
    OutOfRange,
    StoreError,
    Unavailable,
)
from provider.file_segments import FileSegments
from provider.stores.packed_segments import (
    HOME_BYTES,
    NONCE_BYTES,
    PackedSegments,
    PartName,
    parts_prefix,
)
from provider.stores.two_stores import is_offloaded
from provider.stores.verified import PROBE_PREFIX, probe


@dataclass(frozen=True, slots=True)
class FilesOfQueue:
    """Files of a queue that neither a segment in the snapshot nor a tombstone names."""

    orphans: tuple[str, ...]
    """Files below the published end of their flat file, outside the ranges of manifests:
    unreferenced."""
    doubtful: tuple[tuple[ManifestRef, tuple[str, ...]], ...]
    """Manifests with more files in their range than they list, or files of an offloaded queue, with
    these files."""
    above: tuple[str, ...]
    """Files at or above the published end: a commit may have created them, or be creating them."""


def sort_files(state: TierState, queue_id: QueueId, names: Iterable[str]) -> FilesOfQueue:
    """Classify the files of a queue's directory by the state. Pure.

    Microseconds for each name. A name that is not exactly a segment's is in no group.
    """
    queue = state.queues.get(queue_id)
    if queue is None:
        return FilesOfQueue((), (), ())
    orphans: list[str] = []
    above: list[str] = []
    listed: dict[ManifestRef, list[str]] = {}
    live = set(names_of_queue(queue))
    unknown = [name for name in names if name not in live and name not in state.tombstones]
    for kind in FLAT_FILES:
        prefix = f"{queue_id}/{kind.name}/"
        end = queue.flat_end(kind)
        refs = [ref for ref in queue.manifests if ref.type == kind]
        for name in unknown:
            base = parse_local_file_name(name[-BASE_DIGITS:])
            if base is None or not name.startswith(prefix):
                continue
            ref = next((ref for ref in refs if ref.base <= base < ref.end), None)
            if ref is not None:
                listed.setdefault(ref, []).append(name)
            else:
                (above if base >= end else orphans).append(name)
    # Offloaded segments have no file here, so an orphan would be counted in their place.
    doubtful = tuple(
        (ref, tuple(some))
        for ref, some in listed.items()
        if queue.repacks or len(some) > ref.segments
    )
    return FilesOfQueue(_segments_of(queue_id, orphans), doubtful, _segments_of(queue_id, above))


def _segments_of(queue: QueueId, names: Iterable[str]) -> tuple[str, ...]:
    """Names of exactly this queue's segments."""
    parsed = ((name, parse_segment_name(name)) for name in names)
    return tuple(name for name, said in parsed if said is not None and said.queue == queue)


class OrphanStep(Step):
    """Search for orphans of one ownership. It ends by itself, and then makes no more requests.

    A queue counts as searched once the tombstones of its orphans are published.
    """

    name = "orphans"

    def __init__(self, tier: OwnedTier, snapshots: SnapshotStep, *, own_files: bool = True) -> None:
        """`own_files`: segments have files of their own. Otherwise no directory is listed."""
        super().__init__(tier)
        self._snapshots = snapshots
        self._manifests = ManifestReader(tier.store)
        self._queues_max = tier.options.orphan_queues_per_step_max
        self._own_files = own_files
        self._left = _rotated_by_epoch(tier.state, self._queues_max) if own_files else {}
        self._above: dict[QueueId, tuple[str, ...]] = {}
        self._searching: dict[QueueId, Queue | None] = {}
        """Listed queues of this run, as last published. None: truncated or dropped since."""
        self._own_done = False
        self._found = 0

    def __repr__(self) -> str:
        return f"<OrphanStep: {len(self._left)} queues to search, {self._found} orphans found>"

    @property
    def _is_first_owner(self) -> bool:
        return self.tier.journal.epoch == 1  # no earlier owner could leave an orphan

    async def step(self) -> None:
        """Search the next queues, once a snapshot exists, which shortens the next start.

        Raises:
            Unavailable: the next run continues with the same queue, after the others.
            Corrupt, Denied, OutOfRange: a manifest of a queue cannot be read. That queue is
                skipped.
            Fenced: a newer owner has the tier.
        """
        if self._snapshots.written > 0 and not self._is_first_owner:
            await self._search()

    async def finish(self) -> None:
        """Search all queues once more. Raises as `step`."""
        if self._is_first_owner:
            return
        if not self._own_files:
            await self._search()
            return
        self._left = dict.fromkeys(sorted(self.tier.state.queues))
        first: StoreError | None = None
        while left := len(self._left):
            try:
                await self._search()
            except (Corrupt, Denied, OutOfRange) as error:
                first = first or error
                if len(self._left) == left:  # the error is not of a queue, which would be skipped
                    break
        if first is not None:
            raise first

    def published(self, changes: Sequence[StateChange]) -> None:
        """Record truncations of listed queues: their names may be in use again."""
        for change in changes:
            for queue_id in self._searching.keys() & change.queues.changed.keys():
                before, queue = self._searching[queue_id], change.queues.changed[queue_id]
                self._searching[queue_id] = None if _was_cut(before, queue) else queue

    async def _search(self) -> None:
        """Search the next queues. No request if there is none."""
        try:
            await self._search_listed()
        finally:
            self._searching.clear()

    async def _search_listed(self) -> None:
        self._requeue_outgrown()
        if self._own_done and not self._left:
            return
        dead = frozenset(self.tier.state.tombstones)  # may be deleted since a listing
        if not self._own_done:
            own = [name for name in await self._own_names() if name not in dead]
            await self._publish(never_published(self.tier.state, own))
            self._own_done = True
        first: StoreError | None = None
        found: dict[QueueId, Sequence[str]] = {}
        for queue in list(self._left)[: self._queues_max]:
            try:
                found[queue] = await self._orphans_of(queue)
            except Unavailable as error:
                first = error
                self._left[queue] = self._left.pop(queue)  # last, so that the others get a turn
                break
            except (Corrupt, Denied, OutOfRange) as error:
                first = first or error
                found[queue] = ()
        cut = {queue for queue, record in self._searching.items() if record is None}
        searched = [queue for queue in found if queue not in cut]
        orphans = [name for queue in searched for name in found[queue] if name not in dead]
        await self._publish(_still_orphans(self.tier.state, orphans))
        for queue in searched:
            del self._left[queue]
        if first is not None:
            raise first

    def _requeue_outgrown(self) -> None:
        """Search queues again that have grown past files that a commit could have been creating."""
        state = self.tier.state
        for queue_id, names in list(self._above.items()):
            queue = state.queues.get(queue_id)
            above = sort_files(state, queue_id, names).above
            if queue is not None and not set(names) <= {*above, *names_of_queue(queue)}:
                self._left[queue_id] = None
            if above and queue_id not in self._left:
                self._above[queue_id] = above
            else:
                del self._above[queue_id]

    async def _own_names(self) -> list[str]:
        """Objects below `@` of upkeep, tail truncations and probes. Three requests."""
        return [
            entry.name
            for prefix in (MANIFEST_PREFIX, KEPT_PREFIX, PROBE_PREFIX)
            for entry in await self.tier.store.list(prefix)
        ]

    async def _orphans_of(self, queue: QueueId) -> Sequence[str]:
        """Find the orphans of a queue.

        One request, and one for each doubtful manifest that is not in the reader's cache.
        """
        record = self.tier.state.queues.get(queue)
        if record is None:
            return ()
        self._searching[queue] = record
        listed = [entry.name for entry in await self.tier.store.list(f"{queue}/")]
        files = sort_files(self.tier.state, queue, listed)
        orphans = list(files.orphans)
        for ref, names in files.doubtful:
            segments = await self._manifests.segments(ref)
            known = set(object_names(queue, segments))
            orphans += _segments_of(queue, (name for name in names if name not in known))
        if files.above:
            self._above[queue] = files.above
        return orphans

    async def _publish(self, names: Sequence[str]) -> None:
        await self.tier.add_tombstones(names)
        self._found += len(names)

    @property
    def figures(self) -> Mapping[str, int]:
        """Objects of earlier owners that were never published, and were given tombstones."""
        return {"orphans": self._found}


def _was_cut(before: Queue | None, queue: Queue | None) -> bool:
    """Whether a flat file of a queue became shorter, so that its names may be reused."""
    if before is None or queue is None:
        return True
    return any(queue.flat_end(kind) < before.flat_end(kind) for kind in FLAT_FILES)


def _still_orphans(state: TierState, names: Sequence[str]) -> list[str]:
    """Orphans that a tail truncation has not made usable again since."""
    used = names_in_use(state) if names else set[str]()
    return [name for name in names if name not in used and not may_come_back(state, name)]


def _rotated_by_epoch(state: TierState, step: int) -> dict[QueueId, None]:
    """All queues, rotated by epoch, so that many short-lived owners together search all of them."""
    queues = sorted(state.queues)
    start = state.broker.epoch * step % len(queues) if queues else 0
    return dict.fromkeys(queues[start:] + queues[:start])


UNREFERENCED = "nothing refers to it"

NAMES_AT_ONCE_MAX = 1_000
"""Tombstones in one transaction, some 130 bytes each. A tier may have any number of parts."""


class PartsStep(Step):
    """Adds tombstones to parts that were never published.

    Costs as `FileSegments.earlier_objects`, once for each ownership after the first snapshot, and
    at a clean end. If an older program wrote the tier, also one request for each manifest of the
    tier, once. Memory: the names of parts.
    """

    name = "parts"

    def __init__(
        self,
        tier: OwnedTier,
        snapshots: SnapshotStep,
        segments: FileSegments,
        *,
        grace_ms: int,
    ) -> None:
        """`grace_ms`: time that parts stay which an older program may have truncated."""
        super().__init__(tier)
        self._snapshots = snapshots
        self._segments = segments
        self._grace_ms = grace_ms
        self._manifests = ManifestReader(tier.store, extents_max=0)  # each is read once
        self._searched = False
        self._found = 0

    async def step(self) -> None:
        """Count references if required, add tombstones to failed parts, search after a snapshot.

        Raises:
            Unavailable, OutOfRange: a manifest cannot be read now. The next run continues.
            Corrupt, Denied: a manifest cannot be read. No tombstones are added.
            Fenced: a newer owner has the tier.
        """
        await self._count()
        await self._tombstone_abandoned()
        if not self._searched and self._snapshots.written > 0:
            await self._search()

    async def finish(self) -> None:
        """Search once more. Raises as `step`."""
        await self._count()
        await self._tombstone_abandoned()
        await self._search()

    async def _count(self) -> None:
        """Begin to count references that an older program left uncounted."""
        journal = self.tier.journal
        named: dict[str, Counter[str]] = {}
        while not journal.planned.parts_counted:
            missing = [
                ref
                for queue in journal.planned.queues.values()
                for ref in queue.manifests
                if ref.object_name not in named
            ]
            for ref in missing:
                named[ref.object_name] = references(await self._manifests.segments(ref))
            if not missing:  # no await since: these are the manifests of the planned state
                counts = Counter[str]()
                for queue in journal.planned.queues.values():
                    for ref in queue.manifests:
                        counts.update(named[ref.object_name])
                await journal.publish([CountParts(tuple(sorted(counts.items())))])

    async def _tombstone_abandoned(self) -> None:
        """Add tombstones to parts of ours that may exist unpublished."""
        abandoned, planned = self._segments.abandoned, self.tier.journal.planned
        seen, known = len(abandoned), planned.parts.keys() | planned.tombstones.keys()
        await self._add_tombstones([name for name in abandoned if name not in known])
        del abandoned[:seen]  # others may have been added since

    async def _search(self) -> None:
        if self.tier.journal.epoch == 1:
            return  # no earlier owner could leave anything
        dead = frozenset(self.tier.journal.planned.tombstones)  # may be deleted since the listing
        listed = await self._segments.earlier_objects()
        planned = self.tier.journal.planned
        # Their references can only decrease. The state handles the last one.
        unknown = set(listed) - planned.parts.keys() - planned.tombstones.keys() - dead
        await self._add_tombstones(sorted(unknown))
        self._searched = True

    async def _add_tombstones(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), NAMES_AT_ONCE_MAX):
            await self._publish(names[start : start + NAMES_AT_ONCE_MAX])

    async def _publish(self, names: Sequence[str]) -> None:
        due_ms = self.tier.clock.now_ms() + self._grace_ms
        tombstones = (self.tier.tombstone(name, UNREFERENCED) for name in names)
        late = (replace(one, not_before_ms=max(due_ms, one.not_before_ms)) for one in tombstones)
        await self.tier.journal.publish([AddTombstones(tuple(late))])
        self._found += len(names)

    @property
    def figures(self) -> Mapping[str, int]:
        """Objects that got tombstones."""
        return {"parts_unreferenced": self._found}


class OffloadedParts(PackedSegments):
    """`FileSegments` below the tier's home in the second store, which is created on demand."""

    def __init__(self, tier: OwnedTier) -> None:
        home = home_of(tier.state.attempts)
        super().__init__(tier.store, epoch=tier.journal.epoch, rng=tier.rng, home=home)
        self._tier = tier
        self._is_known = False
        """Whether it was verified as the store that the tier was offloaded to."""

    async def settle(self) -> None:
        """Establish the home in the right second store, before any object is created there.

        The first offload publishes a home, probes the store, creates the object that identifies it,
        and publishes its place. So does the first offload after older programs. Each owner reads
        that object once, and publishes the store's place if it has changed.

        Raises:
            Denied: it is not the store that the tier was offloaded to, or violates its contract.
            Unavailable: it does not answer.
            Fenced: a newer owner has the tier.
        """
        journal, place = self._tier.journal, self._tier.options.offload_place
        if not home_of(journal.planned.attempts):
            await self._put_home(self._tier.rng.randbytes(HOME_BYTES).hex(), place="")
        self.home = home_of(journal.planned.attempts)
        if self._is_known:
            return
        known = place_of(journal.planned.attempts)
        if known:
            await refuse_other_second_store(self._tier.store, journal.planned.attempts, place)
        else:
            await self._refuse_empty()
            await self._leave_mark()
        if place and place != known:
            await self._put_home(self.home, place=place)
        self._is_known = True

    async def _refuse_empty(self) -> None:
        """Refuse a store without a mark that lacks an offloaded object of an older program."""
        store, parts = self._tier.store, self._tier.state.parts
        name = next((one for one in parts if is_offloaded(one)), None)
        if name is None:
            return
        try:
            await store.size(name)
        except NotFound as error:
            place = self._tier.options.offload_place
            raise Denied(lacking_text(place), name) from error

    async def _leave_mark(self) -> None:
        """Probe the store, and create the object that identifies it."""
        store, prefix = self._tier.store, parts_prefix(self.home)
        rng = Random(self._tier.rng.randbytes(NONCE_BYTES))  # noqa: S311 - of a throw-away name
        await probe(store, rng=rng, prefix=f"{prefix}{PROBE_PREFIX}")
        text = mark(self.home, self._tier.state.broker)
        try:
            await store.create(mark_name(self.home), [text])
        except AlreadyExists:  # an earlier attempt, or a rival
            return

    async def _put_home(self, home: str, *, place: str) -> None:
        journal, now_ms = self._tier.journal, self._tier.clock.now_ms()
        attempt = home_attempt(home, now_ms=now_ms, epoch=journal.epoch, place=place)
        await journal.publish([PutAttempt(attempt)])

    async def earlier_objects(self) -> list[str]:
        """Objects of earlier owners, and those left by probes. See `FileSegments.earlier_objects`.

        No request without a home.
        """
        if not self.home:
            return []
        probes = f"{parts_prefix(self.home)}{PROBE_PREFIX}"
        names = [one.name for one in await self._store.list(parts_prefix(self.home))]
        return [name for name in names if name.startswith(probes) or self._is_earlier(name)]

    def _is_earlier(self, name: str) -> bool:
        part = PartName.parse(name)
        return part is not None and part.epoch < self._epoch


class OffloadedPartsStep(PartsStep):
    """Adds tombstones to objects in the second store that were never published."""

    name = "offloaded parts"

    @property
    def figures(self) -> Mapping[str, int]:
        """Objects in the second store that got tombstones."""
        return {"offloaded_unreferenced": self._found}


KIND = "first files"
"""Kind of the attempts that announce first files."""
DROPPED = "dropped queue"
"""Kind of the attempts that announce files that a deleted queue may still leave."""


def attempt_of(queue: QueueId) -> str:
    """Name of the attempt that announces a queue's first files."""
    return f"{KIND}: {queue}"


def announcements(
    state: TierState, queues: Iterable[QueueId], *, epoch: int, now_ms: int
) -> list[PutAttempt]:
    """Announcements to publish before files of `queues` are created. Pure. Empty if known."""
    wanted: list[PutAttempt] = []
    for queue in queues:
        known = state.attempts.get(attempt_of(queue))
        is_known = known is not None and (known.kind, known.epoch) == (KIND, epoch)
        if queue not in state.queues and not is_known:
            wanted.append(PutAttempt(Attempt(attempt_of(queue), KIND, now_ms, epoch, f"{queue}/")))
    return wanted


def taken_up(state: TierState, queues: Collection[QueueId]) -> list[Operation]:
    """Changes of the announcements in the transaction that begins `queues`. Pure.

    Files left by an earlier owner may have been taken over: their tombstones are dropped. The
    commit itself defines the names in use.
    """
    announced = {str(queue): queue for queue in queues if attempt_of(queue) in state.attempts}
    ended: list[Operation] = [EndAttempt(attempt_of(queue)) for queue in announced.values()]
    left = left_of(state, queues)
    return [*ended, DropTombstones(tuple(left))] if left else ended


def left_of(state: TierState, queues: Iterable[QueueId]) -> list[str]:
    """Files with tombstones in the directories of `queues` that the tier does not have. Pure.

    No deletion of them may be in flight when their tombstones are dropped: nothing would repeat it.
    """
    begun = {str(queue) for queue in queues if queue not in state.queues}
    return [
        name for queue in sorted(begun) for name in sorted(state.tombstones.in_directory(queue))
    ]


def _queue_of(attempt: Attempt) -> QueueId:
    """Queue of an announcing attempt."""
    topic, number = attempt.output_prefix.rstrip("/").rsplit("/", 1)
    return QueueId(topic, int(number))


class FirstFilesStep(Step):
    """Adds tombstones to announced files that earlier owners did not publish.

    These are first files, and files left by a deleted queue.

    One request for each announced queue, after the first snapshot and at a clean end. At most
    `orphan_queues_per_step_max` in a run. Waits while the owner that announced them may be alive.
    """

    name = "first_files"

    def __init__(
        self, tier: OwnedTier, snapshots: SnapshotStep, segments: FileSegments | None
    ) -> None:
        super().__init__(tier)
        self._snapshots = snapshots
        self._segments = segments
        self._found = 0

    async def step(self) -> None:
        """Search for files of the next announced queues.

        Raises:
            Unavailable: the next run begins again.
            Fenced: a newer owner has the tier.
        """
        if self._snapshots.written > 0:
            await self._search()

    async def finish(self) -> None:
        """Search once more. Raises as `step`."""
        await self._search()

    async def _search(self) -> None:
        left = islice(self._of_earlier_owners(), self.tier.options.orphan_queues_per_step_max)
        listed: list[tuple[Attempt, Sequence[str]]] = []
        before = frozenset(self.tier.journal.planned.tombstones)  # may be deleted since a listing
        for attempt in list(left):
            entries = await self.tier.store.list(attempt.output_prefix)
            segments = [one.name for one in entries if parse_segment_name(one.name) is not None]
            listed.append((attempt, segments))
        operations: list[Operation] = []
        found: list[str] = []
        planned = self.tier.journal.planned
        known = planned.tombstones.keys() | before
        for attempt, names in listed:
            if planned.attempts.get(attempt.attempt_id) != attempt:
                continue  # a commit of ours has begun it since
            operations.append(EndAttempt(attempt.attempt_id))
            if _queue_of(attempt) not in planned.queues:
                found += [name for name in names if name not in known]
        if found:
            dead = (self.tier.tombstone(name, NEVER_PUBLISHED) for name in found)
            operations.append(AddTombstones(tuple(dead)))
        if operations:
            await self.tier.journal.publish(operations)
            self._found += len(found)

    def _of_earlier_owners(self) -> Iterable[Attempt]:
        epoch = self.tier.journal.epoch
        return (
            one
            for one in self.tier.state.attempts.values()
            if one.kind in {KIND, DROPPED}
            and one.epoch < epoch
            and not (self._segments is not None and self._segments.must_roll(one.epoch))
        )

    @property
    def figures(self) -> Mapping[str, int]:
        """First files of earlier owners that were never published, and got tombstones."""
        return {"first_files": self._found}
