"""Poll schedule of many queues, and the state that was last reported to the dispatcher."""

from collections.abc import Collection, Mapping

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueue
from provider.errors import OutOfRange
from provider.ranges import QueueOffset

SHARE_AT_REST = 0.005
SHARE_OF_GROWTH = 0.2


class LookSchedule:
    """What is to be looked at, and when all of it is. One thread at a time."""

    def __init__(self, *, settle_s: float, scan_s_min: float, scan_s_max: float) -> None:
        self._settle_s = settle_s
        self._scan_s_min = scan_s_min
        self._scan_s_max = scan_s_max
        self._named: dict[QueueId, float] = {}
        """Until when a queue is looked at, for a record of it was seen."""
        self._unnamed_until_s = float("-inf")
        """Until when all queues may have news, for growth was seen that named none."""
        self._next_full_s = float("-inf")
        self._next_growth_s = float("-inf")

    def __repr__(self) -> str:
        return f"<LookSchedule: {len(self._named)} queues, all at {self._next_full_s:.1f} s>"

    def check(self) -> None:
        """Assert that growth is never looked at later than the rest."""
        assert self._next_growth_s <= self._next_full_s, f"A2: {self}"

    def grew(self, now_s: float, queues: Collection[QueueId] | None) -> None:
        """The log grew by records of `queues`; None: by more than are named."""
        until_s = now_s + self._settle_s
        if queues is None:
            self._unnamed_until_s = until_s
        else:
            self._named |= dict.fromkeys(queues, until_s)

    def is_settled(self, now_s: float) -> bool:
        """Whether no queue is expected to have news: units follow their records within a while."""
        return now_s >= self._unnamed_until_s and not self._named

    def is_full_look_due(self, now_s: float) -> bool:
        """Whether the directories and all queues are to be looked at."""
        return now_s >= self._next_full_s

    def looks_at_all(self, now_s: float) -> bool:
        """Whether this poll looks at all queues."""
        is_growing = now_s < self._unnamed_until_s and now_s >= self._next_growth_s
        return is_growing or self.is_full_look_due(now_s)

    def named(self, now_s: float) -> list[QueueId]:
        """The queues that this poll looks at where it does not look at all. O(those)."""
        self._named = {queue: end_s for queue, end_s in self._named.items() if now_s < end_s}
        return list(self._named)

    def looked_at_all(self, began_s: float, ended_s: float, *, is_full: bool) -> None:
        """All queues were looked at in that time; `is_full`: the directories too."""
        took_s = ended_s - began_s
        self._next_growth_s = ended_s + took_s * (1 / SHARE_OF_GROWTH - 1)
        if is_full:
            pause_s = min(took_s * (1 / SHARE_AT_REST - 1), self._scan_s_max)
            self._next_full_s = max(began_s + self._scan_s_min, ended_s + pause_s)
        self._next_growth_s = min(self._next_growth_s, self._next_full_s)

    def look_soon(self, began_s: float) -> None:
        """Something new is there whose place is not known: look at the directories again."""
        self._next_full_s = min(self._next_full_s, began_s + self._scan_s_min)
        self._next_growth_s = min(self._next_growth_s, self._next_full_s)

    def look_now(self) -> None:
        """Let the next poll look at the directories and at all queues, whatever it costs."""
        self._next_full_s = self._next_growth_s = float("-inf")


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
