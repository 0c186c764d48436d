"""What the fetcher did and holds, for operators and tests."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetcherStatistics:
    """A snapshot; counters begin with the fetcher and never go back."""

    hits: int
    """Calls answered from the cache alone."""
    misses: int
    """Calls that waited for storage."""
    runs_read: int
    """Runs read from storage, read-ahead included."""
    bytes_read: int
    """Bytes of records in them."""
    reads_failed: int
    """Reads of a run that ended with an error."""
    prefetches: int
    """Reads that began before a call waited for them."""
    prefetches_used: int
    """Runs read ahead that were served."""
    prefetches_wasted: int
    """Runs read ahead that were dropped unserved."""
    runs_held: int
    bytes_held: int
    """What the cached runs occupy."""
    unread_bytes: int
    """The part of it that was read ahead and not served yet."""
    reads_in_flight: int
    bytes_in_flight: int
    readers: int
    """Windows kept."""
    windows: Mapping[str, int]
    """Messages that each group's next read ahead takes, by `topic/queue group`."""
