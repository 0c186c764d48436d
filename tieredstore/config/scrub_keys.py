"""The keys of scrubbing: what an owner verifies in the background."""

from tieredstore.config.key import Key, Kind

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
