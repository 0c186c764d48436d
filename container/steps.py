"""Base of an owner's background steps: schedule, due queues, pending deletions, deletion rule.

Imports queues and metadata, no step. The deletion rule is pure; `upkeep/tombstones.py` deletes the
objects. Its order is always: unpublished in the journal (the tombstone), then deleted after the
grace time.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import ClassVar, TypeVar

from container.journal.journal import Journal
from container.metadata.objects import names_of_queue
from container.metadata.operations import AddTombstones
from container.metadata.records import ManifestRef, Queue, Segment, Tombstone
from container.metadata.state import StateChange, TierState
from container.metadata.tables import QueueTable
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import SegmentName, parse_segment_name
from container.names.tier_objects import KeptName, ManifestName, parse_name
from container.options import UpkeepOptions
from container.queue.manifest import name_manifest, write_manifest
from provider.clock import Clock, RandomSource, backoff_s
from provider.errors import (
    Closed,
    Corrupt,
    Denied,
    Fenced,
    OutOfRange,
    StoreError,
    Unavailable,
)
from provider.object_store import ObjectStore
from provider.stores.two_stores import is_offloaded
from provider.stores.verified import PROBE_PREFIX

ItemT = TypeVar("ItemT")
NEVER_PUBLISHED = "never published"
"""Reason in tombstones of orphans."""


async def side_by_side(
    items: Iterable[ItemT], work: Callable[[ItemT], Awaitable[None]], *, at_once: int
) -> None:
    """Call `work` on each item, in order, at most `at_once` concurrently.

    After a failure no other item is begun. Items in progress are completed, then the failure is
    raised: `Fenced` and `Closed` before any other.

    Raises:
        StoreError: as raised by `work`.
    """
    left, failed = iter(items), list[StoreError]()

    async def take() -> None:
        for item in left:
            try:
                await work(item)
            except StoreError as error:
                failed.append(error)
            if failed:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(take())
    if failed:
        over = (error for error in failed if isinstance(error, Fenced | Closed))
        raise next(over, failed[0])


QUEUES_PER_TURN = 64
"""Queues that a step checks before other tasks get a turn: 1 to 2 ms."""


class DueQueues:
    """Heap of queues by due time. The due time of a queue is derived again after each change.

    Each method costs O(log queues) for each queue that it takes or returns.

    D1  A queue is changed, or has one due time, or is at rest.
    """

    def __init__(self, queues: Iterable[QueueId], *, by_size: bool) -> None:
        """Create a heap in which all of the queues are changed.

        `by_size`: the topic of a changed queue is due, too.
        """
        self._by_size = by_size
        self._grown: dict[str, None] = {}
        """Topics with changed queues since they were last due, if their size counts."""
        self._changed: dict[QueueId, None] = dict.fromkeys(queues)
        self._due: dict[QueueId, int] = {}
        self._heap: list[tuple[int, QueueId]] = []

    def __repr__(self) -> str:
        return f"<DueQueues: {len(self._changed)} changed, {len(self._due)} have a time>"

    def note(self, queues: Iterable[QueueId]) -> None:
        """Mark queues as changed. Their due times become unknown."""
        self._changed.update(dict.fromkeys(queues))

    @property
    def changed(self) -> list[QueueId]:
        """Queues with unknown due times, in the order in which they changed."""
        return list(self._changed)

    def set(self, queue: QueueId, due_ms: int | None) -> None:
        """Set the due time of a queue, Unix ms. None: it rests until it changes."""
        self._changed.pop(queue, None)
        if due_ms is None:
            self._due.pop(queue, None)
        elif self._due.get(queue) != due_ms:
            self._due[queue] = due_ms
            heappush(self._heap, (due_ms, queue))
            if len(self._heap) > 64 + 4 * len(self._due):  # most of its items are outdated
                self._heap = [(due, one) for one, due in self._due.items()]
                heapify(self._heap)

    async def update(
        self, known: QueueTable, clock: Clock, due_ms: Callable[[Queue], int | None]
    ) -> None:
        """Set the due times of the changed queues to `due_ms`. Yields to other tasks."""
        for number, name in enumerate(self.changed):
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await clock.sleep(0)
            queue = known.peek(name)
            self.set(name, None if queue is None else due_ms(queue))
            if queue is not None and self._by_size:
                self._grown[name.topic] = None

    async def each_topic(
        self,
        now_ms: int,
        work: Callable[[str, Sequence[QueueId]], Awaitable[StoreError | None]],
    ) -> None:
        """Call `work` with each due topic and its due queues.

        If bytes of a topic are damaged or refused, it is due again, and the others are done. Topics
        that an interruption leaves are due again, too. An error of the second store ends the call.

        Raises:
            StoreError: the first one that `work` returned or raised.
        """
        due: dict[str, list[QueueId]] = {topic: [] for topic in self._grown}
        self._grown.clear()
        for queue in self._take_due(now_ms):
            due.setdefault(queue.topic, []).append(queue)
        first: StoreError | None = None
        left = sorted(due)
        try:
            while left:
                topic = left[0]
                try:
                    error = await work(topic, due[topic])
                except (Corrupt, Denied, OutOfRange) as failure:
                    if is_offloaded(failure.path):
                        raise
                    error = failure
                    self._again(topic, due[topic])
                first = first or error
                del left[0]
        finally:
            for topic in left:
                self._again(topic, due[topic])
        if first is not None:
            raise first

    def _again(self, topic: str, queues: Sequence[QueueId]) -> None:
        """Make a topic due, whether its queues change or not."""
        self.note(queues)
        if self._by_size:
            self._grown[topic] = None

    def _take_due(self, now_ms: int) -> list[QueueId]:
        """Remove the due queues and return them, the earliest first."""
        found: list[QueueId] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, queue = heappop(self._heap)
            if self._due.get(queue) == due_ms:
                del self._due[queue]
                found.append(queue)
        return found


class PendingDeletions:
    """Names with a requested, unanswered deletion, and names of files that commits begin.

    A name is reused after a tail truncation, and if an owner died before it had published the file.
    The old file must be deleted before a segment of that name begins, and the file that a commit
    begins must not be deleted.
    """

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._unclear: set[str] = set()
        self._begun: set[str] = set()
        self._answered = asyncio.Event()

    def __repr__(self) -> str:
        return (
            f"<PendingDeletions: {len(self._asked)} asked for, {len(self._unclear)} unclear,"
            f" {len(self._begun)} begun>"
        )

    @contextmanager
    def asked(self, names: Sequence[str]) -> Generator[None]:
        """Hold names while their deletion is in flight.

        A deletion that fails or is cancelled may still land (P7). Its names stay held until it is
        repeated.
        """
        self._asked.update(names)
        self._unclear.update(names)
        try:
            yield
        except Denied:  # nothing happened
            self._unclear.difference_update(names)
            raise
        else:
            self._unclear.difference_update(names)
        finally:
            self._asked.difference_update(names)
            self._answered.set()

    @asynccontextmanager
    async def begun(self, names: Collection[str]) -> AsyncGenerator[None]:
        """Begin files of these names within the block, where nothing deletes them.

        Waits for deletions of them in flight. Raises as `wait_for`.
        """
        await self.wait_for(names)
        self._begun.update(names)
        try:
            yield
        finally:
            self._begun.difference_update(names)

    @property
    def being_begun(self) -> AbstractSet[str]:
        """Names that commits are about to begin. They must not be deleted."""
        return self._begun

    @property
    def unclear(self) -> AbstractSet[str]:
        """Names whose failed deletion may still land. It is repeated, even for a reused name."""
        return self._unclear

    async def wait_for(self, names: Collection[str]) -> None:
        """Wait until no deletion of one of the names can land any more.

        Raises:
            Unavailable: a deletion failed, and may still land.
        """
        while not self._asked.isdisjoint(names):
            self._answered.clear()
            await self._answered.wait()
        unclear = self._unclear.intersection(names)
        if unclear:
            raise Unavailable("its deletion failed and may still land; try again", min(unclear))


@dataclass(frozen=True, slots=True)
class OwnedTier:
    """Tier owned by this process, for its steps."""

    journal: Journal
    store: ObjectStore
    clock: Clock
    rng: RandomSource
    options: UpkeepOptions
    deletions: PendingDeletions = field(default_factory=PendingDeletions)
    """Files with a deletion in flight."""
    topic_hours: dict[str, int] = field(default_factory=dict[str, int])
    """Retention in hours of topics, for those with a newer value than in their records."""

    @property
    def state(self) -> TierState:
        """Present published state."""
        return self.journal.state

    def due_ms(self) -> int:
        """End of the grace time of objects freed now, Unix ms."""
        return self.clock.now_ms() + int(self.options.grace_s * 1000)

    def tombstone(self, name: str, reason: str) -> Tombstone:
        """Create a tombstone for the object `name`, which may be deleted after the grace time."""
        return Tombstone(name, self.due_ms(), reason)

    async def add_tombstones(self, names: Sequence[str]) -> None:
        """Add tombstones for objects that were created and will never be published.

        Raises:
            Fenced: a newer owner has the tier.
        """
        if names:
            dead = tuple(self.tombstone(name, NEVER_PUBLISHED) for name in names)
            await self.journal.publish([AddTombstones(dead)])


class Step(ABC):
    """A background task of an owner, run at its own interval.

    A step may fail or be cancelled at any await. The objects that it leaves are unreferenced, and
    its next run repeats the work. It makes no request if it has no work, so an idle tier costs
    nothing. `Upkeep` runs it, one call at a time, concurrently with the other steps.
    """

    name: ClassVar[str]
    """Unique name of the step in statistics and metrics."""
    finishes_again: ClassVar[bool] = False
    """Whether `finish` is called again after all steps have finished: their publications at a clean
    end make work for this step."""

    def __init__(self, tier: OwnedTier) -> None:
        self.tier = tier
        self.interval_s = tier.options.interval_s
        """Seconds from the end of a run to the next one, without failures."""

    @abstractmethod
    async def step(self) -> None:
        """Do the due work. No request if there is none.

        Raises:
            Fenced: a newer owner has the tier. The step is not run again.
            StoreError: the work is incomplete. The step is run again later.
        """

    async def finish(self) -> None:
        """Run for the last time, at a clean end. Raises as `step`."""
        await self.step()

    @property
    def urgent(self) -> bool:
        """Whether to run before the interval is over. Reads memory only.

        Checked after every entry and every run of any step. A run must make it false, or fail.
        """
        return False

    def published(self, changes: Sequence[StateChange]) -> None:  # noqa: B027 - few care
        """Handle an entry with these changes, which was published."""

    @property
    def figures(self) -> Mapping[str, int]:
        """Numbers by names of the step's own: counts since the ownership was taken, or levels."""
        return {}

    def check(self) -> None:  # noqa: B027 - many have none
        """Assert the step's invariants. For tests, between any two awaits."""


