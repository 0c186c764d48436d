"""Limits of the index of messages by key, with the defaults."""

from dataclasses import dataclass

from container.index.items import KEY_ITEM_DTYPE

MIB = 1 << 20
BUILDING_ITEM_BYTES = 200
"""Copies in order, sort keys and the file, while it is made."""


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

    @property
    def memory_bytes_max(self) -> int:
        """Items collected, items being sealed, and what building their file takes."""
        return self.items_max * (2 * KEY_ITEM_DTYPE.itemsize + BUILDING_ITEM_BYTES)
