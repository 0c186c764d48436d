"""Encrypted frames that are refused: what a window asks for, and which checksums are compared."""

from collections.abc import Sequence

import pytest

from container.record.checksum import crc32c
from provider.encryption.frames import CONTENT_BYTES
from provider.errors import Corrupt
from provider.sequential import ObjectRange
from tieredstore.offline.scan.log_window import REFUSED_FRAMES_MAX, LogWindow
from tieredstore.offline.scan.sources import Sum, SummingSource
from tieredstore.offline.scan.split import LogPiece

NAME = "a/log"
FRAMES = 1024
BYTES = FRAMES * CONTENT_BYTES


class Refusing:
    """One object, of which some frames are refused; counts what is asked for."""

    def __init__(self, raw: bytes, refused: Sequence[int]) -> None:
        self._raw = raw
        self._refused = refused
        self.reads = 0

    def expect(self, ranges: Sequence[ObjectRange]) -> None:
        del ranges

    def read_into(self, name: str, start: int, view: memoryview) -> int:
        self.reads += 1
        frames = range(start // CONTENT_BYTES, -(-(start + len(view)) // CONTENT_BYTES))
        if any(frame in frames for frame in self._refused):
            raise Corrupt("a frame was changed", name)
        found = self._raw[start : start + len(view)]
        view[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Nothing is held."""


def window(source: Refusing) -> LogWindow:
    return LogWindow(source, [LogPiece(0, BYTES, NAME, 0)], 0, BYTES)


@pytest.mark.parametrize("refused", [[0], [FRAMES - 1], [3, 4, 500], range(100, 130)])
def test_each_refused_frame_is_lost_alone(refused: Sequence[int]) -> None:
    source = Refusing(b"\x01" * BYTES, refused)
    held = window(source)
    held.move(0, BYTES)
    for frame in range(FRAMES):
        place = frame * CONTENT_BYTES
        assert held.has_all(place, place + CONTENT_BYTES) == (frame not in refused)
        assert held.raw[place] == (frame not in refused)


def test_an_object_that_is_refused_whole_costs_a_bounded_number_of_reads() -> None:
    source = Refusing(b"\x01" * BYTES, range(FRAMES))
    held = window(source)
    held.move(0, BYTES)
    assert source.reads < 4 * REFUSED_FRAMES_MAX
    assert held.end == BYTES
    assert not any(held.has_all(at, at + 1) for at in range(0, BYTES, CONTENT_BYTES))


@pytest.mark.parametrize("piece", [CONTENT_BYTES, 10_000, BYTES])
def test_checksums_behind_a_refused_frame_are_compared(piece: int) -> None:
    raw = bytes(range(256)) * (BYTES // 256)
    each = 100_000
    sums = [
        Sum(NAME, start, len(raw[start : start + each]), crc32c(raw[start : start + each]))
        for start in range(0, BYTES, each)
    ]
    source = SummingSource(Refusing(raw, [0]), sums)
    for start in range(CONTENT_BYTES, BYTES, piece):
        source.read_into(NAME, start, memoryview(bytearray(min(piece, BYTES - start))))
    assert source.faults == []
    assert source.left_out() == sums[:1]
    assert source.summed == len(sums) - 1
