"""Options of the providers, with their costs."""

from dataclasses import dataclass
from pathlib import Path

from provider.setting import GIB, KIB, MIB, Kind, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PosixOptions:
    """Threads, descriptors and memory of a `PosixStore`."""

    read_threads_max: int = setting(
        "tieredStoreReadThreads",
        Kind.COUNT,
        4,
        "Number of threads for reads that miss the page cache.",
        unit="threads",
        most=1024,
    )
    """They serve listings and sizes, too."""
    write_threads_max: int = 2
    """Threads for creates, separate from the readers' so that no read waits for a sync. More than
    two did not raise the rate of syncs on the measured disk. Appends and deletions have one thread
    each, so that they land in the order of their calls."""
    sync_threads_max: int = 4
    """Threads that sync the files of one round of appends, its own thread included. The journal of
    a file system combines concurrent syncs."""
    files_open_max: int = setting(
        "tieredStoreOpenFilesMax",
        Kind.COUNT,
        512,
        "Maximum number of the tier's files that are kept open.",
        unit="files",
        least=8,
    )
    """The least recently used ones are closed. Work under way may add three for each thread. The
    root is held open in addition."""
    loop_read_bytes_max: int = 1 << 20
    """Longest read in bytes that is tried on the event loop, where 1 MiB from the page cache costs
    42 us (decision 0003). A longer read, or the rest of a `read_many` that is longer in total, goes
    to a thread."""
    write_bytes_max: int = 1 << 20
    """Bytes up to which small buffers are joined before a write. An append starts write-back of
    each full buffer while it copies the next one (decision 0003)."""
    buffer_bytes_max: int = 32 << 20
    """Bytes of buffers of long reads that are kept for reuse, because fresh memory costs more than
    the copy into it (decision 0012). The result of a read may occupy a quarter more than its
    length."""
    temporary_age_s_min: float = 3600.0
    """Age in seconds from which on left-over temporary files are removed."""
    reserve_bytes: int = setting(
        "tieredStoreReserveSize",
        Kind.BYTES,
        4 * MIB,
        "Space that tiering reserves for the tier's metadata, to publish all written "
        "messages on a full disk; 0: none.",
        least=0,
    )
    """Reserved by an appending store while it is open (`posix/work.py`). The journal entry of a
    round of 10,000 queues takes about 4 MiB."""

    def __post_init__(self) -> None:
        threads = min(self.read_threads_max, self.write_threads_max, self.sync_threads_max)
        if threads < 1 or self.files_open_max < 8:  # noqa: PLR2004 - its docstring says eight
            raise ValueError(f"a PosixStore needs threads and at least 8 files: {self}")

    @property
    def memory_bytes_max(self) -> int:
        """Memory bound of the store in bytes: joined and kept buffers, without its callers'."""
        return (1 + self.write_threads_max) * self.write_bytes_max + self.buffer_bytes_max


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """Number and duration of the attempts of a `RetryingStore`."""

    tries_max: int = 5
    """Most attempts, the first included."""
    deadline_s: float = 30.0
    """Seconds after the first attempt in which a new attempt may begin."""
    first_wait_s_max: float = 0.1
    """Bound of the first random wait, in seconds. Each further wait doubles it."""
    wait_s_max: float = 5.0
    """Longest wait, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """Requests of `RangeReads` to a remote store.

    Raises:
        ValueError: `request_bytes_max` is not positive, or `gap_bytes_max` is negative.
    """

    gap_bytes_max: int = 256 << 10
    """Bytes between two wanted ranges of an object that are read as well, to save a request."""
    request_bytes_max: int = setting(
        "readAheadRequestSize",
        Kind.BYTES,
        16 * MIB,
        "Maximum bytes of one request to an object store; a longer range is read by "
        "concurrent requests.",
        least=KIB,
    )
    """The slice of a queue in a part is seldom longer (decision 0043)."""
    hedge_after_s: float = setting(
        "readAheadHedgeDelay",
        Kind.MILLISECONDS,
        0,
        "Time after which an unanswered read from an object store is sent a second time; 0: never.",
        least=0,
    )
    hedge_share_max: float = setting(
        "readAheadHedgeShare",
        Kind.PERCENT,
        5,
        "Maximum share of reads that are sent a second time (see readAheadHedgeDelay).",
        most=100,
    )
    """The first one always may."""

    def __post_init__(self) -> None:
        if self.request_bytes_max <= 0 or self.gap_bytes_max < 0:
            raise ValueError(f"a request has bytes, and a gap has none less than none: {self}")


ENTRY_BYTES = 400
"""Bytes of memory of a file's name, its place in the LRU order, and its place in its object."""


