"""The journal as anybody else sees it: read-only, a prefix of the truth."""

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
    """A state that follows a journal which somebody else writes. Never writes itself."""

    def __init__(self, reader: JournalReader, loaded: Loaded) -> None:
        self._reader = reader
        self._loaded = loaded
        self._reloads = 0
        self._refreshing = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        *,
        options: JournalOptions | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Read the journal as it is now. Costs what `JournalReader.load` costs.

        Raises:
            NotFound: there is no tier.
            Corrupt, NewerVersion, Unavailable: see `JournalReader.load`.
        """
        reader = JournalReader(store, options or JournalOptions(), clock=clock)
        loaded = await reader.load()
        if loaded.state.sequence == 0:
            raise NotFound("there is no tier here: nobody has written a journal", JOURNAL_PREFIX)
        return cls(reader, loaded)

    def __repr__(self) -> str:
        return f"<JournalFollower of {self.state!r}, loaded again {self._reloads} times>"

    @property
    def state(self) -> TierState:
        """What was published when it was last looked; changes in `refresh` only."""
        return self._loaded.state

    @property
    def damaged_snapshots(self) -> tuple[Corrupt, ...]:
        """Snapshots that could not be used; an older one and the entries behind it stood in."""
        return self._loaded.damaged

    async def refresh(self) -> bool:
        """Apply what is new; whether there was anything. One request where there is not.

        Where entries it needs were deleted it loads the newest snapshot. Then, and only then,
        `state` is another object; a failure leaves it as it was, or as of some entry later.

        Calls at the same time run one after another.

        Raises:
            Corrupt, NewerVersion, Unavailable: see `JournalReader.catch_up`.
        """
        async with self._refreshing:  # entries are applied one after another, each once
            return await self._refresh()

    async def _refresh(self) -> bool:
        before = self.state.sequence
        if not await self._reader.catch_up(self.state):
            loaded = await self._reader.load()
            if loaded.state.sequence >= before:
                self._loaded = loaded
                self._reloads += 1
        return self.state.sequence > before
