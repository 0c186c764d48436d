"""What the owner does between entries; without anything to do it asks the store for nothing."""

import asyncio
from dataclasses import dataclass

from container.journal_options import Chance, JournalOptions
from container.journal_reader import Loaded
from container.tier_change import StateChange
from provider.clock import Clock
from provider.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class HousekeepingStatistics:
    """What housekeeping did."""

    snapshots: int = 0


class Housekeeper:
    """Snapshots, boundaries, manifests, tombstones."""

    def __init__(
        self,
        journal: object,
        store: ObjectStore,
        loaded: Loaded,
        *,
        clock: Clock,
        rng: Chance,
        options: JournalOptions,
    ) -> None:
        self._clock = clock
        self._options = options

    def statistics(self) -> HousekeepingStatistics:
        """Counters."""
        return HousekeepingStatistics()

    def touched(self, change: StateChange) -> None:
        """A change was published."""

    def entry_landed(self) -> None:
        """An entry was published."""

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.Event().wait()

    async def tick(self) -> None:
        """Until cancelled."""
        await asyncio.Event().wait()
