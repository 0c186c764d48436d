"""The keys of our own hot log (`run`, `put`); `keys.py` lists all.

Names and defaults are RocketMQ's (MessageStoreConfig, BrokerConfig, NettyServerConfig), unless a
meaning names a difference.
"""

from tieredstore.config.key import PORT, Key, Kind

MIB = 1 << 20
GIB = 1 << 30
HOUR_MS = 3_600_000
PLUG_IN_NOTE = "a failure of the plug-in "
"""Start of the note of an error that a user's plug-in raised; its name follows."""
OUR_PLUG_IN = "tieredstore.TieredMessageStore"

_OPENED = (
    Key(
        "messageStorePlugIn",
        Kind.TEXT,
        OUR_PLUG_IN,
        "Stores around the hot log, the outermost first: package.module.Class or an entry point, "
        "with commas (RocketMQ: none).",
    ),
    Key(
        "brokerIP1",
        Kind.TEXT,
        "127.0.0.1",
        "Address of the broker that new messages name (RocketMQ: the host's own).",
    ),
    Key(
        "listenPort",
        Kind.COUNT,
        10_911,
        "Port of the broker that new messages name; nothing listens there.",
        unit=PORT,
        least=0,
        most=65_535,
    ),
    Key(
        "defaultTopicQueueNums",
        Kind.COUNT,
        4,
        "Number of queues of a new topic in config/topics.json (RocketMQ: 8, of which a producer "
        "takes 4).",
        "HotWriteOptions.topic_queues",
        "queues",
        most=2**31 - 1,
    ),
)

_WRITTEN = (
    Key(
        "mappedFileSizeCommitLog",
        Kind.BYTES,
        GIB,
        "Length of each CommitLog file; files are sparse.",
        "HotWriteOptions.commit_log_bytes",
        least=1 << 10,
        most=2**31 - 1,
    ),
    Key(
        "mappedFileSizeConsumeQueue",
        Kind.BYTES,
        6_000_000,
        "Length of each ConsumeQueue file, rounded up to a multiple of 20.",
        "HotWriteOptions.consume_queue_bytes",
        least=20,
        most=2**31 - 1,
    ),
    Key(
        "flushDiskType",
        Kind.CHOICE,
        "ASYNC_FLUSH",
        "Whether an append waits for the disk; else a power failure takes the newest messages.",
        "HotWriteOptions.flush",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    ),
    Key(
        "flushIntervalCommitLog",
        Kind.MILLISECONDS,
        500,
        "Interval between two syncs of the CommitLog with ASYNC_FLUSH.",
        "HotWriteOptions.flush_interval_s",
        most=HOUR_MS,
    ),
    Key(
        "flushIntervalConsumeQueue",
        Kind.MILLISECONDS,
        1000,
        "Interval between two syncs of the ConsumeQueues and the checkpoint.",
        "HotWriteOptions.flush_queues_interval_s",
        most=HOUR_MS,
    ),
    Key(
        "enabledAppendPropCRC",
        Kind.SWITCH,
        default=False,
        meaning="True: each record ends with a checksum of all of it, in the property __CRC32#.",
        sets="HotWriteOptions.record_crc",
    ),
)

_READ = (
    Key(
        "maxTransferCountOnMessageInMemory",
        Kind.COUNT,
        32,
        "Maximum number of messages of one read of the hot log while they are in memory.",
        "ReadLimits.memory_messages_max",
        "messages",
    ),
    Key(
        "maxTransferBytesOnMessageInMemory",
        Kind.BYTES,
        256 << 10,
        "Maximum bytes of one read of the hot log while its messages are in memory.",
        "ReadLimits.memory_bytes_max",
    ),
    Key(
        "maxTransferCountOnMessageInDisk",
        Kind.COUNT,
        8,
        "Maximum number of messages of one read of the hot log that must be read from its disk.",
        "ReadLimits.disk_messages_max",
        "messages",
    ),
    Key(
        "maxTransferBytesOnMessageInDisk",
        Kind.BYTES,
        64 << 10,
        "Maximum bytes of one read of the hot log from its disk; one message may have more.",
        "ReadLimits.disk_bytes_max",
    ),
    Key(
        "accessMessageInMemoryMaxRatio",
        Kind.PERCENT,
        40,
        "Share of the machine's memory in which the newest messages are taken to lie, where the "
        "kernel is not asked.",
        "ReadLimits.memory_share",
        least=0,
        most=100,
    ),
)

_KEPT = (
    Key(
        "fileReservedTime",
        Kind.HOURS,
        72,
        "Age, since it was written last, from which on a CommitLog file is deleted (see "
        "deleteWhen) if all of it is in the tier.",
        "RetentionOptions.reserved_s",
        least=0,
    ),
    Key(
        "deleteWhen",
        Kind.DAY_HOURS,
        "04",
        "Hours of the local day in which files are deleted by their age, with semicolons: 04;16.",
    ),
    Key(
        "diskMaxUsedSpaceRatio",
        Kind.PERCENT,
        75,
        "Share of the disk in use from which on files that are in the tier are deleted whatever "
        "their age.",
        "RetentionOptions.disk_clean_ratio",
        most=100,
    ),
    Key(
        "diskSpaceCleanForciblyRatio",
        Kind.PERCENT,
        85,
        "Share of the disk in use from which on young messages that no tier takes go (see "
        "cleanFileForciblyEnable).",
        "RetentionOptions.disk_forcible_ratio",
        most=100,
    ),
    Key(
        "cleanFileForciblyEnable",
        Kind.SWITCH,
        default=True,
        meaning="Above diskSpaceCleanForciblyRatio, delete messages that no tier takes before "
        "fileReservedTime.",
        sets="RetentionOptions.clean_forcibly",
    ),
    Key(
        "diskSpaceWarningLevelRatio",
        Kind.PERCENT,
        90,
        "Share of the disk in use from which on tieredStoreUntieredPolicy holds.",
        "RetentionOptions.disk_force_ratio",
        most=100,
    ),
    Key(
        "tieredStoreUntieredPolicy",
        Kind.CHOICE,
        "KEEP",
        "What goes on a full disk that the tier lacks: nothing, so that appends fail, or the "
        "oldest file.",
        "RetentionOptions.untiered",
        choices=("KEEP", "DROP"),
    ),
    Key(
        "deleteFileBatchMax",
        Kind.COUNT,
        10,
        "Maximum number of files that one round deletes (see cleanResourceInterval).",
        "RetentionOptions.files_max",
        "files",
    ),
    Key(
        "cleanResourceInterval",
        Kind.MILLISECONDS,
        10_000,
        "Interval between two rounds that look which files may be deleted.",
        "RetentionOptions.interval_s",
        most=24 * HOUR_MS,
    ),
)

HOT_LOG = (*_OPENED, *_WRITTEN, *_READ, *_KEPT)
