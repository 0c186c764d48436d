"""Options of following another broker's store directory, with their bounds."""

from dataclasses import dataclass

from provider.setting import GIB, MIB, Kind, setting

WINDOW_BYTES = 4 * MIB
"""Largest read of the CommitLog in bytes. It fails or succeeds as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotLogOptions:
    """Options of following a broker's store directory.

    `memory_bytes_max` is the maximum that following adds to the process: pages of mapped files
    (which belong to the kernel's page cache, but count as resident), and the buffers of rounds.
    """

    poll_s_max: float = setting(
        "tieredStorePollInterval",
        Kind.MILLISECONDS,
        100,
        "Interval between checks of the broker's CommitLog for new messages.",
        most=3_600_000,
    )
    scan_s_min: float = setting(
        "tieredStoreScanInterval",
        Kind.MILLISECONDS,
        1000,
        "Minimum interval between scans of the store directory for new topics and queues.",
        least=0,
        most=3_600_000,
    )
    """Applies to scans of all queues, too: some of their changes do not show at the CommitLog's
    end. Scans take 0.5 % of the time at most."""
    scan_s_max: float = 60.0
    """Longest time between two such scans in seconds, whatever they cost."""
    settle_s_max: float = 2.0
    """Time in seconds after its last record for which every poll reads a queue's end: the broker
    writes ConsumeQueue units later than records."""
    files_mapped_max: int = 512
    """Maximum of mapped files. Each holds one file descriptor."""
    resident_bytes_max: int = setting(
        "tieredStoreMappedBytesMax",
        Kind.BYTES,
        32 * MIB,
        "Maximum bytes of the broker's files that are mapped and resident at once.",
    )
    """ConsumeQueue files are mapped, and CommitLog files whose records are read one by one. Rounds
    are read without a mapping."""
    round_bytes_max: int = 64 * MIB
    """Maximum of record bytes of one `records_of_round`. Each queue gets one message at least."""
    buffer_bytes_max: int = 48 * MIB
    """Memory in bytes that is kept from one round to the next for its records.

    If they do not fit, each round allocates memory, which costs more CPU time than all else
    (decision 0043).
    """
    threads: int = 2
    """Threads that poll and read. Each blocks on pages that the page cache lacks."""
    commit_log_path: str = setting(
        "storePathCommitLog",
        Kind.PATH,
        "",
        "The broker's CommitLog directory, or several with commas. Empty: commitlog in the store "
        "directory.",
        is_machines=True,
    )
    read_only_commit_log_paths: str = setting(
        "readOnlyCommitLogStorePaths",
        Kind.PATH,
        "",
        "Further directories of the broker's CommitLog, with its older files.",
    )
    in_dledger: bool = setting(
        "enableDLegerCommitLog",
        Kind.SWITCH,
        default=False,
        meaning="True if the broker's CommitLog lies in DLedger, which is refused.",
    )
    queues_in_rocksdb: bool = False
    """`storeType=defaultRocksDB`: the broker's ConsumeQueues are in RocksDB, so that the queues are
    derived from the CommitLog. The same applies if the store has such a database."""
    replicated: bool = False
    """`enableControllerMode` or `duplicationEnable`: a message counts below the confirm offset of
    the broker's checkpoint, or after `unconfirmed_s_max`."""
    unconfirmed_s_max: float = 22.0
    """Age in seconds from which on a message with a unit counts above the confirm offset, too.

    The broker would have dropped a silent replica by then, and does not store the offset while it
    is alone. 0: at once, which is right if all replicas in sync acknowledge each message.
    """
    checks_bodies: bool = setting(
        "tieredStoreBodyCheckEnable",
        Kind.SWITCH,
        default=False,
        meaning="True: tiering verifies the checksum of each body, and reports rotted messages.",
    )
    """A damaged body is reported, and tiered as it is."""
    pin_path: str = setting(
        "tieredStorePinPath",
        Kind.PATH,
        "",
        "Directory for hard links to CommitLog files that are not tiered yet, one on each of "
        "their volumes. Empty: no links.",
    )
    pinned_bytes_max: int = setting(
        "tieredStorePinMaxSize",
        Kind.BYTES,
        64 * GIB,
        "Maximum bytes that only pins (see tieredStorePinPath) keep on disk; above it the oldest "
        "are dropped.",
        least=0,
    )

    def __post_init__(self) -> None:
        for name in ("poll_s_max", "scan_s_min", "scan_s_max", "settle_s_max", "unconfirmed_s_max"):
            if not 0 <= getattr(self, name) <= 3600:  # noqa: PLR2004 - an hour of seconds
                raise ValueError(f"{name} is {getattr(self, name)}, not within 0 to 3600 seconds")
        for name in ("files_mapped_max", "resident_bytes_max", "round_bytes_max", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but at least 1 is needed")
        if self.pinned_bytes_max < 0:
            raise ValueError(f"pinned_bytes_max is {self.pinned_bytes_max}, below 0")

    @property
    def memory_bytes_max(self) -> int:
        """Maximum of bytes: `resident_bytes_max + buffer_bytes_max` and the share of each thread.

        A thread's share is `round_bytes_max x 5 / 4`: the round that it reads, in memory of its
        size class. Not included: units rebuilt for missing ConsumeQueue files
        (`files.MADE_BYTES_MAX`), those of the two CommitLog files read last for queues whose
        files the broker deleted (`pinned_units.FILES_KEPT_MAX`), and the window that they are
        derived from. Nor does it include the needs of a store without ConsumeQueue files:
        `logged_queues.CACHE_BYTES_MAX`, some 50 MB during long reads, and 2 kB for each queue.
        """
        gathered = self.round_bytes_max + self.round_bytes_max // 4
        return self.resident_bytes_max + self.threads * gathered + self.buffer_bytes_max
