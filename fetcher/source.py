"""Port of the fetcher: a tier, and one queue of it for reading."""

from collections.abc import Sequence
from typing import Protocol

from container.metadata.records import Gap
from container.names.queue_id import QueueId
from container.queue.message_queue_container import ExtentChecks
from container.queue.positions import Boundary, TimeStretch
from container.record.unit import Units
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset


class TierQueue(Protocol):
    """Published messages of one queue: `[min_offset, next_offset)` without the gaps."""

    @property
    def id(self) -> QueueId:
        """Topic and id of the queue."""
        ...

    @property
    def generation(self) -> int:
        """Counter of tail truncations: other messages may follow at the same offsets."""
        ...

    @property
    def min_offset(self) -> QueueOffset:
        """First readable offset."""
        ...

    @property
    def next_offset(self) -> QueueOffset:
        """Commit offset: the offset after the last readable message."""
        ...

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Ranges of offsets that were lost before they were tiered, ascending."""
        ...

    async def stretch_by_time(
        self, moment_ms: int, boundary: Boundary, low: QueueOffset, high: QueueOffset
    ) -> TimeStretch | None:
        """Find the part of `[low, high)` that has the messages around `moment_ms`, Unix ms.

        Returns None if no message of the range qualifies. Costs a request for each of at most two
        manifests that are not cached. Errors as `units`.
        """
        ...

    async def units(self, start: QueueOffset, end: QueueOffset, *, verified: bool = False) -> Units:
        """Read the units of exactly `[start, end)`, which touches no gap. One request per segment.

        With `verified`, compares the published checksums of the extents, each of up to
        `tieredStoreExtentMaxSize` bytes, and reads these extents whole. A tier that RocketMQ's own
        store wrote has no checksums, so nothing is compared there.

        Raises:
            OutOfRange: some units are not published.
            NotFound: an object was deleted meanwhile. Refresh the metadata and retry once.
            Unavailable: the storage did not respond; retry.
            Corrupt: the bytes contradict the format, or a checksum differs.
        """
        ...

    def log_position(self, offset: QueueOffset) -> int | None:
        """Return the log position of the message at `offset`; at the queue's end, the log's end.

        Returns None if the metadata in memory do not have it. No request.
        """
        ...

    def object_ends(self, low: QueueOffset, high: QueueOffset) -> list[QueueOffset]:
        """Return the offsets between `low` and `high` at which an object ends, ascending.

        Includes only objects whose metadata are in memory. No request.
        """
        ...

    async def extent_ends(self, span: ByteRange) -> list[int]:
        """Return the log positions in `span`, or at its end, at which an extent ends, ascending.

        Only extents with a checksum, up to the log's end. Costs a request for each manifest that is
        not cached. Errors as `units`.
        """
        ...

    async def units_and_pieces(
        self,
        start: QueueOffset,
        end: QueueOffset,
        span: ByteRange,
        checks: ExtentChecks | None = None,
    ) -> tuple[Units, list[Buffer]]:
        """Read units and one range of the CommitLog, as `log_pieces`, in one round of requests.

        Errors as `units`.
        """
        ...

    async def log(self, wanted: ByteRange) -> Buffer:
        """Read a range of the CommitLog over any number of segments. Errors as `units`."""
        ...

    async def log_many(self, wanted: Sequence[ByteRange]) -> list[Buffer]:
        """Read ranges of the CommitLog in one round of requests. Errors as `units`."""
        ...

    async def log_pieces(
        self, wanted: Sequence[ByteRange], checks: ExtentChecks | None = None
    ) -> list[list[Buffer]]:
        """Read as `log_many`. Return for each range the buffers of the storage, in order.

        `checks` gets the results of verifying the extents that are read as a whole.
        """
        ...


class Tier(Protocol):
    """Queues of a tier, for reading."""

    def container(self, queue: QueueId) -> TierQueue | None:
        """Return a queue for reading; None if the tier does not have it. No request."""
        ...

    async def refresh(self, *, doubted: bool = False) -> bool:
        """Poll for newer metadata. Return whether there was some; always False for the owner.

        `doubted`: the storage contradicts the metadata; see `JournalFollower.refresh`.
        """
        ...
