"""Retention of CommitLog files by age and disk use, never before they are tiered.

The plans are pure; `trim` executes them for `HotLog.trim`.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from container.names.queue_id import QueueId
from provider.errors import Corrupt
from tieredstore.hot.appender import Appender
from tieredstore.hot.options import RetentionOptions, UntieredPolicy
from tieredstore.hot.reading import first_with_record, store_time


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


HoldsBack = Callable[[QueueId], int | None]
"""Function that returns the first offset of a queue to keep; None: all of it may be deleted."""


def tiered_position(
    appender: Appender, offsets: Mapping[QueueId, int], end: int, *, verifies: bool
) -> int:
    """Return the position of the oldest record that must stay; `end` if there is none.

    Reads one unit for each queue of `offsets`. `verifies`: reads the head of the record, too: a
    damaged unit may point anywhere.

    Raises:
        OSError: a unit cannot be read.
    """
    position = end
    for queue, offset in offsets.items():
        if offset < appender.next_offsets.get(queue, 0):
            at = max(offset, appender.queues.first_offset(queue))
            position = min(position, _position_of(appender, queue, at, verifies=verifies))
    return position


def oldest_position(appender: Appender, queues: Collection[QueueId]) -> int | None:
    """Return the position of the oldest record of these queues; None if they have none.

    Reads some 20 units for each queue, and the head of a record.

    Raises:
        OSError: a unit cannot be read.
    """
    found: list[int] = []
    for queue in queues:
        first = first_with_record(appender, queue)
        if first < appender.next_offsets.get(queue, 0):
            found.append(_position_of(appender, queue, first, verifies=True))
    return min(found, default=None)


def _position_of(appender: Appender, queue: QueueId, offset: int, *, verifies: bool) -> int:
    """Return the position of a record, or one before it if unit or record are damaged.

    A filler's is 0, which keeps everything.
    """
    position = appender.queues.unit(queue, offset).position
    if not verifies:
        return position
    with suppress(Corrupt):
        if store_time(appender, queue, offset) is not None:
            return position
    before = appender.queues.unit_if_there(queue, offset - 1).position
    return min(position, before)


def share_in_use(usage: os.statvfs_result) -> float:
    """Share of a disk in use, 0 to 1, as `df` and RocketMQ count it: without reserved blocks."""
    used = usage.f_blocks - usage.f_bfree
    return used / (used + usage.f_bavail) if used + usage.f_bavail > 0 else 0.0


def trim(
    appender: Appender, holds_back: HoldsBack, options: RetentionOptions, now_s: float
) -> Trim:
    """Delete the CommitLog files that are due, then ConsumeQueue files without a record left.

    Raises:
        Unavailable: the directory was moved.
        OSError: a file cannot be read or deleted; a later call deletes the rest.
    """
    appender.directory.refuse_if_moved()
    log, queues, end = appender.log, appender.queues, appender.end
    offsets = {
        queue: offset
        for queue in list(appender.next_offsets)
        if (offset := holds_back(queue)) is not None
    }
    disk_used = share_in_use(os.statvfs(log.directory))
    only_position = None
    if disk_used >= options.disk_clean_ratio:  # else files are deleted by age alone
        only_position = oldest_position(appender, appender.next_offsets.keys() - offsets.keys())
    files = [LogFile(base, log.path(base).stat().st_mtime) for base in list(log.bases)]
    planned = Trim()
    for verifies in (False, True):
        planned = plan_trim(
            files,
            file_bytes=log.file_bytes,
            tiered_position=tiered_position(appender, offsets, end, verifies=verifies),
            only_position=only_position,
            now_s=now_s,
            disk_used=disk_used,
            options=options,
            hour=datetime.fromtimestamp(now_s, UTC).astimezone().hour,
        )
        if not planned.files:
            break
    appender.delete_oldest(planned.files)
    if planned.files:
        for queue in list(queues.bases):
            queues.delete_below(queue, first_with_record(appender, queue))
    return planned
