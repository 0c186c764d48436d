"""Every key of the configuration, declared once: name, unit, default, meaning, what it sets.

Names and meanings are RocketMQ's where it has the key; ours follow the same naming.
"""

from collections.abc import Mapping

from tieredstore.config.key import Key, Kind

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

LEVELS = ("DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE")

_BROKER = (
    Key("brokerClusterName", Kind.TEXT, "DefaultCluster", "The cluster; part of the tier's paths."),
    Key(
        "brokerName",
        Kind.TEXT,
        "",
        "The broker; part of the tier's paths. Default: the host's name.",
        is_machines=True,
    ),
    Key(
        "storePathRootDir",
        Kind.PATH,
        "",
        "The broker's store directory, which is never written. Default: store in the home.",
        is_machines=True,
    ),
    Key(
        "storePathCommitLog",
        Kind.PATH,
        "",
        "The broker's CommitLog directory. Empty: commitlog in the store directory.",
        "HotLogOptions.commit_log_path",
        is_machines=True,
    ),
    Key(
        "storeType",
        Kind.TEXT,
        "default",
        "Where the broker keeps ConsumeQueues; those of defaultRocksDB are refused.",
    ),
    Key(
        "enableControllerMode",
        Kind.SWITCH,
        default=False,
        meaning="The broker is replicated: only messages below its confirm offset are tiered.",
    ),
    Key(
        "duplicationEnable",
        Kind.SWITCH,
        default=False,
        meaning="The same, by the broker's older switch.",
    ),
    Key(
        "maxMessageSize",
        Kind.BYTES,
        4 * MIB,
        "Largest body that the broker takes; bounds memory.",
        most=2**31 - 1,
    ),
)

_TIER = (
    Key(
        "tieredStoreFilePath",
        Kind.PATH,
        "",
        "Directory of the tier. Must be given.",
        is_machines=True,
    ),
    Key(
        "tieredStorageLevel",
        Kind.LEVEL,
        "NOT_IN_DISK",
        "Who answers reads, by how old; DISABLE also stops tiering (RocketMQ: it goes on).",
    ),
    Key(
        "tieredStoreCommitLogMaxSize",
        Kind.BYTES,
        GIB,
        "A CommitLog segment is closed before it would grow longer.",
        "TierOptions.commit_log_bytes_max",
        least=KIB,
    ),
    Key(
        "tieredStoreConsumeQueueMaxSize",
        Kind.BYTES,
        100 * MIB,
        "The same for a ConsumeQueue segment; a multiple of 20.",
        "TierOptions.consume_queue_bytes_max",
        least=20,
    ),
    Key(
        "commitLogRollingInterval",
        Kind.HOURS,
        24,
        "A CommitLog segment is closed before a message this much later than its first ...",
        "TierOptions.rolling_age_hours",
    ),
    Key(
        "commitLogRollingMinimumSize",
        Kind.BYTES,
        16 * MIB,
        "... unless it is still shorter than this.",
        "TierOptions.rolling_bytes_min",
        least=0,
    ),
    Key(
        "tieredStoreExtentMaxSize",
        Kind.BYTES,
        4 * MIB,
        "Bytes of a segment under one checksum.",
        "TierOptions.extent_bytes_max",
        least=KIB,
    ),
    Key(
        "tieredStoreCrcCheckEnable",
        Kind.SWITCH,
        default=False,
        meaning="Reading commands compare the checksums of all they read (RocketMQ: no effect).",
    ),
    Key(
        "tieredStoreCutGraceTime",
        Kind.HOURS,
        72,
        "How long the bytes stay that repair unpublished.",
        "TierOptions.cut_grace_hours",
        least=0,
    ),
    Key(
        "tieredStoreTakeoverTimeout",
        Kind.MILLISECONDS,
        2000,
        "How long a new owner waits for the one before it to let go.",
        "TierOptions.takeover_wait_s_max",
        least=0,
    ),
    Key(
        "tieredStoreJournalSnapshotCount",
        Kind.COUNT,
        1000,
        "A snapshot of the metadata is written after so many journal entries.",
        "UpkeepOptions.snapshot_entries_max",
        "journal entries",
    ),
    Key(
        "tieredStoreJournalGraceTime",
        Kind.MILLISECONDS,
        600_000,
        "How long replaced journal entries and snapshots stay readable.",
        "UpkeepOptions.grace_s",
        least=0,
    ),
    Key(
        "tieredStoreOpenFilesMax",
        Kind.COUNT,
        512,
        "Files of the tier kept open.",
        "PosixOptions.files_open_max",
        "files",
        least=8,
    ),
    Key(
        "tieredStoreReadThreads",
        Kind.COUNT,
        4,
        "Threads that read what the page cache does not have.",
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
        meaning="Collect messages into batches; false: commit each as soon as it is seen.",
    ),
    Key(
        "tieredStoreGroupCommitTimeout",
        Kind.MILLISECONDS,
        500,
        "A batch is due once its oldest message waited so long (RocketMQ: 30000).",
        "DispatchOptions.batch_age_s_max",
        least=0,
    ),
    Key(
        "tieredStoreGroupCommitCount",
        Kind.COUNT,
        4096,
        "Messages that make a queue's batch due.",
        "DispatchOptions.batch_messages_max",
        "messages",
    ),
    Key(
        "tieredStoreGroupCommitSize",
        Kind.BYTES,
        4 * MIB,
        "Bytes that make a queue's batch due.",
        "DispatchOptions.batch_bytes_max",
    ),
    Key(
        "tieredStoreBatchesPerCommit",
        Kind.COUNT,
        8,
        "Batches that one commit of a queue that is behind takes together.",
        "DispatchOptions.batches_per_commit_max",
        "batches",
    ),
    Key(
        "tieredStoreBytesInFlight",
        Kind.BYTES,
        64 * MIB,
        "Bytes taken and not yet durable, over all queues; memory is twice that.",
        "DispatchOptions.bytes_in_flight_max",
    ),
    Key(
        "tieredStoreWaitingMax",
        Kind.COUNT,
        1 << 20,
        "References of waiting messages kept (20 bytes each), over all queues.",
        "DispatchOptions.references_max",
        "messages",
    ),
    Key(
        "tieredStorePollInterval",
        Kind.MILLISECONDS,
        100,
        "How often the broker's CommitLog is looked at for new messages.",
        "HotLogOptions.poll_s_max",
        most=3_600_000,
    ),
    Key(
        "tieredStoreScanInterval",
        Kind.MILLISECONDS,
        1000,
        "Shortest time between two looks for new topics and queues.",
        "HotLogOptions.scan_s_min",
        least=0,
        most=3_600_000,
    ),
    Key(
        "tieredStoreBackfill",
        Kind.BACKFILL,
        "all",
        "Where tiering begins: all, none, or a duration like 36h or 7d (RocketMQ: 2 minutes).",
        "DispatchOptions.backfill",
    ),
    Key(
        "tieredStorePinPath",
        Kind.PATH,
        "",
        "Directory for hard links to files not yet tiered; same volume. Empty: none.",
        "HotLogOptions.pin_path",
    ),
    Key(
        "tieredStorePinMaxSize",
        Kind.BYTES,
        64 * GIB,
        "Bytes that only such links keep; above it the oldest go.",
        "HotLogOptions.pinned_bytes_max",
        least=0,
    ),
    Key(
        "tieredStoreMappedBytesMax",
        Kind.BYTES,
        32 * MIB,
        "Mapped bytes of the broker's files that are resident at once.",
        "HotLogOptions.resident_bytes_max",
    ),
    Key(
        "tieredStoreMetricsPort",
        Kind.COUNT,
        0,
        "Loopback port of the Prometheus page of `tier --follow`; 0: none.",
        unit="port",
        least=0,
        most=65_535,
    ),
    Key(
        "tieredStoreShutdownTimeout",
        Kind.MILLISECONDS,
        10_000,
        "Longest that a stop goes on committing what is there.",
        "DispatchOptions.close_s_max",
        least=0,
    ),
)

