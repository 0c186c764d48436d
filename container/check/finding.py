"""What a check finds: one line for people and programs, with its place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    finding: str
    """A short, stable name of the kind of damage, such as `checksum`."""
    path: str
    """The object or the queue that it concerns."""
    position: int
    """Byte in the object, or queue offset where the path is a queue's."""
    detail: str
    """One sentence with the values."""
