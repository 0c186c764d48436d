"""Limits of the index of messages by key, with their defaults."""

from dataclasses import dataclass

from container.index.layout import KEY_ITEM_DTYPE
from provider.setting import MIB, Kind, setting

BUILDING_ITEM_BYTES = 200
"""Memory per item while a file is built from memory or files: sorted copies, sort keys and the
file."""
HELD_FILES = 3
"""Index files whose items fit into memory: one being built, one that waits, one being collected."""
INLINE_ITEMS_MAX = 16_384
"""Files with more items are built in a thread, as they take longer than some 10 ms."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Triggers for sealing collected keys into a file, and limits of reads for it."""

    items_max: int = setting(
        "tieredStoreIndexFileMaxIndexNum",
        Kind.COUNT,
        500_000,
        "Number of keys in an index file (RocketMQ: 20000000); 308 bytes of memory each.",
        unit="keys",
        most=50_000_000,
    )
    """A commit may exceed it."""
    room_wait_s_max: float = 5.0
    """Longest wait of a commit for memory for its keys, in seconds. Without room its keys are read
    again later. After a wait in vain, commits do not wait until a file is published."""
    covered_bytes_max: int = 1024 * MIB
    """Limit of records whose keys are in no file, in bytes. A restart reads them again."""
    age_s_max: float = setting(
        "tieredStoreIndexFileRollingIdleInterval",
        Kind.MILLISECONDS,
        10_800_000,
        "Time after which keys are written into an index file, whatever their number.",
    )
    finish_items_min: int = 65_536
    """A clean end seals a file with at least this many items ..."""
    finish_bytes_min: int = 64 * MIB
    """... or this many bytes of records. Fewer are faster to read again than to keep."""
    catch_up_bytes_max: int = 256 * MIB
    """Limit of records that one run of upkeep reads for unknown keys, in bytes."""
    merged_items_max: int = setting(
        "tieredStoreIndexFileMergedMaxIndexNum",
        Kind.COUNT,
        1 << 20,
        "Number of keys in a merged index file; 200 bytes of memory each.",
        unit="keys",
        most=50_000_000,
    )
    merge_growth: float = 4.0
    """A file is merged if the new one has this multiple of its items."""

    @property
    def memory_bytes_max(self) -> int:
        """Bytes of the items in memory, and of the build of one file.

        For commits of at most twice `items_max` keys.
        """
        held = HELD_FILES * self.items_max * KEY_ITEM_DTYPE.itemsize
        return held + max(self.items_max, self.merged_items_max) * BUILDING_ITEM_BYTES
