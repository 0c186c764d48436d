"""The warning of a wall clock that is not believed: deletions go by another time meanwhile."""

from container.upkeep.steady_clock import HOLD_S, SteadyClock
from container.upkeep.step import OwnedTier, Step
from provider.errors import Unavailable

HOUR_S = 3600


class ClockStep(Step):
    """Fails while the wall clock is away from where the monotonic one says that it should be.

    And while it is away from the storage's.
    """

    name = "clock"

    def __init__(self, tier: OwnedTier, clock: SteadyClock) -> None:
        super().__init__(tier)
        self._clock = clock

    async def step(self) -> None:
        """Compare the clocks. No request.

        Raises:
            Unavailable: the wall clock has jumped, and that has not lasted yet; or the storage told
                another time at the start.
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
