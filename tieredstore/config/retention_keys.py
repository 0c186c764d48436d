"""The keys of what the tier deletes, and when."""

from tieredstore.config.key import Key, Kind

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
