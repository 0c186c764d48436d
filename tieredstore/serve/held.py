"""Pulls that wait for a message, by queue and by the time at which they are answered anyway."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from container.names.queue_id import QueueId
from tieredstore.serve.wire.request import Outcome, Peer, Request

KeyT = TypeVar("KeyT")
TICK_S = 0.1
"""Precision of the end of a wait."""
HELD_MAX = 100_000
"""Pulls that wait at once, over all clients. Each holds about 1 KiB and its request."""


@dataclass(eq=False, slots=True)
class HeldPull:
    """Pull that waits for the message at `offset`."""

    queue: QueueId
    offset: int
    due_s: float
    request: Request
    peer: Peer
    resume: Callable[[], Outcome]
    """Continuation of the pull, after a message or at its due time."""


class HeldPulls:
    """All pulls that wait. Each operation is O(1) for a pull."""

    def __init__(self) -> None:
        self._of_queue: dict[QueueId, dict[HeldPull, None]] = {}
        self._of_tick: dict[int, dict[HeldPull, None]] = {}
        self._of_peer: dict[Peer, dict[HeldPull, None]] = {}
        self._count = 0
        self._tick = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pull: HeldPull) -> None:
        """Let a pull wait."""
        tick = max(self._tick + 1, int(pull.due_s / TICK_S) + 1)
        pull.due_s = tick * TICK_S
        self._of_queue.setdefault(pull.queue, {})[pull] = None
        self._of_tick.setdefault(tick, {})[pull] = None
        self._of_peer.setdefault(pull.peer, {})[pull] = None
        self._count += 1

    def count_of(self, peer: Peer) -> int:
        """Return the number of pulls of a client that wait."""
        return len(self._of_peer.get(peer, ()))

    def queues(self) -> list[QueueId]:
        """Return the queues for which pulls wait."""
        return list(self._of_queue)

    def grown(self, queue: QueueId, end: int) -> list[HeldPull]:
        """Remove and return the pulls of a queue that wait for a message below `end`."""
        return self._taken(pull for pull in self._of_queue.get(queue, ()) if pull.offset < end)

    def due(self, now_s: float) -> list[HeldPull]:
        """Remove and return the pulls whose wait is over. O(ticks since the last call)."""
        last = int(now_s / TICK_S)
        ticks = [tick for tick in self._of_tick if tick <= last]
        self._tick = max(self._tick, last)
        return self._taken(pull for tick in ticks for pull in self._of_tick[tick])

    def drop(self, peer: Peer) -> None:
        """Remove the pulls of a client whose connection ended."""
        self._taken(iter(self._of_peer.get(peer, ())))

    def all(self) -> list[HeldPull]:
        """Remove and return every pull."""
        return self._taken(pull for pulls in self._of_queue.values() for pull in pulls)

    def _taken(self, pulls: Iterator[HeldPull]) -> list[HeldPull]:
        taken = list(pulls)
        for pull in taken:
            _discard(self._of_queue, pull.queue, pull)
            _discard(self._of_tick, round(pull.due_s / TICK_S), pull)
            _discard(self._of_peer, pull.peer, pull)
        self._count -= len(taken)
        return taken


def _discard(table: dict[KeyT, dict[HeldPull, None]], key: KeyT, pull: HeldPull) -> None:
    rows = table[key]
    del rows[pull]
    if not rows:
        del table[key]
