"""An event loop whose time costs nothing: where nobody can run, the next timer is due.

What takes hours of pauses and backoffs runs as fast as its tasks do, and what waits for something
that can never come is an error at once.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Deadlock(Exception):
    """Everybody waits, and no timer is set."""


class _TimeSelector(selectors.SelectSelector):
    """Instead of waiting for a socket it moves the time."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock
        self.now_s += timeout
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop on a time of its own, from 0 on. Without threads and sockets."""

    def __init__(self) -> None:
        self._time = _TimeSelector()
        super().__init__(self._time)

    def time(self) -> float:
        return self._time.now_s


class SimulatedClock:
    """The running loop's time as a `Clock`; the wall clock has a speed of its own, or stands."""

    def __init__(self, *, wall_speed: float = 1.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._wall_speed = wall_speed

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1000 * self._wall_speed)

    def monotonic_s(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def simulated(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `work` to its end on a loop of its own, in simulated time."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(work)
