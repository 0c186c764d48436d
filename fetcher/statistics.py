"""Statistics of the fetcher, for operators and tests."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetcherStatistics:
    """Counters since the fetcher was created, and present sizes. Counters never decrease."""

    hits: int
    """Calls served from the cache alone."""
    misses: int
    """Calls that waited for storage."""
    runs_read: int
    """Runs read from storage, read-ahead included."""
    bytes_read: int
    """Bytes of the runs read."""
    reads_failed: int
    """Reads that ended with an error."""
    prefetches: int
    """Reads started as read-ahead."""
    prefetches_used: int
    """Runs read ahead that were served."""
    prefetches_wasted: int
    """Runs read ahead that were dropped unserved."""
    runs_held: int
    bytes_held: int
    """Bytes of memory of the cached runs."""
    unread_bytes: int
    """Bytes of `bytes_held` that were read ahead and not served yet."""
    reads_in_flight: int
    bytes_in_flight: int
    readers: int
    """Number of windows kept."""
    windows: Mapping[str, int]
    """Messages of each group's next read-ahead, by `topic/queue group`."""
