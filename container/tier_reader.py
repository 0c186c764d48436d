"""A tier as a reader sees it: no hot log, no ownership, nothing is ever written."""

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
    """Where a reader's metadata comes from: a follower of the journal, or a fixed state."""

    @property
    def histories(self) -> int:
        """How often the tier was found to be put back from a copy."""
        ...

    async def refresh(self, *, doubted: bool = False) -> bool:
        """Look for newer metadata; True if there was some. See `JournalFollower.refresh`."""
        ...


class FixedMetadata:
    """Metadata that does not change: that of a tier which the Java store wrote."""

    def __init__(self, state: TierState) -> None:
        self._state = state

    @property
    def state(self) -> TierState:
        """What was loaded."""
        return self._state

    @property
    def histories(self) -> int:
        """There is one."""
        return 0

    async def refresh(self, *, doubted: bool = False) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing changes."""
        return False


class TierReader(TierView):
    """Reads a tier alone. Several may read one tier while its owner writes it."""

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
        """Why the metadata was older than it could be when it was opened; None if it was not."""
        self.queue_damage = queue_damage or {}
        """Why queues of a Java tier are served only in part or not at all; see `JavaTier`."""
        super().__init__(store, metadata, manifests=manifests, verify=verify)
        self._metadata = metadata

    @classmethod
    async def open(cls, store: ObjectStore, *, verify: bool = False, damaged: bool = False) -> Self:
        """Load the newest snapshot and the entries behind it.

        Args:
            store: where the tier lies.
            verify: check the CRC-32C of everything that is read.
            damaged: of a damaged journal, take the part that is whole; `damage` says where it
                ends, and `refresh` raises it until the entry is whole or its copy is there.

        Raises:
            NotFound: there is no tier.
            Corrupt: the journal is damaged, or not even one entry is whole; path names the entry.
            Unavailable: try again.
        """
        follower = await JournalFollower.open(store, damaged=damaged)
        return cls(store, follower, verify=verify, damage=follower.damage)

    def _history(self) -> int:
        return self._metadata.histories

    def __repr__(self) -> str:
        broker = self.state.broker
        return f"<TierReader {broker.cluster}/{broker.name}: {len(self.state.queues)} queues>"

    async def refresh(self, *, doubted: bool = False) -> bool:
        """Look for newer metadata; True if there was some. One request when there is none.

        `doubted`, after the storage contradicted what is known: two.
        """
        return await self._metadata.refresh(doubted=doubted)