class ManifestWriter:
    """Manifests of one step. Each is written, then published or given a tombstone."""

    def __init__(self, tier: OwnedTier) -> None:
        self._tier = tier
        self._tried: dict[str, QueueId] = {}
        """Names of manifests that may be in the store unpublished."""

    def __repr__(self) -> str:
        return f"<ManifestWriter: {len(self._tried)} not settled>"

    async def write(self, queue: QueueId, segments: Sequence[Segment], level: int) -> ManifestRef:
        """Write a manifest under a new name. `settled` must follow. Two requests.

        Raises:
            Unavailable: the outcome is unknown. `tombstone_tried` will add a tombstone.
            Corrupt: the object reads back different from what was written.
        """
        tier = self._tier
        name = name_manifest(queue, segments, level, epoch=tier.journal.epoch, rng=tier.rng)
        self._tried[str(name)] = queue
        return await write_manifest(tier.store, name, segments, sequence=tier.state.sequence)

    def settled(self, names: Collection[str]) -> None:
        """Stop tracking manifests that are published, or have tombstones."""
        for name in names:
            self._tried.pop(name, None)

    async def tombstone_tried(self) -> None:
        """Add tombstones for manifests that earlier runs may have written and did not publish.

        Raises:
            Fenced: a newer owner has the tier.
        """
        if not self._tried:
            return
        for queue_id in dict.fromkeys(self._tried.values()):
            await self._tier.journal.settle(queue_id)  # a publication may still be in flight
        state = self._tier.state
        used = {ref.object_name for queue in state.queues.values() for ref in queue.manifests}
        await self._tier.add_tombstones(
            [name for name in self._tried if name not in used and name not in state.tombstones]
        )
        self._tried.clear()


