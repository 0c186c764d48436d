"""How far each queue can be read, how far it is durable, and who waits for that. On the loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from container.names.queue_id import QueueId
from provider.errors import StoreError
from tieredstore.hot.append_plan import AppendPlan
from tieredstore.hot.append_thread import AppendRequest


@dataclass(slots=True)
class _Unflushed:
    """What is written and not known to be durable; of its messages nothing is kept."""

    end: int
    """Position after it."""
    next_offsets: dict[QueueId, int]
    """Of the queues that it lets grow."""
    requests: list[AppendRequest] = field(default_factory=list[AppendRequest])
    """Those that wait for it to be durable."""


class QueueEnds:
    """The ends of the queues of one log; neither of the two goes back while a queue is there."""

    def __init__(self, next_offsets: Mapping[QueueId, int], *, is_sync: bool) -> None:
        self.visible: dict[QueueId, int] = dict(next_offsets)
        """The offset after the last message of each queue that can be read: acknowledged ones."""
        self.durable: dict[QueueId, int] = dict(next_offsets)
        """The same of those that are on the disk for certain."""
        self.revision = 0
        """Raised whenever `visible` changes."""
        self.unflushed: deque[_Unflushed] = deque()
        self.news = asyncio.Event()
        """Set when messages became durable; whoever waits for it clears it."""
        self.on_visible: Callable[[Mapping[QueueId, int]], None] = lambda _: None
        """Told the new ends of queues that can be read further than before."""
        self._is_sync = is_sync
        self._grows = False
        """Whether the newest entry of `unflushed` takes in what is written next."""

    def __repr__(self) -> str:
        return f"<QueueEnds: {len(self.visible)} queues, {len(self.unflushed)} groups to sync>"

    def written(self, plan: AppendPlan, requests: list[AppendRequest]) -> None:
        """A group was written; without sync flush that is what its callers wait for."""
        if self._is_sync:
            self.unflushed.append(_Unflushed(plan.end, plan.next_offsets, requests))
            return
        self._show(plan.next_offsets)
        for request in requests:
            request.acknowledge()
        self._wait_for_sync(plan.end, plan.next_offsets)

    def written_one(self, queue: QueueId, next_offset: int, end: int) -> None:
        """One message was written up to `end`; nobody waits for its sync, for that is not sync."""
        assert not self._is_sync, "who waits is in the group that `written` is told of"
        self.visible[queue] = next_offset
        self.revision += 1
        self.on_visible({queue: next_offset})
        self._wait_for_sync(end, {queue: next_offset})

    def _wait_for_sync(self, end: int, next_offsets: Mapping[QueueId, int]) -> None:
        """Note what was written and nobody waits for, as written up to `end`."""
        if self._grows:  # one entry for all until the next sync: there may be 100,000 till then
            newest = self.unflushed[-1]
            newest.end = end
            newest.next_offsets |= next_offsets
        else:
            self.unflushed.append(_Unflushed(end, dict(next_offsets)))
            self._grows = True

    def flushing(self) -> None:
        """A sync begins: what is written from now on may not be in it."""
        self._grows = False

    def flushed(self, position: int) -> None:
        """The CommitLog is durable up to `position`."""
        while self.unflushed and self.unflushed[0].end <= position:
            entry = self.unflushed.popleft()
            self._grows = self._grows and bool(self.unflushed)
            self.durable |= entry.next_offsets
            if self._is_sync:  # else readers see newer ones already
                self._show(entry.next_offsets)
            for request in entry.requests:
                request.acknowledge()
            self.news.set()

    def forget(self, queues: Collection[QueueId]) -> None:
        """These queues were deleted, and all that was written of them before is durable."""
        self.revision += 1
        for queue in queues:
            self.visible.pop(queue, None)
            self.durable.pop(queue, None)

    def fail(self, error: StoreError) -> None:
        """What is not durable never will be, as far as we know."""
        while self.unflushed:
            for request in self.unflushed.popleft().requests:
                request.fail(error)
        self._grows = False

    def _show(self, next_offsets: Mapping[QueueId, int]) -> None:
        """Let messages below these be read; of each group once, in order."""
        self.visible |= next_offsets
        self.revision += 1
        self.on_visible(next_offsets)
