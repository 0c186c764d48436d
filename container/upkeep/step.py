"""One thing that an owner does in the background, again and again."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from container.journal.journal import Journal
from container.journal.options import RandomSource
from container.metadata.operations import AddTombstones
from container.metadata.records import Tombstone
from container.metadata.state import StateChange, TierState
from container.upkeep.deletion import NEVER_PUBLISHED
from container.upkeep.options import UpkeepOptions
from container.upkeep.pending_deletions import PendingDeletions
from provider.clock import Clock
from provider.object_store import ObjectStore

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