@dataclass(frozen=True, slots=True)
class Deletions:
    """Plan for the due tombstones."""

    delete: tuple[Tombstone, ...]
    """Tombstones of objects to delete."""
    drop: tuple[str, ...]
    """Tombstones of objects that are in use again. Only the tombstones are dropped."""


def plan_deletions(
    state: TierState,
    now_ms: int,
    options: UpkeepOptions,
    *,
    among: Iterable[str] | None = None,
    unclear: AbstractSet[str] = frozenset(),
    rests: Callable[[Tombstone], bool] = lambda _: False,
) -> Deletions:
    """Plan the due tombstones, of each kind at most `tombstones_per_step_max`. Pure.

    `rests`: whether the object of a tombstone must stay for another reason. `among`: names of the
    only objects to consider. None: all.

    O(considered tombstones), and O(extents) of the queues whose objects are due. Objects whose
    names may be reused are skipped, except the `unclear` ones: no commit begins them before they
    are gone (`PendingDeletions`).
    """
    looked_at: Iterable[Tombstone] = state.tombstones.values()
    if among is not None:
        looked_at = (one for name in among if (one := state.tombstones.get(name)) is not None)
    due = [
        one
        for one in looked_at
        if one.not_before_ms <= now_ms
        and not rests(one)
        and (one.object_name in unclear or not may_come_back(state, one.object_name))
    ]
    if not due:
        return Deletions((), ())
    used, limit = _still_named(state, due), options.tombstones_per_step_max
    delete = (one for one in due if one.object_name not in used)
    drop = (one.object_name for one in due if one.object_name in used)
    return Deletions(tuple(islice(delete, limit)), tuple(islice(drop, limit)))


