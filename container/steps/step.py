"""One background step of an owner: schedule, due queues, pending deletions, bounded concurrency."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import ClassVar, TypeVar

from container.journal.journal import Journal
from container.journal.options import RandomSource
from container.metadata.operations import AddTombstones
from container.metadata.records import Tombstone
from container.metadata.state import StateChange, TierState
from container.names.queue_id import QueueId
from container.steps.deletion import NEVER_PUBLISHED
from container.steps.options import UpkeepOptions
from provider.clock import Clock
from provider.errors import Closed, Denied, Fenced, StoreError, Unavailable
from provider.object_store import ObjectStore

ItemT = TypeVar("ItemT")


async def side_by_side(
    items: Iterable[ItemT], work: Callable[[ItemT], Awaitable[None]], *, at_once: int
) -> None:
    """Do `work` on each item, in order, `at_once` side by side.

    After a failure no other item is begun, what is under way goes on to its end, and then the
    failure is raised: `Fenced` and `Closed` rather than another one.

    Raises:
        StoreError: what `work` raised.
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


class DueQueues:
    """A heap of queues by due time. The caller works a due time out again after each change.

    Each method costs O(log queues) for each queue that it takes or returns.

    D1  A queue is changed, or has one due time, or is at rest.
    """

    def __init__(self, queues: Iterable[QueueId]) -> None:
        """All of them are changed."""
        self._changed: dict[QueueId, None] = dict.fromkeys(queues)
        self._due: dict[QueueId, int] = {}
        self._heap: list[tuple[int, QueueId]] = []

    def __repr__(self) -> str:
        return f"<DueQueues: {len(self._changed)} changed, {len(self._due)} have a time>"

    def note(self, queues: Iterable[QueueId]) -> None:
        """Mark queues as changed: their due times are not known any more."""
        self._changed.update(dict.fromkeys(queues))

    @property
    def changed(self) -> list[QueueId]:
        """Queues whose due times are not known, in the order in which they changed."""
        return list(self._changed)

    def set(self, queue: QueueId, due_ms: int | None) -> None:
        """Note from when a queue is due, Unix ms; None: it rests until it changes."""
        self._changed.pop(queue, None)
        if due_ms is None:
            self._due.pop(queue, None)
        elif self._due.get(queue) != due_ms:
            self._due[queue] = due_ms
            heappush(self._heap, (due_ms, queue))
            if len(self._heap) > 64 + 4 * len(self._due):  # most of it is of older times
                self._heap = [(due, one) for one, due in self._due.items()]
                heapify(self._heap)

    def take_due(self, now_ms: int) -> list[QueueId]:
        """Remove the queues that are due and return them, the earliest first."""
        found: list[QueueId] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, queue = heappop(self._heap)
            if self._due.get(queue) == due_ms:
                del self._due[queue]
                found.append(queue)
        return found


class PendingDeletions:
    """Names whose deletion was asked for and is not answered, and those that commits begin.

    A name comes again after a tail cut, and where an owner died before it had published the file:
    what was rightly to be deleted before must be gone before a segment of that name begins, and
    what a commit begins is not deleted.
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
        """Hold names while the deletion of them is on its way.

        One that fails or is cancelled may still land (P7): until it is repeated, they stay held.
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
        """Begin files of these names within the block: nothing deletes them there.

        Waits for deletions of them that are on their way; raises as `wait_for`.
        """
        await self.wait_for(names)
        self._begun.update(names)
        try:
            yield
        finally:
            self._begun.difference_update(names)

    @property
    def being_begun(self) -> AbstractSet[str]:
        """Names that commits are about to begin: not to be deleted."""
        return self._begun

    @property
    def unclear(self) -> AbstractSet[str]:
        """Names whose deletion failed and may still land: to be repeated, whatever comes again."""
        return self._unclear

    async def wait_for(self, names: Collection[str]) -> None:
        """Return once no deletion of one of the names can land any more.

        Raises:
            Unavailable: a deletion failed, and may still land.
        """
        while not self._asked.isdisjoint(names):
            self._answered.clear()
            await self._answered.wait()
        unclear = self._unclear.intersection(names)
        if unclear:
            raise Unavailable("its deletion failed and may still land; try again", min(unclear))


QUEUES_PER_TURN = 64
"""Queues that a step looks at before other tasks get a turn: 1 to 2 ms."""


@dataclass(frozen=True, slots=True)
class OwnedTier:
    """What the steps work on: a tier that we own."""

    journal: Journal
    store: ObjectStore
    clock: Clock
    rng: RandomSource
    options: UpkeepOptions
    deletions: PendingDeletions = field(default_factory=PendingDeletions)
    """Files whose deletion is on its way."""
    topic_hours: dict[str, int] = field(default_factory=dict[str, int])
    """Hours that topics are kept, where somebody knows it better than their records."""

    @property
    def state(self) -> TierState:
        """The published state, now."""
        return self.journal.state

    def due_ms(self) -> int:
        """When what is freed now may be deleted: after the grace time. Unix ms."""
        return self.clock.now_ms() + int(self.options.grace_s * 1000)

    def tombstone(self, name: str, reason: str) -> Tombstone:
        """A tombstone for the object `name`, which may be deleted after the grace time."""
        return Tombstone(name, self.due_ms(), reason)

    async def bury(self, names: Sequence[str]) -> None:
        """Give tombstones to objects that were made and will never be published.

        Raises:
            Fenced: a newer owner has the tier.
        """
        if names:
            dead = tuple(self.tombstone(name, NEVER_PUBLISHED) for name in names)
            await self.journal.publish([AddTombstones(dead)])


class Step(ABC):
    """One thing that an owner does in the background, at its own interval.

    A step may fail or be cancelled at any await: what it leaves in the store is unreferenced, and
    its next run does the work again. It makes no request where it has nothing to do, so that an
    idle tier costs nothing. `Upkeep` runs it, one call at a time, beside the other steps.
    """

    name: ClassVar[str]
    """Unique; what statistics and metrics call the step."""
    finishes_again: ClassVar[bool] = False
    """Whether `finish` is called again once it has ended for every step: what they publish at a
    clean end makes work for this one."""

    def __init__(self, tier: OwnedTier) -> None:
        self.tier = tier
        self.interval_s = tier.options.interval_s
        """Seconds from the end of a run to the next one, where none fails."""

    @abstractmethod
    async def step(self) -> None:
        """Do what is due. No request where nothing is.

        Raises:
            Fenced: a newer owner has the tier; the step is not run again.
            StoreError: the work is not done; the step is run again later.
        """

    async def finish(self) -> None:
        """The last run, at a clean end. Raises what `step` raises."""
        await self.step()

    @property
    def urgent(self) -> bool:
        """Whether to run before the interval is over; reads memory only.

        Asked after every entry and every run of any step. A run must make it false, or fail.
        """
        return False

    def published(self, changes: Sequence[StateChange]) -> None:  # noqa: B027 - few care
        """An entry with these changes was published."""

    @property
    def figures(self) -> Mapping[str, int]:
        """What the step did since the ownership was taken, by names of its own."""
        return {}

    def check(self) -> None:  # noqa: B027 - many have none
        """Assert the step's invariants; for tests, between any two awaits."""
