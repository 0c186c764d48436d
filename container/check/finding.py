"""Finding of a check: one line for people and programs, with its place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Single defect found by a check."""

    finding: str
    """Short, stable name of the kind of damage, such as `checksum`."""
    path: str
    """Object or queue that it concerns."""
    position: int
    """Byte in the object, or queue offset if the path is a queue's."""
    detail: str
    """Sentence with the values."""
