"""Read-ahead of one group in one queue: its position and its window. No I/O and no clock.

The window doubles while it is used up, and halves when it is wasted.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Bounds of a window in messages, and its rates of change."""

    messages_min: int
    messages_max: int
    step_messages: int
    """Least growth of a window in messages."""
    pause_s: float = 0.05
    """Seconds after a shrink in which further ones are ignored, as they may have the same cause."""
    idle_s_max: float = 60.0
    """Seconds without use after which a window starts again at `messages_min`."""


@dataclass(frozen=True, slots=True)
class Window:
    """Size of the next read-ahead. Times are monotonic seconds."""

    messages: int
    used_s: float
    """Time of the last change or of the last complete use."""
    shrunk_s: float = float("-inf")


def opened(limits: WindowLimits, now_s: float) -> Window:
    """Return the window of a group that has read nothing yet. Pure."""
    return Window(limits.messages_min, now_s)


def used_to_its_end(
    window: Window, limits: WindowLimits, now_s: float, *, taken: int = 0
) -> Window:
    """Grow a window that was used up: double it, or start again after a long pause. Pure.

    The new window has at least twice the messages that the last call has `taken`. A smaller one
    would be too small for the next call.
    """
    if now_s - window.used_s > limits.idle_s_max:
        return opened(limits, now_s)
    wanted = max(window.messages + limits.step_messages, 2 * window.messages, 2 * taken)
    return Window(min(wanted, limits.messages_max), now_s, window.shrunk_s)


def wasted(window: Window, limits: WindowLimits, now_s: float) -> Window:
    """Halve a window whose read-ahead was unused, failed, or had no room. Pure."""
    if now_s - window.shrunk_s < limits.pause_s:
        return window
    return Window(max(window.messages // 2, limits.messages_min), now_s, now_s)


class GroupPosition:
    """Position of one group in one queue: its last call, its window, and its read-ahead.

    G1  The window stays within its limits.
    G2  A call never ends before it began.
    """

    __slots__ = ("_ahead_until", "_last_offset", "_limits", "_next_offset", "_trigger", "_window")

    def __init__(self, limits: WindowLimits, now_s: float) -> None:
        self._limits = limits
        self._window: Window = opened(limits, now_s)
        self._last_offset = -1
        """First offset of the last call."""
        self._next_offset = -1
        """End of the last call; -1 before the first."""
        self._trigger = 0
        """Offset beyond which the end of a call triggers a read-ahead."""
        self._ahead_until = -1
        """End of the read-ahead of this group."""

    def __repr__(self) -> str:
        return f"<GroupPosition at {self._next_offset}, window {self.window_messages}>"

    @property
    def next_offset(self) -> int:
        """End of the last call; -1 before the first."""
        return self._next_offset

    @property
    def window_messages(self) -> int:
        """Messages of the next read-ahead."""
        return self._window.messages

    def is_sequential(self, offset: int) -> bool:
        """Whether a call at `offset` continues where the last one ended."""
        return offset == self._next_offset

    def advance(self, offset: int, next_offset: int, now_s: float) -> bool:
        """Record a call from `offset` to `next_offset`. Return whether it triggers a read-ahead.

        A call may continue, repeat the last one, or jump. A jump out of the read-ahead halves the
        window. Only a call that ends after the first window triggers a read-ahead: many readers
        of an object store take no more than that.
        """
        is_sequential = offset == self._next_offset
        if not is_sequential and offset != self._last_offset:
            if self._next_offset < self._ahead_until and not (
                self._next_offset < offset < self._ahead_until
            ):
                self.shrink(now_s)
            self._ahead_until = -1
            self._trigger = offset + self._limits.messages_min
        self._last_offset, self._next_offset = offset, next_offset
        return is_sequential and next_offset > self._trigger

    def wait_until(self, offset: int) -> None:
        """Set the trigger: only a call that ends after `offset` triggers a read-ahead."""
        self._trigger = offset

    def widen(
        self, now_s: float, *, mean_bytes: int, run_bytes_max: int, room_bytes: int
    ) -> int | None:
        """Return the messages to read ahead after the last read-ahead was used up.

        The window doubles if the next read, of `mean_bytes` a message and at most `run_bytes_max`
        bytes, fits into `room_bytes`. Otherwise it keeps its size. If not even that fits, the
        window is halved and the result is None.
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
        """Halve the window after a read-ahead that was unused, failed, or had no room."""
        self._window = wasted(self._window, self._limits, now_s)

    def reading_ahead(self, until: int) -> None:
        """Record the start of a read-ahead up to `until`."""
        self._ahead_until = until

    def has_read_ahead(self, until: int) -> None:
        """Record the end of the read-ahead, which reached only `until`."""
        self._ahead_until = min(self._ahead_until, until)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        limits = self._limits
        assert limits.messages_min <= self._window.messages <= limits.messages_max, f"G1: {self}"
        assert self._last_offset <= self._next_offset, f"G2: {self}"
