"""Who waits for messages that are still to come, woken once each and never polled."""

import asyncio
from collections.abc import Mapping

from container.names.queue_id import QueueId
from provider.clock import Clock, wait_at_most
from provider.errors import Closed


class Arrivals:
    """Waiters by queue. A new message costs O(those who wait for its queue)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: dict[QueueId, dict[asyncio.Event, int]] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<Arrivals: {len(self)} waiting>"

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiters.values()))

    def told(self, ends: Mapping[QueueId, int]) -> None:
        """Wake those whose message is there; `ends` has the new ends of queues."""
        if not self._waiters:
            return
        for queue, end in ends.items():
            waiters = self._waiters.get(queue, {})
            for arrived in [arrived for arrived, offset in waiters.items() if offset < end]:
                arrived.set()

    def close(self) -> None:
        """Wake all; they raise Closed."""
        self._closed = True
        for waiters in self._waiters.values():
            for arrived in waiters:
                arrived.set()

    async def wait(self, queue: QueueId, offset: int, seconds: float) -> bool:
        """Wait until `told` said that `queue` ends above `offset`; False after `seconds`.

        Raises:
            Closed: `close` was called.
        """
        arrived = asyncio.Event()
        if not self._closed and seconds > 0:
            self._waiters.setdefault(queue, {})[arrived] = offset
            try:
                await wait_at_most(self._clock, seconds, arrived.wait())
            finally:
                del self._waiters[queue][arrived]
                if not self._waiters[queue]:
                    del self._waiters[queue]
        if self._closed:
            raise Closed("the store was closed", str(queue), offset)
        return arrived.is_set()
