"""What went wrong with a queue, and what that means for its next try. A value."""

from dataclasses import dataclass
from typing import Any

from dispatcher.options import DispatchOptions
from dispatcher.round_plan import ROUND_QUEUES_ANY
from provider.clock import backoff_s
from provider.ranges import QueueOffset

RESTS_AFTER = 3
"""Failures in a row after which a queue at rest counts as halted: nothing waits for it any more."""


@dataclass(frozen=True, slots=True)
class Setback:
    """What keeps a queue from being tiered as usual. Queues that are well share one."""

    reason: str = ""
    """Why the queue is stopped, refused, damaged or failing; empty otherwise."""
    failures: int = 0
    """Tries that failed in a row."""
    retry_at_s: float = 0.0
    """When it may be tried again; means nothing without failures."""
    rests: bool = False
    """It is halted by something that may pass: opened again once its pause has ended."""
    damage: str = ""
    """What was wrong with the messages at the commit offset, for the gap that passes them."""
    damage_told: bool = False
    """The hot log itself reported the damage; it will also report the end of it."""
    heals_at: QueueOffset | None = None
    """A halted queue is opened again once the hot log reaches this offset."""
    round_queues_max: int = ROUND_QUEUES_ANY
    """Queues in the round of its next commit, this one included."""
    retry_messages: int = 0
    """Length of the range whose commit failed; it is committed again as it was."""


NO_SETBACK = Setback()


def pause(failures_before: int, now_s: float, options: DispatchOptions) -> dict[str, Any]:
    """What one more failure in a row changes: a pause that is longer after each."""
    failures = failures_before + 1
    pause_s = backoff_s(failures, s_min=options.backoff_s_min, s_max=options.backoff_s_max)
    return {"failures": failures, "retry_at_s": now_s + pause_s}
