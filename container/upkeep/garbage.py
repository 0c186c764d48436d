"""Garbage of earlier owners: orphans and unreferenced parts of both stores get tombstones."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from container.check.second_store import lacking_text, mark, refuse_other_second_store
from container.metadata.moves import home_attempt, home_of, mark_name, place_of
from container.metadata.object_names import names_of_queue, object_names
from container.metadata.operations import AddTombstones, CountParts, PutAttempt
from container.metadata.part_counts import references
from container.metadata.records import ManifestRef, Queue
from container.metadata.state import StateChange, TierState
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import (
    BASE_DIGITS,
    parse_local_file_name,
    parse_segment_name,
)
from container.names.tier_objects import KEPT_PREFIX, MANIFEST_PREFIX
from container.queue.manifest import ManifestReader
from container.steps.deletion import may_come_back, names_in_use, never_published
from container.steps.step import OwnedTier, Step
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
    """Files of a queue that no segment in the snapshot and no tombstone names."""

    orphans: tuple[str, ...]
    """Below the published end of their flat file and in no manifest's range: nothing refers to
    them."""
    doubtful: tuple[tuple[ManifestRef, tuple[str, ...]], ...]
    """Manifests in whose ranges there are more files than they list, or files of a queue that was
    offloaded, with those files."""
    above: tuple[str, ...]
    """At or above the published end: a commit may have made them, or be making them."""


def sort_files(state: TierState, queue_id: QueueId, names: Iterable[str]) -> FilesOfQueue:
    """Sort the files of a queue's directory by what the state says of them. Pure.

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
    # Offloaded segments have no file here any more, in whose place an orphan would be counted.
    doubtful = tuple(
        (ref, tuple(some))
        for ref, some in listed.items()
        if queue.repacks or len(some) > ref.segments
    )
    return FilesOfQueue(_segments_of(queue_id, orphans), doubtful, _segments_of(queue_id, above))


def _segments_of(queue: QueueId, names: Iterable[str]) -> tuple[str, ...]:
    """Those that are exactly the names of the queue's segments."""
    parsed = ((name, parse_segment_name(name)) for name in names)
    return tuple(name for name, said in parsed if said is not None and said.queue == queue)


