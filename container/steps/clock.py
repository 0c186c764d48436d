"""Steady clock of upkeep: ignores a jump of the wall clock until it has lasted."""

from container.steps.step import OwnedTier, Step
from provider.clock import Clock
from provider.errors import Unavailable

JUMP_MS_MIN = 300_000
"""Smallest jump in ms. A smaller step, as of a time server, is followed at once. So is a smaller
difference between the machine and the storage."""
HOLD_S = 86_400.0
"""Seconds that a jump must last before upkeep follows it."""


class SteadyClock:
    """Clock whose wall time continues at the pace of the monotonic one through a jump.

    W1  `now_ms` is the machine's wall time, unless that jumped by `JUMP_MS_MIN` less than `HOLD_S`
        ago; then it is what the wall time would be without the jump.
    W2  While the wall time differs by `JUMP_MS_MIN` from that of a storage whose time differed
        at the start, `now_ms` is not later than either.
    """

    def __init__(self, clock: Clock, *, storage_shift_ms: float | None = None) -> None:
        """`storage_shift_ms`: the storage's time minus the monotonic one. None: unknown."""
        self._clock = clock
        self._storage_ms = storage_shift_ms
        """`storage_shift_ms` while the machine's clock contradicts it, else None."""
        self._base_ms = self._shift_ms()
        """Trusted wall time minus monotonic time."""
        self._other_ms = self._base_ms
        """The same after a jump that is not trusted yet, ..."""
        self._since_s: float | None = None
        """... and its start in monotonic seconds. None without such a jump."""

    def __repr__(self) -> str:
        return f"<SteadyClock: {self.jump_s:+.0f} s held back>"

    def now_ms(self) -> int:
        """Trusted wall time in Unix milliseconds."""
        self._compare()
        shift_ms = self._base_ms
        if self._storage_ms is not None:
            shift_ms = min(shift_ms, self._storage_ms)
        return int(shift_ms + 1000 * self._clock.monotonic_s())

    def monotonic_s(self) -> float:
        """Monotonic seconds of the machine's clock."""
        return self._clock.monotonic_s()

    async def sleep(self, seconds: float) -> None:
        """Sleep by the machine's clock."""
        await self._clock.sleep(seconds)

    @property
    def jump_s(self) -> float:
        """Seconds by which the machine's wall clock is ahead of the trusted one, else 0."""
        self._compare()
        return 0.0 if self._since_s is None else (self._other_ms - self._base_ms) / 1000

    @property
    def skew_s(self) -> float:
        """Seconds by which the machine's clock is ahead of the storage's. 0 if they agree."""
        self._compare()
        return 0.0 if self._storage_ms is None else (self._shift_ms() - self._storage_ms) / 1000

    def _shift_ms(self) -> float:
        return self._clock.now_ms() - 1000 * self._clock.monotonic_s()

    def _compare(self) -> None:
        """Detect a jump, its end, or its expiry, and whether the storage confirms the wall time."""
        now_ms, now_s = self._shift_ms(), self._clock.monotonic_s()
        if self._storage_ms is not None and abs(now_ms - self._storage_ms) < JUMP_MS_MIN:
            self._base_ms, self._since_s, self._storage_ms = now_ms, None, None
        elif abs(now_ms - self._base_ms) < JUMP_MS_MIN:
            self._base_ms, self._since_s = now_ms, None
        elif self._since_s is None or abs(now_ms - self._other_ms) >= JUMP_MS_MIN:
            self._other_ms, self._since_s = now_ms, now_s
        elif now_s - self._since_s >= HOLD_S:
            self._base_ms, self._since_s = now_ms, None
        else:
            self._other_ms = now_ms


HOUR_S = 3600


class ClockStep(Step):
    """Fails while the wall clock has jumped against the monotonic one.

    Fails also while it disagrees with the storage's clock.
    """

    name = "clock"

    def __init__(self, tier: OwnedTier, clock: SteadyClock) -> None:
        super().__init__(tier)
        self._clock = clock

    async def step(self) -> None:
        """Compare the clocks. No request.

        Raises:
            Unavailable: the wall clock has jumped, and the jump has not lasted yet; or the
                storage's clock differed at the start.
        """
        skew_s = self._clock.skew_s
        if skew_s:
            raise Unavailable(
                f"the machine's clock is {skew_s:+.0f} s from the storage's: retention and "
                "deletions go by the earlier of the two until they agree; set the wrong one right, "
                "and restart the owner if that is the storage's",
                "",
            )
        jump_s = self._clock.jump_s
        if jump_s:
            raise Unavailable(
                f"the machine's clock jumped by {jump_s:+.0f} s: retention and deletions go by the "
                f"time before the jump until it has lasted for {HOLD_S / HOUR_S:.0f} h; set the "
                "clock right, or restart the owner if it is right now",
                "",
            )
