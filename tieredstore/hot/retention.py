"""Which CommitLog files may be deleted: by age and by disk use, and never before the tier has them.

A plain function of values; `trimming.py` acts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class UntieredPolicy(Enum):
    """What happens under disk pressure to messages that are not in the tier yet."""

    KEEP = "keep"
    """They stay. The disk may fill; appends fail then, and nothing is lost."""
    DROP = "drop"
    """The oldest file goes above `disk_force_ratio`: appends continue, and the tier has a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionOptions:
    """How long our own hot log keeps messages."""

    reserved_s: float = 72 * 3600
    """`fileReservedTime`: age of a file, since it was written last, from which on it goes."""
    disk_clean_ratio: float = 0.75
    """`diskMaxUsedSpaceRatio`: share of the disk in use from which on files that are in the tier
    go whatever their age, the oldest first."""
    disk_forcible_ratio: float = 0.85
    """`diskSpaceCleanForciblyRatio`: share of the disk in use from which on files of messages that
    no tier takes go before `reserved_s`, too: they are lost then."""
    clean_forcibly: bool = True
    """`cleanFileForciblyEnable`: whether such files go at all before `reserved_s`."""
    disk_force_ratio: float = 0.90
    """`diskSpaceWarningLevelRatio`: share of the disk in use from which on `untiered` says what
    happens to the others."""
    untiered: UntieredPolicy = UntieredPolicy.KEEP
    """`tieredStoreUntieredPolicy`."""
    delete_hours: frozenset[int] = frozenset()
    """`deleteWhen`: hours of the local day, 0 to 23, in which files go by age; none: at any."""
    files_max: int = 10
    """`deleteFileBatchMax`: most files of one round."""
    interval_s: float = 10.0
    """`cleanResourceInterval`: time between two rounds."""

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
    """One file of the CommitLog."""

    base: int
    """Its first byte."""
    written_s: float
    """When it was written last, Unix seconds."""


@dataclass(frozen=True, slots=True)
class Trim:
    """What one round of retention does, and what kept it from more."""

    files: tuple[int, ...] = ()
    """First bytes of the files to delete, the oldest first."""
    held_back: int = 0
    """How many files are due and wait for the tier."""
    dropped: int = 0
    """How many of `files` hold messages that are not in the tier, and young ones that no tier
    takes."""


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
    """Which files go now, by the rules above; the last file, which is written to, always stays.

    Args:
        files: all of them, the oldest first.
        file_bytes: length of each.
        tiered_position: the record of the oldest message that the tier lacks begins here.
        only_position: the record of the oldest message that no tier takes begins here, so that
            this log has the only copy; None: there is none.
        now_s: Unix seconds.
        disk_used: share of the disk in use, 0 to 1; each file that goes is taken to free nothing,
            so that a round is bounded by `files_max` alone.
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
            break  # files go in order, so that no hole is left
        is_tiered = file.base + file_bytes <= tiered_position
        if not is_tiered and (not may_drop or has_dropped):
            held_back += 1
        elif not held_back and len(chosen) < options.files_max:
            chosen.append(file.base)
            has_dropped |= not is_tiered
            dropped += not is_tiered or (is_only and not is_old)
    return Trim(tuple(chosen), held_back, dropped)
