"""Poll schedule of many queues, and the state that was last reported to the dispatcher."""

from collections.abc import Collection, Mapping

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueue
from provider.errors import OutOfRange
from provider.ranges import QueueOffset

SHARE_AT_REST = 0.005
SHARE_OF_GROWTH = 0.2


class PollSchedule:
    """Schedule of polls: the queues to poll, and the times of full scans. One thread at a time."""

    def __init__(self, *, settle_s: float, scan_s_min: float, scan_s_max: float) -> None:
        self._settle_s = settle_s
        self._scan_s_min = scan_s_min
        self._scan_s_max = scan_s_max
        self._named: dict[QueueId, float] = {}
        """Time until which a queue is polled after a record of it was seen."""
        self._unnamed_until_s = float("-inf")
        """Time until which all queues are polled after growth by unknown records."""
        self._next_full_s = float("-inf")
        self._next_growth_s = float("-inf")

    def __repr__(self) -> str:
        return f"<PollSchedule: {len(self._named)} queues, all at {self._next_full_s:.1f} s>"

    def check(self) -> None:
        """Assert that polls for growth are never later than full scans."""
        assert self._next_growth_s <= self._next_full_s, f"A2: {self}"

    def grew(self, now_s: float, queues: Collection[QueueId] | None) -> None:
        """Record growth of the log by records of `queues`; None: by unknown ones, too."""
        until_s = now_s + self._settle_s
        if queues is None:
            self._unnamed_until_s = until_s
        else:
            self._named |= dict.fromkeys(queues, until_s)

    def is_settled(self, now_s: float) -> bool:
        """Whether no queue is expected to change: units follow their records within a while."""
        return now_s >= self._unnamed_until_s and not self._named

    def is_full_poll_due(self, now_s: float) -> bool:
        """Whether a full scan of the directories and all queues is due."""
        return now_s >= self._next_full_s

    def polls_all(self, now_s: float) -> bool:
        """Whether this poll reads all queues."""
        is_growing = now_s < self._unnamed_until_s and now_s >= self._next_growth_s
        return is_growing or self.is_full_poll_due(now_s)

    def named(self, now_s: float) -> list[QueueId]:
        """Return the queues of a poll that does not read all of them. O(those)."""
        self._named = {queue: end_s for queue, end_s in self._named.items() if now_s < end_s}
        return list(self._named)

    def polled_all(self, began_s: float, ended_s: float, *, is_full: bool) -> None:
        """Record a poll of all queues in that time. `is_full`: of the directories, too."""
        took_s = ended_s - began_s
        self._next_growth_s = ended_s + took_s * (1 / SHARE_OF_GROWTH - 1)
        if is_full:
            pause_s = min(took_s * (1 / SHARE_AT_REST - 1), self._scan_s_max)
            self._next_full_s = max(began_s + self._scan_s_min, ended_s + pause_s)
        self._next_growth_s = min(self._next_growth_s, self._next_full_s)

    def poll_soon(self, began_s: float) -> None:
        """Schedule an early full scan after a change at an unknown place."""
        self._next_full_s = min(self._next_full_s, began_s + self._scan_s_min)
        self._next_growth_s = min(self._next_growth_s, self._next_full_s)

    def poll_now(self) -> None:
        """Make the next poll a full scan, whatever it costs."""
        self._next_full_s = self._next_growth_s = float("-inf")


class QueueWatermarks:
    """Watermarks of followed queues: bounds as of the last poll, and the tiered prefix.

    Any thread may read. One thread at a time publishes, and one at a time releases an offset of a
    queue.
    """

    def __init__(self) -> None:
        self.known: Mapping[QueueId, HotQueue] = {}
        """State of each queue as of the last poll. Replaced as a whole, so threads may read."""
        self._released: dict[QueueId, int] = {}

    def __repr__(self) -> str:
        return f"<QueueWatermarks: {len(self.known)} queues, {len(self._released)} released>"

    def publish(self, found: Mapping[QueueId, HotQueue]) -> dict[QueueId, HotQueue]:
        """Update `known` with the result of a poll. Return the queues that changed."""
        changed = {queue: seen for queue, seen in found.items() if self.known.get(queue) != seen}
        if changed:
            self.known = {**self.known, **changed}
        return changed

    def release(self, queue: QueueId, offset: QueueOffset) -> None:
        """Record that all messages of `queue` below `offset` are tiered."""
        self._released[queue] = max(offset, self._released.get(queue, 0))

    def released(self, queue: QueueId) -> int:
        """Return the offset below which all messages are tiered. 0 before the first release."""
        return self._released.get(queue, 0)

    def is_untiered(self, queue: QueueId, offset: int) -> bool:
        """Whether the dispatcher still has to tier this message.

        False for a queue that it has not started. Damage of other messages does not matter to it.
        """
        released = self._released.get(queue)
        return released is not None and offset >= released

    def end_within(self, queue: QueueId, start: QueueOffset, messages_max: int) -> int:
        """Return the exclusive end offset of a read of `messages_max` messages from `start`.

        Raises:
            OutOfRange: `start` is not within the queue.
        """
        seen = self.known.get(queue)
        if seen is None or not seen.min_offset <= start < seen.max_offset:
            has = f"has [{seen.min_offset}, {seen.max_offset})" if seen else "is not in this store"
            raise OutOfRange(f"offset {start}: the queue {has}", str(queue), start)
        return min(start + messages_max, seen.max_offset)
