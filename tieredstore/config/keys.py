"""Every key of the configuration, declared once: name, unit, default, meaning, field.

Also keys of the Java tiered store without effect here, and the text of `conf/broker.conf`.
"""

from collections.abc import Mapping

from tieredstore.config.key import Key, Kind
from tieredstore.config.store_keys import HOT_LOG
from tieredstore.config.tier_keys import (
    BROKER,
    BY_KEY,
    COLD_TO_READER,
    OBJECT_STORE,
    OFFLOAD,
    PARTS,
    RETENTION,
    SCRUBBING,
)

_NO_HEAP = "There is no Java heap; readAheadCacheSize bounds the cache."
_PLUG_IN = "Java classes are not loaded; the tier is a directory with a journal of its own."
_REFERENCES = "Waiting messages are bounded by tieredStoreWaitingMax and tieredStoreBytesInFlight."
_WINDOW = "The read-ahead window adapts to each reader."

JAVA_ONLY: Mapping[str, str] = {
    "tieredMetadataServiceProvider": _PLUG_IN,
    "tieredBackendServiceProvider": _PLUG_IN,
    "tieredStoreMaxGroupCommitCount": _REFERENCES,
    "tieredStoreMaxPendingLimit": _REFERENCES,
    "tieredStoreDispatchMinFreeMemoryRatio": _REFERENCES,
    "tieredStoreDispatchMinFreeMemoryMaxBytes": _REFERENCES,
    "readAheadMinFactor": _WINDOW,
    "readAheadMaxFactor": _WINDOW,
    "readAheadBatchSizeFactorThreshold": _WINDOW,
    "readAheadCacheSizeThresholdRate": _NO_HEAP,
    "readAheadCacheCreateExpireDuration": _NO_HEAP,
    "readAheadCacheAfterReadExpireDuration": _NO_HEAP,
}
"""Each of these keys, and why it has no effect."""


KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

LEVELS = ("DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE")

