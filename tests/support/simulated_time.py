"""An event loop whose time costs nothing: where nobody can run, the next timer is due.

What takes hours of pauses and backoffs runs as fast as its tasks do, and what waits for something
that can never come is an error at once.
"""

import asyncio
import gc
import itertools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


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


_numbers = itertools.count()


class _NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address: task groups keep sets."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._number = next(_numbers)
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop on a time of its own, from 0 on. Without threads and sockets.

    What runs on it runs in the same order each time: `trace` collects what a simulation notes, for
    comparing two runs of one seed.
    """

    def __init__(self) -> None:
        global _numbers  # noqa: PLW0603 - each loop counts from 0
        _numbers = itertools.count()
        self._time = _TimeSelector()
        self.trace: list[tuple[Any, ...]] = []
        super().__init__(self._time)
        self.set_task_factory(
            lambda loop, work, **options: _NumberedTask(work, loop=loop, **options)
        )

    def time(self) -> float:
        return self._time.now_s

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[*_Arguments], _Result],
        *args: *_Arguments,
    ) -> asyncio.Future[_Result]:
        """Run it here and now: a thread would take real time, of which a simulation has none."""
        future: asyncio.Future[_Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever awaits it has it
            future.set_exception(error)
        return future


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


def note(*what: Any) -> None:
    """Add to the trace of the simulated loop that runs; nothing on another loop."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, SimulatedLoop):
        loop.trace.append((loop.time(), *what))


def traced(work: Coroutine[Any, Any, object]) -> list[tuple[Any, ...]]:
    """Run `work` as `simulated` does; what was noted meanwhile."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        runner.run(work)
        return loop.trace


def simulated(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run `work` to its end on a loop of its own, in simulated time.

    Garbage is collected behind it: meanwhile that costs a sixth of the time, and a run is short.
    """
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            return runner.run(work)
    finally:
        gc.enable()
