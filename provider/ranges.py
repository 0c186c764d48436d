"""Numbers that say what they count, and the one kind of range."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, NewType

QueueOffset = NewType("QueueOffset", int)  # the n-th message of a queue; counts messages


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes `start <= position < end`; never empty.

    A read of a range returns exactly `length` bytes or raises: a provider that can only deliver a
    part of it raises `OutOfRange` and delivers none.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"not a byte range: [{self.start}, {self.end})")

    @property
    def length(self) -> int:
        """How many bytes the range holds, at least 1."""
        return self.end - self.start


class ReadTogether(NamedTuple):
    """Ranges of one object that one request gets, or several requests side by side."""

    object_name: str
    whole: ByteRange
    """All of them, and what lies between."""
    members: tuple[int, ...]
    """Which of the wanted ranges they are."""


def together(
    wanted: Sequence[tuple[str, ByteRange]], *, gap_bytes_max: int, bytes_max: int
) -> list[ReadTogether]:
    """Join ranges of one object that overlap, or have at most `gap_bytes_max` between them. Pure.

    What is joined has at most `bytes_max`; a longer range stays alone. Each wanted range is in
    exactly one, whatever their order. O(n log n).
    """
    joined: list[ReadTogether] = []
    order = sorted(range(len(wanted)), key=lambda one: (wanted[one][0], wanted[one][1].start))
    name: str | None = None
    start = end = 0
    members: list[int] = []
    for number in order:
        of, part = wanted[number]
        until = max(end, part.end)
        if of == name and part.start - end <= gap_bytes_max and until - start <= bytes_max:
            members.append(number)
            end = until
            continue
        if name is not None:
            joined.append(ReadTogether(name, ByteRange(start, end), tuple(members)))
        name, start, end, members = of, part.start, part.end, [number]
    if name is not None:
        joined.append(ReadTogether(name, ByteRange(start, end), tuple(members)))
    return joined


def pieces_of(whole: ByteRange, bytes_max: int) -> list[ByteRange]:
    """Cut a range into as few pieces of at most `bytes_max` as there can be, about equal. Pure."""
    count = -(-whole.length // bytes_max)
    edges = [whole.start + whole.length * number // count for number in range(count + 1)]
    return [ByteRange(start, end) for start, end in pairwise(edges)]
