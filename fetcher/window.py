"""Read-ahead of one group in one queue: its position and its window. No I/O and no clock.

The window doubles while it is used to its end, and halves when it is wasted.
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


class GroupPosition:
    """One group in one queue: its last call, its window, and what was read ahead for it.

    G1  The window stays within its limits.
    G2  A call never ends before it began.
    """

    __slots__ = ("_ahead_until", "_last_offset", "_limits", "_next_offset", "_trigger", "_window")

    def __init__(self, limits: WindowLimits, now_s: float) -> None:
        self._limits = limits
        self._window: Window = opened(limits, now_s)
        self._last_offset = -1
        """Where the last call began."""
        self._next_offset = -1
        """Where it ended; -1 before the first."""
        self._trigger = 0
        """A call that ends after this is an occasion to read ahead."""
        self._ahead_until = -1
        """How far was read ahead for this group."""

    def __repr__(self) -> str:
        return f"<GroupPosition at {self._next_offset}, window {self.window_messages}>"

    @property
    def next_offset(self) -> int:
        """Where the last call ended; -1 before the first."""
        return self._next_offset

    @property
    def window_messages(self) -> int:
        """Messages that the next read ahead takes."""
        return self._window.messages

    def is_sequential(self, offset: int) -> bool:
        """Whether a call at `offset` continues where the last one ended."""
        return offset == self._next_offset

    def advance(self, offset: int, next_offset: int, now_s: float) -> bool:
        """Note a call from `offset` to `next_offset`; True if it is an occasion to read ahead.

        A call may continue, repeat the last one, or jump. A jump past what was read ahead halves
        the window.
        """
        is_sequential = offset == self._next_offset
        if not is_sequential and offset != self._last_offset:
            if self._next_offset < self._ahead_until and not (
                self._next_offset < offset < self._ahead_until
            ):
                self.shrink(now_s)
            self._ahead_until = -1
            self._trigger = offset
        self._last_offset, self._next_offset = offset, next_offset
        return is_sequential and next_offset > self._trigger

    def wait_until(self, offset: int) -> None:
        """No call that ends at or before `offset` is an occasion to read ahead."""
        self._trigger = offset

    def widen(
        self, now_s: float, *, mean_bytes: int, run_bytes_max: int, room_bytes: int
    ) -> int | None:
        """Messages to read ahead by a group that came to the end of the last read ahead.

        Twice as many as last time where the next read, at `mean_bytes` a message and
        `run_bytes_max` at most, fits into `room_bytes`, else as many; if not even that fits, the
        window is halved and the answer is None.
        """
        taken = self._next_offset - self._last_offset
        wider = used_to_its_end(self._window, self._limits, now_s, taken=taken)
        for candidate in (wider, self._window):
            if min(candidate.messages * mean_bytes, run_bytes_max) <= room_bytes:
                self._window = candidate
                return candidate.messages
        self.shrink(now_s)
        return None

    def shrink(self, now_s: float) -> None:
        """Halve the window: reading ahead was in vain, failed, or had no room."""
        self._window = wasted(self._window, self._limits, now_s)

    def reading_ahead(self, until: int) -> None:
        """A read ahead as far as `until` began."""
        self._ahead_until = until

    def has_read_ahead(self, until: int) -> None:
        """It ended, and came only as far as `until`."""
        self._ahead_until = min(self._ahead_until, until)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        limits = self._limits
        assert limits.messages_min <= self._window.messages <= limits.messages_max, f"G1: {self}"
        assert self._last_offset <= self._next_offset, f"G2: {self}"
