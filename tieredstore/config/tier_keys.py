"""Keys of a tier: broker, object store, upkeep, index, readers; `keys.py` lists all."""

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


SCHEME = "s3"
"""Scheme of the URL that `objectStoreBucket` abbreviates."""

OBJECT_STORE = (
    Key(
        "objectStoreEndpoint",
        Kind.TEXT,
        "",
        "URL of an object store that speaks S3, such as https://s3.example.com; it may have a "
        "path. Empty: AWS.",
    ),
    Key(
        "objectStoreBucket",
        Kind.TEXT,
        "",
        "Bucket of the tier where tieredStoreFilePath is empty; the same as "
        "tieredStoreFilePath=s3://BUCKET.",
    ),
    Key(
        "objectStoreRegion",
        Kind.TEXT,
        "",
        "Region of the bucket. Empty: AWS_REGION, the region of the profile, or us-east-1.",
    ),
    Key(
        "objectStoreAccessKey",
        Kind.SECRET,
        "",
        "Access key, from the environment only. Empty: the AWS credential chain, such as "
        "AWS_ACCESS_KEY_ID.",
        is_machines=True,
    ),
    Key(
        "objectStoreSecretKey",
        Kind.SECRET,
        "",
        "Secret key, from the environment only. Empty: the AWS credential chain, such as "
        "AWS_SECRET_ACCESS_KEY.",
        is_machines=True,
    ),
    Key(
        "objectStoreAllowHttp",
        Kind.SWITCH,
        default=False,
        meaning=(
            "True: an http:// endpoint may be on another host, where credentials and messages can "
            "be read on their way."
        ),
    ),
    Key(
        "objectStoreAddressing",
        Kind.CHOICE,
        "PATH",
        "Place of the bucket in a URL: PATH for https://host/bucket, VIRTUAL for "
        "https://bucket.host.",
        choices=("PATH", "VIRTUAL"),
    ),
    Key(
        "objectStoreRequesterPays",
        Kind.SWITCH,
        default=False,
        meaning="True: requests accept that their caller pays, as some buckets want it.",
    ),
    Key(
        "objectStoreUploadChecksum",
        Kind.CHOICE,
        "CRC64NVME",
        "Checksum that goes with each upload, for the service to verify; NONE: no such header.",
        choices=("CRC64NVME", "SHA256", "NONE"),
    ),
    Key(
        "objectStoreCaBundle",
        Kind.PATH,
        "",
        "File of certificates (PEM) that are trusted beside the system's. Empty: AWS_CA_BUNDLE.",
    ),
    Key(
        "objectStoreProxy",
        Kind.TEXT,
        "",
        "URL of an HTTP proxy. Empty: HTTPS_PROXY or HTTP_PROXY. NO_PROXY and this host's own "
        "addresses are excepted.",
    ),
    Key(
        "objectStoreServerSideEncryption",
        Kind.CHOICE,
        "BUCKET",
        "Encryption at rest that is asked for with each object; BUCKET: what the bucket is set to.",
        choices=("BUCKET", "AES256", "aws:kms"),
    ),
    Key(
        "objectStoreKmsKeyId",
        Kind.TEXT,
        "",
        "Key of aws:kms encryption (see objectStoreServerSideEncryption). Empty: the account's.",
    ),
    Key(
        "objectStoreEncryptionKeys",
        Kind.SECRET,
        "",
        "Master keys of encryption before upload, from the environment only: NAME:BASE64, ... "
        "The first one encrypts.",
        is_machines=True,
    ),
    Key(
        "objectStoreRequestsMax",
        Kind.COUNT,
        32,
        "Maximum number of requests under way at once, uploads apart, of which there are 8.",
        "ObjectOptions.requests_max",
        "requests",
        most=1024,
    ),
    Key(
        "objectStoreRequestTimeout",
        Kind.MILLISECONDS,
        60_000,
        "Maximum time of a request that moves no bytes; each 512 KiB give it a second more.",
        "ObjectOptions.request_s_max",
    ),
    Key(
        "objectStoreUploadRateMax",
        Kind.BYTES,
        0,
        "Maximum number of bytes that are sent to an object store in a second; 0: any number.",
        "ObjectOptions.upload_bytes_per_s_max",
        "bytes a second",
        least=0,
    ),
    Key(
        "objectStoreDownloadRateMax",
        Kind.BYTES,
        0,
        "Maximum number of bytes that are read from an object store in a second; 0: any number.",
        "ObjectOptions.download_bytes_per_s_max",
        "bytes a second",
        least=0,
    ),
    Key(
        "objectStorePriceTable",
        Kind.PATH,
        "",
        "File with the prices of the object store. Empty: the shipped one, of Amazon S3.",
    ),
)


KIB = 1 << 10

