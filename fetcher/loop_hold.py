"""Bound of how long calls that need not wait keep other tasks from running."""

import asyncio

from provider.clock import Clock

LOOP_HOLD_S_MAX = 0.005
"""Longest burst of reads that need not wait, in seconds, where no other bound is given."""


class LoopHold:
    """Time since the loop last ran other tasks, as far as calls ask. One loop."""

    def __init__(self, clock: Clock, hold_s_max: float = LOOP_HOLD_S_MAX) -> None:
        self._clock = clock
        self._hold_s_max = hold_s_max
        self._is_in_burst = False
        """Whether calls were made since the loop last ran other tasks."""
        self._began_s = 0.0

    def __repr__(self) -> str:
        return f"<LoopHold of {self._hold_s_max:g} s>"

    def is_long(self) -> bool:
        """Whether calls have kept the loop for longer than the bound: then yield to it. 0.2 us."""
        now_s = self._clock.monotonic_s()
        if self._is_in_burst:
            return now_s - self._began_s > self._hold_s_max
        self._is_in_burst = True
        self._began_s = now_s
        asyncio.get_running_loop().call_soon(self._end)
        return False

    def _end(self) -> None:
        self._is_in_burst = False
