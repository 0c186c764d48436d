"""Bounds of a store over fsspec."""

from dataclasses import dataclass

KIB = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOptions:
    """How many requests an `FsspecStore` has under way, and how patient it is.

    Raises:
        ValueError: a number is not positive.
    """

    requests_max: int = 32
    """Reads, listings and deletions under way at once; the next ones wait."""
    uploads_max: int = 8
    """Creates under way at once, apart from the others, so that no reader waits for an upload."""
    request_s_max: float = 60.0
    """Longest that a request without bytes takes, in seconds; then it is given up ..."""
    bytes_per_s_min: int = 512 * KIB
    """... and a second more for each of so many bytes, which is what a slow link must carry."""

    upload_bytes_per_s_max: int = 0
    """Bytes that are written in a second at most, and ..."""
    download_bytes_per_s_max: int = 0
    """... that are read; 0 is no limit. The store itself does not look at the two
    (`provider/throttled.py`)."""

    def __post_init__(self) -> None:
        if min(self.requests_max, self.uploads_max, self.request_s_max, self.bytes_per_s_min) <= 0:
            raise ValueError(f"an FsspecStore needs requests, uploads and time: {self}")

    def deadline_s(self, size_bytes: int) -> float:
        """How long a request may take that moves so many bytes, in seconds."""
        return self.request_s_max + size_bytes / self.bytes_per_s_min