PARTS = (
    Key(
        "tieredStoreSegmentExtentsMax",
        Kind.COUNT,
        64,
        "Small pieces of an open segment in an object store; more are merged at once.",
        "UpkeepOptions.extents_max",
        "pieces",
        least=16,
        most=4096,
    ),
    Key(
        "tieredStoreMergeExtentsMin",
        Kind.COUNT,
        1024,
        "Small pieces over all queues from which on a merge is worth its requests.",
        "UpkeepOptions.merge_extents_min",
        "pieces",
        most=1_000_000,
    ),
    Key(
        "tieredStoreMergeBytesMax",
        Kind.BYTES,
        32 * MIB,
        "Bytes that one merge rewrites, and of the objects that it makes; memory is twice that.",
        "UpkeepOptions.repack_bytes_max",
        least=64 * KIB,
        most=64 * MIB,
    ),
    Key(
        "tieredStoreSealSize",
        Kind.BYTES,
        16 * MIB,
        "Bytes from which on a closed segment in an object store gets objects of its own; smaller "
        "ones share objects.",
        "UpkeepOptions.seal_bytes_min",
        least=64 * KIB,
        most=64 * MIB,
    ),
    Key(
        "tieredStoreSealTimeout",
        Kind.MILLISECONDS,
        3_600_000,
        "Maximum time that small closed segments wait to be gathered (see tieredStoreSealSize).",
        "UpkeepOptions.seal_wait_s_max",
        least=1000,
    ),
    Key(
        "tieredStoreClaimTimeout",
        Kind.MILLISECONDS,
        5000,
        "How long an owner stands back when another process wants to take its tier.",
        "JournalOptions.claim_s_max",
        least=0,
        most=600_000,
    ),
)


OFFLOAD = (
    Key(
        "tieredStoreOffloadPath",
        Kind.PATH,
        "",
        "Second store, which closed segments move to: a URL as s3://bucket/prefix, or a "
        "directory. Empty: none.",
        is_machines=True,
    ),
    Key(
        "tieredStoreOffloadAge",
        Kind.HOURS,
        0,
        "Age of its newest message from which on a segment is closed and offloaded (see "
        "tieredStoreOffloadPath); 0: never by age.",
        "UpkeepOptions.offload_age_hours",
        least=0,
    ),
    Key(
        "tieredStoreOffloadTopicSize",
        Kind.BYTES,
        0,
        "Bytes of messages that the first store keeps of each topic, the newest; 0: any number.",
        "UpkeepOptions.offload_topic_bytes",
        least=0,
    ),
    Key(
        "tieredStoreOffloadDeletionLag",
        Kind.MILLISECONDS,
        14_400_000,
        "How long the first store keeps what was offloaded; what would expire within that time is "
        "not offloaded.",
        "UpkeepOptions.offload_lag_s",
        least=0,
    ),
    Key(
        "tieredStoreOffloadBytesInFlight",
        Kind.BYTES,
        128 * MIB,
        "Maximum bytes of segments that are being offloaded at once, each counted twice: as it is "
        "written, and as it is read back.",
        "UpkeepOptions.offload_bytes_in_flight_max",
    ),
    Key(
        "tieredStoreOffloadInterval",
        Kind.MILLISECONDS,
        600_000,
        "Interval between looks for segments to offload by age and size.",
        "UpkeepOptions.offload_interval_s",
        least=100,
    ),
)


RETENTION = (
    Key(
        "tieredStoreDeleteFileEnable",
        Kind.SWITCH,
        default=False,
        meaning=(
            "True: messages older than tieredStoreFileReservedTime are deleted (RocketMQ's "
            "default). False: none ever is."
        ),
        sets="UpkeepOptions.expires",
    ),
    Key(
        "tieredStoreFileReservedTime",
        Kind.HOURS,
        72,
        "Age from which on messages expire, unless their topic has a reserve.time (see "
        "tieredStoreDeleteFileEnable).",
        "UpkeepOptions.retention_hours",
    ),
    Key(
        "tieredStoreTopicReservedSize",
        Kind.BYTES,
        0,
        "Bytes of messages kept of each topic, the newest; 0: any number (see "
        "tieredStoreDeleteFileEnable).",
        "UpkeepOptions.topic_bytes_max",
        least=0,
    ),
    Key(
        "tieredStoreDeleteFileInterval",
        Kind.MILLISECONDS,
        3_600_000,
        "Interval between looks for messages that have expired (see tieredStoreDeleteFileEnable).",
        "UpkeepOptions.expiry_interval_s",
        least=100,
    ),
)


SCRUBBING = (
    Key(
        "tieredStoreScrubEnable",
        Kind.SWITCH,
        default=False,
        meaning=(
            "True: the owner verifies the tier in the background, as `tieredstore scrub` does, and "
            "goes on where that stopped."
        ),
        sets="UpkeepOptions.scrubs",
    ),
    Key(
        "tieredStoreScrubInterval",
        Kind.MILLISECONDS,
        3_600_000,
        "Interval between two parts of a scrub (see tieredStoreScrubEnable).",
        "UpkeepOptions.scrub_interval_s",
        least=100,
    ),
    Key(
        "tieredStoreScrubMaxOperations",
        Kind.COUNT,
        1000,
        "Requests after which a part of a scrub ends; one reads up to 16 MiB (see "
        "tieredStoreScrubEnable).",
        "UpkeepOptions.scrub_operations_max",
        "requests",
    ),
)


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
