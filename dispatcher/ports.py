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
    """What may happen to a queue next."""

    UNSETTLED = "unsettled"
    """The tier must be asked first what it has of it: at the start, after an unknown outcome."""
    READY = "ready"
    """Its messages are committed as they become due."""
    IN_FLIGHT = "in flight"
    """A commit is under way."""
    STOPPED = "stopped"
    """The tier and the hot log contradict each other, or one of them cannot be used for this queue
    now; `reason` says more."""
    REFUSED = "refused"
    """The tier does not take this kind of queue."""
    DAMAGED = "damaged"
    """Its next message in the hot log cannot be trusted."""


DELETED_REASON = "the hot log deleted them before they were tiered"
"""The reason of a gap in whose place nothing was damaged."""

TOPIC_DELETED_REASON = "the broker deleted the topic before they were tiered"
"""The reason of a gap that ends where a deleted queue did."""
MADE_AGAIN_REASON = (
    "the broker deleted the topic and made it again; it gives the offsets a second time, and no "
    "message of the new topic below the end of this gap is tiered"
)
"""The reason of a gap between a deleted queue and the next one of its name."""
ENDS_A_QUEUE = frozenset({TOPIC_DELETED_REASON, MADE_AGAIN_REASON})
"""What lies before a gap with such a reason is of a deleted queue, and compared with nothing."""

HALTED = frozenset({QueueState.STOPPED, QueueState.REFUSED, QueueState.DAMAGED})
"""States in which nothing of a queue is committed until something outside changes."""


class HotQueueState(Enum):
    """Whether a queue of the hot log can be tiered."""

    READY = "ready"
    REFUSED = "refused"
    """A kind of queue that the tier does not take; `detail` says which and why."""
    DAMAGED = "damaged"
    """Its next message cannot be trusted; `detail` says what is wrong and where."""
    UNREADABLE = "unreadable"
    """It cannot be read now; `detail` says why. Its offsets are old, or 0 if it was never read."""


@dataclass(frozen=True, slots=True)
class DeletedQueue:
    """A queue that the broker deleted while the log was open, and that cannot be read any more.

    A queue that is made again under its name counts from offset 0. Of that one, the log shows
    only what lies at or above `end`: the tier may have other messages at the offsets below.
    """

    start: QueueOffset
    """The first message that could be read before."""
    end: QueueOffset
    """The offset after the last message that was seen."""
    is_made_again: bool = False
    """Whether another queue has its name now."""


@dataclass(frozen=True, slots=True)
class HotQueue:
    """What the hot log has of one queue now."""

    id: QueueId
    min_offset: QueueOffset
    """First message that can still be read (pinned ones included)."""
    max_offset: QueueOffset
    """The offset after the last message that is whole and may be tiered; never decreases while the
    log is open."""
    state: HotQueueState = HotQueueState.READY
    detail: str = ""
    deleted: DeletedQueue | None = None
    """The last queue of this name that the broker deleted; `min_offset` is not below its end."""
    waiting: int = 0
    """Messages from `max_offset` on that the log has and that may not be tiered yet."""
    waits_for: str = ""
    """What they wait for; empty if none does."""
    hidden: int = 0
    """Messages that were seen of queues of this name below the end of a deleted one: lost."""
    waiting_ms: int = 0
    """Store timestamp of the first of them, Unix ms; 0: not known."""


class Wanted(NamedTuple):
    """Messages of one queue that are to be read."""

    queue: QueueId
    start: QueueOffset
    references: Units
    """Those of `[start, start + len(references))`; at least one."""


class WantedUnits(NamedTuple):
    """Units of one queue that are to be read."""

    queue: QueueId
    start: QueueOffset
    messages_max: int
    """Of `[start, start + messages_max)`; at least one."""


class HotLog(Protocol):
    """A log that holds the newest messages of a broker, by queue and offset.

    Cancelling a call changes nothing. `poll`, `wait` and every read raise `Closed` after `close`,
    or once another log took this one's place. A log need not know which topics are never tiered:
    the dispatcher leaves out what it reports of them.

    H1  A message at an offset below `max_offset` never changes while the log is open.
    H2  `max_offset` covers only messages whose record was verified, or will be verified by
        `records_of_round`.
    H3  Nothing here writes to the log.
    """

    async def poll(self) -> Sequence[HotQueue]:
        """Look for new messages and queues; returns the queues that changed since the last poll.

        The first call returns every queue. The call is cheap when nothing changed.

        Raises:
            Unavailable, Denied: the log cannot be read right now; try again.
        """
        ...

    async def wait(self, seconds: float) -> None:
        """Return when there may be something new, or after `seconds`, whichever is first.

        Raises:
            Unavailable, Denied: as `poll`.
        """
        ...

    async def look_anew(self, queues: Collection[QueueId]) -> Sequence[HotQueue]:
        """What the log has of these queues by a look that takes nothing from an earlier one.

        Directories, files and mappings are read anew, and all else that is kept between looks. It
        is asked before messages are given up that seem lost. Returns those of the queues that the
        log has; `queue` says the same from then on.

        Raises:
            Unavailable, Denied: the log cannot be read right now; try again.
        """
        ...

    def queue(self, queue: QueueId) -> HotQueue | None:
        """What the last poll saw of one queue; None if it has none of that name."""
        ...

    async def references(self, queue: QueueId, start: QueueOffset, *, messages_max: int) -> Units:
        """Units of `[start, start + n)`, n <= messages_max, n >= 1 where start < max_offset.

        A unit's `position` is the record's position in the hot log, not in the tier.

        Raises:
            OutOfRange: `start` is below `min_offset` (deleted meanwhile) or not below max.
            Corrupt: the units cannot be read as such; path and position say where.
            Unavailable, Denied: they cannot be read now.
        """
        ...

    async def references_of_queues(
        self, wanted: Sequence[WantedUnits]
    ) -> Sequence[Units | StoreError]:
        """What `references` returns or raises for each of `wanted`, in order, by one call.

        A queue may be there several times.

        Raises:
            Closed: see above.
        """
        ...

    async def records_of_round(
        self, wanted: Sequence[Wanted]
    ) -> Sequence[MessageBatch | StoreError]:
        """Fetch and verify the records of several queues together; answers in the same order.

        The records of a round's queues are interleaved in the log, so one pass reads them all.
        Every record is checked against its unit and its queue (magic, size, queue id, queue
        offset, position, topic). A batch ends before the first record that fails, or earlier,
        and is never empty. A queue without a batch is answered by an error, which concerns no
        other queue:

            Corrupt: its first record fails; path and position name that record.
            OutOfRange: its first record was deleted meanwhile.
            Unavailable, Denied: its first record cannot be read now.

        Raises:
            Closed: see above.
        """
        ...

    async def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Everything of `queue` below `offset` is durable in the tier: its pins may be dropped.

        Raises no `StoreError`: what cannot be dropped now is dropped after a later release.
        """
        ...

    async def close(self) -> None:
        """Close files and mappings. Idempotent."""
        ...


async def records_of_queue(hot_log: HotLog, wanted: Wanted) -> MessageBatch:
    """The records of one queue alone: `records_of_round` for one.

    Raises:
        StoreError: what `records_of_round` answers in place of a batch.
    """
    (answer,) = await hot_log.records_of_round([wanted])
    if isinstance(answer, StoreError):
        raise answer
    return answer


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
