"""What the dispatcher was told of queues, and what it said of them."""

from collections.abc import Mapping

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueue
from provider.errors import OutOfRange
from provider.ranges import QueueOffset


class ToldQueues:
    """What the last poll saw of each queue, and how far it is tiered. Any thread may read.

    One thread at a time publishes, and one at a time releases an offset of a queue.
    """

    def __init__(self) -> None:
        self.known: Mapping[QueueId, HotQueue] = {}
        """What the last poll saw of each queue; replaced whole, so threads may read."""
        self._released: dict[QueueId, int] = {}

    def __repr__(self) -> str:
        return f"<ToldQueues: {len(self.known)} queues, {len(self._released)} released>"

    def publish(self, found: Mapping[QueueId, HotQueue]) -> dict[QueueId, HotQueue]:
        """Make what a poll found `known`; returns what changed by it."""
        changed = {queue: seen for queue, seen in found.items() if self.known.get(queue) != seen}
        if changed:
            self.known = {**self.known, **changed}
        return changed

    def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Everything of `queue` below `offset` is tiered."""
        self._released[queue] = max(offset, self._released.get(queue, 0))

    def released(self, queue: QueueId) -> int:
        """Below which offset everything is tiered; 0 while nothing was said of the queue."""
        return self._released.get(queue, 0)

    def is_untiered(self, queue: QueueId, offset: int) -> bool:
        """Whether a message is one that the dispatcher still has to tier; no if it began nowhere.

        Damage of any other concerns no one who tiers.
        """
        released = self._released.get(queue)
        return released is not None and offset >= released

    def end_within(self, queue: QueueId, start: QueueOffset, messages_max: int) -> int:
        """Where a read of `messages_max` messages from `start` on ends, for what is known.

        Raises:
            OutOfRange: `start` is not within the queue.
        """
        seen = self.known.get(queue)
        if seen is None or not seen.min_offset <= start < seen.max_offset:
            has = f"has [{seen.min_offset}, {seen.max_offset})" if seen else "is not in this store"
            raise OutOfRange(f"offset {start}: the queue {has}", str(queue), start)
        return min(start + messages_max, seen.max_offset)
