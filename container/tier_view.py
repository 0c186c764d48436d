"""Views of a tier: what owners and readers share, and the reader, which writes nothing."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol, Self

from container.errors import NewerVersion
from container.journal.reader import JournalFollower
from container.metadata.records import Queue
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.queue.manifest import ManifestReader
from container.queue.message_queue_container import Manifests, MessageQueueContainer
from container.queue.point_reads import RecordsOfQueues, read_records_at, read_records_of_queues
from container.queue.segments import TieredSegments
from provider.errors import Corrupt, NotFound, StoreError
from provider.object_store import ObjectStore, ReadNow, read_now_of
from provider.ranges import QueueOffset


class MetadataView(Protocol):
    """Source of metadata: the owner's journal, a follower of it, or a fixed state."""

    @property
    def state(self) -> TierState:
        """Published state, as last seen."""
        ...


class TierView:
    """A tier as its metadata describes it."""

    def __init__(
        self,
        store: ObjectStore,
        metadata: MetadataView,
        *,
        manifests: Manifests | None = None,
        verify: bool = False,
    ) -> None:
        """`verify`: verify the CRC-32C of everything that is read."""
        self._store = store
        self._view = metadata
        self._manifests = manifests or ManifestReader(store)
        self._verify = verify
        self._read_now = None if verify else read_now_of(store)

    @property
    def state(self) -> TierState:
        """Published state, as last seen. An owner sees all of it."""
        return self._view.state

    @property
    def store(self) -> ObjectStore:
        """Store of the tier."""
        return self._store

    @property
    def read_now(self) -> ReadNow | None:
        """Reads that wait for nothing. None if the store has none, or all reads are verified."""
        return self._read_now

    async def refresh(self, *, doubted: bool = False) -> bool:  # noqa: ARG002 - see `TierReader`
        """Load newer metadata. Return whether there was any."""
        return False

    def queue(self, queue: QueueId) -> Queue | None:
        """Published record of a queue. None if the tier does not have it."""
        return self.state.queues.get(queue)

    def container(
        self, queue: QueueId, *, verify: bool | None = None
    ) -> MessageQueueContainer | None:
        """Open a queue for reading. None if the tier lacks it. `verify` None: as the tier."""
        if queue not in self.state.queues:
            return None
        verify = self._verify if verify is None else verify
        return MessageQueueContainer(
            queue,
            self.queue,
            self._store,
            self._manifests,
            verify=verify,
            history=self._history,
        )

    def _history(self) -> int:
        """Number of the history that the metadata belongs to. See `JournalFollower.histories`."""
        return 0

    def segments(self, queue: QueueId) -> TieredSegments | None:
        """Segment lookups of a queue, by its newest metadata. None if the tier lacks it."""
        container = self.container(queue)
        return None if container is None else TieredSegments(container, self.state, self._manifests)

    async def messages_at(
        self,
        queue: QueueId,
        offsets: Sequence[QueueOffset],
        *,
        bytes_max: int,
        history: bool = False,
        verified: bool = False,
    ) -> list[bytes | None]:
        """Read the records at `offsets` as tiered. See `point_reads.read_records_at`.

        `verified`: verify the CRC-32C of each extent that is read, which reads extents as a whole.

        Raises:
            NotFound: the tier has no such queue, or no longer has it.
            Corrupt: also if a checksum does not match.
        """
        container = self.container(queue, verify=verified or self._verify)
        if container is None:
            raise NotFound("the tier has no such queue", str(queue))
        return await read_records_at(container, offsets, bytes_max=bytes_max, history=history)

    async def messages_of_queues(
        self, offsets: Mapping[QueueId, Sequence[QueueOffset]], *, bytes_max: int
    ) -> AsyncGenerator[RecordsOfQueues]:
        """Read the records at `offsets` of many queues (`point_reads.read_records_of_queues`)."""
        containers = [found for queue in offsets if (found := self.container(queue)) is not None]
        reading = read_records_of_queues(containers, offsets, self._store, bytes_max=bytes_max)
        async with aclosing(reading):
            async for found in reading:
                yield found


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


ATTEMPTS_MAX = 4
"""Attempts at an object that changes during each of them. The last one counts."""


async def take_newer(tier: TierView) -> None:
    """Refresh the metadata if readable newer metadata exists."""
    try:
        await tier.refresh(doubted=True)
    except (Corrupt, NewerVersion, NotFound):
        return  # the open metadata stays; the check of the journal reports the damage
