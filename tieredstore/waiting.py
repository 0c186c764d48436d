"""Waiting at a start for a storage that is away, or refuses us for now."""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from provider.clock import Clock, backoff_s
from provider.errors import StoreError, Unauthorized, Unavailable

LOGGER = logging.getLogger("tieredstore.owner")
ResultT = TypeVar("ResultT")
PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 10.0
PASSING: Final = (Unauthorized, Unavailable)
"""Errors of a storage that may pass."""


async def when_usable(
    attempt: Callable[[], Awaitable[ResultT]],
    *,
    clock: Clock,
    start_s: float,
    passing: tuple[type[StoreError], ...] = PASSING,
    told: Callable[[StoreError], None] = lambda _: None,
) -> ResultT:
    """Call `attempt` until the storage can be used, for at most `start_s` seconds; 0 tries once.

    A clock that is not set yet, a token that is being renewed, permissions that are not there yet
    and outages pass. The first failure is logged at once, later ones if they differ; `told` is
    called with each that is waited out. Infinite seconds: without end.

    Raises:
        Unavailable: it could not be used in that time.
        Unauthorized: `start_s` is 0, and the storage refuses us for now.
        And what else `attempt` raises, at once.
    """
    began_s, failures, reported = clock.monotonic_s(), 0, ""
    while True:
        try:
            return await attempt()
        except passing as error:
            if not start_s:
                raise
            left_s = max(0.0, began_s + start_s - clock.monotonic_s())
            if error.reason != reported:
                reported = error.reason
                until = "until it answers" if math.isinf(left_s) else f"for {left_s:.0f} s"
                text = "not ready: %s; tried again %s"
                LOGGER.error(text, error, until)  # noqa: TRY400 - the sentence says it all
            if not left_s:
                reason = f"not usable for {start_s:g} s (tieredStoreStartTimeout): {error.reason}"
                raise Unavailable(reason, error.path, error.position) from error
            told(error)
        failures += 1
        pause_s = backoff_s(failures, s_min=PAUSE_S_MIN, s_max=PAUSE_S_MAX)
        await clock.sleep(min(pause_s, left_s))
