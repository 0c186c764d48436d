"""One line of a diagnosis."""

from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """How a line is meant."""

    GOOD = "good"
    NOTE = "note"
    """Worth knowing, or not known."""
    BAD = "bad"
    """To be changed before a tier is kept there."""


@dataclass(frozen=True, slots=True)
class Line:
    """What one check found."""

    check: str
    """Such as `versioning`."""
    grade: Grade
    detail: str
    advice: str = ""
    """What to do; "" where nothing need be done."""
