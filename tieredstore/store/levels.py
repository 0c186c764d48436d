"""Levels, and who serves a read: RocketMQ's policy as a plain function."""

from enum import Enum, IntEnum
from typing import Self


class Level(IntEnum):
    """`tieredStorageLevel`: how much is read from the tier. Each includes those before it."""

    DISABLE = 0
    """Nothing, and nothing is tiered either. What is not in the tier yet stays in the hot log."""
    NOT_IN_DISK = 1
    """What the hot log does not have any more."""
    NOT_IN_MEM = 2
    """What is not in memory: the tier, not the disk of the hot log, serves those who are behind."""
    FORCE = 3
    """All that the tier has; the hot log serves what is newer."""

    @classmethod
    def of(cls, level: "Level | str | int") -> Self:
        """A level by its name or number, such as `NOT_IN_DISK`, 1 or "1".

        Raises:
            ValueError: there is no such level.
        """
        text = str(int(level)) if isinstance(level, int) else str(level).strip()
        for one in cls:
            if text in (one.name, str(one.value)):
                return one
        known = ", ".join(f"{one.name} ({one.value})" for one in cls)
        raise ValueError(f"{level!r} is no level; there are {known}")


class Source(Enum):
    """Who serves a read, or what must be known to tell."""

    HOT = "hot log"
    TIER = "tier"
    ASK_STORE = "is the message in the hot log?"
    ASK_MEMORY = "is the message in memory?"


def who_serves(  # noqa: PLR0911 - a return for each row of the table
    level: Level,
    offset: int,
    commit_offset: int | None,
    *,
    is_filtered: bool = False,
    in_store: bool | None = None,
    in_memory: bool | None = None,
) -> Source:
    """RocketMQ's read policy (`TieredMessageStore.fetchFromCurrentStore`), row by row. Pure.

    Args:
        level: the level now.
        offset: the first message that is wanted.
        commit_offset: the tier's commit offset of the queue; None if the tier does not have it.
        is_filtered: whether the topic is never tiered.
        in_store: whether the hot log has the message; None: not asked yet.
        in_memory: whether its pages are resident; None: not asked yet.

    Returns:
        Who serves, or which of the two must be asked first: both cost something.
    """
    if is_filtered:
        return Source.HOT
    if level is Level.FORCE:
        return Source.TIER
    if level is Level.DISABLE or commit_offset is None or offset >= commit_offset:
        return Source.HOT
    if in_store is None:
        return Source.ASK_STORE
    if not in_store:
        return Source.TIER
    if level is not Level.NOT_IN_MEM:
        return Source.HOT
    if in_memory is None:
        return Source.ASK_MEMORY
    return Source.HOT if in_memory else Source.TIER
