"""What the dispatcher needs from a tier, and nothing more. `container.tier.Tier` is one."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from container.queue.commit_plan import CommitPlan
from container.record.batch import MessageBatch
from provider.ranges import QueueOffset


class ReadableTierPort(Protocol):
    """The part of a tier that is compared with a hot log; readers of a tier offer it, too."""

    def queue(self, queue: QueueId) -> Queue | None:
        """The queue as it is published now; None if the tier has none."""
        ...

    async def messages_at(
        self,
        queue: QueueId,
        offsets: Sequence[QueueOffset],
        *,
        bytes_max: int,
        history: bool = False,
        verified: bool = False,
    ) -> Sequence[bytes | None]:
        """The records at `offsets` as tiered: bytes 28..35 are tier positions.

        `offsets` ascend, are at least one, are published, and lie in no gap. Returns the leading
        ones that fit into `bytes_max` together, at least one. Few requests however many they are.
        Without `history`, None replaces old records that cost more to find the longer the
        queue's history is. `verified`: compare the checksum of each extent that holds something
        of them, which is read whole for it.

        Raises:
            OutOfRange: they were deleted meanwhile.
            Corrupt: what is published cannot be a record's place, or a checksum does not match.
            Unavailable: try again.
        """
        ...

    def messages_of_queues(
        self, offsets: Mapping[QueueId, Sequence[QueueOffset]], *, bytes_max: int
    ) -> AsyncGenerator[Mapping[QueueId, Sequence[bytes | None]]]:
        """What `messages_at` returns for each of many queues, without history, by few requests.

        Yields some queues at a time, whose records have at most `bytes_max` together. Leaves out
        queues of which something is in the way, for which `messages_at` may answer or tell what
        it is; raises nothing of the storage.
        """
        ...


class TierPort(ReadableTierPort, Protocol):
    """A tier that messages are committed to, by its owner.

    T1  What `queue` returns is durable, and readers see it.
    T2  A commit lands whole or not at all, per queue.
    T3  After any interruption of a commit, it is safe to call `settle`, to plan again from what
        `queue` returns, and to commit again.
    """

    async def settle(self, queue: QueueId) -> None:
        """Return once it is known what became of every call for `queue` that was cancelled.

        Raises:
            Fenced: someone newer owns the tier.
        """
        ...

    def plan_commit(self, queue: QueueId, batch: MessageBatch) -> CommitPlan:
        """Turn a batch into what a commit writes. Pure, thread-safe, heavy on the CPU.

        Rewrites bytes 28..35 of the batch in place. `batch.first_offset` must equal the published
        next offset; a queue that the tier does not have begins at `batch.first_offset`.
        """
        ...

    async def commit(self, plans: Sequence[CommitPlan]) -> None:
        """One round: make the bytes of all plans durable together, then one journal transaction.

        Raises:
            Unavailable: the outcome is unknown; `queue` tells it.
            OutOfRange, AlreadyExists, Refused: a queue is refused for as long as something lasts
                (`Reaction.REST`); the path names the queue, unless the round has only one.
            Fenced: someone newer owns the tier; stop everything.
        """
        ...

    async def begin_queue(self, queue: QueueId, offset: QueueOffset) -> None:
        """Publish that a queue the tier does not have begins at `offset`; nothing if it has it.

        Raises:
            Unavailable: the outcome is unknown; `queue` tells it.
            Fenced: someone newer owns the tier.
        """
        ...

    async def record_gap(
        self, queue: QueueId, start: QueueOffset, end: QueueOffset, reason: str
    ) -> None:
        """Publish that `[start, end)` was lost; `start` must be the published next offset.

        Raises:
            Unavailable: the outcome is unknown; `queue` tells it.
            Fenced: someone newer owns the tier.
        """
        ...
