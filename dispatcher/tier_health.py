"""Whether one queue fails or the whole tier, and when to try again. Pure state."""

from random import Random
from typing import Final

from provider.clock import backoff_s

JITTER_SHARE: Final = 0.5
"""Share of an interval that chance may take off."""
OUTAGE_AFTER = 3
"""Failed rounds without a success between them that make an outage of the whole tier."""


class TierHealth:
    """Failed rounds since the last that landed.

    While single rounds fail, their queues are tried again in halves, so that a bad one cannot
    fail its neighbours for long. In an outage, halves would cost many requests for nothing. One
    failed queue at a time is then tried as a probe, a different one each time, at intervals that
    grow. The first round that lands, of any queue, ends the outage for all.
    """

    def __init__(
        self, *, backoff_s_min: float, backoff_s_max: float, rng: Random | None = None
    ) -> None:
        """`rng` shortens intervals, so that not all dispatchers try at once; None: nothing does."""
        self._rng = rng
        self._s_min = backoff_s_min
        self._s_max = backoff_s_max
        self.failures = 0
        self.retry_at_s = 0.0
        self.probing = False
        """A round of queues that failed before is under way."""

    def __repr__(self) -> str:
        return f"<TierHealth: {'outage, ' if self.outage else ''}{self.failures} failures>"

    @property
    def outage(self) -> bool:
        """Whether the failures count as the whole tier's."""
        return self.failures >= OUTAGE_AFTER

    def failed(self, now_s: float) -> None:
        """A round did not land."""
        self.failures += 1
        past = max(1, self.failures - OUTAGE_AFTER + 1)
        wait_s = backoff_s(past, s_min=self._s_min, s_max=self._s_max)
        if self._rng is not None:
            wait_s *= self._rng.uniform(1 - JITTER_SHARE, 1)
        self.retry_at_s = now_s + wait_s

    def landed(self) -> bool:
        """A round landed; returns whether that ended an outage."""
        ended = self.outage
        self.failures = 0
        return ended
