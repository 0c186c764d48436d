"""Options of a tier: its identity, roll rules, journal, index and upkeep."""

from dataclasses import dataclass

from provider.setting import GIB, KIB, MIB, Kind, setting

HOUR_MS = 3_600_000
CUT_PLANS_MAX = 16
"""Attempts to plan a truncation while the queue changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """Roll rules: RocketMQ's where it has them, so that equal messages give equal files."""

    commit_log_bytes_max: int = setting(
        "tieredStoreCommitLogMaxSize",
        Kind.BYTES,
        GIB,
        "Maximum length of a CommitLog segment.",
        least=KIB,
    )
    """The segment is closed before the record that would exceed it. A longer record gets a segment
    of its own."""
    consume_queue_bytes_max: int = setting(
        "tieredStoreConsumeQueueMaxSize",
        Kind.BYTES,
        100 * MIB,
        "Maximum length of a ConsumeQueue segment; a multiple of 20.",
        least=20,
    )
    extent_bytes_max: int = setting(
        "tieredStoreExtentMaxSize",
        Kind.BYTES,
        4 * MIB,
        "Maximum bytes of a segment that share one checksum.",
        least=KIB,
    )
    """An extent is closed before it exceeds this, and that of a CommitLog after 4,096 messages."""
    rolling_age_hours: int = setting(
        "commitLogRollingInterval",
        Kind.HOURS,
        24,
        "Maximum age between the first and the last message of a CommitLog segment that is long "
        "enough to roll.",
    )
    """Hours of store timestamps."""
    rolling_bytes_min: int = setting(
        "commitLogRollingMinimumSize",
        Kind.BYTES,
        16 * MIB,
        "Minimum length of a CommitLog segment before its age can close it (see "
        "commitLogRollingInterval).",
        least=0,
    )
    cut_grace_hours: int = setting(
        "tieredStoreCutGraceTime",
        Kind.HOURS,
        72,
        "Time for which `repair` keeps the bytes of unpublished messages.",
        least=0,
    )
    takeover_wait_s_max: float = setting(
        "tieredStoreTakeoverTimeout",
        Kind.MILLISECONDS,
        2000,
        "Maximum time that a new owner waits for the earlier owner to stop writing.",
        least=0,
    )
    """After that the new owner continues beside the earlier one in segments of its own."""

    @property
    def rolling_age_ms(self) -> int:
        """`rolling_age_hours` in ms, the unit of store timestamps."""
        return self.rolling_age_hours * HOUR_MS


