"""Table of the configuration's keys, in the order of `conf/broker.conf`, and its text.

The keys of options are declared with their fields (`provider/setting.py`), all others here.
Also keys of the Java tiered store, and of the plug-in for Java brokers, without effect here.
"""

from collections.abc import Mapping

from container.index.options import IndexOptions
from container.options import JournalOptions, TierOptions, UpkeepOptions
from dispatcher.options import DispatchOptions
from fetcher.options import FetcherOptions
from provider.options import DiskCacheOptions, ObjectOptions, PosixOptions, RangeOptions
from provider.setting import PORT, Key, Kind, keys_of
from tieredstore.following.options import HotLogOptions
from tieredstore.hot.options import HotWriteOptions, ReadLimits, RetentionOptions

_NO_HEAP = "There is no Java heap; readAheadCacheSize bounds the cache."
_PLUG_IN = "Java classes are not loaded; the tier is a directory with a journal of its own."
_REFERENCES = "Waiting messages are bounded by tieredStoreWaitingMax and tieredStoreBytesInFlight."
_WINDOW = "The read-ahead window adapts to each reader."
_OF_BROKER = "The plug-in in the Java broker uses it."

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
    "tieredStorePluginTlsTrustCertPath": _OF_BROKER,
    "tieredStorePluginTlsCertPath": _OF_BROKER,
    "tieredStorePluginTlsKeyPath": _OF_BROKER,
    "tieredStorePluginAccountPath": _OF_BROKER,
}
"""Each of these keys, and why it has no effect."""

LEVELS = ("DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE")
PROCESSES = ("inline", "own")
OUR_PLUG_IN = "tieredstore.TieredMessageStore"
BROKER_PLUG_IN = "io.tieredstore.rocketmq.TieredStorePlugin"
"""Java class of `tieredstore java-plugin`, for a broker whose configuration is read here, too."""
SCHEME = "s3"
"""Scheme of the URL that `objectStoreBucket` abbreviates."""

