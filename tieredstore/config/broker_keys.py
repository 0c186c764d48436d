"""The keys of the configuration that say whose store is tiered; `keys.py` lists all."""

from tieredstore.config.key import Key, Kind

MIB = 1 << 20

BROKER = (
    Key(
        "brokerClusterName",
        Kind.TEXT,
        "DefaultCluster",
        "Name of the broker's cluster; a component of the tier's paths.",
    ),
    Key(
        "brokerName",
        Kind.TEXT,
        "",
        "Name of the broker; a component of the tier's paths. Default: the host's name, under "
        "which no tier is begun.",
        is_machines=True,
    ),
    Key(
        "tieredStoreNameCheckEnable",
        Kind.SWITCH,
        default=True,
        meaning=(
            "Refuse a store whose own config/topics.json names another broker or cluster; false "
            "after such a file was copied."
        ),
    ),
    Key(
        "storePathRootDir",
        Kind.PATH,
        "",
        "The broker's store directory; `tier` only reads it. Default: store in the home directory.",
        is_machines=True,
    ),
    Key(
        "storePathCommitLog",
        Kind.PATH,
        "",
        "The broker's CommitLog directory, or several with commas. Empty: commitlog in the store "
        "directory.",
        "HotLogOptions.commit_log_path",
        is_machines=True,
    ),
    Key(
        "readOnlyCommitLogStorePaths",
        Kind.PATH,
        "",
        "Further directories of the broker's CommitLog, with its older files.",
        "HotLogOptions.read_only_commit_log_paths",
    ),
    Key(
        "enableDLegerCommitLog",
        Kind.SWITCH,
        default=False,
        meaning="True if the broker's CommitLog lies in DLedger, which is refused.",
        sets="HotLogOptions.in_dledger",
    ),
    Key(
        "storeType",
        Kind.TEXT,
        "default",
        "Where the broker keeps its ConsumeQueues: files (default) or RocksDB (defaultRocksDB).",
    ),
    Key(
        "enableControllerMode",
        Kind.SWITCH,
        default=False,
        meaning=(
            "True if the broker is replicated: a message is tiered once no clean election takes "
            "it back."
        ),
    ),
    Key(
        "allAckInSyncStateSet",
        Kind.SWITCH,
        default=False,
        meaning=(
            "True if all replicas in sync acknowledge a message before the broker confirms it: "
            "it is tiered at once."
        ),
    ),
    Key(
        "haMaxTimeSlaveNotCatchup",
        Kind.MILLISECONDS,
        15_000,
        "Silence after which a replicated broker drops a replica: messages above the confirm "
        "offset wait so long.",
    ),
    Key(
        "checkSyncStateSetPeriod",
        Kind.MILLISECONDS,
        5_000,
        "How often a replicated broker looks for silent replicas; such messages wait that long "
        "too.",
    ),
    Key(
        "readUnCommitted",
        Kind.SWITCH,
        default=False,
        meaning="True if the broker shows messages to consumers before they are confirmed.",
    ),
    Key(
        "duplicationEnable",
        Kind.SWITCH,
        default=False,
        meaning=(
            "True if the broker replicates by its older switch: as with enableControllerMode."
        ),
    ),
    Key(
        "maxMessageSize",
        Kind.BYTES,
        4 * MIB,
        "Largest body that the broker accepts; used to bound memory.",
        "HotWriteOptions.message_bytes_max",
        most=2**31 - 1,
    ),
)
