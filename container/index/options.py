"""Limits of the index of messages by key, with the defaults."""

from dataclasses import dataclass

from container.index.items import KEY_ITEM_DTYPE

MIB = 1 << 20
BUILDING_ITEM_BYTES = 200
"""Copies in order, sort keys and the file, while it is made of items in memory or of files."""
INLINE_ITEMS_MAX = 16_384
"""Files of more items are built in a thread: longer than some 10 ms."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """When the keys that were collected are sealed into a file, and what may be read for them."""

    items_max: int = 500_000
    """Items of one file (`tieredStoreIndexFileMaxIndexNum`); one commit may add to it."""
    covered_bytes_max: int = 1024 * MIB
    """Records whose keys are in no file, in bytes: a restart reads so many again."""
    age_s_max: float = 10_800.0
    """A file is sealed when its first item was collected so long ago
    (`tieredStoreIndexFileRollingIdleInterval`), in seconds."""
    finish_items_min: int = 65_536
    """A clean end seals a file only with so many items ..."""
    finish_bytes_min: int = 64 * MIB
    """... or of records of so many bytes; less is faster read again than kept."""
    catch_up_bytes_max: int = 256 * MIB
    """Records whose keys are not known that one run of upkeep reads, in bytes."""
    merged_items_max: int = 1 << 20
    """Items of a file that smaller ones are merged into
    (`tieredStoreIndexFileMergedMaxIndexNum`)."""
    merge_growth: float = 4.0
    """A file is merged when the new one has so many times its items."""

    @property
    def memory_bytes_max(self) -> int:
        """Items collected, items being sealed, and what building one file takes, new or merged."""
        collected = self.items_max * 2 * KEY_ITEM_DTYPE.itemsize
        return collected + max(self.items_max, self.merged_items_max) * BUILDING_ITEM_BYTES
