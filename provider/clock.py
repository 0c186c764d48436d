"""Clocks as arguments: the port, the system's clock, timeouts, pauses, concurrent calls."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Final, Protocol, TypeVar

ResultT = TypeVar("ResultT")

DOUBLINGS_MAX = 60
"""Doublings after which a backoff stops growing, so that it stays a finite float."""
_SUSPENDED_TOO: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall time for timestamps, monotonic time for durations, and the only way to wait."""

    def now_ms(self) -> int:
        """Wall time in Unix milliseconds; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since a fixed point. Never decreases; includes time of a suspended machine."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`. If not positive, only yield to other tasks."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Wall time in Unix milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since the machine started, the time in which it was suspended included.

        CLOCK_MONOTONIC stops during a suspension. A listing that was under way would then seem
        young, although other machines had hours to write and delete (decision 0008). In a virtual
        machine that its host pauses, both clocks stop. On macOS CLOCK_MONOTONIC runs on.
        """
        return time.clock_gettime(_SUSPENDED_TOO)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of real time."""
        await asyncio.sleep(max(0.0, seconds))


def backoff_s(failures: int, *, s_min: float, s_max: float) -> float:
    """Return the pause in seconds after the n-th failure in a row: `s_min` doubled up to `s_max`.

    Pure.
    """
    return min(s_max, s_min * 2.0 ** min(failures - 1, DOUBLINGS_MAX))


async def give_way() -> None:
    """Yield to other tasks of the loop, in the middle of work that does not wait."""
    await asyncio.sleep(0)


def at_once(turns: Generator[None, None, ResultT]) -> ResultT:
    """Run work that is divided into turns, and return its result."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value


async def in_turns(
    turns: Generator[None, None, ResultT], pause: Callable[[], Awaitable[None]] = give_way
) -> ResultT:
    """As `at_once`, with a `pause` after each turn: other tasks run between them."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value
        await pause()


async def wait_at_most(clock: Clock, seconds: float, work: Coroutine[None, None, object]) -> None:
    """Await `work` for at most `seconds`, then cancel it. The outcome is not reported."""
    async with asyncio.TaskGroup() as group:
        tasks = (group.create_task(work), group.create_task(clock.sleep(seconds)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of `work`, or cancel it after `seconds`. Costs about 30 us.

    Raises:
        TimeoutError: `work` took longer.
        Exception: as `work`.
    """
    outcome: list[ResultT] = []
    raised: list[Exception] = []

    async def run() -> None:
        try:
            outcome.append(await work)
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            raised.append(error)

    await wait_at_most(clock, seconds, run())
    if raised:
        raise raised[0]
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return outcome[0]


LOOP_HOLD_S_MAX = 0.005
"""Default bound of a burst of reads that need not wait, in seconds."""


class LoopHold:
    """Time since the loop last ran other tasks, sampled by calls. For one loop."""

    def __init__(self, clock: Clock, hold_s_max: float = LOOP_HOLD_S_MAX) -> None:
        self._now_s = clock.monotonic_s
        self._hold_s_max = hold_s_max
        self._is_in_burst = False
        """Whether calls were made since the loop last ran other tasks."""
        self._began_s = 0.0

    def __repr__(self) -> str:
        return f"<LoopHold of {self._hold_s_max:g} s>"

    def is_long(self) -> bool:
        """Whether calls have blocked the loop for longer than the bound. Costs 0.2 us.

        The caller then yields to the loop.
        """
        now_s = self._now_s()
        if self._is_in_burst:
            return now_s - self._began_s > self._hold_s_max
        self._is_in_burst = True
        self._began_s = now_s
        asyncio.get_running_loop().call_soon(self._end)
        return False

    def _end(self) -> None:
        self._is_in_burst = False


class RandomSource(Protocol):
    """Part of `random.Random` that produces nonces and jitter.

    Owners of one tier must not share a seed: with equal nonces two entries would be equal.
    """

    def randbytes(self, n: int, /) -> bytes:
        """Return `n` random bytes."""
        ...

    def random(self) -> float:
        """Return a number in `[0, 1)`."""
        ...


async def run_concurrently(calls: Sequence[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Run calls concurrently and return their results in order.

    The first error cancels the others and is raised. A cancellation of the caller counts more than
    any error, even if both occur in the same turn of the loop.
    """
    if len(calls) == 1:
        return [await calls[0]]
    tasks: list[asyncio.Task[ResultT]] = []
    errors: list[Exception] = []

    async def run(call: Coroutine[Any, Any, ResultT]) -> ResultT:
        try:
            return await call
        except Exception as error:  # noqa: BLE001 - a failing group loses its own cancellation
            errors.append(error)
            for task in tasks:
                task.cancel()
            raise asyncio.CancelledError from None

    try:
        async with asyncio.TaskGroup() as group:
            tasks.extend(group.create_task(run(call)) for call in calls)
    finally:
        for call in calls:
            call.close()  # those that were cancelled before they began
    if errors:
        raise errors[0]
    return [task.result() for task in tasks]
