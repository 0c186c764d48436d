"""How far to read ahead for one group in one queue: it doubles while it is used, else it halves.

A window counts messages, not bytes: it is asked for in queue offsets, before any size is known.
The limit in bytes is applied exactly once the units are there (`plan.units_taken`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Between what a window moves, in messages, and how fast."""

    messages_min: int
    messages_max: int
    step_messages: int
    """What a window gains at least when it grows."""
    pause_s: float = 0.05
    """One cause may show itself several times within this; it counts once."""
    idle_s_max: float = 60.0
    """A window that was not used for so long starts again."""


@dataclass(frozen=True, slots=True)
class Window:
    """How many messages the next read ahead takes."""

    messages: int
    used_s: float
    """When it changed last, or was used to its end."""
    shrunk_s: float = float("-inf")


def opened(limits: WindowLimits, now_s: float) -> Window:
    """The window of a group that has read nothing yet."""
    return Window(limits.messages_min, now_s)


def used_to_its_end(
    window: Window, limits: WindowLimits, now_s: float, *, taken: int = 0
) -> Window:
    """What was read ahead has been read: take twice as much, or start again after a long pause.

    Twice as much as the last call has `taken`, at least: what covers less is read in vain.
    """
    if now_s - window.used_s > limits.idle_s_max:
        return opened(limits, now_s)
    wanted = max(window.messages + limits.step_messages, 2 * window.messages, 2 * taken)
    return Window(min(wanted, limits.messages_max), now_s, window.shrunk_s)


def wasted(window: Window, limits: WindowLimits, now_s: float) -> Window:
    """What was read ahead was not wanted, failed, or had no room: halve."""
    if now_s - window.shrunk_s < limits.pause_s:
        return window
    return Window(max(window.messages // 2, limits.messages_min), now_s, now_s)