def still_due(
    state: TierState, planned: Iterable[Tombstone], *, unclear: AbstractSet[str] = frozenset()
) -> tuple[Tombstone, ...]:
    """Filter the planned tombstones: leave out objects that are in use again. Pure.

    Only the file of a segment can be reused, by a truncation or a commit. O(tombstones), and
    O(extents) of their queues.
    """
    used: dict[QueueId, set[str]] = {}
    still: list[Tombstone] = []
    for one in planned:
        name = one.object_name
        if name not in state.tombstones:
            continue
        if name not in unclear and may_come_back(state, name):
            continue
        parsed = parse_segment_name(name)
        queue = state.queues.get(parsed.queue) if parsed else None
        if queue is not None:
            if queue.id not in used:
                used[queue.id] = set(names_of_queue(queue))
            if name in used[queue.id]:
                continue
        still.append(one)
    return tuple(still)


def _still_named(state: TierState, due: Iterable[Tombstone]) -> AbstractSet[str]:
    """Names of the due objects that are in use.

    Reads only the records of the queues that own a file or a manifest among them: there may be a
    hundred thousand queues. Other records name only parts, which are counted.
    """
    if not state.parts_counted:
        return names_in_use(state)
    names = {one.object_name for one in due}
    parsed = [parse_name(name) or parse_segment_name(name) for name in names]
    own = {one.queue for one in parsed if isinstance(one, ManifestName | SegmentName)}
    used = {name for name in names if name in state.index_files or name in state.parts}
    for queue_id in own:
        queue = state.queues.get(queue_id)
        if queue is not None:
            used.update(_names_in(queue))
    return used


def _names_in(queue: Queue) -> Iterator[str]:
    """Names of all objects in a queue's record. O(extents)."""
    yield from (ref.object_name for ref in queue.manifests)
    yield from names_of_queue(queue)


def names_in_use(state: TierState) -> set[str]:
    """Names of all objects in the state's records, and of all referenced parts. O(extents).

    Excludes the own files of segments in manifests.
    """
    used = {*state.index_files, *state.parts}
    for queue in state.queues.values():
        used.update(_names_in(queue))
    return used


def may_come_back(state: TierState, name: str) -> bool:
    """Whether an unpublished commit may be writing to the object.

    Only the name of a segment's own file can be reused: after a tail truncation, by the segment
    that begins at the same byte. Such a segment begins at the end of its flat file.
    """
    parsed = parse_segment_name(name)
    queue = state.queues.get(parsed.queue) if parsed else None
    if parsed is None or queue is None or parsed.type not in FLAT_FILES:
        return False
    return parsed.base >= queue.flat_end(parsed.type)


def failed_again(tombstone: Tombstone, now_ms: int, options: UpkeepOptions) -> Tombstone:
    """Tombstone after one more failed deletion. Its delay doubles each time."""
    tries, s_max = tombstone.tries + 1, max(options.tombstone_retry_s_max, options.grace_s)
    wait_ms = int(1000 * backoff_s(tries, s_min=options.grace_s, s_max=s_max))
    return replace(tombstone, tries=tries, not_before_ms=now_ms + wait_ms)


def never_published(state: TierState, names: Iterable[str]) -> list[str]:
    """Unreferenced manifests, and copies of truncated segments, of earlier owners. Pure.

    Their names have the epoch of the owner that created them, so they can never be published.
    Includes objects left by probes: a running probe takes seconds, less than any grace time.
    """
    used = {ref.object_name for queue in state.queues.values() for ref in queue.manifests}
    orphans: list[str] = []
    for name in names:
        if name in used or name in state.tombstones:
            continue
        parsed = parse_name(name) or KeptName.parse(name)
        is_old = isinstance(parsed, ManifestName | KeptName) and parsed.epoch < state.broker.epoch
        if is_old or name.startswith(PROBE_PREFIX):
            orphans.append(name)
    return orphans
