"""Limits and times of upkeep, with their defaults."""

from dataclasses import dataclass

MIB = 1 << 20


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
    snapshot_entries_max: int = 1000
    """A snapshot is written after this many entries."""
    finish_entries_max: int = 32
    """A clean end leaves fewer entries than this after the newest snapshot."""
    snapshot_age_s_max: float = 300.0
    """A snapshot is written when the oldest entry after the last one has this age in seconds."""
    grace_s: float = 600.0
    """Seconds that replaced entries and snapshots stay readable."""
    undeletable_after_tries: int = 3
    """Failed deletions after which an object is reported as undeletable. Retries continue without
    end, each after twice the delay: first after `grace_s` ..."""
    tombstone_retry_s_max: float = 86_400.0
    """... and at most after this, in seconds."""
    tombstones_per_step_max: int = 1000
    """Objects that one run deletes."""
    orphan_queues_per_step_max: int = 200
    """Limit of queue directories that one run lists in search of orphans."""
    extents_max: int = 64
    """Small extents of an open segment, on a store of parts. More are merged at once."""
    merge_fan: int = 16
    """Adjacent small extents of one level that are merged into one of the next, > 1."""
    merge_extents_min: int = 1024
    """A merge waits until it saves this many extents, over all queues, unless a segment has too
    many."""
    seal_bytes_min: int = 16 * MIB
    """Size in bytes from which a sealed segment gets objects of its own. Smaller ones are gathered
    in shared objects, once they have so many bytes together ..."""
    seal_wait_s_max: float = 3600.0
    """... or the oldest was sealed this many seconds ago."""
    scrubs: bool = False
    """Whether the owner verifies the tier in the background (`tieredStoreScrubEnable`)."""
    scrub_interval_s: float = 3600.0
    """Seconds between two parts of a scrub."""
    scrub_operations_max: int = 1000
    """Requests after which a part of a scrub ends."""
    repack_bytes_max: int = 32 * MIB
    """Bytes of one job of merging or gathering, and of the objects that it creates. Its memory is
    twice that and 8 MiB."""
    repack_runs_max: int = 4096
    """Runs of extents in one job. The transaction that publishes it has some 200 bytes for each."""
    sealed_segments_max: int = 8
    """Sealed segments of one flat file that stay in the snapshot. More move to a manifest."""
    manifests_per_level_max: int = 8
    """Manifests of one flat file and level. More are merged to one of the next level."""
    expires: bool = False
    """Whether messages are deleted by age and size (`tieredStoreDeleteFileEnable`)."""
    retention_hours: int = 72
    """Retention in hours since the store time, for topics without one of their own
    (`tieredStoreFileReservedTime`)."""
    topic_bytes_max: int = 0
    """Limit of record bytes of a topic, over all of its queues. 0: unlimited
    (`tieredStoreTopicReservedSize`)."""
    offloads: bool = False
    """Whether there is a second store (`tieredStoreOffloadPath`)."""
    offload_place: str = ""
    """Place of the second store for display, without secrets. "" if not configured."""
    offload_age_hours: int = 0
    """Age in hours of its newest message from which a sealed segment is offloaded. 0: never by age
    (`tieredStoreOffloadAge`)."""
    offload_topic_bytes: int = 0
    """Limit of a topic's record bytes in the first store, over all of its queues. Sealed segments
    beyond it are offloaded, the oldest first. 0: unlimited (`tieredStoreOffloadTopicSize`)."""
    offload_lag_s: float = 14_400.0
    """Seconds that the first store keeps offloaded bytes (`tieredStoreOffloadDeletionLag`).
    Segments that would expire within that time are not offloaded."""
    offload_extent_bytes_max: int = 64 * MIB
    """Bytes above which an extent is offloaded in pieces of `repack_bytes_max`, each an extent of
    its own."""
    offload_bytes_in_flight_max: int = 128 * MIB
    """Bytes of segments being copied at once, each counted twice: for the write, and for the read
    back (`tieredStoreOffloadBytesInFlight`). One copy may always proceed."""
    offload_copies_max: int = 8
    """Segments being copied at once, including those that wait for publication."""
    offload_interval_s: float = 600.0
    """Seconds between searches for segments to offload (`tieredStoreOffloadInterval`)."""
    expiry_interval_s: float = 3600.0
    """Seconds between searches for expired messages (`tieredStoreDeleteFileInterval`)."""
