"""Lookups of segments: a part of the face of an open tier."""

from abc import ABC, abstractmethod
from collections.abc import Collection

from container.metadata.records import CopyState
from container.names.queue_id import QueueId
from container.queue.segments import TieredSegment, TieredSegments
from container.tier_reader import TierReader
from provider.errors import NotFound
from tieredstore.summary import QueueSummary


class SegmentLookups(ABC):
    """What `ReadableTier` says of segments; all but the lookups is its own."""

    @property
    @abstractmethod
    def reader(self) -> TierReader:
        """The tier below."""

    @abstractmethod
    def queue(self, topic: str, queue_id: int) -> QueueSummary:
        """One queue."""

    async def segments(
        self, topic: str, queue_id: int, states: Collection[CopyState] | None = None
    ) -> list[TieredSegment]:
        """The segments of a queue in these states; None: in any.

        By flat file and base. What is published is COPY_FINISHED; DELETE_STARTED are files that are
        unpublished and wait for their deletion. One request for each manifest that is not cached.

        Raises:
            NotFound: the tier has no such queue; names the nearest.
            BytesMissing, Corrupt, Unavailable: of a manifest.
        """
        return await self._lookup(topic, queue_id).listed(states)

    async def segment_at(self, topic: str, queue_id: int, offset: int) -> TieredSegment | None:
        """The CommitLog segment that has a message; None if the message is not tiered, or was lost.

        No request where the newest metadata tell, else a few for manifests. Errors as `segments`.
        """
        return await self._lookup(topic, queue_id).at(offset)

    def _lookup(self, topic: str, queue_id: int) -> TieredSegments:
        self.queue(topic, queue_id)
        found = self.reader.segments(QueueId(topic, queue_id))
        if found is None:
            raise NotFound("the tier has no such queue", f"{topic}/{queue_id}")
        return found
