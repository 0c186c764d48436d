"""Settings of reading another broker's store directory, with their bounds."""

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30

WINDOW_BYTES = 4 * MIB
"""What is read of the CommitLog at once, and fails or succeeds as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotLogOptions:
    """How a broker's store directory is followed.

    `memory_bytes_max` is the most that following adds to the process: pages of mapped files
    (which belong to the kernel's page cache, but count as resident), and the buffers of rounds.
    """

    poll_s_max: float = 0.1
    """Longest sleep before the CommitLog's tail is looked at again (`wait`)."""
    scan_s_min: float = 1.0
    """Shortest time between two looks at the directories for new topics and queues, and at the
    queues of which the CommitLog's end shows nothing. They take 0.5 % of the time at most."""
    scan_s_max: float = 60.0
    """Longest time between two of these, however much they cost."""
    settle_s_max: float = 2.0
    """How long after its last record every poll still looks at a queue: the broker writes
    ConsumeQueue units later than records."""
    files_mapped_max: int = 512
    """Mapped files at one time; each holds one file descriptor."""
    resident_bytes_max: int = 32 * MIB
    """Mapped bytes resident before their page table entries are dropped. Mapped are ConsumeQueue
    files, and the CommitLog files whose records are looked at one by one; rounds are read."""
    round_bytes_max: int = 64 * MIB
    """Most bytes of records in one `records_of_round`; each queue has one message at least."""
    buffer_bytes_max: int = 48 * MIB
    """Memory that is kept from one round to the next: the records of a round. If they do not fit,
    each round takes fresh memory, which costs more CPU time than all else (decision 0043)."""
    threads: int = 2
    """Threads that look and read; each blocks where the page cache has nothing."""
    commit_log_path: str = ""
    """`storePathCommitLog`, one directory or several; empty: `commitlog` in the store directory."""
    read_only_commit_log_paths: str = ""
    """`readOnlyCommitLogStorePaths`: directories with older files of the CommitLog."""
    in_dledger: bool = False
    """`enableDLegerCommitLog`: the broker's records lie in a DLedger log."""
    queues_in_rocksdb: bool = False
    """`storeType=defaultRocksDB`: the broker's ConsumeQueues lie in RocksDB, so that the queues are
    made from the CommitLog. So they are, too, where the store has such a database."""
    replicated: bool = False
    """`enableControllerMode` or `duplicationEnable`: a message counts below the confirm offset of
    the broker's checkpoint, or after `unconfirmed_s_max`."""
    unconfirmed_s_max: float = 22.0
    """Age in seconds from which on a message with a unit counts above the confirm offset too: the
    broker would have dropped a silent replica by then, and does not store the offset while it is
    alone. 0: at once, as it is right where all replicas in sync acknowledge each message."""
    checks_bodies: bool = False
    """Whether the checksum of each body is compared before it is tiered. What differs is said, and
    tiered as it is."""
    pin_path: str = ""
    """`tieredStorePinPath`, a directory on each volume of the CommitLog; empty: no pins."""
    pinned_bytes_max: int = 64 * GIB
    """Bytes of files that only our pins keep; over it the oldest pins go."""

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
        """Bytes: `resident_bytes_max + buffer_bytes_max`, and something for each of `threads`.

        That is `round_bytes_max x 5 / 4`: the round that it reads, in memory of its size class.
        Not in it: units made for missing ConsumeQueue files (`made_files.MADE_BYTES_MAX`), those of
        the two CommitLog files that were read last for queues whose files the broker deleted
        (`floors.FILES_KEPT_MAX`), and the window that they are made from. Nor what a store without
        ConsumeQueue files needs: `waiting_units.CACHE_BYTES_MAX`, some 50 MB while much is read
        at once, and 2 kB for each queue.
        """
        gathered = self.round_bytes_max + self.round_bytes_max // 4
        return self.resident_bytes_max + self.threads * gathered + self.buffer_bytes_max
