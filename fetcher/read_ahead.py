"""Where each group stands in each queue, and what to read before it asks. No I/O and no clock."""

from collections.abc import Iterator

from container.names.queue_id import QueueId
from fetcher.window import Window, WindowLimits, opened, used_to_its_end, wasted


class Reader:
    """One group in one queue.

    Hits touch `next_offset` alone as long as it stays below `trigger`.
    """

    __slots__ = ("ahead_until", "last_offset", "next_offset", "trigger", "window")

    def __init__(self, window: Window) -> None:
        self.window = window
        self.last_offset = -1
        """Where the last call began."""
        self.next_offset = -1
        """Where it ended; -1 before the first."""
        self.trigger = 0
        """A call that ends beyond this looks whether to read ahead."""
        self.ahead_until = -1
        """How far was read ahead for this reader."""

    def is_sequential(self, offset: int) -> bool:
        """Whether a call at `offset` goes on where the last one ended."""
        return offset == self.next_offset

    def moved(self, offset: int, limits: WindowLimits, now_s: float) -> None:
        """A call came at `offset`: to go on, to try again, or somewhere else."""
        if offset in (self.next_offset, self.last_offset):
            return
        if self.next_offset < self.ahead_until and not (
            self.next_offset < offset < self.ahead_until
        ):
            self.window = wasted(self.window, limits, now_s)
        self.ahead_until = -1
        self.trigger = offset

    def shrink(self, limits: WindowLimits, now_s: float) -> None:
        """Read-ahead for this reader was in vain, failed, or had no room."""
        self.window = wasted(self.window, limits, now_s)


def next_window(
    window: Window,
    limits: WindowLimits,
    now_s: float,
    *,
    mean_bytes: int,
    run_bytes_max: int,
    room_bytes: int,
) -> Window | None:
    """The window to read ahead with, for a reader that came to the end of the last; pure.

    One step more where the next read, at `mean_bytes` a message and `run_bytes_max` at most, fits
    into `room_bytes`, else the same; None if not even that fits.
    """
    for candidate in (used_to_its_end(window, limits, now_s), window):
        if min(candidate.messages * mean_bytes, run_bytes_max) <= room_bytes:
            return candidate
    return None


class Readers:
    """The readers seen last, at most `readers_max`."""

    def __init__(self, readers_max: int, limits: WindowLimits) -> None:
        self._readers_max = readers_max
        self._limits = limits
        self._readers: dict[tuple[QueueId, str], Reader] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def __iter__(self) -> Iterator[tuple[QueueId, str, Reader]]:
        for (queue, group), reader in self._readers.items():
            yield queue, group, reader

    def get(self, queue: QueueId, group: str) -> Reader | None:
        """The reader if it is known. No more than a look-up: it is on every call's way."""
        return self._readers.get((queue, group))

    def keep(self, queue: QueueId, group: str, now_s: float) -> Reader:
        """The reader, new if need be, and now the last one to be forgotten."""
        key = queue, group
        reader = self._readers.pop(key, None) or Reader(opened(self._limits, now_s))
        self._readers[key] = reader
        while len(self._readers) > self._readers_max:
            del self._readers[next(iter(self._readers))]
        return reader

    def forget(self, queue: QueueId) -> None:
        """Drop the readers of a queue."""
        self._readers = {key: one for key, one in self._readers.items() if key[0] != queue}
