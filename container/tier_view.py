"""Common view of a tier for owners and readers: metadata, and queues to read."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

from container.metadata.records import Queue
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.queue.manifest import ManifestReader
from container.queue.message_queue_container import Manifests, MessageQueueContainer
from container.queue.point_reads import RecordsOfQueues, read_records_at, read_records_of_queues
from container.queue.segments import TieredSegments
from provider.errors import NotFound
from provider.object_store import ObjectStore
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

    @property
    def state(self) -> TierState:
        """Published state, as last seen. An owner sees all of it."""
        return self._view.state

    @property
    def store(self) -> ObjectStore:
        """Store of the tier."""
        return self._store

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
