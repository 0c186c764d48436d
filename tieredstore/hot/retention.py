"""Retention of CommitLog files by age and disk use, never before they are tiered. Pure.

`trimming.py` executes the plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class UntieredPolicy(Enum):
    """Policy for messages without a copy in the tier when the disk is nearly full."""

    KEEP = "keep"
    """Keep them. The disk may fill. Appends then fail, and nothing is lost."""
    DROP = "drop"
    """Delete the oldest file above `disk_force_ratio`. Appends continue, and the tier has a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionOptions:
    """Retention of messages in the hot log."""

    reserved_s: float = 72 * 3600
    """`fileReservedTime`: age of a file since its last write after which it is deleted, in
    seconds."""
    disk_clean_ratio: float = 0.75
    """`diskMaxUsedSpaceRatio`: share of the disk in use, 0 to 1, from which on tiered files are
    deleted at any age, the oldest first."""
    disk_forcible_ratio: float = 0.85
    """`diskSpaceCleanForciblyRatio`: share of the disk in use, 0 to 1, from which on files of
    messages that are never tiered are deleted before `reserved_s`, too. Those messages are lost."""
    clean_forcibly: bool = True
    """`cleanFileForciblyEnable`: whether such files are ever deleted before `reserved_s`."""
    disk_force_ratio: float = 0.90
    """`diskSpaceWarningLevelRatio`: share of the disk in use, 0 to 1, from which on `untiered`
    applies to files that are not tiered yet."""
    untiered: UntieredPolicy = UntieredPolicy.KEEP
    """`tieredStoreUntieredPolicy`."""
    delete_hours: frozenset[int] = frozenset()
    """`deleteWhen`: hours of the local day, 0 to 23, in which files are deleted by age; none: any
    hour."""
    files_max: int = 10
    """`deleteFileBatchMax`: maximum of files of one round."""
    interval_s: float = 10.0
    """`cleanResourceInterval`: time between two rounds, in seconds."""

    def __post_init__(self) -> None:
        if not 0 < self.disk_clean_ratio <= self.disk_force_ratio <= 1:
            raise ValueError(
                f"disk_clean_ratio {self.disk_clean_ratio} and disk_force_ratio"
                f" {self.disk_force_ratio} are not ascending within 0 to 1"
            )
        if not 0 < self.disk_forcible_ratio <= 1:
            raise ValueError(f"disk_forcible_ratio {self.disk_forcible_ratio} is not within 0 to 1")
        if self.reserved_s < 0 or self.files_max < 1:
            raise ValueError("reserved_s is at least 0, files_max at least 1")
        if not self.delete_hours <= frozenset(range(24)):
            raise ValueError(f"delete_hours {sorted(self.delete_hours)} are not within 0 to 23")
        if self.interval_s <= 0:
            raise ValueError(f"interval_s is {self.interval_s}, not above 0")


@dataclass(frozen=True, slots=True)
class LogFile:
    """CommitLog file."""

    base: int
    """CommitLog position of its first byte."""
    written_s: float
    """Time of its last write, Unix seconds."""


@dataclass(frozen=True, slots=True)
class Trim:
    """Result of one round of retention."""

    files: tuple[int, ...] = ()
    """First bytes of the files to delete, the oldest first."""
    held_back: int = 0
    """Number of files that are due but wait for the tier."""
    dropped: int = 0
    """Number of `files` with messages that are not tiered, or with young messages of topics that
    are never tiered."""


def plan_trim(
    files: Sequence[LogFile],
    *,
    file_bytes: int,
    tiered_position: int,
    only_position: int | None = None,
    now_s: float,
    disk_used: float,
    options: RetentionOptions,
    hour: int = 0,
) -> Trim:
    """Choose the files to delete now by `options`.

    The last file, which is written to, always stays.

    Args:
        files: all of them, the oldest first.
        file_bytes: length of each.
        tiered_position: position of the oldest record that the tier lacks.
        only_position: position of the oldest record that is never tiered, so that this log has the
            only copy; None: there is none.
        now_s: Unix seconds.
        disk_used: share of the disk in use, 0 to 1. Deletions of this round are not subtracted, so
            that `files_max` alone bounds a round.
        options: the rules.
        hour: of the local day, 0 to 23.
    """
    chosen: list[int] = []
    held_back = dropped = 0
    has_dropped = False
    is_full = disk_used >= options.disk_clean_ratio
    may_force = disk_used >= options.disk_forcible_ratio and options.clean_forcibly
    may_drop = disk_used >= options.disk_force_ratio and options.untiered is UntieredPolicy.DROP
    is_time = not options.delete_hours or hour in options.delete_hours
    for file in files[:-1]:
        is_old = is_time and now_s - file.written_s >= options.reserved_s
        is_only = only_position is not None and file.base + file_bytes > only_position
        if not is_old and not (is_full and (may_force or not is_only)):
            break  # files are deleted in order, so that no hole is left
        is_tiered = file.base + file_bytes <= tiered_position
        if not is_tiered and (not may_drop or has_dropped):
            held_back += 1
        elif not held_back and len(chosen) < options.files_max:
            chosen.append(file.base)
            has_dropped |= not is_tiered
            dropped += not is_tiered or (is_only and not is_old)
    return Trim(tuple(chosen), held_back, dropped)
