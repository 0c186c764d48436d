"""Queue offsets, byte ranges, and the coalescing of ranges into requests. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, NewType

QueueOffset = NewType("QueueOffset", int)  # the n-th message of a queue; counts messages


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Half-open range of bytes `[start, end)`. Never empty.

    A read of a range returns exactly `length` bytes or raises. A provider that has only a part of
    the range raises `OutOfRange` and returns nothing.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"not a byte range: [{self.start}, {self.end})")

    @property
    def length(self) -> int:
        """Length in bytes, at least 1."""
        return self.end - self.start


class ReadTogether(NamedTuple):
    """Coalesced ranges of one object."""

    object_name: str
    whole: ByteRange
    """Range that covers all of them and the gaps between."""
    members: tuple[int, ...]
    """Indices of the wanted ranges."""


def together(
    wanted: Sequence[tuple[str, ByteRange]], *, gap_bytes_max: int, bytes_max: int
) -> list[ReadTogether]:
    """Coalesce ranges of one object that overlap or are at most `gap_bytes_max` apart. Pure.

    A coalesced range has at most `bytes_max` bytes; a longer wanted range stays alone. Each wanted
    range is in exactly one result. The order of `wanted` does not matter. O(n log n).
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
    """Split a range into the fewest, about equal pieces of at most `bytes_max` bytes. Pure."""
    count = -(-whole.length // bytes_max)
    edges = [whole.start + whole.length * number // count for number in range(count + 1)]
    return [ByteRange(start, end) for start, end in pairwise(edges)]
