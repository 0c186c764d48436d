"""Retention of CommitLog files by age and disk use, never before they are tiered. Pure.

`trimming.py` executes the plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tieredstore.hot.options import RetentionOptions, UntieredPolicy


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
