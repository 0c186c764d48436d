"""Segment files that an earlier owner made and never published: found once, then buried.

An owner that was fenced, or died, after it made its data durable and before it published leaves
files. The next owner writes the same ones again where its segments begin at the same bytes. If they
do not (it went on beside an older one in segments of its own, or recorded a gap), the files stay:
nothing refers to them, and nothing will once the end of their flat file has passed them.

What it costs. A segment's name says nothing about where a listing could begin, so queues are listed
whole: one request for each queue that was there when the ownership was taken, once per ownership, a
bounded number of queues in each round of housekeeping, and none before the first snapshot. So it
costs a start nothing, and an idle store comes to rest. Memory: one queue's listing. Manifests are
read only where a queue has more files than they list.

At a clean end all queues are listed once more, so that `check` finds nothing left over then.

What is never touched: names that are not exactly a segment's, queues that the tier does not have,
and whatever lies at or above the published end, where a commit may be writing. An owner that was
fenced and still runs may append to such a file, or make it anew; the next owner finds it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from container.metadata.object_names import names_of_queue, object_names
from container.metadata.operations import AddTombstones, Operation
from container.metadata.records import ManifestRef, Tombstone
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import (
    BASE_DIGITS,
    parse_local_file_name,
    parse_segment_name,
)
from container.names.tier_objects import KEPT_PREFIX, MANIFEST_PREFIX
from container.queue.manifest import ManifestReader
from container.upkeep.deletion import may_come_back, names_in_use, never_published
from provider.errors import Corrupt, Denied, OutOfRange, StoreError, Unavailable
from provider.object_store import ObjectStore

NEVER_PUBLISHED = "never published"


class Publisher(Protocol):
    """The part of `Journal` that a search needs."""

    @property
    def state(self) -> TierState:
        """What is published."""
        ...

    async def publish(self, operations: Iterable[Operation]) -> int:
        """Publish a transaction."""
        ...


@dataclass(frozen=True, slots=True)
class FilesOfQueue:
    """Files of a queue that no segment in the snapshot and no tombstone names."""

    strays: tuple[str, ...]
    """Below the published end of their flat file, in no manifest's range: referred to by none."""
    doubtful: tuple[tuple[ManifestRef, tuple[str, ...]], ...]
    """Manifests in whose ranges there are more files than they list, with those files."""
    above: tuple[str, ...]
    """At or above the published end: a commit may have made them, or be making them."""


def sort_files(state: TierState, queue_id: QueueId, names: Iterable[str]) -> FilesOfQueue:
    """What the files of a queue's directory are to the tier. Pure.

    Some us for each name. What is not exactly a segment's name is nothing to it.
    """
    queue = state.queues.get(queue_id)
    if queue is None:
        return FilesOfQueue((), (), ())
    strays: list[str] = []
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
                (above if base >= end else strays).append(name)
    doubtful = tuple((ref, tuple(some)) for ref, some in listed.items() if len(some) > ref.segments)
    return FilesOfQueue(_segments_of(queue_id, strays), doubtful, _segments_of(queue_id, above))


def _segments_of(queue: QueueId, names: Iterable[str]) -> tuple[str, ...]:
    """Those that are exactly the names of the queue's segments."""
    parsed = ((name, parse_segment_name(name)) for name in names)
    return tuple(name for name, said in parsed if said is not None and said.queue == queue)


class StraySearch:
    """The search of one ownership. `step` goes on with it; after the last one it asks for nothing.

    May fail or be cancelled anywhere: a queue is done once its tombstones are published.
    """

    def __init__(
        self,
        owner: Publisher,
        store: ObjectStore,
        manifests: ManifestReader,
        *,
        bury: Callable[[str, str], Tombstone],
        queues_per_step_max: int,
    ) -> None:
        """`bury` makes the tombstone of a name, with a reason."""
        self._owner = owner
        self._store = store
        self._manifests = manifests
        self._bury = bury
        self._queues_max = queues_per_step_max
        self._left = _begun_elsewhere(owner.state, queues_per_step_max)
        self._above: dict[QueueId, tuple[str, ...]] = {}
        self._own_done = False
        self.found = 0
        """Objects that were given tombstones."""

    def __repr__(self) -> str:
        return f"<StraySearch: {len(self._left)} queues to go, {self.found} found>"

    async def step(self) -> None:
        """Look at the next queues; no request if there is none.

        Raises:
            Unavailable: the next step goes on.
            Corrupt, Denied, OutOfRange: something of a queue cannot be read; the search goes on
                without it.
            Fenced: somebody newer owns the tier.
        """
        if not self._own_done:
            await self._publish(never_published(self._owner.state, await self._own_names()))
            self._own_done = True
        self._look_again()
        first: StoreError | None = None
        strays: list[str] = []
        seen: list[QueueId] = []
        for queue in list(self._left)[: self._queues_max]:
            try:
                strays += await self._strays_of(queue)
            except Unavailable as error:
                first = error
                self._left[queue] = self._left.pop(queue)  # last, so that the others have a turn
                break
            except (Corrupt, Denied, OutOfRange) as error:
                first = first or error
            seen.append(queue)
        await self._publish(_still_strays(self._owner.state, strays))
        for queue in seen:
            del self._left[queue]
        if first is not None:
            raise first

    async def finish(self) -> None:
        """List all queues once more, for a clean end: what is found is known to `check` then.

        Raises:
            Unavailable, Corrupt, Denied, OutOfRange, Fenced: as `step`.
        """
        self._left = dict.fromkeys(sorted(self._owner.state.queues))
        first: StoreError | None = None
        while self._left:
            try:
                await self.step()
            except (Corrupt, Denied, OutOfRange) as error:  # of one queue, which is passed over
                first = first or error
        if first is not None:
            raise first

    def _look_again(self) -> None:
        """Queues that have grown past files that a commit could have been making. No request."""
        state = self._owner.state
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
        """Objects below `@` that a commit or a cut makes before it publishes them. Two requests."""
        return [
            entry.name
            for prefix in (MANIFEST_PREFIX, KEPT_PREFIX)
            for entry in await self._store.list(prefix)
        ]

    async def _strays_of(self, queue: QueueId) -> Sequence[str]:
        """One request, and one for each manifest in doubt that was not used lately."""
        if queue not in self._owner.state.queues:
            return ()
        listed = [entry.name for entry in await self._store.list(f"{queue}/")]
        files = sort_files(self._owner.state, queue, listed)
        strays = list(files.strays)
        for ref, names in files.doubtful:
            segments = await self._manifests.segments(ref)
            known = set(object_names(queue, segments))
            strays += _segments_of(queue, (name for name in names if name not in known))
        if files.above:
            self._above[queue] = files.above
        return strays

    async def _publish(self, names: Sequence[str]) -> None:
        if not names:
            return
        graves = tuple(self._bury(name, NEVER_PUBLISHED) for name in names)
        await self._owner.publish([AddTombstones(graves)])
        self.found += len(names)


def _still_strays(state: TierState, names: Sequence[str]) -> list[str]:
    """Those that a cut has not made usable again since they were found."""
    used = names_in_use(state) if names else set[str]()
    return [name for name in names if name not in used and not may_come_back(state, name)]


def _begun_elsewhere(state: TierState, step: int) -> dict[QueueId, None]:
    """All queues, each owner beginning with others: so short-lived ones see all of them, too."""
    queues = sorted(state.queues)
    start = state.broker.epoch * step % len(queues) if queues else 0
    return dict.fromkeys(queues[start:] + queues[:start])
