"""Clock that a test advances."""

import asyncio
import heapq
import itertools


class ManualClock:
    """Clock that a test advances: `sleep` returns when `advance` has passed its end."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._started_ms = now_ms
        self._elapsed_s = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    def __repr__(self) -> str:
        return f"<ManualClock at {self.now_ms()}: {len(self._sleepers)} sleeping>"

    @property
    def sleeping(self) -> int:
        """Number of tasks that wait for this clock."""
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

    def suspend(self, seconds: float) -> None:
        """Advance the time, but wake no sleeper before the next `advance`: the machine slept."""
        self._elapsed_s += seconds

    async def advance(self, seconds: float) -> None:
        """Advance the time. Wakes each sleeper at its own time and runs it."""
        end_s = self._elapsed_s + seconds
        while self._sleepers and self._sleepers[0][0] <= end_s:
            due_s, _, woken = heapq.heappop(self._sleepers)
            self._elapsed_s = max(self._elapsed_s, due_s)
            woken.set()
            await settle()
        self._elapsed_s = end_s
        await settle()


async def settle(turns: int = 20) -> None:
    """Run every task that can run, up to `turns` times, for tests with a `ManualClock`.

    Ends when no other task can run: further turns would only wake this one.
    """
    ready = getattr(asyncio.get_running_loop(), "_ready", None)  # asyncio's own loops have it
    for _ in range(turns):
        await asyncio.sleep(0)
        if ready is not None and not ready:
            return
