"""Waiting for something to happen or for a moment on the clock, whichever is first."""

import asyncio

from provider.clock import Clock


class Alarm:
    """Wakes every waiter, in the order in which they began to wait.

    A ring between two waits is not kept: a waiter looks at the state and then waits, without
    awaiting anything in between.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: dict[asyncio.Event, None] = {}
        """Keys only: a set's order would be another one in each process."""

    def __repr__(self) -> str:
        return f"<Alarm: {len(self._waiters)} waiting>"

    def ring(self) -> None:
        """Wake all that wait now."""
        for rung in self._waiters:
            rung.set()

    async def wait(self, seconds: float | None) -> None:
        """Return at the next `ring`, or after `seconds` of the clock unless None.

        Cancelling leaves nothing behind.
        """
        rung = asyncio.Event()
        self._waiters[rung] = None
        try:
            if seconds is None:
                await rung.wait()
                return
            async with asyncio.TaskGroup() as group:
                sleeper = group.create_task(self._clock.sleep(seconds))
                sleeper.add_done_callback(lambda _: rung.set())
                await rung.wait()
                sleeper.cancel()
        finally:
            del self._waiters[rung]
