"""What the fetcher needs from a tier, and nothing more."""

from collections.abc import Sequence
from typing import Protocol

from container.metadata.records import Gap
from container.names.queue_id import QueueId
from container.queue.time_index import Boundary, TimeStretch
from container.record.unit import Units
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset


class TierQueue(Protocol):
    """The published messages of one queue: `[min_offset, next_offset)` without the gaps."""

    @property
    def id(self) -> QueueId:
        """Which queue it is."""
        ...

    @property
    def generation(self) -> int:
        """Raised when published messages were taken away again, and others may follow."""
        ...

    @property
    def min_offset(self) -> QueueOffset:
        """First offset that can be read."""
        ...

    @property
    def next_offset(self) -> QueueOffset:
        """The commit offset: the one after the last that can be read."""
        ...

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Offsets in between that were lost before they could be tiered, in order."""
        ...

    async def stretch_by_time(
        self, moment_ms: int, boundary: Boundary, low: QueueOffset, high: QueueOffset
    ) -> TimeStretch | None:
        """Where among `[low, high)` to look for a moment: `time_stretch.stretch_by_time`.

        Costs a request for each of at most two manifests that are not cached. Errors as `units`.
        """
        ...

    async def units(self, start: QueueOffset, end: QueueOffset, *, verified: bool = False) -> Units:
        """The units of exactly `[start, end)`, which touches no gap. One request per segment.

        `verified`: only if the checksum that was published with them proves each bit; Corrupt
        else. It covers up to `tieredStoreExtentMaxSize` bytes, which are read whole for it. A tier
        that RocketMQ's own store wrote has none, so that nothing is compared there.

        Raises:
            OutOfRange: some of them are not published.
            NotFound: an object went meanwhile; refresh the metadata and look again, once.
            Unavailable: try again.
            Corrupt: the bytes contradict the format.
        """
        ...

    def log_position(self, offset: QueueOffset) -> int | None:
        """Where in the log the message at `offset` begins; at the queue's end, where the log ends.

        None where no metadata at hand say so. No request.
        """
        ...

    def object_ends(self, low: QueueOffset, high: QueueOffset) -> list[QueueOffset]:
        """Offsets between `low` and `high` before which the bytes of an object end, in order.

        As far as metadata at hand say so. No request.
        """
        ...

    async def units_and_pieces(
        self, start: QueueOffset, end: QueueOffset, span: ByteRange
    ) -> tuple[Units, list[Buffer]]:
        """As `units`, and as `log_pieces` of one range, in one round of requests."""
        ...

    async def log(self, wanted: ByteRange) -> Buffer:
        """Bytes of the CommitLog by log position, over any number of segments. As `units`."""
        ...

    async def log_many(self, wanted: Sequence[ByteRange]) -> list[Buffer]:
        """Several ranges of the CommitLog in one round of requests. As `units`."""
        ...

    async def log_pieces(self, wanted: Sequence[ByteRange]) -> list[list[Buffer]]:
        """As `log_many`, each range as the buffers that storage gave, in order and not joined."""
        ...


class Tier(Protocol):
    """All queues of a tier."""

    def container(self, queue: QueueId) -> TierQueue | None:
        """A queue for reading; None if the tier does not have it. No request."""
        ...

    async def refresh(self) -> bool:
        """Look for newer metadata, True if there was some; an owner knows all and says False."""
        ...