_TIER = (
    Key(
        "tieredStoreFilePath",
        Kind.PATH,
        "",
        "Place of the tier: a directory, or a URL such as s3://bucket/prefix. Must be given.",
        is_machines=True,
    ),
    Key(
        "tieredStorageLevel",
        Kind.LEVEL,
        "NOT_IN_DISK",
        "DISABLE stops tiering (RocketMQ: it continues); all other levels tier.",
    ),
    Key(
        "tieredStoreCommitLogMaxSize",
        Kind.BYTES,
        GIB,
        "Maximum length of a CommitLog segment.",
        "TierOptions.commit_log_bytes_max",
        least=KIB,
    ),
    Key(
        "tieredStoreConsumeQueueMaxSize",
        Kind.BYTES,
        100 * MIB,
        "Maximum length of a ConsumeQueue segment; a multiple of 20.",
        "TierOptions.consume_queue_bytes_max",
        least=20,
    ),
    Key(
        "commitLogRollingInterval",
        Kind.HOURS,
        24,
        "Maximum age between the first and the last message of a CommitLog segment that is long "
        "enough to roll.",
        "TierOptions.rolling_age_hours",
    ),
    Key(
        "commitLogRollingMinimumSize",
        Kind.BYTES,
        16 * MIB,
        "Minimum length of a CommitLog segment before its age can close it (see "
        "commitLogRollingInterval).",
        "TierOptions.rolling_bytes_min",
        least=0,
    ),
    Key(
        "tieredStoreExtentMaxSize",
        Kind.BYTES,
        4 * MIB,
        "Maximum bytes of a segment that share one checksum.",
        "TierOptions.extent_bytes_max",
        least=KIB,
    ),
    Key(
        "tieredStoreCrcCheckEnable",
        Kind.SWITCH,
        default=True,
        meaning=(
            "True: reading compares topic, tags and body checksum of each message. False: only "
            "headers (RocketMQ: no effect)."
        ),
        sets="FetcherOptions.verify",
    ),
    Key(
        "tieredStoreBodyCheckEnable",
        Kind.SWITCH,
        default=False,
        meaning="True: tiering compares each body with its checksum, and says what rotted.",
        sets="HotLogOptions.checks_bodies",
    ),
    Key(
        "tieredStoreExtentCheckEnable",
        Kind.SWITCH,
        default=False,
        meaning=(
            "True: reading also compares the checksum of every extent touched, and reads it whole "
            "(tieredStoreExtentMaxSize)."
        ),
    ),
    Key(
        "tieredStoreCutGraceTime",
        Kind.HOURS,
        72,
        "How long `repair` keeps the bytes of the messages that it unpublished.",
        "TierOptions.cut_grace_hours",
        least=0,
    ),
    Key(
        "tieredStoreTakeoverTimeout",
        Kind.MILLISECONDS,
        2000,
        "Maximum time that a new owner waits for the earlier owner to stop writing.",
        "TierOptions.takeover_wait_s_max",
        least=0,
    ),
    Key(
        "tieredStoreOwnerCheckInterval",
        Kind.MILLISECONDS,
        10_000,
        "Interval at which an owner that writes nothing looks whether another process took the "
        "tier; 0: never.",
        least=0,
        object_default=60_000,
    ),
    Key(
        "tieredStoreOwnerHeartbeatInterval",
        Kind.MILLISECONDS,
        30_000,
        "Interval of the signs of life of an owner that writes nothing; each is one request.",
        "JournalOptions.heartbeat_s",
        least=100,
    ),
    Key(
        "tieredStoreOwnerLease",
        Kind.MILLISECONDS,
        90_000,
        "Time without a sign of life after which a start replaces an owner; at least twice the "
        "heartbeat interval.",
        "JournalOptions.lease_s",
        least=200,
    ),
    Key(
        "tieredStoreStatePath",
        Kind.PATH,
        "",
        "Directory in which a follower without pins keeps the identity of its tier; empty: that of "
        "systemd or of the user.",
    ),
    Key(
        "tieredStoreJournalSnapshotCount",
        Kind.COUNT,
        1000,
        "Number of journal entries after which a snapshot of the metadata is written.",
        "UpkeepOptions.snapshot_entries_max",
        "journal entries",
    ),
    Key(
        "tieredStoreJournalGraceTime",
        Kind.MILLISECONDS,
        600_000,
        "How long journal entries and snapshots stay readable after a newer snapshot replaced "
        "them.",
        "UpkeepOptions.grace_s",
        least=0,
    ),
    Key(
        "tieredStoreOpenFilesMax",
        Kind.COUNT,
        512,
        "Maximum number of the tier's files that are kept open.",
        "PosixOptions.files_open_max",
        "files",
        least=8,
    ),
    Key(
        "tieredStoreReserveSize",
        Kind.BYTES,
        4 * MIB,
        "Room that tiering keeps for the tier's metadata, so that a full disk holds nothing that "
        "cannot be published; 0: none.",
        "PosixOptions.reserve_bytes",
        least=0,
    ),
    Key(
        "tieredStoreReadThreads",
        Kind.COUNT,
        4,
        "Number of threads that read bytes which are not in the page cache.",
        "PosixOptions.read_threads_max",
        "threads",
        most=1024,
    ),
)

