"""The journal as a reader sees it: a prefix of what its owner has published."""

import asyncio
from typing import Self

from container.journal.options import JournalOptions
from container.journal.reader import JournalReader, Loaded
from container.metadata.state import TierState
from container.names.tier_objects import JOURNAL_PREFIX
from provider.clock import Clock
from provider.errors import Corrupt, NotFound
from provider.object_store import ObjectStore


class JournalFollower:
    """A state that follows a journal which another process writes. Never writes itself."""

    def __init__(self, reader: JournalReader, loaded: Loaded) -> None:
        self._reader = reader
        self._loaded = loaded
        self._reloads = 0
        self._histories = 0
        self._refreshing = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        *,
        options: JournalOptions | None = None,
        clock: Clock | None = None,
        damaged: bool = False,
    ) -> Self:
        """Read the journal as it is now. Costs what `JournalReader.load` costs.

        `damaged`: of a damaged journal, take the part that is whole.

        Raises:
            NotFound: there is no tier.
            Corrupt, NewerVersion, Unavailable: see `JournalReader.load`.
        """
        reader = JournalReader(store, options or JournalOptions(), clock=clock)
        loaded = await reader.load_whole_part()
        if loaded.damage is not None and (loaded.state.sequence == 0 or not damaged):
            raise loaded.damage
        if loaded.state.sequence == 0:
            raise NotFound("there is no tier here: it has no journal", JOURNAL_PREFIX)
        return cls(reader, loaded)

    def __repr__(self) -> str:
        return f"<JournalFollower of {self.state!r}, loaded again {self._reloads} times>"

    @property
    def state(self) -> TierState:
        """The published state as of the last `refresh`, the only call that changes it."""
        return self._loaded.state

    @property
    def histories(self) -> int:
        """How often the tier was found to be put back from a copy, which began another history."""
        return self._histories

    @property
    def damage(self) -> Corrupt | None:
        """Why the state was older than it could be when it was loaded; None if it was not."""
        return self._loaded.damage

    @property
    def damaged_snapshots(self) -> tuple[Corrupt, ...]:
        """Snapshots that could not be used; an older one and the entries after it stood in."""
        return self._loaded.damaged

    async def refresh(self) -> bool:
        """Apply new entries; whether there were any. One request where there are none.

        Loads the newest snapshot where entries that it needs were deleted, or the tier was put back
        from a copy: the state may then be older than before. Then, and only then, `state` is
        another object. A failure leaves the state as of this entry or a later one.
        Concurrent calls run one after another.

        Raises:
            Corrupt, NewerVersion, Unavailable: see `JournalReader.catch_up`.
        """
        async with self._refreshing:  # entries are applied one after another, each once
            return await self._refresh()

    async def _refresh(self) -> bool:
        before = self.state.sequence
        if await self._reader.catch_up(self._loaded):
            return self.state.sequence > before
        loaded = await self._reader.load()
        is_other = self._loaded.is_other_history and loaded.state.sequence > 0
        if is_other or loaded.state.sequence >= before:
            self._loaded = loaded
            self._reloads += 1
            self._histories += is_other
        return is_other or self.state.sequence > before
