"""The keys of the configuration that finding messages by key has; `keys.py` lists all."""

from tieredstore.config.key import Key, Kind

BY_KEY = (
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