_HOT_TO_COLD = (
    Key(
        "tieredStoreGroupCommit",
        Kind.SWITCH,
        default=True,
        meaning=(
            "True: messages are collected into batches. False: each message is committed as soon "
            "as it is seen."
        ),
    ),
    Key(
        "tieredStoreGroupCommitTimeout",
        Kind.MILLISECONDS,
        500,
        "Maximum time that a message waits before its batch is committed (RocketMQ: 30000).",
        "DispatchOptions.batch_age_s_max",
        least=0,
        object_default=75_000,
    ),
    Key(
        "tieredStoreGroupCommitCount",
        Kind.COUNT,
        4096,
        "Number of waiting messages at which a queue's batch is committed.",
        "DispatchOptions.batch_messages_max",
        "messages",
        object_default=1 << 20,
    ),
    Key(
        "tieredStoreGroupCommitSize",
        Kind.BYTES,
        4 * MIB,
        "Number of waiting bytes at which a queue's batch is committed.",
        "DispatchOptions.batch_bytes_max",
        object_default=64 * MIB,
    ),
    Key(
        "tieredStoreBatchesPerCommit",
        Kind.COUNT,
        8,
        "Maximum number of batches in one commit of a queue that has a backlog.",
        "DispatchOptions.batches_per_commit_max",
        "batches",
    ),
    Key(
        "tieredStoreBytesInFlight",
        Kind.BYTES,
        64 * MIB,
        "Maximum bytes that are read and not yet durable, over all queues; memory is twice that.",
        "DispatchOptions.bytes_in_flight_max",
        object_default=128 * MIB,
    ),
    Key(
        "tieredStoreWaitingMax",
        Kind.COUNT,
        1 << 20,
        "Maximum number of waiting messages that are indexed in memory (20 bytes each), over all "
        "queues.",
        "DispatchOptions.references_max",
        "messages",
    ),
    Key(
        "tieredStorePollInterval",
        Kind.MILLISECONDS,
        100,
        "Interval between checks of the broker's CommitLog for new messages.",
        "HotLogOptions.poll_s_max",
        most=3_600_000,
    ),
    Key(
        "tieredStoreScanInterval",
        Kind.MILLISECONDS,
        1000,
        "Minimum interval between scans of the store directory for new topics and queues.",
        "HotLogOptions.scan_s_min",
        least=0,
        most=3_600_000,
    ),
    Key(
        "tieredStoreBackfill",
        Kind.BACKFILL,
        "all",
        "Where the first start begins: all, none, or messages of a duration like 36h or 7d "
        "(RocketMQ: 2 minutes).",
        "DispatchOptions.backfill",
    ),
    Key(
        "tieredStorePinPath",
        Kind.PATH,
        "",
        "Directory for hard links to CommitLog files that are not tiered yet, one on each of "
        "their volumes. Empty: no links.",
        "HotLogOptions.pin_path",
    ),
    Key(
        "tieredStorePinMaxSize",
        Kind.BYTES,
        64 * GIB,
        "Maximum bytes that only pins (see tieredStorePinPath) keep on disk; above it the oldest "
        "are dropped.",
        "HotLogOptions.pinned_bytes_max",
        least=0,
    ),
    Key(
        "tieredStoreMappedBytesMax",
        Kind.BYTES,
        32 * MIB,
        "Maximum bytes of the broker's files that are mapped and resident at once.",
        "HotLogOptions.resident_bytes_max",
    ),
    Key(
        "tieredStoreMetricsPort",
        Kind.COUNT,
        0,
        "Port of `tier --follow` and `run` for /metrics, /healthz and /readyz; 0: not served.",
        unit="port",
        least=0,
        most=65_535,
    ),
    Key(
        "tieredStoreMetricsHost",
        Kind.TEXT,
        "127.0.0.1",
        "Address at which tieredStoreMetricsPort is served, such as 0.0.0.0 for every interface.",
    ),
    Key(
        "tieredStoreStartTimeout",
        Kind.MILLISECONDS,
        300_000,
        "Maximum time that `run` and `tier --follow` wait at their start for a storage that is "
        "away, or refuses them for now.",
        least=0,
    ),
    Key(
        "tieredStoreShutdownTimeout",
        Kind.MILLISECONDS,
        10_000,
        "Maximum time that a stop spends on committing the messages that are waiting.",
        "DispatchOptions.close_s_max",
        least=0,
    ),
)

SECTIONS: tuple[tuple[str, tuple[Key, ...]], ...] = (
    ("The broker", BROKER),
    ("Our own hot log", HOT_LOG),
    ("The tier", _TIER),
    ("An object store as the tier", (*OBJECT_STORE, *PARTS)),
    ("A second store", OFFLOAD),
    ("Retention", RETENTION),
    ("Scrubbing", SCRUBBING),
    ("Hot to cold", _HOT_TO_COLD),
    ("Cold to reader", COLD_TO_READER),
    ("Messages by key", BY_KEY),
)
KEYS: Mapping[str, Key] = {key.name: key for _, keys in SECTIONS for key in keys}


HEAD = """\
# Every setting of tieredstore with its default, in RocketMQ's properties format. The file of a
# RocketMQ broker can be used unchanged: keys of the same name have the same meaning, and keys that
# only the broker needs are ignored. Environment variables (TIEREDSTORE_BROKER_NAME for brokerName)
# override this file, and `-D key=value` overrides both.
"""


def config_template() -> str:
    """A configuration file with every key at its default."""
    lines = [HEAD]
    for title, keys in SECTIONS:
        lines.append(f"# ---- {title} ----\n")
        lines.extend(_lines(key) for key in keys)
    return "\n".join(lines)


def _lines(key: Key) -> str:
    unit = "" if key.kind is Kind.TEXT else f" [{key.unit_name}]"
    value = str(key.default).lower() if isinstance(key.default, bool) else key.default
    comment = "#" if key.is_machines or key.object_default is not None else ""
    other = ""
    if key.object_default is not None:
        other = f"# Default where the tier is in an object store: {key.object_default}\n"
    return f"# {key.meaning}{unit}\n{other}{comment}{key.name}={value}\n"
