"""Bounds of the providers, and their cost."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PosixOptions:
    """How a `PosixStore` uses threads, descriptors and memory."""

    read_threads_max: int = 4
    """Threads that read what the page cache does not have, list and delete."""
    write_threads_max: int = 2
    """Threads that create and delete; apart from the readers', so that no read waits for a sync.
    More than two did not raise the rate of syncs on the disk that was measured. Appends have one
    thread of their own, so that rounds land in the order of their calls."""
    sync_threads_max: int = 4
    """Threads that sync the files of one round of appends, its own thread included: the journal of
    a file system takes syncs that come together as one."""
    files_open_max: int = 512
    """Descriptors kept open; least recently used ones are closed. At least 8. Work under way
    may add a few: three for each thread. The root is held open besides."""
    loop_read_bytes_max: int = 1 << 20
    """A read up to this many bytes is tried on the event loop, where it costs 42 us for 1 MiB that
    the page cache has (decision 0003); a longer one, or the rest of a `read_many` that is longer
    in total, goes to a thread straight away."""
    write_bytes_max: int = 1 << 20
    """Small buffers are joined to this many bytes before they are written; an append starts the
    device on each full one while it copies the next (decision 0003)."""
    buffer_bytes_max: int = 32 << 20
    """Memory of long reads that is kept once its last view is gone, for the next ones: fresh memory
    costs more than the copy into it (decision 0012). What a read returns may occupy a quarter more
    than its length."""
    temporary_age_s_min: float = 3600.0
    """Left-over temporary files older than this, in seconds, are removed."""
    reserve_bytes: int = 4 << 20
    """Room that a store which appends keeps for objects while it is open (`posix/work.py`), so
    that a full disk holds no data that cannot be published; 0 keeps none. The journal entry of a
    round of 10,000 queues takes about 4 MiB."""

    def __post_init__(self) -> None:
        threads = min(self.read_threads_max, self.write_threads_max, self.sync_threads_max)
        if threads < 1 or self.files_open_max < 8:  # noqa: PLR2004 - its docstring says eight
            raise ValueError(f"a PosixStore needs threads and at least 8 files: {self}")

    @property
    def memory_bytes_max(self) -> int:
        """What the store itself holds beside the buffers of its callers: joined and kept ones."""
        return (1 + self.write_threads_max) * self.write_bytes_max + self.buffer_bytes_max


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """How often, and for how long, a `RetryingStore` tries again."""

    tries_max: int = 5
    """Calls made at most, the first included."""
    deadline_s: float = 30.0
    """No new try begins later than this after the first one, in seconds."""
    first_wait_s_max: float = 0.1
    """The first wait is random between nothing and this, in seconds; doubled by every further."""
    wait_s_max: float = 5.0
    """No wait is longer than this, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """How `RangeReads` asks a store far away for bytes.

    Raises:
        ValueError: a request could have no bytes.
    """

    gap_bytes_max: int = 256 << 10
    """Bytes between two wanted ranges of an object that are read too, to save a request."""
    request_bytes_max: int = 16 << 20
    """Bytes of one request; a longer range is read in pieces side by side, which are joined. What
    a queue has of a part is seldom longer (decision 0043)."""
    hedge_after_s: float = 0.0
    """Seconds after which a second request for the same bytes is made; 0: never."""
    hedge_share_max: float = 0.05
    """Share of requests that may be made a second time; the first one always may."""

    def __post_init__(self) -> None:
        if self.request_bytes_max <= 0 or self.gap_bytes_max < 0:
            raise ValueError(f"a request has bytes, and a gap has none less than none: {self}")


ENTRY_BYTES = 400
"""Memory of a file's name, its place in the order of use, and its place in its object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCacheOptions:
    """Where what was read from a store far away is kept on disk, and how much of it."""

    directory: Path | None = None
    """None: nothing is kept."""
    bytes_max: int = 10 << 30
    """Disk space of all files in bytes, of all processes in one directory together. Directories
    take up to 1 MiB more."""
    entries_max: int = 200_000
    """Files; `ENTRY_BYTES` of memory each."""
    pause_s: float = 60.0
    """After a write that failed, such as on a full disk, nothing is written for so long."""
    wait_s_min: float = 0.02
    """A read waits for the disk as long as the storage takes for an answer, or so long."""
    temporary_age_s_min: float = 3600.0
    """Files of a writer that died are removed when they are so old."""

    @property
    def memory_bytes_max(self) -> int:
        """What is known of the files; nothing if none are kept."""
        return 0 if self.directory is None else ENTRY_BYTES * self.entries_max


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
    (`provider/stores/throttled.py`)."""

    def __post_init__(self) -> None:
        if min(self.requests_max, self.uploads_max, self.request_s_max, self.bytes_per_s_min) <= 0:
            raise ValueError(f"an FsspecStore needs requests, uploads and time: {self}")

    def deadline_s(self, size_bytes: int) -> float:
        """How long a request may take that moves so many bytes, in seconds."""
        return self.request_s_max + size_bytes / self.bytes_per_s_min
