"""Reader's side of a tier: no hot log, no ownership, no writes."""

from collections.abc import Mapping
from typing import Protocol, Self

from container.journal.reader import JournalFollower
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.queue.message_queue_container import Manifests
from container.tier_view import MetadataView, TierView
from provider.errors import Corrupt, StoreError
from provider.object_store import ObjectStore


class RefreshedMetadata(MetadataView, Protocol):
    """Source of a reader's metadata: a follower of the journal, or a fixed state."""

    @property
    def histories(self) -> int:
        """Number of restores of the tier from a backup, as seen by the reader."""
        ...

    async def refresh(self, *, doubted: bool = False) -> bool:
        """Load newer metadata. Return whether there was any. See `JournalFollower.refresh`."""
        ...

    async def entry_crc(self, sequence: int) -> int:
        """Return the checksum of a journal entry. See `JournalFollower.entry_crc`."""
        ...


class FixedMetadata:
    """Metadata that does not change: that of a tier which the Java store wrote."""

    def __init__(self, state: TierState) -> None:
        self._state = state

    @property
    def state(self) -> TierState:
        """Loaded state."""
        return self._state

    @property
    def histories(self) -> int:
        """Return 0: there is one history."""
        return 0

    async def refresh(self, *, doubted: bool = False) -> bool:  # noqa: ARG002 - the protocol's
        """Return False: nothing changes."""
        return False

    async def entry_crc(self, sequence: int) -> int:  # noqa: ARG002 - the protocol's
        """Return 0: there is no journal."""
        return 0


class TierReader(TierView):
    """Read-only access to a tier. Several readers may read a tier while its owner writes it."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: RefreshedMetadata,
        *,
        manifests: Manifests | None = None,
        verify: bool = False,
        damage: Corrupt | None = None,
        queue_damage: Mapping[QueueId, StoreError] | None = None,
    ) -> None:
        self.damage = damage
        """Damage that kept the metadata from being newer when it was opened. None without damage.
        """
        self.queue_damage = queue_damage or {}
        """Reasons why queues of a Java tier are served only in part or not at all. See `JavaTier`.
        """
        super().__init__(store, metadata, manifests=manifests, verify=verify)
        self._metadata = metadata

    @classmethod
    async def open(cls, store: ObjectStore, *, verify: bool = False, damaged: bool = False) -> Self:
        """Load the newest snapshot and the entries after it.

        Args:
            store: the store of the tier.
            verify: verify the CRC-32C of everything that is read.
            damaged: of a damaged journal, load the intact part. `damage` has its end, and `refresh`
                raises it until the entry or its copy is intact.

        Raises:
            NotFound: there is no tier.
            Corrupt: the journal is damaged, or not even one entry is intact. Path names the entry.
            Unavailable: retry later.
        """
        follower = await JournalFollower.open(store, damaged=damaged)
        return cls(store, follower, verify=verify, damage=follower.damage)

    def _history(self) -> int:
        return self._metadata.histories

    def __repr__(self) -> str:
        broker = self.state.broker
        return f"<TierReader {broker.cluster}/{broker.name}: {len(self.state.queues)} queues>"

    async def refresh(self, *, doubted: bool = False) -> bool:
        """Load newer metadata. Return whether there was any. One request if there is none.

        `doubted`: the storage has contradicted the known state. Costs two requests.
        """
        return await self._metadata.refresh(doubted=doubted)

    @property
    def histories(self) -> int:
        """Number of restores of the tier from a backup, as seen by the reader."""
        return self._metadata.histories

    async def entry_crc(self, sequence: int) -> int:
        """Return the CRC-32 of a journal entry. 0: unknown. See `JournalFollower.entry_crc`."""
        return await self._metadata.entry_crc(sequence)
