"""Identity of a ConsumeQueue: same incarnation, or another one of its name."""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import numpy as np

from container.names.queue_id import QueueId
from container.record.unit import ConsumeQueueUnit, Units
from provider.errors import Corrupt, NotFound, OutOfRange
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.queues.files import ConsumeQueueFiles


class QueueNames:
    """Names of queues below the parent directory of all ConsumeQueues. One thread at a time.

    A missing directory is a deletion only while the parent directory is the same as before: a
    volume that is not mounted deletes nothing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._place: tuple[int, int] | None = None
        """Device and inode of the directory in which queues were seen last."""

    def __repr__(self) -> str:
        return f"<QueueNames of {self._root}>"

    def gone(self, known: Collection[QueueId], found: Collection[QueueId]) -> list[QueueId]:
        """Return the known queues that were deleted, given all queues that a scan found.

        One `stat`, and one for each queue that was not found.
        """
        away = set(known).difference(found)
        place = _place_of(self._root)
        if place is None:
            return []
        if place != self._place:
            if len(away) < len(known) or not known:
                self._place = place
            return []
        return self._without_name(away)

    def vanished(self, away: Collection[QueueId]) -> list[QueueId]:
        """Return the queues of `away` that were deleted. Call it after `gone`."""
        if not away or _place_of(self._root) != self._place:
            return []
        return self._without_name(away)

    def _without_name(self, away: Collection[QueueId]) -> list[QueueId]:
        return sorted(queue for queue in away if not self._stands(queue))

    def _stands(self, queue: QueueId) -> bool:
        """Whether the queue's directory may exist. It does not only if its name is gone.

        A dangling link of the queue or its topic counts as existing, and so does an unreadable
        path.
        """
        topic = self._root / queue.topic
        try:
            os.lstat(topic / str(queue.queue_id))
        except FileNotFoundError:
            return topic.is_symlink() and not os.path.exists(topic)  # noqa: PTH110 - False for errors
        except OSError:
            return True
        return True


def _place_of(directory: Path) -> tuple[int, int] | None:
    """Return device and inode of a directory; None if it cannot be read."""
    try:
        status = os.stat(directory)  # noqa: PTH116 - often called
    except OSError:
        return None
    return status.st_dev, status.st_ino


def first_unit(files: ConsumeQueueFiles) -> tuple[int, ConsumeQueueUnit] | None:
    """Return offset and unit of the first message; None while there is none.

    Raises:
        NotFound, Corrupt, Unavailable, Denied: the units cannot be read.
    """
    if not files.run.bases:
        return None
    first = files.first_offset
    unit = files.unit(first)
    if unit.is_filler:
        written = files.written_end(first)
        first = files.after_fillers(first, written)
        if first == written:
            return None
        unit = files.unit(first)
    return (first, unit) if unit.size else None


def names_message(log: CommitLogFiles, queue: QueueId, offset: int, unit: ConsumeQueueUnit) -> bool:
    """Whether a unit is of this message and not damaged, by its record. O(record).

    True if that part of the CommitLog was deleted from its front, so that nothing contradicts.

    Raises:
        Unavailable, Denied: the record cannot be read now.
    """
    log.reach(unit.position)  # the queue's files were read later than the log's
    try:
        log.check(queue, offset, unit)
    except (Corrupt, OutOfRange):
        return unit.position + unit.size <= log.table.min_position
    return True


def before_place(units: Units, end_position: int) -> Units:
    """Return the units before the first one whose record lies at or after `end_position`. Pure."""
    beyond = np.flatnonzero(units["position"] >= end_position)
    return units[: int(beyond[0])] if len(beyond) else units


def is_made_again(
    files: ConsumeQueueFiles,
    log: CommitLogFiles,
    queue: QueueId,
    end: int,
    end_position: int,
    *,
    first: tuple[int, ConsumeQueueUnit] | None = None,
) -> bool:
    """Whether the files are another incarnation's than the one of which `end` messages were seen.

    A damaged unit proves nothing: if the first one is, the one before `end` decides.

    Args:
        files: the present files.
        log: the CommitLog.
        queue: the name of the files.
        end: the offset after the last message that was seen.
        end_position: position after its record in the CommitLog; 0: unknown, so the result is
            False.
        first: the `first_unit` of the files, if it was read before: they may be gone by now.

    Raises:
        Unavailable, Denied: the units cannot be read now.
    """
    if not end_position or files.first_offset >= end:
        return False
    last = _unit_at(files, end - 1)
    if last is not None and last.position + last.size == end_position:
        return False
    if first is None:
        with suppress(NotFound, Corrupt):  # its reader raises the error
            first = first_unit(files)
    if first is not None and names_message(log, queue, *first):
        return first[1].position >= end_position
    if last is None or last.position < end_position:
        return False
    return names_message(log, queue, end - 1, last)


def _unit_at(files: ConsumeQueueFiles, offset: int) -> ConsumeQueueUnit | None:
    """Return the unit of a message; None if none can be read."""
    if not files.has_file(offset):
        return None
    try:
        unit = files.unit(offset)
    except (NotFound, Corrupt):
        return None  # its reader raises the error
    return None if unit.is_filler or not unit.size else unit


def is_continued(files: ConsumeQueueFiles, end: int, end_position: int) -> bool:
    """Whether the unit before `end` is the one that was seen there; True if it is missing.

    Costs one `pread` at most. Arguments as for `is_made_again`.

    Raises:
        NotFound, Corrupt, Unavailable, Denied: it cannot be read.
    """
    if not end_position or end <= files.first_offset or not files.has_file(end - 1):
        return True
    unit = files.unit_now(end - 1)
    return unit.is_filler or unit.position + unit.size == end_position
