"""Ports of the dispatcher: a hot log, a tier, and the states of a queue between them."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from container.queue.commit_plan import CommitPlan
from container.record.batch import MessageBatch
from container.record.unit import Units
from provider.errors import StoreError
from provider.ranges import QueueOffset


class QueueState(Enum):
    """State of a queue in the dispatcher."""

    UNSETTLED = "unsettled"
    """The published end is unknown: at the start, and after a commit with an unknown outcome."""
    READY = "ready"
    """Messages are committed as they become due."""
    IN_FLIGHT = "in flight"
    """A commit is under way."""
    STOPPED = "stopped"
    """The tier and the hot log contradict each other, or one of them cannot be used for this queue
    now. The reason is in the statistics."""
    REFUSED = "refused"
    """The tier does not accept this kind of queue."""
    DAMAGED = "damaged"
    """The next message in the hot log is damaged."""


DELETED_REASON = "the hot log deleted them before they were tiered"
"""Reason of a gap whose messages were not damaged."""

HALTED = frozenset({QueueState.STOPPED, QueueState.REFUSED, QueueState.DAMAGED})
"""States without commits until the tier or the hot log changes."""


class HotQueueState(Enum):
    """State of a queue of the hot log, for tiering."""

    READY = "ready"
    REFUSED = "refused"
    """The tier does not accept this kind of queue. `detail` has the kind and the reason."""
    DAMAGED = "damaged"
    """The next message is damaged. `detail` has the damage and its place."""
    UNREADABLE = "unreadable"
    """The queue cannot be read now; `detail` has the cause. Its offsets are stale, or 0 if it was
    never read."""
    UNCONFIRMED = "unconfirmed"
    """No message of it may be tiered yet, so its offsets are unknown, and 0. `waiting` has their
    number, `detail` the reason. No queue returns to this state."""


@dataclass(frozen=True, slots=True)
class DeletedQueue:
    """A queue that the broker deleted while the log was open. It cannot be read any more.

    A new incarnation of the queue starts at offset 0. The log shows only its messages at or above
    `end`, because the tier may have other messages at the offsets below.
    """

    start: QueueOffset
    """Offset of the first message that was readable before the deletion."""
    end: QueueOffset
    """Offset after the last message that was seen."""
    is_made_again: bool = False
    """Whether a new incarnation exists."""


@dataclass(frozen=True, slots=True)
class HotQueue:
    """Bounds and state of one queue of the hot log at the last poll."""

    id: QueueId
    min_offset: QueueOffset
    """Offset of the first readable message, pinned messages included."""
    max_offset: QueueOffset
    """Offset after the last message that is whole and may be tiered. Never decreases while the log
    is open."""
    state: HotQueueState = HotQueueState.READY
    detail: str = ""
    deleted: DeletedQueue | None = None
    """Last deleted incarnation of the queue. `min_offset` is not below its end."""
    waiting: int = 0
    """Messages from `max_offset` on that the log has but that may not be tiered yet."""
    waits_for: str = ""
    """Condition that these messages wait for; empty without such messages."""
    hidden: int = 0
    """Messages of new incarnations below the end of a deleted one. They are lost."""
    waiting_ms: int = 0
    """Store timestamp of the first message that may not be tiered yet, Unix ms; 0: unknown."""


class Wanted(NamedTuple):
    """Request for consecutive messages of one queue."""

    queue: QueueId
    start: QueueOffset
    references: Units
    """Units of `[start, start + len(references))`; at least one."""


class WantedUnits(NamedTuple):
    """Request for consecutive units of one queue."""

    queue: QueueId
    start: QueueOffset
    messages_max: int
    """Length of the range `[start, start + messages_max)`; at least 1."""


class HotLog(Protocol):
    """A log that holds the newest messages of a broker, by queue and offset.

    Cancelling a call changes nothing. `poll`, `wait` and every read raise `Closed` after `close`,
    or once another log replaced this one. A log may report topics that are never tiered: the
    dispatcher skips them.

    H1  A message at an offset below `max_offset` never changes while the log is open.
    H2  `max_offset` covers only messages whose record was verified, or will be verified by
        `records_of_round`.
    H3  No method writes to the log.
    """

    async def poll(self) -> Sequence[HotQueue]:
        """Poll for new messages and queues. Return the queues that changed since the last poll.

        The first call returns every queue. The call is cheap if nothing changed.

        Raises:
            Unavailable, Denied: the log cannot be read now; retry.
        """
        ...

    async def wait(self, seconds: float) -> None:
        """Return when a poll may find changes, or after `seconds`, whichever is first.

        Raises:
            Unavailable, Denied: as `poll`.
        """
        ...

    async def poll_again(self, queues: Collection[QueueId]) -> Sequence[HotQueue]:
        """Poll these queues without any state of earlier polls. Return those that the log has.

        Reads directories, files and mappings again, and drops all other cached state. The
        dispatcher calls this before it records messages as lost. `queue` returns the same from
        then on.

        Raises:
            Unavailable, Denied: the log cannot be read now; retry.
        """
        ...

    def queue(self, queue: QueueId) -> HotQueue | None:
        """Return one queue as of the last poll; None if the log does not have it."""
        ...

    async def references(self, queue: QueueId, start: QueueOffset, *, messages_max: int) -> Units:
        """Read the units of `[start, start + n)`, 1 <= n <= messages_max.

        A unit's `position` is the record's position in the hot log, not in the tier.

        Raises:
            OutOfRange: `start` is below `min_offset` (deleted meanwhile) or not below
                `max_offset`.
            Corrupt: the bytes are no valid units; the error has path and position.
            Unavailable, Denied: the units cannot be read now.
        """
        ...

    async def references_of_queues(
        self, wanted: Sequence[WantedUnits]
    ) -> Sequence[Units | StoreError]:
        """Read units for several requests in one call. Return results or errors in order.

        Each element is what `references` would return or raise. Requests may repeat a queue.

        Raises:
            Closed: the log was closed or replaced.
        """
        ...

    async def records_of_round(
        self, wanted: Sequence[Wanted]
    ) -> Sequence[MessageBatch | StoreError]:
        """Read and verify the records of several requests. Return batches or errors in order.

        The records of a round's queues are interleaved in the log, so one pass reads them all.
        Every record is validated against its unit and its queue: magic, size, queue id, queue
        offset, position and topic. A batch ends before the first invalid record, or earlier, and
        is never empty. A request without a batch has an error, which affects no other request:

            Corrupt: its first record is invalid; the error has path and position of the record.
            OutOfRange: its first record was deleted meanwhile.
            Unavailable, Denied: its first record cannot be read now.

        Raises:
            Closed: the log was closed or replaced.
        """
        ...

    async def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Drop the pins of all messages of `queue` below `offset`: they are durable in the tier.

        `offset` never decreases, except for a queue that was deleted in the tier and begins again.
        Raises no `StoreError`. A pin that cannot be dropped now is dropped by a later release.
        """
        ...

    async def close(self) -> None:
        """Close files and mappings. Idempotent."""
        ...


