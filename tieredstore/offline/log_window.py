"""A window that moves over a split's log: one buffer, used again and again."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from provider.sequential import ByteSource, ObjectRange
from tieredstore.offline.split import LogPiece

WINDOW_BYTES = 4 << 20
"""What a scan holds of a log, unless one record is longer: a buffer of so many bytes stays in the
processor's cache well enough, and is long enough for calls of numpy (2 to 4 MiB measured best)."""


class LogWindow:
    """Bytes `[start, end)` of a log, which only moves forward.

    Bytes that the storage does not have any more are zeros here, and `lost_from` says where the
    first of them is. Memory: `WINDOW_BYTES`, or the longest stretch that was asked for.
    """

    def __init__(
        self, source: ByteSource, pieces: Sequence[LogPiece], start: int, limit: int
    ) -> None:
        self._source = source
        self._pieces = [piece for piece in pieces if piece.end > start]
        self._next_piece = 0
        self._limit = limit
        self._raw = np.empty(min(WINDOW_BYTES, limit - start), np.uint8)
        self._filled = 0
        self._lost: list[tuple[int, int]] = []
        self.start = start
        """Log position of the first byte."""

    @property
    def end(self) -> int:
        """Log position behind the last byte."""
        return self.start + self._filled

    @property
    def limit(self) -> int:
        """Log position that the window never passes."""
        return self._limit

    @property
    def raw(self) -> NDArray[np.uint8]:
        """The bytes; what was taken from it is overwritten when the window moves."""
        return self._raw[: self._filled]

    @property
    def lost_from(self) -> int:
        """Position of the first byte in the window that the storage does not have; else `end`."""
        return next((max(a, self.start) for a, b in self._lost if b > self.start), self.end)

    def has_all(self, start: int, end: int) -> bool:
        """Whether the storage has every byte of `[start, end)`, which the window holds."""
        return not any(a < end and start < b for a, b in self._lost)

    def expect(self, until: int) -> None:
        """Tell the source that everything up to `until` will be read."""
        ranges = [
            ObjectRange(
                piece.object_name,
                piece.object_offset + max(self.end - piece.position, 0),
                min(piece.end, until) - max(piece.position, self.end),
            )
            for piece in self._pieces[self._next_piece :]
            if piece.end > self.end and piece.position < until
        ]
        self._source.expect(ranges)

    def move(self, start: int, wanted: int) -> None:
        """Begin at `start`, within what it holds, and hold `wanted` bytes if the log has them.

        Raises:
            Unavailable, Denied: as `ByteSource.read_into`.
        """
        assert self.start <= start <= self.end, "a window moves forward within what it holds"
        kept = self.end - start
        wanted = min(wanted, self._limit - start)
        held = self._raw
        if wanted > len(held):
            self._raw = np.empty(wanted, np.uint8)
        if kept and (start > self.start or self._raw is not held):
            self._raw[:kept] = held[self._filled - kept : self._filled]
        self.start, self._filled = start, kept
        self._lost = [(a, b) for a, b in self._lost if b > start]
        view = self._raw.data
        while self._filled < wanted:
            self._read(view[self._filled : wanted])

    def _read(self, room: memoryview) -> None:
        """Read from one piece, as much as it has or `room` takes."""
        while self._pieces[self._next_piece].end <= self.end:
            self._next_piece += 1
        piece = self._pieces[self._next_piece]
        view = room[: piece.end - self.end]
        inside = self.end - piece.position
        count = self._source.read_into(piece.object_name, piece.object_offset + inside, view)
        if count < len(view):
            view[count:] = bytes(len(view) - count)
            self._lost.append((self.end + count, self.end + len(view)))
        self._filled += len(view)