class OrphanStep(Step):
    """The search of one ownership: it ends by itself, and then makes no more requests.

    A queue counts as searched once the tombstones of its orphans are published.
    """

    name = "orphans"

    def __init__(self, tier: OwnedTier, snapshots: SnapshotStep, *, own_files: bool = True) -> None:
        """`own_files`: segments have files of their own; else no queue's directory is listed."""
        super().__init__(tier)
        self._snapshots = snapshots
        self._manifests = ManifestReader(tier.store)
        self._queues_max = tier.options.orphan_queues_per_step_max
        self._own_files = own_files
        self._left = _rotated_by_epoch(tier.state, self._queues_max) if own_files else {}
        self._above: dict[QueueId, tuple[str, ...]] = {}
        self._searching: dict[QueueId, Queue | None] = {}
        """Queues that this run has listed, as last published; None: cut or dropped since."""
        self._own_done = False
        self._found = 0

    def __repr__(self) -> str:
        return f"<OrphanStep: {len(self._left)} queues to search, {self._found} orphans found>"

    @property
    def _is_first_owner(self) -> bool:
        return self.tier.journal.epoch == 1  # no owner before us could leave an orphan

    async def step(self) -> None:
        """Search the next queues, once a snapshot makes the next start short.

        Raises:
            Unavailable: the next run goes on with the same queue, after the others.
            Corrupt, Denied, OutOfRange: something of a queue cannot be read; that queue is
                passed over.
            Fenced: a newer owner has the tier.
        """
        if self._snapshots.written > 0 and not self._is_first_owner:
            await self._search()

    async def finish(self) -> None:
        """Search all queues once more. Raises what `step` raises."""
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
                if len(self._left) == left:  # not of a queue, which would be passed over
                    break
        if first is not None:
            raise first

    def published(self, changes: Sequence[StateChange]) -> None:
        """Note which of the listed queues were cut: their names may be in use again."""
        for change in changes:
            for queue_id in self._searching.keys() & change.queues.changed.keys():
                before, queue = self._searching[queue_id], change.queues.changed[queue_id]
                self._searching[queue_id] = None if _was_cut(before, queue) else queue

    async def _search(self) -> None:
        """Search the next queues; no request if there is none."""
        try:
            await self._search_listed()
        finally:
            self._searching.clear()

    async def _search_listed(self) -> None:
        if not self._own_done:
            await self._publish(never_published(self.tier.state, await self._own_names()))
            self._own_done = True
        self._requeue_outgrown()
        first: StoreError | None = None
        found: dict[QueueId, Sequence[str]] = {}
        for queue in list(self._left)[: self._queues_max]:
            try:
                found[queue] = await self._orphans_of(queue)
            except Unavailable as error:
                first = error
                self._left[queue] = self._left.pop(queue)  # last, so that the others have a turn
                break
            except (Corrupt, Denied, OutOfRange) as error:
                first = first or error
                found[queue] = ()
        cut = {queue for queue, record in self._searching.items() if record is None}
        searched = [queue for queue in found if queue not in cut]
        orphans = [name for queue in searched for name in found[queue]]
        await self._publish(_still_orphans(self.tier.state, orphans))
        for queue in searched:
            del self._left[queue]
        if first is not None:
            raise first

    def _requeue_outgrown(self) -> None:
        """Search queues again that have grown past files which a commit could have been making."""
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
        """Objects below `@` that upkeep, a tail cut or a probe makes. Three requests."""
        return [
            entry.name
            for prefix in (MANIFEST_PREFIX, KEPT_PREFIX, PROBE_PREFIX)
            for entry in await self.tier.store.list(prefix)
        ]

    async def _orphans_of(self, queue: QueueId) -> Sequence[str]:
        """One request, and one for each doubtful manifest that is not in the reader's cache."""
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
        await self.tier.bury(names)
        self._found += len(names)

    @property
    def figures(self) -> Mapping[str, int]:
        """Objects of earlier owners that were never published, and were given tombstones."""
        return {"orphans": self._found}


def _was_cut(before: Queue | None, queue: Queue | None) -> bool:
    """Whether a flat file of a queue became shorter, so that its names may come again."""
    if before is None or queue is None:
        return True
    return any(queue.flat_end(kind) < before.flat_end(kind) for kind in FLAT_FILES)


def _still_orphans(state: TierState, names: Sequence[str]) -> list[str]:
    """Those that a tail cut has not made usable again since they were found."""
    used = names_in_use(state) if names else set[str]()
    return [name for name in names if name not in used and not may_come_back(state, name)]


def _rotated_by_epoch(state: TierState, step: int) -> dict[QueueId, None]:
    """All queues; each owner begins with others, so that many short-lived owners see them all."""
    queues = sorted(state.queues)
    start = state.broker.epoch * step % len(queues) if queues else 0
    return dict.fromkeys(queues[start:] + queues[:start])


UNREFERENCED = "nothing refers to it"

NAMES_AT_ONCE_MAX = 1_000
"""Tombstones in one transaction, some 130 bytes each; a tier may have any number of parts."""


