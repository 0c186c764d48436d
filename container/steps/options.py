"""Limits and times of upkeep, with the defaults."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """When each step of upkeep has work, and how much one run of it does.

    Memory besides the state: two snapshots while one is written and compared, the segments of
    `manifests_per_level_max` manifests while they are merged, one queue's listing, on a store of
    parts twice `repack_bytes_max` and 8 MiB, and with a second store `offload_bytes_in_flight_max`,
    or twice the longest extent that is copied if that is more.
    """

    interval_s: float = 10.0
    """Interval between checks for work. A check reads the state, never the store."""
    backoff_s_max: float = 300.0
    """The interval doubles with each failure of a step in a row, up to this."""
    finish_s_max: float = 10.0
    """How long a clean end waits for the last run of all steps."""
    snapshot_entries_max: int = 1000
    """A snapshot is written after this many entries."""
    finish_entries_max: int = 32
    """A clean end leaves fewer entries than this after the newest snapshot."""
    snapshot_age_s_max: float = 300.0
    """A snapshot is written when the oldest entry after the last one is this old."""
    grace_s: float = 600.0
    """Entries and snapshots stay readable for this long after they were replaced."""
    undeletable_after_tries: int = 3
    """Failed deletions after which an object is reported as undeletable. It is tried again for
    ever, each time after twice as long: first after `grace_s` ..."""
    tombstone_retry_s_max: float = 86_400.0
    """... and at last after this, in seconds."""
    tombstones_per_step_max: int = 1000
    """Objects that one run deletes."""
    orphan_queues_per_step_max: int = 200
    """Queues whose directories one run lists in search of files that were never published."""
    extents_max: int = 64
    """Small extents of an open segment, on a store of parts; more are merged at once."""
    merge_fan: int = 16
    """Small extents of one level side by side that are merged into one of the next, > 1."""
    merge_extents_min: int = 1024
    """A merge waits until so many extents go, over all queues, unless a segment has too many."""
    seal_bytes_min: int = 16 * MIB
    """A closed segment of this size gets objects of its own. Smaller ones are gathered in shared
    objects, once there are so many bytes of them ..."""
    seal_wait_s_max: float = 3600.0
    """... or the oldest was closed this many seconds ago."""
    scrubs: bool = False
    """Whether the owner verifies the tier in the background at all (`tieredStoreScrubEnable`)."""
    scrub_interval_s: float = 3600.0
    """Interval between two parts of a scrub."""
    scrub_operations_max: int = 1000
    """Requests after which a part of a scrub ends."""
    repack_bytes_max: int = 32 * MIB
    """Bytes of one job of merging or gathering, and so of the objects that it makes. Its memory is
    twice that and 8 MiB."""
    repack_runs_max: int = 4096
    """Runs of extents in one job: the transaction that publishes it has some 200 bytes for each."""
    sealed_segments_max: int = 8
    """Sealed segments of one flat file that stay in the snapshot; more move to a manifest."""
    manifests_per_level_max: int = 8
    """Manifests of one flat file and level; more are merged to one of the next level."""
    expires: bool = False
    """Whether messages are deleted by age and size at all (`tieredStoreDeleteFileEnable`)."""
    retention_hours: int = 72
    """Hours that messages are kept, counted from when the broker stored them, where their topic
    says nothing else (`tieredStoreFileReservedTime`)."""
    topic_bytes_max: int = 0
    """Bytes of records that a topic keeps, over all of its queues; 0: any number
    (`tieredStoreTopicReservedSize`)."""
    offloads: bool = False
    """Whether there is a second store (`tieredStoreOffloadPath`)."""
    offload_place: str = ""
    """Where that is, for people, without secrets; "": nobody says."""
    offload_age_hours: int = 0
    """Age of its newest message from which on a closed segment is offloaded; 0: never by age
    (`tieredStoreOffloadAge`)."""
    offload_topic_bytes: int = 0
    """Bytes of a topic's records that the first store keeps, over all of its queues; closed
    segments of more are offloaded, the oldest first; 0: any number (`tieredStoreOffloadTopicSize`).
    """
    offload_lag_s: float = 14_400.0
    """How long the first store keeps what was offloaded (`tieredStoreOffloadDeletionLag`). What
    would expire within that time is not offloaded at all."""
    offload_extent_bytes_max: int = 64 * MIB
    """A longer extent is offloaded in pieces of `repack_bytes_max`, each an extent by itself."""
    offload_bytes_in_flight_max: int = 128 * MIB
    """Bytes of segments being copied at once, each counted twice: as it is written, and as it is
    read back (`tieredStoreOffloadBytesInFlight`). One copy may always go on."""
    offload_copies_max: int = 8
    """Segments being copied at once, those included that wait to be published."""
    offload_interval_s: float = 600.0
    """Interval between looks for what is to be offloaded (`tieredStoreOffloadInterval`)."""
    expiry_interval_s: float = 3600.0
    """Interval between looks for what has expired (`tieredStoreDeleteFileInterval`)."""
