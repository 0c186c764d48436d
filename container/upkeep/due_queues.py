"""Queues by the time from which a step may have work on them, so that no run scans the tier."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from container.names.queue_id import QueueId


class DueQueues:
    """A heap of queues by due time. The caller works a due time out again after each change.

    Each method costs O(log queues) for each queue that it takes or returns.

    D1  A queue is changed, or has one due time, or is at rest.
    """

    def __init__(self, queues: Iterable[QueueId]) -> None:
        """All of them are changed."""
        self._changed: dict[QueueId, None] = dict.fromkeys(queues)
        self._due: dict[QueueId, int] = {}
        self._heap: list[tuple[int, QueueId]] = []

    def __repr__(self) -> str:
        return f"<DueQueues: {len(self._changed)} changed, {len(self._due)} have a time>"

    def note(self, queues: Iterable[QueueId]) -> None:
        """Mark queues as changed: their due times are not known any more."""
        self._changed.update(dict.fromkeys(queues))

    @property
    def changed(self) -> list[QueueId]:
        """Queues whose due times are not known, in the order in which they changed."""
        return list(self._changed)

    def set(self, queue: QueueId, due_ms: int | None) -> None:
        """Note from when a queue is due, Unix ms; None: it rests until it changes."""
        self._changed.pop(queue, None)
        if due_ms is None:
            self._due.pop(queue, None)
        elif self._due.get(queue) != due_ms:
            self._due[queue] = due_ms
            heappush(self._heap, (due_ms, queue))
            if len(self._heap) > 64 + 4 * len(self._due):  # most of it is of older times
                self._heap = [(due, one) for one, due in self._due.items()]
                heapify(self._heap)

    def take_due(self, now_ms: int) -> list[QueueId]:
        """Remove the queues that are due and return them, the earliest first."""
        found: list[QueueId] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, queue = heappop(self._heap)
            if self._due.get(queue) == due_ms:
                del self._due[queue]
                found.append(queue)
        return found
