"""The keys of a second store; `keys.py` lists all."""

from tieredstore.config.key import Key, Kind

MIB = 1 << 20

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