OPTIONS = (
    DiskCacheOptions,
    DispatchOptions,
    FetcherOptions,
    HotLogOptions,
    HotWriteOptions,
    IndexOptions,
    JournalOptions,
    ObjectOptions,
    PosixOptions,
    RangeOptions,
    ReadLimits,
    RetentionOptions,
    TierOptions,
    UpkeepOptions,
)
_SECTIONS: Mapping[str, tuple[Key | str, ...]] = {
    "The broker": (
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
                "Refuse a store whose own config/topics.json names another broker or cluster; "
                "false after such a file was copied."
            ),
        ),
        Key(
            "storePathRootDir",
            Kind.PATH,
            "",
            "The broker's store directory; `tier` only reads it. Default: store in the home "
            "directory.",
            is_machines=True,
        ),
        "storePathCommitLog",
        "readOnlyCommitLogStorePaths",
        "enableDLegerCommitLog",
        Key(
            "storeType",
            Kind.TEXT,
            "default",
            "Where the broker keeps its ConsumeQueues: files (default) or RocksDB "
            "(defaultRocksDB).",
        ),
        Key(
            "enableControllerMode",
            Kind.SWITCH,
            default=False,
            meaning=(
                "True if the broker is replicated: a message is tiered once no clean election "
                "takes it back."
            ),
        ),
        Key(
            "allAckInSyncStateSet",
            Kind.SWITCH,
            default=False,
            meaning=(
                "True if all replicas in sync acknowledge a message before the broker confirms "
                "it: it is tiered at once."
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
            "Interval at which a replicated broker checks for silent replicas; such messages "
            "wait that long too.",
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
        "maxMessageSize",
    ),
    "Our own hot log": (
        Key(
            "messageStorePlugIn",
            Kind.TEXT,
            OUR_PLUG_IN,
            "Stores around the hot log, the outermost first: package.module.Class or an entry "
            "point, with commas (RocketMQ: none).",
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
        "defaultTopicQueueNums",
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "flushDiskType",
        "flushIntervalCommitLog",
        "flushIntervalConsumeQueue",
        "enabledAppendPropCRC",
        "maxTransferCountOnMessageInMemory",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInDisk",
        "maxTransferBytesOnMessageInDisk",
        "accessMessageInMemoryMaxRatio",
        "fileReservedTime",
        Key(
            "deleteWhen",
            Kind.DAY_HOURS,
            "04",
            "Hours of the local day in which files are deleted by their age, with semicolons: "
            "04;16.",
        ),
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "cleanFileForciblyEnable",
        "diskSpaceWarningLevelRatio",
        "tieredStoreUntieredPolicy",
        "deleteFileBatchMax",
        "cleanResourceInterval",
    ),
    "The tier": (
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
        "tieredStoreCommitLogMaxSize",
        "tieredStoreConsumeQueueMaxSize",
        "commitLogRollingInterval",
        "commitLogRollingMinimumSize",
        "tieredStoreExtentMaxSize",
        "tieredStoreCrcCheckEnable",
        "tieredStoreBodyCheckEnable",
        Key(
            "tieredStoreExtentCheckEnable",
            Kind.SWITCH,
            default=False,
            meaning=(
                "True: reading also verifies the checksum of every extent touched, and reads "
                "it whole (tieredStoreExtentMaxSize)."
            ),
        ),
        "tieredStoreCutGraceTime",
        "tieredStoreTakeoverTimeout",
        Key(
            "tieredStoreOwnerCheckInterval",
            Kind.MILLISECONDS,
            10_000,
            "Interval at which an idle owner checks whether another process took the tier; "
            "0: never.",
            least=0,
            object_default=60_000,
        ),
        "tieredStoreOwnerHeartbeatInterval",
        "tieredStoreOwnerLease",
        Key(
            "tieredStoreStatePath",
            Kind.PATH,
            "",
            "Directory in which a follower without pins keeps the identity of its tier; empty: "
            "that of systemd or of the user.",
        ),
        "tieredStoreJournalSnapshotCount",
        "tieredStoreJournalGraceTime",
        "tieredStoreOpenFilesMax",
        "tieredStoreReserveSize",
        "tieredStoreReadThreads",
    ),
    "An object store as the tier": (
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
                "True: an http:// endpoint may be on another host, where credentials and messages "
                "can be read on their way."
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
            meaning="True: requests accept that their caller pays, as some buckets require.",
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
            "File of certificates (PEM) that are trusted beside the system's. Empty: "
            "AWS_CA_BUNDLE.",
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
            "Encryption at rest that each upload requests; BUCKET: the setting of the bucket.",
            choices=("BUCKET", "AES256", "aws:kms"),
        ),
        Key(
            "objectStoreKmsKeyId",
            Kind.TEXT,
            "",
            "Key of aws:kms encryption (see objectStoreServerSideEncryption). Empty: the "
            "account's.",
        ),
        Key(
            "objectStoreEncryptionKeys",
            Kind.SECRET,
            "",
            "Master keys of encryption before upload, from the environment only: NAME:BASE64, ... "
            "The first one encrypts.",
            is_machines=True,
        ),
        "objectStoreRequestsMax",
        "objectStoreRequestTimeout",
        "objectStoreUploadRateMax",
        "objectStoreDownloadRateMax",
        Key(
            "objectStorePriceTable",
            Kind.PATH,
            "",
            "File with the prices of the object store. Empty: the shipped one, of Amazon S3.",
        ),
        "tieredStoreSegmentExtentsMax",
        "tieredStoreMergeExtentsMin",
        "tieredStoreMergeBytesMax",
        "tieredStoreSealSize",
        "tieredStoreSealTimeout",
        "tieredStoreClaimTimeout",
    ),
    "A second store": (
        Key(
            "tieredStoreOffloadPath",
            Kind.PATH,
            "",
            "Second store, to which closed segments move: a URL such as s3://bucket/prefix, "
            "or a directory. Empty: none.",
            is_machines=True,
        ),
        "tieredStoreOffloadAge",
        "tieredStoreOffloadTopicSize",
        "tieredStoreOffloadDeletionLag",
        "tieredStoreOffloadBytesInFlight",
        "tieredStoreOffloadInterval",
    ),
    "Retention": (
        "tieredStoreDeleteFileEnable",
        "tieredStoreFileReservedTime",
        "tieredStoreTopicReservedSize",
        "tieredStoreDeleteFileInterval",
    ),
    "Scrubbing": (
        "tieredStoreScrubEnable",
        "tieredStoreScrubInterval",
        "tieredStoreScrubMaxOperations",
    ),
    "Hot to cold": (
        Key(
            "tieredStoreGroupCommit",
            Kind.SWITCH,
            default=True,
            meaning=(
                "True: messages are collected into batches. False: each message is committed "
                "at once."
            ),
        ),
        "tieredStoreGroupCommitTimeout",
        "tieredStoreGroupCommitCount",
        "tieredStoreGroupCommitSize",
        "tieredStoreBatchesPerCommit",
        "tieredStoreBytesInFlight",
        "tieredStoreWaitingMax",
        Key(
            "tieredStoreProcess",
            Kind.CHOICE,
            "inline",
            "Process that tiers our own store: the one that appends and serves, or a process of "
            "its own beside it.",
            choices=PROCESSES,
        ),
        "tieredStorePollInterval",
        "tieredStoreScanInterval",
        "tieredStoreBackfill",
        "tieredStorePinPath",
        "tieredStorePinMaxSize",
        "tieredStoreMappedBytesMax",
        Key(
            "tieredStoreMetricsPort",
            Kind.COUNT,
            0,
            "Port of `tier --follow`, `run` and `serve` for /metrics, /healthz and /readyz; 0: "
            "not served.",
            unit="port",
            least=0,
            most=65_535,
        ),
        Key(
            "tieredStoreMetricsHost",
            Kind.TEXT,
            "127.0.0.1",
            "Address at which tieredStoreMetricsPort is served, such as 0.0.0.0 for every "
            "interface.",
        ),
        Key(
            "tieredStoreStartTimeout",
            Kind.MILLISECONDS,
            300_000,
            "Maximum time that `run` and `tier --follow` wait at their start for a storage "
            "that is unavailable, or refuses them for now.",
            least=0,
        ),
        "tieredStoreShutdownTimeout",
    ),
    "Cold to reader": (
        "readAheadCacheEnable",
        "readAheadCacheSize",
        "readAheadCacheExpireDuration",
        "readAheadMessageCountThreshold",
        "readAheadMessageSizeThreshold",
        "readAheadBytesInFlight",
        "readAheadPrefetchMax",
        "readAheadGapSize",
        "readAheadRequestSize",
        "readAheadHedgeDelay",
        "readAheadHedgeShare",
        "readAheadDiskCachePath",
        "readAheadDiskCacheSize",
    ),
    "Serving RocketMQ clients": (
        Key(
            "tieredStoreServePort",
            Kind.COUNT,
            0,
            "Port for RocketMQ clients of `tier --follow`, `run` and `serve`; 0: none, of `serve` "
            "9876.",
            unit="port",
            least=0,
            most=65_535,
        ),
        Key(
            "tieredStoreServeHost",
            Kind.TEXT,
            "127.0.0.1",
            "Address of tieredStoreServePort; unless loopback, it needs accounts, certificates of "
            "clients, or tieredStoreServeInsecure.",
        ),
        Key(
            "tieredStoreServeAddress",
            Kind.TEXT,
            "",
            "Address and port to which clients, and brokers with our plug-in, connect, such as "
            "from outside a container. Empty: host and port.",
        ),
        Key(
            "tieredStoreServeInsecure",
            Kind.SWITCH,
            default=False,
            meaning=(
                "True: every client that reaches tieredStoreServeHost may read all messages, "
                "unless accounts are configured."
            ),
        ),
        Key(
            "tieredStoreServeInFrontOf",
            Kind.TEXT,
            "",
            "HOST:PORT of the broker that requests of clients pass to; deleted messages come from "
            "the tier. Empty: none.",
        ),
        Key(
            "tieredStoreServeSlaveId",
            Kind.COUNT,
            0,
            "Broker id under which name servers list the server as a slave of the broker; 0: it "
            "is not registered.",
            least=0,
        ),
        Key(
            "namesrvAddr",
            Kind.TEXT,
            "",
            "Name servers, HOST:PORT;HOST:PORT, of tieredStoreServeInFrontOf and "
            "tieredStoreServeSlaveId.",
        ),
        Key(
            "tieredStoreServeAccountsPath",
            Kind.PATH,
            "",
            "File with an access key and its secret in each line, which sign requests (RocketMQ's "
            "ACL). Empty: none.",
        ),
        Key(
            "tieredStoreServeTlsCertPath",
            Kind.PATH,
            "",
            "The server's certificate chain (PEM); clients then need TLS. Empty: no TLS.",
        ),
        Key(
            "tieredStoreServeTlsKeyPath",
            Kind.PATH,
            "",
            "Key of tieredStoreServeTlsCertPath (PEM, without a password).",
        ),
        Key(
            "tieredStoreServeTlsTrustCertPath",
            Kind.PATH,
            "",
            "Authorities (PEM) of the certificates that clients must have. Empty: they need none.",
        ),
        Key(
            "tieredStoreServeStatePath",
            Kind.PATH,
            "",
            "Directory for consumerOffset.json, the offsets of served groups. Empty: one for each "
            "tier below tieredStoreStatePath.",
        ),
        Key(
            "tieredStoreServeNewGroups",
            Kind.CHOICE,
            "FIRST",
            "Begin of a group without offsets: the first message, or what its client is set to, "
            "which is the end by default.",
            choices=("FIRST", "CLIENT"),
        ),
        Key(
            "tieredStoreServeRefreshInterval",
            Kind.MILLISECONDS,
            500,
            "Interval at which a server of clients looks for what the tier's owner has published; "
            "a request each.",
            object_default=10_000,
        ),
    ),
    "Web console": (
        Key(
            "tieredStoreConsolePort",
            Kind.COUNT,
            0,
            "Port of the web console (extra `console`) of `tier --follow`, `run`, `serve` and "
            "`console`; 0: none, of `console` 8077.",
            unit="port",
            least=0,
            most=65_535,
        ),
        Key(
            "tieredStoreConsoleHost",
            Kind.TEXT,
            "127.0.0.1",
            "Address of tieredStoreConsolePort; unless loopback, it needs "
            "tieredStoreConsoleTokenPath.",
        ),
        Key(
            "tieredStoreConsoleTokenPath",
            Kind.PATH,
            "",
            "File with the token that every request to the console must have. Empty: none.",
        ),
    ),
    "Messages by key": (
        Key(
            "messageIndexEnable",
            Kind.SWITCH,
            default=True,
            meaning=(
                "True: the keys of messages that are tiered are kept in index files, for `query`."
            ),
        ),
        "tieredStoreIndexFileMaxIndexNum",
        "tieredStoreIndexFileMergedMaxIndexNum",
        "tieredStoreIndexFileRollingIdleInterval",
        Key(
            "tieredStoreIndexFileMaxHashSlotNum",
            Kind.COUNT,
            5_000_000,
            "Number of slots of RocketMQ's own open index files, to read them (--java-metadata).",
            unit="slots",
            most=2**28,
        ),
    ),
}
"""Keys by section. A name alone is that of a field's key."""

