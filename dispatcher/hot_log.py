"""What the dispatcher needs from a hot log, and nothing more."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.unit import Units
from provider.errors import StoreError
from provider.ranges import QueueOffset


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
