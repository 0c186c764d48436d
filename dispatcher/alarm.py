"""Waiting for something to happen or for a moment on the clock, whichever is first."""

import asyncio

from provider.clock import Clock


class Alarm:
    """Wakes everyone who waits; a ring between two waits is not kept.

    A waiter therefore looks at the state and waits without awaiting anything in between.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: set[asyncio.Event] = set()

    def ring(self) -> None:
        """Wake everyone who waits now."""
        for rung in self._waiters:
            rung.set()

    async def wait(self, seconds: float | None) -> None:
        """Return at the next `ring`, or after `seconds` of the clock unless None.

        Cancelling leaves nothing behind.
        """
        rung = asyncio.Event()
        self._waiters.add(rung)
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
            self._waiters.discard(rung)
