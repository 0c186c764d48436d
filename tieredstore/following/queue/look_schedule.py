"""Which queues a poll looks at, so that many idle queues cost little. Decides, without I/O.

A record at the CommitLog's end names its queue, so that growth of a few records costs looks at a
few queues. A look at all queues finds the rest: units that came late, queues that a record serves
besides its own, files that were deleted.

A1  A queue is looked at by every poll until `settle_s` after its last record was seen.
A2  Looks at all queues take at most `SHARE_AT_REST` of the time, and `SHARE_OF_GROWTH` while the
    log grows by more records than are named. `scan_s_min` lies between two of them at least, and
    `scan_s_max` at most.
"""

from collections.abc import Collection

from container.names.queue_id import QueueId

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
