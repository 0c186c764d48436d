"""When messages of a queue were first seen. Pure state."""

from provider.ranges import QueueOffset

ARRIVALS_MAX = 64
"""Moments of arrival remembered for each queue."""


class Arrivals:
    """Up to which offset a queue reached, and when that was seen, for the newest few times."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: list[tuple[QueueOffset, float]] = []  # an empty deque takes 760 bytes

    def __repr__(self) -> str:
        return f"<Arrivals: {len(self._seen)} moments>"

    def note(self, end: QueueOffset, now_s: float, *, durable: QueueOffset) -> None:
        """The queue ends at `end` now; nothing is noted unless that is new and not durable."""
        if end <= (self._seen[-1][0] if self._seen else durable):
            return
        if len(self._seen) == ARRIVALS_MAX:  # the newest counts as old as the one before it
            _, now_s = self._seen.pop()
        self._seen.append((end, now_s))

    def seen_s(self, offset: QueueOffset) -> float | None:
        """When the message at `offset` was first seen; None if it was not. O(1) for the oldest."""
        return next((seen_s for end, seen_s in self._seen if end > offset), None)

    def forget_below(self, offset: QueueOffset) -> None:
        """Messages below `offset` need not be remembered any more."""
        known = next((n for n, (end, _) in enumerate(self._seen) if end > offset), None)
        self._seen = [] if known is None else self._seen[known:]