_OF_FIELDS = {key.name: key for options in OPTIONS for key in keys_of(options).values()}
SECTIONS: Mapping[str, tuple[Key, ...]] = {
    title: tuple(_OF_FIELDS[one] if isinstance(one, str) else one for one in keys)
    for title, keys in _SECTIONS.items()
}
KEYS: Mapping[str, Key] = {key.name: key for keys in SECTIONS.values() for key in keys}


HEAD = """\
# Every setting of tieredstore with its default, in RocketMQ's properties format. The file of a
# RocketMQ broker can be used unchanged: keys of the same name have the same meaning, and keys that
# only the broker needs are ignored. Environment variables (TIEREDSTORE_BROKER_NAME for brokerName)
# override this file, and `-D key=value` overrides both.
"""


def config_template() -> str:
    """A configuration file with every key at its default."""
    lines = [HEAD]
    for title, keys in SECTIONS.items():
        lines.append(f"# ---- {title} ----\n")
        lines.extend(_lines(key) for key in keys)
    return "\n".join(lines)


def _lines(key: Key) -> str:
    unit = "" if key.kind is Kind.TEXT else f" [{key.unit_name}]"
    value = str(key.default).lower() if isinstance(key.default, bool) else key.default
    comment = "#" if key.is_machines or key.object_default is not None else ""
    other = ""
    if key.object_default is not None:
        place = "the tier or its second store" if key.name.startswith("readAhead") else "the tier"
        other = f"# Default where {place} is in an object store: {key.object_default}\n"
    return f"# {key.meaning}{unit}\n{other}{comment}{key.name}={value}\n"
