"""The warning of a wall clock that has jumped: deletions go by the time before, for a while."""

from container.upkeep.steady_clock import HOLD_S, SteadyClock
from container.upkeep.step import OwnedTier, Step
from provider.errors import Unavailable

HOUR_S = 3600


class ClockStep(Step):
    """Fails while the wall clock is away from where the monotonic one says that it should be."""

    name = "clock"

    def __init__(self, tier: OwnedTier, clock: SteadyClock) -> None:
        super().__init__(tier)
        self._clock = clock

    async def step(self) -> None:
        """Compare the clocks. No request.

        Raises:
            Unavailable: the wall clock has jumped, and that has not lasted yet.
        """
        jump_s = self._clock.jump_s
        if jump_s:
            raise Unavailable(
                f"the machine's clock jumped by {jump_s:+.0f} s: retention and deletions go by the "
                f"time before the jump until it has lasted for {HOLD_S / HOUR_S:.0f} h; set the "
                "clock right, or restart the owner if it is right now",
                "",
            )