async def records_of_queue(hot_log: HotLog, wanted: Wanted) -> MessageBatch:
    """Read and verify the records of one request, by `records_of_round`.

    Raises:
        StoreError: the error that `records_of_round` returns in place of a batch.
    """
    (answer,) = await hot_log.records_of_round([wanted])
    if isinstance(answer, StoreError):
        raise answer
    return answer


class ReadableTierPort(Protocol):
    """Read side of a tier, for the comparison with a hot log. Tier readers offer it, too."""

    def queue(self, queue: QueueId) -> Queue | None:
        """Return the queue as published now; None if the tier does not have it."""
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
        """Read the records at `offsets` as tiered: bytes 28..35 are tier positions.

        `offsets` is not empty; the offsets ascend, are published, and lie in no gap. Returns the
        leading records that fit into `bytes_max` bytes together, at least one. Needs few requests
        for any number of offsets. Without `history`, None replaces an old record whose lookup
        costs more the longer the queue's history is. With `verified`, each extent that holds one
        of the records is read whole and its checksum verified.

        Raises:
            OutOfRange: the messages were deleted meanwhile.
            Corrupt: a published position is invalid, or a checksum differs.
            Unavailable: the tier cannot be read now; retry.
        """
        ...

    def messages_of_queues(
        self, offsets: Mapping[QueueId, Sequence[QueueOffset]], *, bytes_max: int
    ) -> AsyncGenerator[Mapping[QueueId, Sequence[bytes | None]]]:
        """Read the records of many queues by few requests, without history.

        Yields groups of queues whose records have at most `bytes_max` bytes together; each value
        is as `messages_at` returns it. Leaves out queues that cannot be read this way:
        `messages_at` may return their records or raise the cause. Raises no error of the storage.
        """
        ...


class TierPort(ReadableTierPort, Protocol):
    """Tier that its owner commits messages to.

    T1  The state that `queue` returns is durable and visible to readers.
    T2  A commit is atomic per queue.
    T3  After any interruption of a commit, it is safe to call `settle`, to plan again from the
        state that `queue` returns, and to commit again.
    """

    @property
    def trouble(self) -> StoreError | None:
        """Error that holds up the commit under way, which is tried again; None while none does."""
        ...

    async def settle(self, queue: QueueId) -> None:
        """Return once the outcome of every cancelled call for `queue` is known.

        Raises:
            Fenced: a newer owner has the tier.
        """
        ...

    def plan_commit(self, queue: QueueId, batch: MessageBatch) -> CommitPlan:
        """Turn a batch into the bytes of a commit. No I/O, thread-safe, heavy on the CPU.

        Rewrites bytes 28..35 of each record in place. `batch.first_offset` must equal the
        published next offset. A queue that the tier does not have begins at `batch.first_offset`.
        """
        ...

    async def commit(self, plans: Sequence[CommitPlan]) -> None:
        """Commit a round: make the bytes of all plans durable, then publish in one transaction.

        Raises:
            Unavailable: the outcome is unknown; `queue` returns it.
            OutOfRange, AlreadyExists, Refused: a queue is refused while a condition lasts
                (`Reaction.REST`). The path names the queue, unless the round has only one.
            Fenced: a newer owner has the tier; all dispatching must stop.
        """
        ...

    async def begin_queue(self, queue: QueueId, offset: QueueOffset) -> None:
        """Publish a new queue that begins at `offset`. Does nothing if the tier has the queue.

        Raises:
            Unavailable: the outcome is unknown; `queue` returns it.
            Fenced: a newer owner has the tier.
        """
        ...

    async def record_gap(
        self, queue: QueueId, start: QueueOffset, end: QueueOffset, reason: str
    ) -> None:
        """Publish the gap `[start, end)`. `start` must be the published next offset.

        Raises:
            Unavailable: the outcome is unknown; `queue` returns it.
            Fenced: a newer owner has the tier.
        """
        ...
