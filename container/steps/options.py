"""Limits and times of upkeep, with their defaults."""

from dataclasses import dataclass

from provider.setting import KIB, MIB, Kind, setting


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
