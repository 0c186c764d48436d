"""What a journal did."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """What a journal did since its ownership was taken."""

    epoch: int
    sequence: int
    """Number of the last entry that is published."""
    entries: int
    transactions: int
    bytes: int
    """Bytes of all entries written."""
    waiting: int
    """Transactions that wait for an entry."""
    unsettled: bool
    """An entry was sent, and its outcome is not known yet."""
    retries: int
    stood_back: int
    """How often it let a claim go first."""
    last_error: str
    """Why the entry is not settled, or why the journal is over; empty otherwise."""
