"""Time as an argument: the one place that may ask the operating system for it."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

ResultT = TypeVar("ResultT")

DOUBLINGS_MAX = 60
"""More would be no float."""


class Clock(Protocol):
    """Wall time for timestamps, monotonic time for durations, and the only way to wait."""

    def now_ms(self) -> int:
        """Wall time in Unix milliseconds; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some fixed point; never goes back, and counts while the machine sleeps."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`; at once, but yielding to other tasks, when not positive."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Wall time in Unix milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since the machine started, those in which it was suspended included.

        CLOCK_MONOTONIC would stand still meanwhile: a listing that was under way would seem young,
        although other machines had hours to write and delete (decision 0008). A virtual machine
        that its host pauses sees neither clock go on.
        """
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of real time."""
        await asyncio.sleep(max(0.0, seconds))


class ManualClock:
    """A clock that a test moves by hand: `sleep` returns when `advance` has passed its end."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._started_ms = now_ms
        self._elapsed_s = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    def __repr__(self) -> str:
        return f"<ManualClock at {self.now_ms()}: {len(self._sleepers)} sleeping>"

    @property
    def sleeping(self) -> int:
        """How many tasks wait for this clock."""
        return len(self._sleepers)

    def now_ms(self) -> int:
        """Wall time in Unix milliseconds."""
        return self._started_ms + int(self._elapsed_s * 1000)

    def monotonic_s(self) -> float:
        """Seconds that `advance` has added so far."""
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has moved the clock by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.Event()
        entry = (self._elapsed_s + seconds, next(self._order), woken)
        heapq.heappush(self._sleepers, entry)
        try:
            await woken.wait()
        except asyncio.CancelledError:
            if entry in self._sleepers:
                self._sleepers.remove(entry)
                heapq.heapify(self._sleepers)
            raise

    async def advance(self, seconds: float) -> None:
        """Move time forward, waking each sleeper at its own moment and letting it run."""
        end_s = self._elapsed_s + seconds
        while self._sleepers and self._sleepers[0][0] <= end_s:
            due_s, _, woken = heapq.heappop(self._sleepers)
            self._elapsed_s = max(self._elapsed_s, due_s)
            woken.set()
            await settle()
        self._elapsed_s = end_s
        await settle()


def backoff_s(failures: int, *, s_min: float, s_max: float) -> float:
    """Pause after the n-th failure in a row: doubles from `s_min` up to `s_max` seconds. Pure."""
    return min(s_max, s_min * 2.0 ** min(failures - 1, DOUBLINGS_MAX))


async def give_way() -> None:
    """Let other tasks of the loop have a turn amid work that takes no time of its own."""
    await asyncio.sleep(0)


async def wait_at_most(clock: Clock, seconds: float, work: Coroutine[None, None, object]) -> None:
    """Await `work` for `seconds` at most, then cancel it; which of the two is not told."""
    async with asyncio.TaskGroup() as group:
        tasks = (group.create_task(work), group.create_task(clock.sleep(seconds)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of `work`, which is cancelled after `seconds`. About 30 us.

    Raises:
        TimeoutError: it took longer.
        And what `work` raises.
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


async def settle(turns: int = 20) -> None:
    """Let every task that can run do so, up to `turns` times; for tests that own time.

    Ends where no other task can run: further turns would wake this one alone.
    """
    ready = getattr(asyncio.get_running_loop(), "_ready", None)  # asyncio's own loops have it
    for _ in range(turns):
        await asyncio.sleep(0)
        if ready is not None and not ready:
            return
