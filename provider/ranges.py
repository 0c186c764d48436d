"""Numbers that say what they count, and the one kind of range."""

from dataclasses import dataclass
from typing import NewType

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