@dataclass(frozen=True, slots=True)
class TierIdentity:
    """Identity of a tier, and its present owner."""

    cluster: str
    broker: str
    owner: str
    """Host, process and time of the owner, for display."""


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Grouping of transactions, retries of entries, and reading of the journal.

    Memory besides the state: three times `entry_bytes_max` for the previous entry and the entry in
    flight with its copy of it; the transactions that callers of `publish` wait for; and
    `catch_up_bytes_max` during the start.
    """

    entry_bytes_max: int = MIB
    """Payload bytes at which an entry is closed. A larger transaction gets an entry of its own."""
    entry_transactions_max: int = 4096
    transaction_bytes_max: int = 64 * MIB
    """Limit of a transaction. A larger one is refused."""
    retry_s_min: float = 0.1
    """First delay after an unknown outcome, in seconds. It doubles up to `retry_s_max`."""
    retry_s_max: float = 5.0
    close_s_max: float = 10.0
    """Time that `close` waits for transactions in flight, in seconds."""
    catch_up_bytes_max: int = 8 * MIB
    """Bytes of entries that one batch reads at the start or while following."""
    catch_up_entries_max: int = 64
    """Entries that one batch reads at the start or while following."""
    claim_s_max: float = setting(
        "tieredStoreClaimTimeout",
        Kind.MILLISECONDS,
        5000,
        "Time for which an owner stops writing when another process wants to take its tier.",
        least=0,
        most=600_000,
    )
    """Enough for some ten requests of the claimant, which may have died since."""
    heartbeat_s: float = setting(
        "tieredStoreOwnerHeartbeatInterval",
        Kind.MILLISECONDS,
        30_000,
        "Interval of the signs of life of an idle owner; each is one request.",
        least=100,
    )
    lease_s: float = setting(
        "tieredStoreOwnerLease",
        Kind.MILLISECONDS,
        90_000,
        "Time without a sign of life after which a start replaces an owner; at least twice the "
        "heartbeat interval.",
        least=200,
    )
    """Measured on the observer's monotonic clock."""
    listing_s_max: float = 60.0
    """Limit of a trusted listing, in seconds. A slower one is repeated if a decision depends on
    objects that it lacks. A replaced boundary stays for twice this time (snapshots and entries:
    `UpkeepOptions.grace_s`), so that a trusted listing shows that boundary or a newer one."""

    def __post_init__(self) -> None:
        """Reject a lease within which a living owner may show no sign of life.

        Raises:
            ValueError: `lease_s` is less than twice `heartbeat_s`.
        """
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError("lease_s must be at least twice heartbeat_s")


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """Triggers of each step of upkeep, and the limits of one run.

    Memory besides the state: two snapshots while one is written and compared, the segments of
    `manifests_per_level_max` manifests while they are merged, one queue's listing, on a store of
    parts twice `repack_bytes_max` and 8 MiB, and with a second store `offload_bytes_in_flight_max`,
    or twice the longest copied extent if that is more.
    """

    interval_s: float = 10.0
    """Seconds between checks for work. A check reads the state, never the store."""
    backoff_s_max: float = 300.0
    """Limit in seconds of a step's interval, which doubles with each failure in a row."""
    finish_s_max: float = 10.0
    """Time that a clean end waits for the last run of all steps, in seconds."""
    snapshot_entries_max: int = setting(
        "tieredStoreJournalSnapshotCount",
        Kind.COUNT,
        1000,
        "Number of journal entries after which a snapshot of the metadata is written.",
        unit="journal entries",
    )
    finish_entries_max: int = 32
    """A clean end leaves fewer entries than this after the newest snapshot."""
    snapshot_age_s_max: float = 300.0
    """A snapshot is written when the oldest entry after the last one has this age in seconds."""
    grace_s: float = setting(
        "tieredStoreJournalGraceTime",
        Kind.MILLISECONDS,
        600_000,
        "Time for which journal entries and snapshots stay readable after a newer snapshot "
        "replaced them.",
        least=0,
    )
    undeletable_after_tries: int = 3
    """Failed deletions after which an object is reported as undeletable. Retries continue without
    end, each after twice the delay: first after `grace_s` ..."""
    tombstone_retry_s_max: float = 86_400.0
    """... and at most after this, in seconds."""
    tombstones_per_step_max: int = 1000
    """Objects that one run deletes."""
    orphan_queues_per_step_max: int = 200
    """Limit of queue directories that one run lists in search of orphans."""
    extents_max: int = setting(
        "tieredStoreSegmentExtentsMax",
        Kind.COUNT,
        64,
        "Maximum number of small pieces of an open segment in an object store; more are "
        "merged at once.",
        unit="pieces",
        least=16,
        most=4096,
    )
    merge_fan: int = 16
    """Adjacent small extents of one level that are merged into one of the next, > 1."""
    merge_extents_min: int = setting(
        "tieredStoreMergeExtentsMin",
        Kind.COUNT,
        1024,
        "Number of small pieces over all queues from which on a merge is worth its requests.",
        unit="pieces",
        most=1_000_000,
    )
    """A segment with more than `extents_max` does not wait for this."""
    seal_bytes_min: int = setting(
        "tieredStoreSealSize",
        Kind.BYTES,
        16 * MIB,
        "Bytes from which on a closed segment in an object store gets objects of its own; smaller "
        "ones share objects.",
        least=64 * KIB,
        most=64 * MIB,
    )
    """Smaller segments are merged into shared objects, once they have so many bytes together or
    after `seal_wait_s_max`."""
    seal_wait_s_max: float = setting(
        "tieredStoreSealTimeout",
        Kind.MILLISECONDS,
        3_600_000,
        "Maximum time that small closed segments wait for a merge (see tieredStoreSealSize).",
        least=1000,
    )
    scrubs: bool = setting(
        "tieredStoreScrubEnable",
        Kind.SWITCH,
        default=False,
        meaning=(
            "True: the owner verifies the tier in the background and continues where "
            "`tieredstore scrub` stopped."
        ),
    )
    scrub_interval_s: float = setting(
        "tieredStoreScrubInterval",
        Kind.MILLISECONDS,
        3_600_000,
        "Interval between two parts of a scrub (see tieredStoreScrubEnable).",
        least=100,
    )
    scrub_operations_max: int = setting(
        "tieredStoreScrubMaxOperations",
        Kind.COUNT,
        1000,
        "Requests after which a part of a scrub ends; one reads up to 16 MiB (see "
        "tieredStoreScrubEnable).",
        unit="requests",
    )
    repack_bytes_max: int = setting(
        "tieredStoreMergeBytesMax",
        Kind.BYTES,
        32 * MIB,
        "Bytes that one merge rewrites, and of the objects that it makes; memory is twice that.",
        least=64 * KIB,
        most=64 * MIB,
    )
    repack_runs_max: int = 4096
    """Runs of extents in one job. The transaction that publishes it has some 200 bytes for each."""
    sealed_segments_max: int = 8
    """Sealed segments of one flat file that stay in the snapshot. More move to a manifest."""
    manifests_per_level_max: int = 8
    """Manifests of one flat file and level. More are merged to one of the next level."""
    expires: bool = setting(
        "tieredStoreDeleteFileEnable",
        Kind.SWITCH,
        default=False,
        meaning=(
            "True: messages older than tieredStoreFileReservedTime are deleted (RocketMQ's "
            "default). False: none is."
        ),
    )
    retention_hours: int = setting(
        "tieredStoreFileReservedTime",
        Kind.HOURS,
        72,
        "Age from which on messages expire, unless their topic has a reserve.time (see "
        "tieredStoreDeleteFileEnable).",
    )
    """Hours since the store time."""
    topic_bytes_max: int = setting(
        "tieredStoreTopicReservedSize",
        Kind.BYTES,
        0,
        "Bytes of messages kept of each topic, the newest; 0: any number (see "
        "tieredStoreDeleteFileEnable).",
        least=0,
    )
    """Counts bytes of records, over all queues of the topic."""
    offloads: bool = False
    """Whether there is a second store (`tieredStoreOffloadPath`)."""
    offload_place: str = ""
    """Place of the second store for display, without secrets. "" if not configured."""
    offload_age_hours: int = setting(
        "tieredStoreOffloadAge",
        Kind.HOURS,
        0,
        "Age of its newest message from which on a segment is closed and offloaded (see "
        "tieredStoreOffloadPath); 0: never by age.",
        least=0,
    )
    offload_topic_bytes: int = setting(
        "tieredStoreOffloadTopicSize",
        Kind.BYTES,
        0,
        "Bytes of messages that the first store keeps of each topic, the newest; 0: any number.",
        least=0,
    )
    """Sealed segments beyond it are offloaded, the oldest first."""
    offload_lag_s: float = setting(
        "tieredStoreOffloadDeletionLag",
        Kind.MILLISECONDS,
        14_400_000,
        "Time for which the first store keeps offloaded segments; segments that expire "
        "within it are not offloaded.",
        least=0,
    )
    offload_extent_bytes_max: int = 64 * MIB
    """Bytes above which an extent is offloaded in pieces of `repack_bytes_max`, each an extent of
    its own."""
    offload_bytes_in_flight_max: int = setting(
        "tieredStoreOffloadBytesInFlight",
        Kind.BYTES,
        128 * MIB,
        "Maximum bytes of segments that are offloaded at once, each counted twice: for the "
        "write and for reading it back.",
    )
    """A copy may always proceed."""
    offload_copies_max: int = 8
    """Segments being copied at once, including those that wait for publication."""
    offload_interval_s: float = setting(
        "tieredStoreOffloadInterval",
        Kind.MILLISECONDS,
        600_000,
        "Interval between scans for segments to offload by age and size.",
        least=100,
    )
    expiry_interval_s: float = setting(
        "tieredStoreDeleteFileInterval",
        Kind.MILLISECONDS,
        3_600_000,
        "Interval between scans for expired messages (see tieredStoreDeleteFileEnable).",
        least=100,
    )