class PartsStep(Step):
    """Gives tombstones to parts that were never published.

    Costs what `FileSegments.earlier_objects` costs, once for each ownership after the first
    snapshot, and at a clean end. Where an older program wrote the tier also one request for each
    manifest of the tier, once. Memory: the names of parts.
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
        """`grace_ms`: what older programs cut off stays for so long, and nothing tells it apart."""
        super().__init__(tier)
        self._snapshots = snapshots
        self._segments = segments
        self._grace_ms = grace_ms
        self._manifests = ManifestReader(tier.store, extents_max=0)  # each is read once
        self._searched = False
        self._found = 0

    async def step(self) -> None:
        """Count if nobody has, bury what failed, and search when a snapshot was written.

        Raises:
            Unavailable, OutOfRange: a manifest cannot be read now; the next run goes on.
            Corrupt, Denied: a manifest cannot be read; nothing is given a tombstone.
            Fenced: a newer owner has the tier.
        """
        await self._count()
        await self._bury_forsaken()
        if not self._searched and self._snapshots.written > 0:
            await self._search()

    async def finish(self) -> None:
        """Search once more. Raises what `step` raises."""
        await self._count()
        await self._bury_forsaken()
        await self._search()

    async def _count(self) -> None:
        """Begin to count references where an older program did not."""
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
            if not missing:  # and no await since: these are the manifests of the planned state
                counts = Counter[str]()
                for queue in journal.planned.queues.values():
                    for ref in queue.manifests:
                        counts.update(named[ref.object_name])
                await journal.publish([CountParts(tuple(sorted(counts.items())))])

    async def _bury_forsaken(self) -> None:
        """Give tombstones to parts of ours that were perhaps made, and not published."""
        forsaken, planned = self._segments.forsaken, self.tier.journal.planned
        seen, known = len(forsaken), planned.parts.keys() | planned.tombstones.keys()
        await self._bury([name for name in forsaken if name not in known])
        del forsaken[:seen]  # others may have come meanwhile

    async def _search(self) -> None:
        if self.tier.journal.epoch == 1:
            return  # no owner before us could leave anything
        listed = await self._segments.earlier_objects()
        planned = self.tier.journal.planned
        # References to them only go, and the state sees to those that lose the last one.
        unknown = set(listed) - planned.parts.keys() - planned.tombstones.keys()
        await self._bury(sorted(unknown))
        self._searched = True

    async def _bury(self, names: Sequence[str]) -> None:
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
        """Objects that were given tombstones."""
        return {"parts_unreferenced": self._found}


class OffloadedParts(PackedSegments):
    """`FileSegments` below the tier's home in the second store; it gets one when it is needed."""

    def __init__(self, tier: OwnedTier) -> None:
        home = home_of(tier.state.attempts)
        super().__init__(tier.store, epoch=tier.journal.epoch, rng=tier.rng, home=home)
        self._tier = tier
        self._is_known = False
        """Whether it was seen to be the store that the tier was offloaded to."""

    async def settle(self) -> None:
        """Have a home in the right second store, before anything is made there.

        The first offload publishes a home, probes the store, leaves the object there by which it is
        known again, and publishes where that is; so does one that follows older programs. An owner
        reads that object once, and publishes another place that has it.

        Raises:
            Denied: it is another store than the tier was offloaded to, or keeps no promises.
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
        """Refuse a store that lacks what an older program has offloaded there, without a mark."""
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
        """Probe the store, and make the object by which it is known again."""
        store, prefix = self._tier.store, parts_prefix(self.home)
        rng = Random(self._tier.rng.randbytes(NONCE_BYTES))  # noqa: S311 - of a throw-away name
        await probe(store, rng=rng, prefix=f"{prefix}{PROBE_PREFIX}")
        text = mark(self.home, self._tier.state.broker)
        try:
            await store.create(mark_name(self.home), [text])
        except AlreadyExists:  # an earlier try, or a rival
            return

    async def _put_home(self, home: str, *, place: str) -> None:
        journal, now_ms = self._tier.journal, self._tier.clock.now_ms()
        attempt = home_attempt(home, now_ms=now_ms, epoch=journal.epoch, place=place)
        await journal.publish([PutAttempt(attempt)])

    async def earlier_objects(self) -> list[str]:
        """Those of earlier owners, and what probes have left; `FileSegments.earlier_objects`.

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
    """Gives tombstones to objects in the second store that were never published."""

    name = "offloaded parts"

    @property
    def figures(self) -> Mapping[str, int]:
        """Objects in the second store that were given tombstones."""
        return {"offloaded_unreferenced": self._found}