def _path(text: str) -> Path | None:
    return Path(text) if text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCacheOptions:
    """Place and bounds of the disk cache of a remote store."""

    directory: Path | None = setting(
        "readAheadDiskCachePath",
        Kind.PATH,
        "",
        "Directory of the cache of bytes from an object store, kept over restarts; processes "
        "may share it. Empty: none.",
        convert=_path,
    )
    """None: no cache."""
    bytes_max: int = setting(
        "readAheadDiskCacheSize",
        Kind.BYTES,
        10 * GIB,
        "Maximum bytes of files in readAheadDiskCachePath; the least recently used are "
        "deleted first.",
    )
    """Counts the files of all processes in the directory. Directories take up to 1 MiB more."""
    entries_max: int = 200_000
    """Most files. Each takes `ENTRY_BYTES` of memory."""
    pause_s: float = 60.0
    """Seconds without writes after a failed write, such as on a full disk."""
    temporary_age_s_min: float = 3600.0
    """Age in seconds from which on temporary files of dead writers are removed."""

    @property
    def memory_bytes_max(self) -> int:
        """Memory bound of the index of the files, in bytes; 0 without a cache."""
        return 0 if self.directory is None else ENTRY_BYTES * self.entries_max


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOptions:
    """Concurrency and timeouts of an `FsspecStore`.

    Raises:
        ValueError: a number is not positive.
    """

    requests_max: int = setting(
        "objectStoreRequestsMax",
        Kind.COUNT,
        32,
        "Maximum number of concurrent requests, besides at most 8 uploads.",
        unit="requests",
        most=1024,
    )
    uploads_max: int = 8
    """Concurrent creates, counted separately so that no reader waits for an upload."""
    request_s_max: float = setting(
        "objectStoreRequestTimeout",
        Kind.MILLISECONDS,
        60_000,
        "Maximum time of a request that moves no bytes; each 512 KiB give it a second more.",
    )
    bytes_per_s_min: int = 512 * KIB
    """Bytes for which a request may take one second more: the rate of the slowest usable link."""

    upload_bytes_per_s_max: int = setting(
        "objectStoreUploadRateMax",
        Kind.BYTES,
        0,
        "Maximum number of bytes that are sent to an object store in a second; 0: any number.",
        unit="bytes a second",
        least=0,
    )
    """Applied by `provider/stores/throttled.py`, not by the store itself."""
    download_bytes_per_s_max: int = setting(
        "objectStoreDownloadRateMax",
        Kind.BYTES,
        0,
        "Maximum number of bytes that are read from an object store in a second; 0: any number.",
        unit="bytes a second",
        least=0,
    )
    """Applied as `upload_bytes_per_s_max`."""

    def __post_init__(self) -> None:
        if min(self.requests_max, self.uploads_max, self.request_s_max, self.bytes_per_s_min) <= 0:
            raise ValueError(f"an FsspecStore needs requests, uploads and time: {self}")

    def deadline_s(self, size_bytes: int) -> float:
        """Return the timeout in seconds of a request that transfers `size_bytes`."""
        return self.request_s_max + size_bytes / self.bytes_per_s_min
