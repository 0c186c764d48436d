"""The keys of the configuration that finding messages by key has; `keys.py` lists all."""

from tieredstore.config.key import Key, Kind

BY_KEY = (
    Key(
        "messageIndexEnable",
        Kind.SWITCH,
        default=True,
        meaning="True: the keys of messages that are tiered are kept in index files, for `query`.",
    ),
    Key(
        "tieredStoreIndexFileMaxIndexNum",
        Kind.COUNT,
        500_000,
        "Number of keys in an index file (RocketMQ: 20000000); 272 bytes of memory each.",
        "IndexOptions.items_max",
        "keys",
        most=50_000_000,
    ),
    Key(
        "tieredStoreIndexFileMergedMaxIndexNum",
        Kind.COUNT,
        1 << 20,
        "Number of keys in an index file that smaller ones are merged into; 200 bytes of memory "
        "each.",
        "IndexOptions.merged_items_max",
        "keys",
        most=50_000_000,
    ),
    Key(
        "tieredStoreIndexFileRollingIdleInterval",
        Kind.MILLISECONDS,
        10_800_000,
        "Time after which keys are written into an index file, however few they are.",
        "IndexOptions.age_s_max",
    ),
    Key(
        "tieredStoreIndexFileMaxHashSlotNum",
        Kind.COUNT,
        5_000_000,
        "Number of slots of RocketMQ's own open index files, to read them (--java-metadata); "
        "ours have as many as fit.",
        unit="slots",
        most=2**28,
    ),
)
