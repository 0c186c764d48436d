"""Orphans: files that an earlier owner made and never published; each is given a tombstone.

An owner that was fenced, or died, after it made its data durable and before it published leaves
files. The next owner writes the same files again where its segments begin at the same bytes.
Otherwise (it continued beside an older owner in segments of its own, or recorded a gap) the files
stay: nothing refers to them, and nothing will once the end of their flat file has passed them.

Cost. A segment's name does not tell where a listing could begin, so queues are listed whole: one
request for each queue that was there when the ownership was taken, once per ownership, a bounded
number of queues in each run, and none before the first snapshot. So the search costs a start
nothing, and an idle store comes to rest. Memory: one queue's listing. Manifests are read only where
a queue has more files than they list, or was offloaded.

At a clean end all queues are listed once more, so that `check` finds no orphan afterwards.

The search never touches names that are not exactly a segment's, queues that the tier does not have,
and files at or above the published end, where a commit may be writing. An owner that was fenced and
still runs may append to such a file, or create it again; the next owner finds it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from container.metadata.object_names import names_of_queue, object_names
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
from container.upkeep.deletion import (
    may_come_back,
    names_in_use,
    never_published,
)
from container.upkeep.snapshots import SnapshotStep
from container.upkeep.step import OwnedTier, Step
from provider.errors import Corrupt, Denied, OutOfRange, StoreError, Unavailable
from provider.stores.verified import PROBE_PREFIX


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
