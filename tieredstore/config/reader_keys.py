"""The keys of the configuration that reading has; `keys.py` lists all."""

from tieredstore.config.key import Key, Kind

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

COLD_TO_READER = (
    Key(
        "readAheadCacheEnable",
        Kind.SWITCH,
        default=True,
        meaning=(
            "True: messages that were read are cached, and reading continues ahead of the reader."
        ),
        sets="FetcherOptions.cache_enabled",
    ),
    Key(
        "readAheadCacheSize",
        Kind.BYTES,
        256 * MIB,
        "Maximum bytes that the cache occupies (RocketMQ: a share of Java's heap).",
        "FetcherOptions.cache_bytes_max",
    ),
    Key(
        "readAheadCacheExpireDuration",
        Kind.MILLISECONDS,
        15_000,
        "Time after its last use at which a cached range of messages is dropped.",
        "FetcherOptions.cache_age_s_max",
    ),
    Key(
        "readAheadMessageCountThreshold",
        Kind.COUNT,
        4096,
        "Maximum number of messages in one read from storage.",
        "FetcherOptions.run_messages_max",
        "messages",
        least=32,
        object_default=16_384,
    ),
    Key(
        "readAheadMessageSizeThreshold",
        Kind.BYTES,
        16 * MIB,
        "Maximum bytes of records in one read from storage; a larger message is read alone.",
        "FetcherOptions.run_bytes_max",
        object_default=32 * MIB,
    ),
    Key(
        "readAheadBytesInFlight",
        Kind.BYTES,
        64 * MIB,
        "Maximum bytes of records in all reads that are under way, over all readers.",
        "FetcherOptions.bytes_in_flight_max",
    ),
    Key(
        "readAheadPrefetchMax",
        Kind.COUNT,
        2,
        "Maximum number of reads ahead that are under way at once; reads that a caller waits for "
        "come first.",
        "FetcherOptions.prefetches_max",
        "reads",
        least=0,
        object_default=8,
    ),
    Key(
        "readAheadGapSize",
        Kind.BYTES,
        16 * KIB,
        "Maximum number of unwanted bytes between two wanted messages that are read too, to save "
        "a request.",
        "FetcherOptions.gap_bytes_max",
        least=0,
        object_default=256 * KIB,
    ),
    Key(
        "readAheadRequestSize",
        Kind.BYTES,
        16 * MIB,
        "Maximum bytes of one request to an object store; a longer range is read in pieces side "
        "by side.",
        "RangeOptions.request_bytes_max",
        least=KIB,
    ),
    Key(
        "readAheadHedgeDelay",
        Kind.MILLISECONDS,
        0,
        "Time after which a read from an object store that has no answer is asked for a second "
        "time; 0: never.",
        "RangeOptions.hedge_after_s",
        least=0,
    ),
    Key(
        "readAheadHedgeShare",
        Kind.PERCENT,
        5,
        "Maximum share of reads that are asked for a second time (see readAheadHedgeDelay).",
        "RangeOptions.hedge_share_max",
        most=100,
    ),
    Key(
        "readAheadDiskCachePath",
        Kind.PATH,
        "",
        "Directory that keeps what was read from an object store, over restarts; processes may "
        "share it. Empty: none.",
    ),
    Key(
        "readAheadDiskCacheSize",
        Kind.BYTES,
        10 * GIB,
        "Maximum bytes of files in readAheadDiskCachePath; the longest unused go first.",
        "DiskCacheOptions.bytes_max",
    ),
)
