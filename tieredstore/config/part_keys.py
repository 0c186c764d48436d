"""The keys of how parts are merged and gathered in an object store (decision 0031)."""

from tieredstore.config.key import Key, Kind

KIB = 1 << 10
MIB = 1 << 20

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