_COLD_TO_READER = (
    Key(
        "readAheadCacheEnable",
        Kind.SWITCH,
        default=True,
        meaning="Keep what was read, and read ahead.",
        sets="FetcherOptions.cache_enabled",
    ),
    Key(
        "readAheadCacheSize",
        Kind.BYTES,
        256 * MIB,
        "Bytes that the cache really occupies (RocketMQ: a share of Java's heap).",
        "FetcherOptions.cache_bytes_max",
    ),
    Key(
        "readAheadCacheExpireDuration",
        Kind.MILLISECONDS,
        15_000,
        "Messages leave the cache once nobody looked at them for so long.",
        "FetcherOptions.cache_age_s_max",
    ),
    Key(
        "readAheadMessageCountThreshold",
        Kind.COUNT,
        4096,
        "Messages read at once.",
        "FetcherOptions.run_messages_max",
        "messages",
        least=32,
    ),
    Key(
        "readAheadMessageSizeThreshold",
        Kind.BYTES,
        16 * MIB,
        "Bytes of records read at once.",
        "FetcherOptions.run_bytes_max",
    ),
    Key(
        "readAheadBytesInFlight",
        Kind.BYTES,
        64 * MIB,
        "Bytes of records being read at once, over all readers.",
        "FetcherOptions.bytes_in_flight_max",
    ),
    Key(
        "readAheadPrefetchMax",
        Kind.COUNT,
        2,
        "Reads ahead under way at once; what somebody waits for comes first.",
        "FetcherOptions.prefetches_max",
        "reads",
        least=0,
    ),
)

SECTIONS: tuple[tuple[str, tuple[Key, ...]], ...] = (
    ("The broker", _BROKER),
    ("The tier", _TIER),
    ("Hot to cold", _HOT_TO_COLD),
    ("Cold to reader", _COLD_TO_READER),
)
KEYS: Mapping[str, Key] = {key.name: key for _, keys in SECTIONS for key in keys}
